//! `notify.local`: sends a notification to the people at this machine.
//!
//! The tool itself shows nothing, because the sandbox cannot reach a desktop. It writes the notification as an artifact of its
//! receipt, sealed and within the space's quota, and the runtime delivers what a committed receipt names. So an interrupted
//! run has notified nobody, and a second run is harmless.

use std::collections::BTreeSet;

use effectd_contracts::{Artifact, NOTICE_ARTIFACT, NOTIFY_TOOL, Notice, SideEffect, Urgency};

use crate::limits::{NOTIFY_BODY_BYTES_MAX, NOTIFY_TITLE_BYTES_MAX};
use crate::prelude::*;

#[derive(Debug, Clone, Copy)]
pub struct Local;

const STREAM: u8 = 0;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Params {
    /// One short line.
    #[schemars(length(min = 1, max = NOTIFY_TITLE_BYTES_MAX))]
    title: String,
    /// More to say, in a few sentences. Default: nothing.
    #[serde(default)]
    #[schemars(length(max = NOTIFY_BODY_BYTES_MAX))]
    body: String,
    /// How much it may disturb. Default: normal.
    #[serde(default)]
    #[schemars(with = "String", extend("enum" = Urgency::ALL.map(Urgency::as_str), "x-public" = true))]
    urgency: Urgency,
}

impl TypedTool for Local {
    const ID: &'static str = NOTIFY_TOOL;
    const DESCRIPTION: &'static str = "Notifies the people at this machine: on the desktop, if there is one, and in \
        `effectd notifications`. A notification cannot be unsent. Use it when a person should know something now.";
    type Params = Params;

    fn spec(&self) -> ToolSpec {
        let result = json!({
            "artifact_id": { "type": "string", "x-artifact": NOTICE_ARTIFACT, "x-public": true },
            "bytes": count(), "can_be_unsent": { "const": false, "x-public": true }, "dry_run": flag(),
        });
        ToolSpec {
            caps_required: params::caps(["notify", "workspace:shared:read"]),
            side_effects: BTreeSet::from([SideEffect::DeviceNotification, SideEffect::UserVisible]),
            reversible: false,
            // Notifications keep their order.
            resource: params::resource("notifications:{space_id}"),
            repeat: Repeat::Safe,
            ..params::writes::<Self>(&["bytes", "can_be_unsent"], result)
        }
    }

    fn example(&self) -> Value {
        json!({ "title": "The washing is done", "body": "It has been for an hour." })
    }

    fn check(&self, Params { title, body, .. }: &Params) -> Result<(), Failure> {
        for (name, text, bytes_max) in
            [("title", title, NOTIFY_TITLE_BYTES_MAX), ("body", body, NOTIFY_BODY_BYTES_MAX)]
        {
            if text.len() > bytes_max {
                return Err(params::invalid(name, format!("at most {bytes_max} bytes are allowed")));
            }
        }
        if title.chars().all(|c| c.is_whitespace() || c.is_control()) {
            return Err(params::invalid("title", "it has no visible text"));
        }
        if title.contains(['\n', '\r']) {
            return Err(params::invalid("title", "it must be one line; put more into the body"));
        }
        Ok(())
    }

    /// Quality is always 1: the notification is stored, or the action fails. Whether somebody saw it is not known here.
    fn run(&self, workspace: &Workspace<'_>, call: &Call<'_, Params>) -> Result<ToolOutput, Failure> {
        let bytes = encoded(&call.params)?;
        workspace.side_channel().send_piece(STREAM, &bytes).map_err(|error| {
            let why = format!("the notification could not be sent to effectd: {error}");
            Failure::new(Code::ToolFailed, Phase::Dispatch, why)
        })?;
        let result = json!({ "bytes": bytes.len(), "can_be_unsent": false });
        Ok(ToolOutput {
            artifacts: vec![Artifact { name: NOTICE_ARTIFACT.to_owned(), stream: STREAM, must: true }],
            ..ToolOutput::new(result, Some(1.0))
        })
    }

    fn dry_run(&self, _: &Workspace<'_>, call: &Call<'_, Params>) -> Result<ToolOutput, Failure> {
        let bytes = encoded(&call.params)?.len();
        Ok(params::dry(json!({ "bytes": bytes, "can_be_unsent": false })))
    }
}

fn encoded(params: &Params) -> Result<Vec<u8>, Failure> {
    let notice = Notice { title: params.title.clone(), body: params.body.clone(), urgency: params.urgency };
    serde_json::to_vec(&notice)
        .map_err(|error| Failure::new(Code::Internal, Phase::Dispatch, error.to_string()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use effectd_contracts::limits::NOTICE_BYTES_MAX;
    use effectd_contracts::{RiskTier, json as strict};

    use super::*;
    use crate::tests::space::TestSpace;

    #[test]
    fn what_is_said_lies_in_the_spool_and_a_dry_run_says_nothing() {
        let place = TestSpace::new();
        for (params, notice) in [
            (
                json!({ "title": "Done", "body": "Two\nlines <b>&", "urgency": "critical" }),
                Notice { title: "Done".into(), body: "Two\nlines <b>&".into(), urgency: Urgency::Critical },
            ),
            (
                json!({ "title": "Größe \u{202e}\u{7}" }),
                Notice {
                    title: "Größe \u{202e}\u{7}".into(), body: String::new(), urgency: Urgency::Normal
                },
            ),
        ] {
            place.forget();
            let dry = place.dry_run(&Local, params.clone()).unwrap();
            assert!(place.said(STREAM).is_none() && dry.artifacts.is_empty());
            let output = place.run(&Local, params).unwrap();
            let said = place.said(STREAM).unwrap();
            assert_eq!(strict::parse::<Notice>(&said, NOTICE_BYTES_MAX).unwrap(), notice);
            assert_eq!(output.result, json!({ "bytes": said.len(), "can_be_unsent": false }));
            assert_eq!(dry.result["bytes"], said.len());
            assert!(output.artifacts[0].must);
        }
    }

    #[test]
    fn what_nobody_could_read_is_refused() {
        let place = TestSpace::new();
        let long = |bytes: usize| "ö".repeat(bytes / 2 + 1);
        for params in [
            json!({ "title": "" }),
            json!({ "title": " \t\u{1b}" }),
            json!({ "title": "two\nlines" }),
            json!({ "title": long(NOTIFY_TITLE_BYTES_MAX) }),
            json!({ "title": "x", "body": long(NOTIFY_BODY_BYTES_MAX) }),
            json!({ "title": "x", "urgency": "panic" }),
        ] {
            for answer in [place.run(&Local, params.clone()), place.dry_run(&Local, params.clone())] {
                assert_eq!(answer.unwrap_err().code, Code::ParamsInvalid, "{params}");
            }
        }
    }

    #[test]
    fn the_longest_that_can_be_configured_fits_into_the_spool() {
        let most =
            Notice { title: "\u{1}".repeat(1_024), body: "\u{1}".repeat(16_384), urgency: Urgency::Critical };
        assert!(serde_json::to_vec(&most).unwrap().len() <= NOTICE_BYTES_MAX);
    }

    #[test]
    fn it_is_slight_and_cannot_be_undone() {
        let spec = Local.spec();
        assert_eq!(spec.tier(), RiskTier::R1);
        assert!(!spec.reversible && spec.is_public_result("can_be_unsent"));
        assert!(!spec.is_public_param("title") && !spec.is_public_param("body"));
    }
}
