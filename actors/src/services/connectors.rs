//! Connectors: the tools that MCP servers list, as effectd offers them.
//!
//! What a server listed last lies apart from what a person has reviewed, so that no list can move the baseline. A tool is offered as its
//! server describes it now; the gate asks about it until its description is the reviewed one.

mod dialect;
mod drift;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock};

use effectd_bus::{FamilyName, StoreError};
use effectd_contracts::connector::{CONNECTOR_SOURCE, cleaned};
use effectd_contracts::{
    Ask, Capability, Compensation, Connection, ConnectionId, Connector, Digest, Harvest, Harvested,
    ParamHeader, Pinned, Principal, RefusedTool, Repeat, RiskLevel, RiskTier, SafetyClass, SandboxProfile,
    SideEffect, Timestamp, ToolId, ToolOverlay, ToolSpec, Transport, Upstream, canonical, param_headers,
};
use effectd_policy::redact::storage::is_secret_name;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::Services;
use super::connections;
use crate::limits::{CONNECTOR_CALL_MS, HARVEST_AGAIN, HARVEST_EVERY};
use crate::registry::{Definition, Overlaid, ParamRule, RegisteredTool, Registry, Source};
use crate::stored::read_json;

use drift::Names;
pub use drift::{Drift, Line, ToolState, diff};

/// What servers listed last, by the ids of their connections, in clear.
pub(crate) const HARVESTS: &str = "connector-harvests";
/// What people have reviewed, by the same ids, in clear.
pub(crate) const REVIEWS: &str = "connector-reviews";

/// What a server listed last.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Listed {
    pub harvest: Harvest,
    /// When it listed that; `None` if it never has.
    pub harvested_at: Option<Timestamp>,
    /// When it was asked last.
    pub tried_at: Timestamp,
    /// Why it did not answer then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// What a person has accepted: whole descriptions, so that a change can be shown.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Review {
    pub tools: Vec<Harvested>,
    pub by: Principal,
    pub at: Timestamp,
}

/// All that is known about one connector.
#[derive(Debug, Clone)]
pub struct Known {
    pub connection: Connection,
    pub connector: Connector,
    pub listed: Option<Listed>,
    pub review: Option<Review>,
    /// The names of all tools.
    pub(crate) names: Arc<BTreeSet<String>>,
}

/// A connector of the Store; `None` if the connection is none.
pub fn known(services: &Services, connection: Connection) -> Result<Option<Known>, StoreError> {
    let store = &*services.store;
    let Some(connector) = connection.connector.clone() else {
        return Ok(None);
    };
    let id = connection.connection_id.as_str();
    let listed = store.entry(&FamilyName::new(HARVESTS)?, id)?.as_ref().and_then(read_json);
    let review = store.entry(&FamilyName::new(REVIEWS)?, id)?.as_ref().and_then(read_json);
    let names = services.connections.tool_names.read().clone();
    Ok(Some(Known { connection, connector, listed, review, names }))
}

/// All connectors, disabled ones too.
pub fn all(services: &Services) -> Result<Vec<Known>, StoreError> {
    let all = connections::all(&*services.store)?.into_iter();
    all.filter_map(|(connection, _)| known(services, connection).transpose()).collect()
}

impl Known {
    /// Whether it is time to ask the server again.
    pub(crate) fn is_due(&self, now: Timestamp) -> bool {
        let is_over = |listed: &Listed| {
            let pause = if listed.error.is_some() { HARVEST_AGAIN } else { HARVEST_EVERY };
            listed.tried_at.checked_add(pause).is_ok_and(|then| then <= now)
        };
        self.connection.enabled && self.listed.as_ref().is_none_or(is_over)
    }

    fn names(&self) -> Names<'_> {
        Names(self.listed.as_ref().map_or(&[], |listed| &listed.harvest.tools), &self.names)
    }

    /// The tools that are listed or reviewed, and how they compare.
    pub fn states(&self) -> Vec<ToolState> {
        drift::states(self.names(), self.review.as_ref().map(|review| &review.tools[..]))
    }

    /// What in the words of a tool is not for people.
    pub fn warnings(&self, tool: &ToolState) -> Vec<&'static str> {
        tool.now.as_ref().map(|tool| drift::for_models(tool, self.names())).unwrap_or_default()
    }

    /// What a review accepts: the pins of all that is shown.
    pub fn digest(&self) -> Digest {
        let pins = |tools: &[Harvested]| -> BTreeMap<String, Pinned> {
            tools.iter().map(|tool| (tool.name.clone(), Pinned::of(tool))).collect()
        };
        let listed = self.listed.as_ref().map(|listed| pins(&listed.harvest.tools));
        let reviewed = self.review.as_ref().map(|review| pins(&review.tools));
        canonical::digest(&json!({
            "connection": self.connection.connection_id, "listed": listed, "reviewed": reviewed,
        }))
    }

    fn overlay(&self, tool: &str) -> Option<&ToolOverlay> {
        self.connector.overlay.get(tool)
    }

    /// What a tool does to the world. The operator's word comes first; a server's claim that a tool only reads counts once a person has
    /// reviewed it.
    pub fn risk(&self, tool: &ToolState) -> RiskLevel {
        let said = self.overlay(&tool.name).and_then(|said| said.risk);
        let hinted = tool.now.as_ref().and_then(|now| {
            let destroys = now.hint("destructiveHint") == Some(true) || drift::sounds_destructive(&now.name);
            let reads = now.hint("readOnlyHint") == Some(true) && tool.drift.is_reviewed();
            if destroys { Some(RiskLevel::Danger) } else { reads.then_some(RiskLevel::Read) }
        });
        said.or(hinted).or(self.connector.default_risk).unwrap_or(RiskLevel::Write)
    }

    /// Whether the gate asks about each call until a person has reviewed the tool.
    pub fn needs_review(&self, tool: &ToolState) -> bool {
        match &tool.drift {
            Drift::None | Drift::Gone => false,
            // What people read of a tool that only reads is shown, and no more.
            Drift::Prose => self.risk(tool) != RiskLevel::Read,
            Drift::New | Drift::Renamed { .. } | Drift::Changed { .. } => true,
        }
    }

    /// The description of a tool for the pipeline, or why it cannot be offered.
    pub fn definition(&self, state: &ToolState) -> Result<Option<Definition>, RefusedTool> {
        let (Some(now), Some(listed)) = (&state.now, &self.listed) else {
            return Ok(None);
        };
        let refused = |why: String| RefusedTool { name: now.name.clone(), why };
        let id = format!("{}.{}", self.connection.source, now.name);
        let tool_id = ToolId::new(id).map_err(|error| refused(error.to_string()))?;
        let headers = self.headers(now).map_err(refused)?;
        let params_schema = dialect::to_2020_12(&now.input_schema)
            .map_err(|why| refused(format!("its input schema cannot be used: {why}")))?;
        let (level, said) = (self.risk(state), self.overlay(&now.name));
        let description = self.description(now, None);
        let can_make_up = level == RiskLevel::Write
            && said.and_then(|said| said.tier).is_some_and(|tier| tier <= RiskTier::R2);
        // The child that speaks to a program runs none itself.
        let side_effects = match &self.connector.transport {
            Transport::Http { .. } => BTreeSet::from([SideEffect::NetworkCall]),
            Transport::Stdio { folder: None, .. } => BTreeSet::from([SideEffect::ProcessExec]),
            Transport::Stdio { .. } => BTreeSet::from([SideEffect::ProcessExec, SideEffect::FilesystemWrite]),
        };
        let cap = if level == RiskLevel::Read { "connector.read" } else { "connector.call" };
        let spec = ToolSpec {
            tool_id,
            version: "1.0.0".to_owned(),
            description: self.description(now, said),
            caps_required: Capability::new(cap).into_iter().collect(),
            params_schema,
            result_schema: RESULT.clone(),
            side_effects,
            safety_class: SafetyClass::Medium,
            risk_level: Some(level),
            risk_tier: said.and_then(|said| said.tier),
            reversible: false,
            compensation: if can_make_up { Compensation::Declared } else { Compensation::None },
            timeout_ms: CONNECTOR_CALL_MS,
            price_micros: 0,
            idempotency_key_fields: None,
            resource: None,
            repeat: if level == RiskLevel::Read { Repeat::Safe } else { Repeat::Never },
            sandbox_profile: SandboxProfile::default(),
            package: None,
        };
        let ask = Ask::Call { pinned: Pinned::of(now) };
        let protocol = Some(listed.harvest.protocol.clone()).filter(|protocol| !protocol.is_empty());
        let upstream = Upstream { transport: self.connector.transport.clone(), ask, protocol, headers };
        Ok(Some(Definition {
            drifted: self.needs_review(state),
            upstream: Some(Arc::new(upstream)),
            overlay: said.map(|says| Box::new(Overlaid { says: says.clone(), description, risk_tier: None })),
            ..Definition::new(Source::Connector, spec, ANY.clone())
        }))
    }

    /// The parameters that go into headers, too, by HTTP. Programs on the way write headers down, so no secret is one of them.
    fn headers(&self, tool: &Harvested) -> Result<Vec<ParamHeader>, String> {
        if !matches!(self.connector.transport, Transport::Http { .. }) {
            return Ok(Vec::new());
        }
        let headers = param_headers(&tool.input_schema)?;
        let secret = headers.iter().flat_map(|one| &one.path).find(|name| is_secret_name(name));
        match secret {
            Some(name) => Err(format!("it wants {name} in a header, which programs on the way can read")),
            None => Ok(headers),
        }
    }

    /// What the operator says, or the server.
    fn description(&self, tool: &Harvested, said: Option<&ToolOverlay>) -> String {
        let titled = tool.annotations.get("title").and_then(Value::as_str).map(str::to_owned);
        let title = said.and_then(|said| said.title.clone()).or_else(|| tool.title.clone()).or(titled);
        let described = said.and_then(|said| said.description.clone()).or_else(|| tool.description.clone());
        let words = [title, described].into_iter().flatten().filter(|words| !words.trim().is_empty());
        // The diff of a review shows what is taken out here.
        cleaned(&words.collect::<Vec<_>>().join(". "))
    }

    /// Tools that are listed and not among the offered ones, each with the reason.
    pub fn refused(&self, offered: &Registry) -> Vec<RefusedTool> {
        let mut refused = self.listed.as_ref().map_or_else(Vec::new, |listed| listed.harvest.refused.clone());
        for state in self.states() {
            match self.definition(&state) {
                Err(why) => refused.push(why),
                Ok(Some(definition)) if self.connection.enabled => {
                    let is_offered = offered.get(&definition.spec.tool_id).is_some();
                    let error = (!is_offered).then(|| RegisteredTool::check(definition).err()).flatten();
                    let name = || state.name.clone();
                    refused.extend(error.map(|error| RefusedTool { name: name(), why: error.to_string() }));
                }
                Ok(_) => {}
            }
        }
        refused
    }
}

/// What every tool of a connector returns. What a server declares about its results is not checked: by then the effect has happened.
static RESULT: LazyLock<Value> = LazyLock::new(|| {
    json!({
        "type": "object",
        "properties": {
            "content": {}, "structuredContent": {}, "isError": { "type": "boolean", "x-public": true },
            "content_left_out": { "type": "boolean", "x-public": true }, "dry_run": { "type": "boolean" },
        },
    })
});
/// One for all, since the registry knows by it that a description is the same.
static ANY: LazyLock<ParamRule> = LazyLock::new(|| Arc::new(|_: &Map<String, Value>| Ok(())));

/// How a list differs from the one before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counted {
    pub tools: usize,
    /// Tools that are new, gone or described otherwise than in the list before.
    pub changed: usize,
    /// Changes that drift away from what was reviewed.
    pub drifted: usize,
}

/// Compares two lists. What drifted already, and in the same way, is no other drift.
pub(crate) fn counted(before: &Known, after: &Known) -> Counted {
    let (was, is) = (before.states(), after.states());
    let old: BTreeMap<_, _> = was.iter().map(|state| (&state.name, state)).collect();
    let mut counted =
        Counted { tools: is.iter().filter(|state| state.now.is_some()).count(), ..Counted::default() };
    for state in &is {
        let known = old.get(&state.name);
        let same = known.map_or(state.now.is_none(), |known| known.now == state.now);
        counted.changed += usize::from(!same);
        counted.drifted += usize::from(!same && after.review.is_some() && state.drift != Drift::None);
    }
    // Never reviewed, and gone.
    let left = was.iter().filter(|known| is.iter().all(|state| state.name != known.name));
    counted.changed += left.count();
    counted
}

impl Services {
    /// The tools of all enabled connectors. `others` are the ids of all other tools.
    pub(super) fn of_connectors<'t>(&self, others: impl Iterator<Item = &'t ToolId>) -> Vec<Definition> {
        let mut all = all(self).unwrap_or_else(|error| {
            tracing::error!(%error, "connectors cannot be read; none has tools");
            Vec::new()
        });
        all.retain(|known| known.connection.enabled);
        let listed = all.iter().filter_map(|known| known.listed.as_ref());
        let listed = listed.flat_map(|listed| &listed.harvest.tools).map(|tool| tool.name.clone());
        // A model knows a tool by another name than its id.
        let others = others.flat_map(|id| [id.to_string(), id.as_str().replace('.', "_")]);
        let names = Arc::new(listed.chain(others).filter(|name| drift::is_telling(name)).collect());
        self.connections.tool_names.write().clone_from(&names);
        let mut definitions = Vec::new();
        for known in all.iter_mut() {
            known.names = names.clone();
            for state in known.states() {
                match known.definition(&state) {
                    Ok(definition) => definitions.extend(definition),
                    Err(RefusedTool { name, why }) => {
                        tracing::warn!(
                            source = known.connection.source,
                            name,
                            why,
                            "a connector's tool is refused"
                        );
                    }
                }
            }
        }
        definitions
    }
}

/// The source of a connection's tools, if it is a connector.
pub fn source_of(id: &ConnectionId) -> String {
    format!("{CONNECTOR_SOURCE}{id}")
}

#[cfg(test)]
mod tests;
