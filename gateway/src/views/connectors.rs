//! Connectors in JSON: what MCP servers list, how that compares with what was reviewed, and the bodies of changes.

use effectd_actors::Registry;
use effectd_actors::services::connectors::{Drift, Known, ToolState, diff};
use effectd_contracts::{Digest, Harvest, RefusedTool, RiskLevel, RiskTier, Timestamp, Transport};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A connector, and what its server listed last.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ConnectorView {
    pub connection_id: String,
    pub org: String,
    pub name: String,
    /// The part of the ids of its tools before the name.
    pub source: String,
    pub enabled: bool,
    /// The address, or the program with its arguments.
    pub leads_to: String,
    /// The version of MCP that its server speaks.
    pub protocol: Option<String>,
    /// How its server calls itself. Nobody has checked it.
    pub server: Option<String>,
    #[schema(value_type = Option<String>)]
    pub harvested_at: Option<Timestamp>,
    /// Why its server did not answer when it was asked last. The tools are those of before.
    pub error: Option<String>,
    #[schema(value_type = Option<String>)]
    pub reviewed_at: Option<Timestamp>,
    pub reviewed_by: Option<String>,
    /// Tools that it offers.
    pub offered: usize,
    /// Tools that are described otherwise than when they were reviewed, new and vanished ones too.
    pub to_review: usize,
    /// What a review accepts.
    pub digest: String,
    /// In the view of one connector.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<ConnectorTool>,
    /// Tools that are listed and not offered.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<serde_json::Value>)]
    pub refused: Vec<RefusedTool>,
}

/// A tool that a server lists, or that was reviewed.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ConnectorTool {
    pub name: String,
    /// `reviewed`, `new`, `renamed`, `prose`, `changed` or `gone`.
    pub state: String,
    /// What has changed, or the name that it had.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub why: Vec<String>,
    /// What in its words is not for people.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// What it does to the world: `read`, `write` or `danger`.
    pub risk: String,
    /// Whether each call is asked about until the tool is reviewed.
    pub asks: bool,
    /// Whether the operator says something about it.
    pub overlaid: bool,
    /// The difference from what was reviewed; the whole description if nothing was.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub diff: Vec<DiffLine>,
}

/// A line of a difference.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct DiffLine {
    /// `+`, `-` or a blank.
    pub sign: String,
    pub text: String,
}

impl ConnectorView {
    /// With all tools, if the registry is given that has those that are offered.
    pub fn of(known: &Known, whole: Option<&Registry>) -> Self {
        let (connection, states) = (&known.connection, known.states());
        let leads_to = match (&known.connector.transport, &connection.access) {
            (Transport::Stdio { argv, .. }, _) => argv.join(" "),
            (Transport::Http { path }, access) => {
                let host = connection.hosts.join(", ");
                let scheme = access.as_ref().map_or("https", |access| access.scheme.as_str());
                let port = access.as_ref().and_then(|access| access.port);
                format!("{scheme}://{host}{}{path}", port.map(|port| format!(":{port}")).unwrap_or_default())
            }
        };
        let listed = known.listed.as_ref();
        let word = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        let refused = whole.map_or_else(Vec::new, |registry| known.refused(registry));
        Self {
            connection_id: connection.connection_id.to_string(),
            org: connection.org.to_string(),
            name: connection.name.clone(),
            source: connection.source.clone(),
            enabled: connection.enabled,
            leads_to,
            protocol: listed.and_then(|listed| word(&listed.harvest.protocol)),
            server: listed.and_then(|listed| word(&listed.harvest.server)),
            harvested_at: listed.and_then(|listed| listed.harvested_at),
            error: listed.and_then(|listed| listed.error.clone()),
            reviewed_at: known.review.as_ref().map(|review| review.at),
            reviewed_by: known.review.as_ref().map(|review| review.by.to_string()),
            offered: states.iter().filter(|state| state.now.is_some()).count()
                - refused_listed(&refused, &states),
            to_review: states.iter().filter(|state| state.drift != Drift::None).count(),
            digest: known.digest().to_string(),
            tools: whole.map_or_else(Vec::new, |_| states.iter().map(|state| tool(known, state)).collect()),
            refused,
        }
    }

    pub fn state(&self) -> &'static str {
        match (self.enabled, &self.error, self.harvested_at) {
            (false, ..) => "disabled",
            (true, Some(_), _) => "error",
            (true, None, None) => "not asked",
            (true, None, Some(_)) => "listed",
        }
    }
}

fn refused_listed(refused: &[RefusedTool], states: &[ToolState]) -> usize {
    let is_listed =
        |tool: &&RefusedTool| states.iter().any(|state| state.name == tool.name && state.now.is_some());
    refused.iter().filter(is_listed).count()
}

fn tool(known: &Known, state: &ToolState) -> ConnectorTool {
    let (word, why) = match &state.drift {
        Drift::None => ("reviewed", Vec::new()),
        Drift::New => ("new", Vec::new()),
        Drift::Renamed { from } => ("renamed", vec![format!("it was {from}")]),
        Drift::Prose => ("prose", vec!["only its words have changed".to_owned()]),
        Drift::Changed { why } => ("changed", why.iter().map(|why| (*why).to_owned()).collect()),
        Drift::Gone => ("gone", Vec::new()),
    };
    ConnectorTool {
        name: state.name.clone(),
        state: word.to_owned(),
        why,
        warnings: known.warnings(state).into_iter().map(str::to_owned).collect(),
        risk: known.risk(state).as_str().to_owned(),
        asks: known.needs_review(state),
        overlaid: known.connector.overlay.contains_key(&state.name),
        diff: diff(state).into_iter().map(|(sign, text)| DiffLine { sign: sign.to_string(), text }).collect(),
    }
}

/// What a look at a server found. Nothing of it is stored.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ConnectorCheck {
    /// What is well, for people: a line each.
    pub says: Vec<String>,
    /// What is not; absent if all is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
}

impl ConnectorCheck {
    /// What a list says.
    pub fn listed(&mut self, harvest: &Harvest) {
        let server = if harvest.server.is_empty() { "a server without a name" } else { &harvest.server };
        self.says.push(format!("{server} speaks MCP {}", harvest.protocol));
        self.says.push(format!("it lists {} tools that can be offered", harvest.tools.len()));
        self.says.extend(harvest.refused.iter().map(|tool| format!("{} cannot: {}", tool.name, tool.why)));
    }
}

/// What is accepted.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReviewBody {
    /// The connector's `digest`, as it was shown.
    #[schema(value_type = String)]
    pub digest: Digest,
}

/// What an operator says about a tool instead of its server; nothing at all restores the server's words.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OverlayBody {
    /// Its title.
    pub title: Option<String>,
    /// Its description.
    pub description: Option<String>,
    /// What it does to the world.
    #[schema(value_type = Option<String>)]
    pub risk: Option<RiskLevel>,
    /// Its tier, if higher than the one that follows. `R2` or less for a tool that writes: another call can make up for it.
    #[schema(value_type = Option<String>)]
    pub tier: Option<RiskTier>,
}
