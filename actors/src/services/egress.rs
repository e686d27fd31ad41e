//! What leaves this machine for tools: the broker, the places of actions that wait for a service, and the tools that connections have.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use effectd_contracts::access::is_wired;
use effectd_contracts::limits::EXCHANGE_ANSWER_BYTES_MAX;
use effectd_contracts::{Code, CredentialHeader, DatabaseLogin, Exchange, Failure, HttpAccess, OrgId, Phase};
use effectd_egress::{Broker, Credential, Login, Order, Origin, Secret};
use parking_lot::Mutex;

use super::Services;
use super::connections::Enabled;
use super::oauth::{Flights, TokenInUse};
use super::overlays;
use crate::limits::{EGRESS_PLACES, EGRESS_PLACES_OF_ORG, OVERLOAD_RETRY};
use crate::registry::{Definition, RegisteredTool};

/// The tools of a connection, by its source.
pub type ToolsOf = Arc<dyn Fn(&str) -> Vec<Definition> + Send + Sync>;

pub struct Egress {
    pub(crate) broker: Arc<Broker>,
    tools: ToolsOf,
    /// Actions that have a place, by organisation.
    places: Mutex<HashMap<OrgId, usize>>,
    pub(crate) flights: Flights,
}

impl fmt::Debug for Egress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Egress").field("broker", &self.broker).finish_non_exhaustive()
    }
}

/// A place of an action that may wait for a service. Dropping it gives it back.
pub(crate) struct Place {
    egress: Arc<Egress>,
    org: OrgId,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut places = self.egress.places.lock();
        if let Some(taken) = places.get_mut(&self.org) {
            *taken -= 1;
        }
        places.retain(|_, taken| *taken > 0);
    }
}

impl Egress {
    pub fn new(broker: Arc<Broker>, tools: ToolsOf) -> Arc<Self> {
        Arc::new(Self { broker, tools, places: Mutex::default(), flights: Flights::default() })
    }

    /// A place, or the answer to come back later: a service that is slow must not keep actions on files from their slots.
    pub(crate) fn place(self: &Arc<Self>, org: &OrgId) -> Result<Place, Failure> {
        let mut places = self.places.lock();
        let all: usize = places.values().sum();
        let own = places.entry(org.clone()).or_default();
        if all >= EGRESS_PLACES || *own >= EGRESS_PLACES_OF_ORG {
            let message =
                format!("{all} actions wait for services, {own} of them of {org}; try again shortly");
            return Err(Failure::new(Code::ToolBusy, Phase::Dispatch, message).retry_after(OVERLOAD_RETRY));
        }
        *own += 1;
        Ok(Place { egress: self.clone(), org: org.clone() })
    }
}

/// The way to the service of a connection, with its secrets: for one call, and no longer.
pub(crate) struct Way {
    pub(crate) access: Arc<HttpAccess>,
    origin: Origin,
    credential: Option<Credential>,
    login: Option<Login>,
    /// What is removed from answers.
    secrets: Vec<Secret>,
    /// Where the credential is from, if it is an access token.
    token: Option<TokenInUse>,
}

impl Way {
    pub(crate) fn order(&self, exchange: Exchange, time_ms: u64) -> Order {
        Order {
            id: 0,
            origin: self.origin.clone(),
            credential: self.credential.clone(),
            login: self.login.clone(),
            secrets: self.secrets.clone(),
            exchange,
            own_headers: Vec::new(),
            time_ms,
            bytes_max: EXCHANGE_ANSWER_BYTES_MAX,
            only_dial: false,
        }
    }

    pub(crate) fn host(&self) -> &str {
        &self.origin.host
    }

    /// The service does not know who asks. If that was an access token, another is got for the next call.
    pub(crate) async fn unauthorized(&self) {
        if let Some(token) = &self.token {
            token.forget().await;
        }
    }
}

/// Where a connection leads.
pub(super) fn origin(source: &str, enabled: &Enabled) -> Result<(Arc<HttpAccess>, Origin), Failure> {
    let (Some(access), [host]) = (enabled.access.clone(), enabled.hosts.as_slice()) else {
        let why = format!("{source} is no connection to one service");
        return Err(Failure::new(Code::ConnectionMissing, Phase::Dispatch, why));
    };
    let origin = Origin {
        connection: format!("{}#{}", enabled.connection_id, enabled.version),
        scheme: access.scheme,
        host: host.clone(),
        port: access.port(),
        trust: access.trust.clone(),
        allowed: access.allow.clone(),
    };
    Ok((access, origin))
}

impl Services {
    /// Unseals what a connection needs. If that is an access token, it may have to be got first, for which this waits.
    pub(crate) async fn way(
        &self,
        org: &OrgId,
        source: &str,
        enabled: &Enabled,
        wait: Duration,
    ) -> Result<Way, Failure> {
        let (access, origin) = origin(source, enabled)?;
        let mut secrets = Vec::new();
        for name in &enabled.secrets {
            secrets.push(Secret::from(self.secret(org, name)?.value.as_str().to_owned()));
        }
        let (mut credential, mut token) = (None, None);
        if let Some(CredentialHeader { header, prefix, secret, oauth }) = &access.credential {
            let value = match oauth {
                None => self.secret(org, secret)?.value,
                Some(_) => {
                    let in_use = self.access_token(org, enabled, wait).await?;
                    secrets.extend(in_use.all().map(|value| Secret::from(value.as_str().to_owned())));
                    token.insert(in_use).access.clone()
                }
            };
            let value = Secret::from(format!("{prefix}{}", value.as_str()));
            credential = Some(Credential { header: header.clone(), value });
        }
        let login = access.database.as_ref().map(|DatabaseLogin { name, user, password }| {
            let password = Secret::from(self.secret(org, password)?.value.as_str().to_owned());
            Ok(Login { name: name.clone(), user: user.clone(), password })
        });
        let login = login.transpose()?;
        Ok(Way { access, origin, credential, login, secrets, token })
    }

    /// Gives each enabled connection and each plugin its tools, takes those of others away, and says of each tool what operators say.
    /// Called after each change of that, and when an MCP server has listed other tools. Takes long if they are many.
    pub(crate) fn equip(&self) {
        let first = self.registry();
        let says = overlays::all(&*self.store).unwrap_or_else(|error| {
            tracing::error!(%error, "what operators say about tools cannot be read; what is in force stays");
            let said = |tool: &Arc<RegisteredTool>| {
                let overlay = tool.definition().overlay.as_ref()?;
                Some((tool.spec().tool_id.clone(), overlay.says.clone()))
            };
            first.iter().filter_map(said).collect()
        });
        let sources = self.connections.sources();
        let wired = sources.iter().flat_map(|source| (self.egress.tools)(source));
        let said = |definition: &Definition| definition.overlaid(says.get(&definition.spec.tool_id));
        let is_of_connection = |tool: &RegisteredTool| {
            tool.definition().upstream.is_some()
                || tool.package().is_some()
                || (tool.source().is_own() && is_wired(tool.spec().tool_id.source()))
        };
        let mut definitions: Vec<_> = wired.map(|definition| said(&definition)).collect();
        let own = first.iter().filter(|tool| !is_of_connection(tool)).map(|tool| &tool.spec().tool_id);
        let others = definitions.iter().map(|definition| &definition.spec.tool_id).chain(own);
        let of_connectors = self.of_connectors(others);
        definitions.extend(of_connectors);
        definitions.extend(self.of_plugins());
        loop {
            let base = self.registry();
            // The tools of connections by HTTP are told by what they say, those of servers and plugins by all that they do.
            let is_there = |definition: &Definition| {
                base.get(&definition.spec.tool_id).is_some_and(|tool| {
                    let is_by_http = definition.upstream.is_none() && definition.plugin.is_none();
                    let is_as_said = is_by_http && tool.spec() == &definition.spec;
                    is_as_said || tool.definition().is_same(definition)
                })
            };
            let rest = base.iter().filter(|tool| !is_of_connection(tool)).map(|tool| tool.definition());
            let rest = rest.filter(|was| was.overlay.is_some() || says.contains_key(&was.spec.tool_id));
            let reworded: Vec<_> =
                rest.map(|was| (was, said(was))).filter(|(was, now)| !was.is_same(now)).collect();
            let count = base.iter().filter(|tool| is_of_connection(tool)).count();
            let (there, missing): (Vec<_>, Vec<_>) = definitions.iter().partition(|one| is_there(one));
            // What is refused is not there, now as before.
            let is_refused = |one: &&Definition| RegisteredTool::check((*one).clone()).is_err();
            if reworded.is_empty() && count == there.len() && missing.iter().all(is_refused) {
                return;
            }
            let goes = |tool: &RegisteredTool| {
                let is_reworded = |(was, _): &(&Definition, _)| std::ptr::eq(*was, tool.definition());
                is_of_connection(tool) || reworded.iter().any(is_reworded)
            };
            let kept = definitions.len();
            definitions.extend(reworded.iter().map(|(_, now)| now.clone()));
            let (next, refused) = base.replace(goes, &definitions);
            definitions.truncate(kept);
            for error in refused {
                tracing::error!(%error, "a tool of a connection or a plugin is refused");
            }
            // Another change came first: this one is made again on top of it.
            if self.set_registry(&base, next).is_ok() {
                return;
            }
        }
    }

    /// [`Services::equip`] on a thread of its own, since a worker serves others meanwhile.
    pub(crate) async fn equip_aside(self: &Arc<Self>) {
        let services = self.clone();
        if let Err(error) = tokio::task::spawn_blocking(move || services.equip()).await {
            tracing::error!(%error, "the tools of connections stay as they were");
        }
    }
}
