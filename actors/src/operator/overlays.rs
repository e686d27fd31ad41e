//! Changes what operators say about tools, whoever wrote them.

use std::sync::Arc;

use effectd_bus::{Expect, FamilyName, StoreError};
use effectd_contracts::connector::CONNECTOR_SOURCE;
use effectd_contracts::{ConnectionId, Principal, ToolId, ToolOverlay};

use super::connectors;
use crate::approvals::repository::Step;
use crate::limits::TOOL_OVERLAYS_MAX;
use crate::registry::RegisteredTool;
use crate::services::Services;
use crate::services::overlays::{TOOL_OVERLAYS, all};

/// The connector of a tool; `None` if it is no connector's.
fn connector(tool: &ToolId) -> Result<Option<ConnectionId>, StoreError> {
    Ok(tool.source().strip_prefix(CONNECTOR_SOURCE).map(ConnectionId::new).transpose()?)
}

/// Whether that would be another word, and whose it is, for people.
pub(super) fn check(
    services: &Services,
    tool: &ToolId,
    says: Option<&ToolOverlay>,
) -> Result<(bool, String), StoreError> {
    let whose = |author: &'static str| if says.is_some() { "the operator's words" } else { author };
    if let Some(id) = connector(tool)? {
        let (connection, _, changed) = connectors::overlaid(services, &id, tool.action(), says)?;
        let what = whose("its server's words");
        return Ok((changed, format!("tool {:?} of {}: {what}", tool.action(), connection.name)));
    }
    let known = all(&*services.store)?;
    if let Some(says) = says {
        let refused = |why: &dyn std::fmt::Display| StoreError::Invalid(format!("{tool}: {why}"));
        if says.risk.is_some() {
            return Err(refused(&"only what a server says about risk can be replaced; raise the tier"));
        }
        if !says.is_sound() || *says == ToolOverlay::default() {
            return Err(refused(
                &"say a title, a description or a tier, in printable text that is not too long",
            ));
        }
        if !known.contains_key(tool) && known.len() >= TOOL_OVERLAYS_MAX {
            return Err(refused(&format!("at most {TOOL_OVERLAYS_MAX} tools are overlaid")));
        }
        let registry = services.registry();
        let found = registry.find_by_id(tool).map_err(|error| refused(&error))?;
        RegisteredTool::check(found.definition().overlaid(Some(says))).map_err(|error| refused(&error))?;
    }
    Ok((known.get(tool) != says, format!("tool {tool}: {}", whose("its author's words"))))
}

/// Says it, or restores the author's words.
pub(super) async fn overlay(
    services: &Arc<Services>,
    tool: &ToolId,
    says: Option<&ToolOverlay>,
    by: &Principal,
) -> Result<(), StoreError> {
    if let Some(id) = connector(tool)? {
        return connectors::overlay(services, &id, (tool.action(), says), by).await;
    }
    let _lock = services.connections.changes.lock().await;
    check(services, tool, says)?;
    let mut step = Step::default();
    match says {
        Some(says) => step.put(TOOL_OVERLAYS, tool.as_str(), Expect::Any, says)?,
        None if services.store.entry(&FamilyName::new(TOOL_OVERLAYS)?, tool.as_str())?.is_none() => {
            return Ok(());
        }
        None => step.delete(TOOL_OVERLAYS, tool.as_str(), Expect::Any)?,
    }
    let committed = step.commit(&*services.store).await;
    // Also after an error: the change may be written.
    services.equip_aside().await;
    committed.map(drop)
}
