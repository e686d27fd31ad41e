//! The public parameters of a call, for rules and the receipt.

use effectd_contracts::tool::is_path_name;
use effectd_contracts::{Redaction, ToolSpec};
use serde_json::{Map, Value};

use super::NOT_A_NAME;
use super::safety::has_secret;
use crate::facts::{InspectionFacts, Param};
use crate::limits::PARAM_BYTES_MAX;
use crate::redact::personal::redact_stored;

#[derive(Debug, Clone, Copy)]
enum Kind {
    Path,
    Text,
    Number,
    Flag,
}

/// The parameters that rules can use: those that effectd's own tools and those of services declare public. `effectd.cedarschema` has
/// the same.
const PARAMS: [(&str, Kind); 33] = [
    ("after", Kind::Path),
    ("artifact_id", Kind::Text),
    ("assigneeId", Kind::Text),
    ("channel", Kind::Text),
    ("count", Kind::Number),
    ("directory_path", Kind::Path),
    ("event_id", Kind::Text),
    ("expected_sha256", Kind::Text),
    ("first", Kind::Number),
    ("format", Kind::Text),
    ("from_byte", Kind::Number),
    ("from_path", Kind::Path),
    ("glob", Kind::Text),
    ("ignore_case", Kind::Flag),
    ("issueId", Kind::Text),
    ("issue_id", Kind::Text),
    ("max_bytes", Kind::Number),
    ("max_hits", Kind::Number),
    ("max_rows", Kind::Number),
    ("organization_slug", Kind::Text),
    ("overwrite", Kind::Flag),
    ("path", Kind::Path),
    ("priority", Kind::Number),
    ("projectId", Kind::Text),
    ("project_slug", Kind::Text),
    ("receipt_id", Kind::Text),
    ("recursive", Kind::Flag),
    ("stateId", Kind::Text),
    ("status", Kind::Text),
    ("teamId", Kind::Text),
    ("thread_ts", Kind::Text),
    ("to_path", Kind::Path),
    ("urgency", Kind::Text),
];

/// The names of all parameters that rules can use.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    PARAMS.iter().map(|(name, _)| *name)
}

/// Notes the parameters that the tool gets, after the rest of the inspection. `passed` is the personal data that the tool gets.
pub(super) fn note(
    facts: &mut InspectionFacts,
    params: &Map<String, Value>,
    spec: &ToolSpec,
    passed: &[Redaction],
) {
    for (name, kind) in PARAMS {
        let Some(value) = params.get(name).filter(|value| !value.is_null()) else {
            continue;
        };
        let shown = Some(value).filter(|_| spec.is_public_param(name) && !has_findings(facts, passed, name));
        // The inspection has looked for personal data in a path as in a path, unless it was taken for a faulty host.
        let is_scanned = is_path_name(name) && !facts.hosts.contains(NOT_A_NAME);
        if let Some(value) = shown.and_then(|value| plain(kind, value, is_scanned)) {
            facts.params.insert(name.to_owned(), value);
        } else {
            facts.params_hidden.insert(name.to_owned());
        }
    }
}

/// Whether the inspection found a secret or personal data in a parameter, or may have.
fn has_findings(facts: &InspectionFacts, passed: &[Redaction], name: &str) -> bool {
    let findings = facts.findings.iter().map(|finding| &finding.pointer);
    let personal = facts.personal_refused.iter().chain(passed.iter().map(|found| &found.field));
    // Beyond a number of fields, the rest counts under the empty pointer.
    let is_here = |pointer: &String| pointer.is_empty() || pointer.split('/').nth(1) == Some(name);
    facts.overflow || findings.chain(personal).any(is_here)
}

fn plain(kind: Kind, value: &Value, is_scanned: bool) -> Option<Param> {
    let text = || {
        // The policy may have no check for secrets, and then the inspection finds none.
        let text = value.as_str().filter(|text| text.len() <= PARAM_BYTES_MAX && !has_secret(text));
        text.filter(|text| is_scanned || redact_stored(text).is_none())
    };
    match kind {
        Kind::Flag => value.as_bool().map(Param::Flag),
        Kind::Number => value.as_i64().map(Param::Number),
        Kind::Text => text().map(|text| Param::Text(text.to_owned())),
        Kind::Path => text().map(|path| Param::Text(plain_path(path))),
    }
}

/// One spelling for each path, so that none evades a rule: `a//b/./c/` is `a/b/c`.
fn plain_path(path: &str) -> String {
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    let root = if path.starts_with('/') { "/" } else { "" };
    format!("{root}{}", parts.join("/"))
}
