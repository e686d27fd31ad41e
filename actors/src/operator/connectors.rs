//! Changes connectors: asks MCP servers for their tools, accepts how they are described, and says what the operator says instead.
//!
//! A server is asked while nothing is locked. What it lists is then written in one piece, or nothing is.

use std::sync::Arc;

use effectd_bus::{Expect, FamilyName, StoreError};
use effectd_contracts::connector::is_tool_name;
use effectd_contracts::limits::CONNECTOR_TOOLS_MAX;
use effectd_contracts::text::counted as count_of;
use effectd_contracts::{
    Code, Connection, ConnectionChange, ConnectionId, Connector, Digest, Failure, Harvest, Operation, Phase,
    Principal, ToolOverlay, Transport,
};

use super::connections::{commit, known as connection};
use super::operations::Terms;
use super::service::{self, blocking};
use crate::approvals::repository::{Step, Versioned};
use crate::execution::{egress, stdio};
use crate::limits::HARVEST_BYTES_MAX;
use crate::services::Services;
use crate::services::connections::{CONNECTIONS, Enabled};
use crate::services::connectors::{self, Counted, HARVESTS, Known, Listed, REVIEWS, Review};
use crate::stored::json_bytes;

/// A connector, or the refusal of what is none.
pub(super) fn known(services: &Services, id: &ConnectionId) -> Result<(Known, u64), StoreError> {
    let Versioned { value, version } = connection(&*services.store, id)?;
    let found = connectors::known(services, value)?;
    let none = || StoreError::Invalid(format!("the connection {id} is no connector"));
    Ok((found.ok_or_else(none)?, version))
}

/// What a server lists now. It is not stored.
pub async fn listed(services: &Services, id: &ConnectionId) -> Result<Harvest, Failure> {
    let failed = |code, why: String| Failure::new(code, Phase::Dispatch, why);
    let known = connection(&*services.store, id).map_err(|error| error.failure(Phase::Dispatch))?.value;
    let Connection { org, source, .. } = &known;
    let enabled = services.connection(org, source);
    let enabled = enabled.ok_or_else(|| {
        failed(Code::ConnectionMissing, format!("the connector {id} is disabled; enable it"))
    })?;
    if let Some(host) = enabled.hosts.iter().find(|host| !services.policy().allows_host(host)) {
        let why = format!("the policy's allow.hosts does not list {host}");
        return Err(Failure::new(Code::NetworkNotWhitelisted, Phase::Gate, why));
    }
    let mut harvest = asked(services, (source, &enabled), &known).await?;
    harvest.bound();
    let count = harvest.tools.len() + harvest.refused.len();
    if count > CONNECTOR_TOOLS_MAX || harvest.refused.len() > CONNECTOR_TOOLS_MAX {
        return Err(failed(
            Code::ToolFailed,
            format!("it lists {count} tools; at most {CONNECTOR_TOOLS_MAX} are taken"),
        ));
    }
    let bytes = json_bytes(&harvest).len();
    if bytes > HARVEST_BYTES_MAX {
        let why = format!("its list of tools has {bytes} bytes; at most {HARVEST_BYTES_MAX} are stored");
        return Err(failed(Code::ToolFailed, why));
    }
    Ok(harvest)
}

async fn asked(services: &Services, by: (&str, &Enabled), of: &Connection) -> Result<Harvest, Failure> {
    let Connection { org, connector: Some(Connector { transport, .. }), .. } = of else {
        let why = "the connection is no connector";
        return Err(Failure::new(Code::ConnectionMissing, Phase::Dispatch, why));
    };
    match transport {
        Transport::Http { .. } => egress::harvest(services, org, by, transport).await,
        Transport::Stdio { .. } => stdio::harvest(services, org, by, transport).await,
    }
}

/// Asks a server for its tools, and stores what it lists. If it does not answer, the tools of before stay, and the reason is stored.
pub(super) async fn harvest(
    services: &Arc<Services>,
    id: &ConnectionId,
    by: &Principal,
) -> Result<(Counted, String), StoreError> {
    let version = connection(&*services.store, id)?.version;
    let answer = listed(services, id).await;
    let _lock = services.connections.changes.lock().await;
    let of = id.clone();
    let noted = blocking(services, move |services| note(services, (&of, version), answer)).await?;
    let Noted { after, counted, is_other } = noted;
    let mut step = Step::default();
    step.put(HARVESTS, id.as_str(), Expect::Any, &after.listed)?;
    if is_other {
        let what = (counted.changed > 0).then_some(ConnectionChange::Harvested);
        commit(services, step, &after.connection, what, by).await?;
    } else {
        // A list that says what the one before said is no news: its programs and its tools stay.
        step.commit(&*services.store).await?;
    }
    services.metrics.tool_drift.inc_by(u64::try_from(counted.drifted).unwrap_or(u64::MAX));
    let name = &after.connection.name;
    match after.listed.and_then(|listed| listed.error) {
        Some(why) => Err(StoreError::StateConflict(format!(
            "{name} could not be listed: {why}; the tools that it had stay"
        ))),
        None => {
            let [tools, changed] =
                [counted.tools, counted.changed].map(|count| u64::try_from(count).unwrap_or(u64::MAX));
            let summary = format!("{name}: {}, of which {changed} changed", count_of(tools, "tool"));
            Ok((counted, summary))
        }
    }
}

/// What the answer of a server means.
struct Noted {
    after: Known,
    counted: Counted,
    /// Whether it says something else than the answer before.
    is_other: bool,
}

/// Compares the answer with what was listed before. That takes long if there are many tools.
fn note(
    services: &Services,
    (id, version): (&ConnectionId, u64),
    answer: Result<Harvest, Failure>,
) -> Result<Noted, StoreError> {
    let (before, now_version) = known(services, id)?;
    if now_version != version {
        return Err(StoreError::StateConflict("the connection has changed meanwhile; ask again".to_owned()));
    }
    let (mut after, now) = (before.clone(), services.clock.now());
    let (harvest, harvested_at, error) = match answer {
        Ok(harvest) => (harvest, Some(now), None),
        Err(failure) => {
            let kept = after.listed.take();
            let (harvest, at) = kept.map_or_else(Default::default, |kept| (kept.harvest, kept.harvested_at));
            (harvest, at, Some(failure.message))
        }
    };
    let is_other = before.listed.as_ref().is_none_or(|listed| listed.harvest != harvest);
    after.listed = Some(Listed { harvest, harvested_at, tried_at: now, error });
    Ok(Noted { counted: connectors::counted(&before, &after), after, is_other })
}

/// Asks the servers whose time has come, one after another.
pub(crate) async fn harvest_due(services: &Arc<Services>) -> Result<(), StoreError> {
    for known in blocking(services, connectors::all).await? {
        if known.connection.enabled && known.is_due(services.clock.now()) {
            again(services.clone(), known.connection.connection_id).await;
        }
    }
    Ok(())
}

/// Asks a server again, since effectd itself wants to know: a day has passed, or a child found that a tool is not what it was.
pub(crate) async fn again(services: Arc<Services>, connection_id: ConnectionId) {
    let Ok(own) = Principal::new("effectd") else { return };
    // Every call of a tool that drifted wants to know, and one answer is enough for all.
    if !services.connections.harvests.lock().insert(connection_id.clone()) {
        return;
    }
    let _asking = Asking(&services, &connection_id);
    let operation = Operation::HarvestConnector { connection_id: connection_id.clone() };
    if let Err(error) = service::perform(services.clone(), operation, Terms::default(), own).await {
        tracing::warn!(%connection_id, %error, "an MCP server could not be asked for its tools");
    }
}

/// A server that is being asked; also after a panic it may be asked again.
struct Asking<'a>(&'a Services, &'a ConnectionId);

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.0.connections.harvests.lock().remove(self.1);
    }
}

/// Refuses to accept anything but what was shown.
pub(super) fn check_review(
    services: &Services,
    id: &ConnectionId,
    shown: &Digest,
) -> Result<Known, StoreError> {
    let (known, _) = known(services, id)?;
    if known.digest() != *shown {
        let why = "the tools are described otherwise than what was shown: look at them again";
        return Err(StoreError::StateConflict(why.to_owned()));
    }
    Ok(known)
}

pub(super) async fn review(
    services: &Arc<Services>,
    id: &ConnectionId,
    shown: &Digest,
    by: &Principal,
) -> Result<(), StoreError> {
    let _lock = services.connections.changes.lock().await;
    let (of, shown) = (id.clone(), *shown);
    let known = blocking(services, move |services| check_review(services, &of, &shown)).await?;
    let tools = known.listed.map(|listed| listed.harvest.tools).unwrap_or_default();
    let review = Review { tools, by: by.clone(), at: services.clock.now() };
    let mut step = Step::default();
    step.put(REVIEWS, id.as_str(), Expect::Any, &review)?;
    commit(services, step, &known.connection, Some(ConnectionChange::Reviewed), by).await
}

/// The connection with what the operator says about a tool, and whether that is another one.
pub(super) fn overlaid(
    services: &Services,
    id: &ConnectionId,
    tool: &str,
    says: Option<&ToolOverlay>,
) -> Result<(Connection, u64, bool), StoreError> {
    let (known, version) = known(services, id)?;
    let mut connector = known.connector.clone();
    let is_known = known.states().iter().any(|state| state.name == tool);
    if !is_tool_name(tool) || (says.is_some() && !is_known) {
        return Err(StoreError::Invalid(format!("the connector lists no tool {tool:?}")));
    }
    match says.filter(|says| **says != ToolOverlay::default()) {
        Some(says) => drop(connector.overlay.insert(tool.to_owned(), says.clone())),
        None => drop(connector.overlay.remove(tool)),
    }
    connector.check().map_err(|why| StoreError::Invalid(why.to_string()))?;
    let changed = connector != known.connector;
    Ok((Connection { connector: Some(connector), ..known.connection }, version, changed))
}

pub(super) async fn overlay(
    services: &Arc<Services>,
    id: &ConnectionId,
    (tool, says): (&str, Option<&ToolOverlay>),
    by: &Principal,
) -> Result<(), StoreError> {
    let _lock = services.connections.changes.lock().await;
    let (connection, version, _) = overlaid(services, id, tool, says)?;
    let mut step = Step::default();
    step.put(CONNECTIONS, id.as_str(), Expect::Version(version), &connection)?;
    commit(services, step, &connection, Some(ConnectionChange::Overlaid), by).await
}

/// What is stored about a connector goes with it.
pub(super) fn forget(services: &Services, step: &mut Step, id: &ConnectionId) -> Result<(), StoreError> {
    for family in [HARVESTS, REVIEWS] {
        if services.store.entry(&FamilyName::new(family)?, id.as_str())?.is_some() {
            step.delete(family, id.as_str(), Expect::Any)?;
        }
    }
    Ok(())
}
