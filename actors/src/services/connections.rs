//! Connections of organisations to sources of tools, and the secrets that they need. The enabled connections are in memory, since
//! the gate asks for them; [`crate::operator::connections`] changes both.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use effectd_bus::{FamilyName, Store, StoreError};
use effectd_contracts::{
    Code, Connection, ConnectionId, Connector, Failure, HttpAccess, OrgId, Phase, Principal, SecretName,
    Timestamp,
};
use parking_lot::{Mutex, RwLock};
use serde::{Deserialize, Serialize, Serializer};
use zeroize::Zeroizing;

use super::Services;
use crate::limits::CONNECTIONS_PAGE;
use crate::stored::{entries, read_json};

/// Connections by id, in clear.
pub(crate) const CONNECTIONS: &str = "connections";
/// Secrets by `<org>/<name>`, sealed.
pub(crate) const SECRETS: &str = "secrets";

/// An enabled connection, as a decision sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Enabled {
    pub connection_id: ConnectionId,
    /// The version of the Store's entry: a changed connection is another one.
    pub version: u64,
    pub hosts: Vec<String>,
    /// The names of the secrets that it needs.
    pub secrets: Vec<String>,
    /// How exchanges reach it, if it leads to one service.
    pub access: Option<Arc<HttpAccess>>,
    /// The MCP server that it leads to.
    pub connector: Option<Arc<Connector>>,
}

type BySource = HashMap<(OrgId, String), Arc<Enabled>>;

/// The enabled connections. Each change replaces all of them.
#[derive(Debug, Default)]
pub struct Connections {
    enabled: RwLock<Arc<BySource>>,
    /// Serialises changes of connections, secrets, sessions and tokens, so that a check still holds when its change is written.
    pub(crate) changes: Arc<tokio::sync::Mutex<()>>,
    /// Connectors whose servers effectd itself is asking for their tools.
    pub(crate) harvests: Mutex<HashSet<ConnectionId>>,
    /// The names of all tools by which a description could lead a model to another tool.
    pub(crate) tool_names: RwLock<Arc<BTreeSet<String>>>,
}

impl Connections {
    pub(crate) fn load(store: &dyn Store) -> Self {
        let connections = Self::default();
        connections.reload(store);
        connections
    }

    /// Reads them again after a change. If they cannot be read, none is enabled: decisions become stricter.
    pub(crate) fn reload(&self, store: &dyn Store) {
        let enabled = enabled(store).unwrap_or_else(|error| {
            tracing::error!(%error, "connections cannot be read; none is enabled");
            HashMap::new()
        });
        *self.enabled.write() = Arc::new(enabled);
    }

    /// The sources of enabled connections that have tools of their own, over all organisations, in order.
    pub(crate) fn sources(&self) -> BTreeSet<String> {
        let enabled = self.enabled.read().clone();
        let wired =
            enabled.iter().filter(|(_, enabled)| enabled.access.is_some() && enabled.connector.is_none());
        wired.map(|((_, source), _)| source.clone()).collect()
    }
}

impl Services {
    /// The enabled connection of an organisation to a source of tools.
    pub fn connection(&self, org: &OrgId, source: &str) -> Option<Arc<Enabled>> {
        let enabled = self.connections.enabled.read().clone();
        enabled.get(&(org.clone(), source.to_owned())).cloned()
    }

    /// A secret, for one call.
    pub(crate) fn secret(&self, org: &OrgId, name: &str) -> Result<Secret, Failure> {
        let read = || self.store.entry(&FamilyName::new(SECRETS)?, &format!("{org}/{name}"));
        let entry = read().map_err(|error| error.failure(Phase::Dispatch))?;
        let missing =
            || Failure::new(Code::SecretMissing, Phase::Dispatch, format!("{org} has no secret {name:?}"));
        entry.as_ref().and_then(read_json).ok_or_else(missing)
    }
}

fn enabled(store: &dyn Store) -> Result<BySource, StoreError> {
    let mut found = HashMap::new();
    for (connection, version) in all(store)? {
        if connection.enabled {
            let Connection { connection_id, org, source, hosts, secrets, access, connector, .. } = connection;
            let (access, connector) = (access.map(Arc::new), connector.map(Arc::new));
            let enabled = Enabled { connection_id, version, hosts, secrets, access, connector };
            found.insert((org, source), Arc::new(enabled));
        }
    }
    Ok(found)
}

/// The name of a connection, unless it is deleted.
pub fn name_of(store: &dyn Store, id: &ConnectionId) -> Result<Option<String>, StoreError> {
    let entry = store.entry(&FamilyName::new(CONNECTIONS)?, id.as_str())?;
    Ok(entry.as_ref().and_then(read_json).map(|known: Connection| known.name))
}

/// All connections, each with the version of its entry.
pub fn all(store: &dyn Store) -> Result<Vec<(Connection, u64)>, StoreError> {
    let mut found = Vec::new();
    for entry in entries(store, &FamilyName::new(CONNECTIONS)?, CONNECTIONS_PAGE) {
        let entry = entry?;
        found.extend(read_json(&entry).map(|connection| (connection, entry.version)));
    }
    Ok(found)
}

/// The value of a secret or a token. It is wiped when dropped, and no `Debug` shows it.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(from = "String")]
pub struct SecretValue(Zeroizing<String>);

impl SecretValue {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The value itself, to compare it or to show it once.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<String> for SecretValue {
    fn from(value: String) -> Self {
        Self(Zeroizing::new(value))
    }
}

/// For the sealed entry, for the request that sets it, and for the one answer that shows a new token.
impl Serialize for SecretValue {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&self.0)
    }
}

impl fmt::Debug for SecretValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretValue")
    }
}

/// What the sealed entry of a secret holds.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Secret {
    pub(crate) value: SecretValue,
    pub(crate) set_by: Principal,
    pub(crate) set_at: Timestamp,
}

/// All secrets, by organisation and name, without their values.
pub fn secrets(store: &dyn Store) -> Result<Vec<SecretName>, StoreError> {
    let mut found = Vec::new();
    for entry in entries(store, &FamilyName::new(SECRETS)?, CONNECTIONS_PAGE) {
        let entry = entry?;
        let (Some((org, name)), Some(secret)) = (entry.key.rsplit_once('/'), read_json::<Secret>(&entry))
        else {
            continue;
        };
        let (org, name) = (OrgId::new(org)?, name.to_owned());
        found.push(SecretName { org, name, set_by: secret.set_by, set_at: secret.set_at });
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn no_debug_output_shows_the_value_of_a_secret() {
        let value = SecretValue::from("the canary sings".to_owned());
        let (set_by, set_at) = (Principal::new("user://a").unwrap(), Timestamp::from_second(1).unwrap());
        let secret = Secret { value, set_by, set_at };
        assert!(!format!("{secret:?} {secret:#?}").contains("canary"));
        let wrong = serde_json::from_str::<Secret>(r#"{"value": "the canary sings", "set_by": 7}"#);
        assert!(!wrong.unwrap_err().to_string().contains("canary"));
    }
}
