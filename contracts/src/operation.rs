//! What operators do to effectd itself while it runs. Each leaves a receipt that names the operator.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ids::{Capability, SpaceId, SubjectId, ToolId};
use crate::risk::Mode;

/// Something that an operator does to effectd. Nothing in it is secret: it stands in a receipt as it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
pub enum Operation {
    /// Switches a tool off: every call of it is answered with a receipt that says so.
    DisableTool {
        /// Which tool.
        tool_id: ToolId,
    },
    /// Switches a tool on again.
    EnableTool {
        /// Which tool.
        tool_id: ToolId,
    },
    /// Asks for other capabilities than the tool's own description does, from the next call on.
    SetCaps {
        /// Which tool.
        tool_id: ToolId,
        /// What a caller needs; one that nobody has turns everybody away.
        caps: Vec<Capability>,
    },
    /// Goes back to what the tool's own description asks for.
    ResetCaps {
        /// Which tool.
        tool_id: ToolId,
    },
    /// Only tries out whatever comes, until it is resumed.
    Pause {},
    /// Carries out again what comes.
    Resume {},
    /// Opens a breaker until a person closes it.
    TripBreaker {
        /// Which breaker.
        key: String,
    },
    /// Closes a breaker and forgets what it counted.
    ResetBreaker {
        /// Which breaker.
        key: String,
    },
    /// Puts dead letters on the bus again.
    RequeueLetters {
        /// Which letters.
        letters: Vec<u64>,
    },
    /// Forgets dead letters; their receipts stay.
    DropLetters {
        /// Which letters.
        letters: Vec<u64>,
    },
    /// Says whether something happened whose outcome is not known.
    SettleLetter {
        /// Which letter.
        letter: u64,
        /// It happened: the letter goes. It did not: its decision is put on the bus again.
        done: bool,
    },
    /// Moves a group that replays a topic.
    SeekGroup {
        /// Which topic.
        topic: String,
        /// Which group.
        group: String,
        /// `start`, `end`, an offset, a time, or how long ago.
        to: String,
    },
    /// Takes an artifact aside.
    QuarantineArtifact {
        /// Which artifact.
        artifact_id: String,
        /// Why, for people.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// Hands an artifact out again.
    ReleaseArtifact {
        /// Which artifact.
        artifact_id: String,
    },
    /// Puts another signing key in force.
    RotateKey {},
    /// Gives a consent, beside the policy's files.
    GrantConsent {
        /// Whose.
        subject: SubjectId,
        /// Where.
        space: SpaceId,
        /// What for.
        purpose: String,
    },
    /// Takes a consent back, beside the policy's files.
    RevokeConsent {
        /// Whose.
        subject: SubjectId,
        /// Where.
        space: SpaceId,
        /// What for.
        purpose: String,
    },
    /// Sets the mode of a tool, beside the policy's files.
    SetMode {
        /// For which organisation.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        org: Option<String>,
        /// Or for which automation.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        automation: Option<String>,
        /// Of which tool.
        tool: String,
        /// Which one; none goes back to what the files say.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mode: Option<Mode>,
    },
    /// Puts the policy's files in force as they are.
    ReloadPolicy {},
    /// Lets go of what is kept no longer.
    Retain {},
    /// Erases subjects.
    Erase {
        /// Whom.
        subjects: Vec<String>,
    },
}

impl Operation {
    /// The name that its receipt has in the place of a tool's.
    pub const fn tool(&self) -> &'static str {
        match self {
            Operation::DisableTool { .. } => "effectd.disable_tool",
            Operation::EnableTool { .. } => "effectd.enable_tool",
            Operation::SetCaps { .. } => "effectd.set_caps",
            Operation::ResetCaps { .. } => "effectd.reset_caps",
            Operation::Pause {} => "effectd.pause",
            Operation::Resume {} => "effectd.resume",
            Operation::TripBreaker { .. } => "effectd.trip_breaker",
            Operation::ResetBreaker { .. } => "effectd.reset_breaker",
            Operation::RequeueLetters { .. } => "effectd.requeue_letters",
            Operation::DropLetters { .. } => "effectd.drop_letters",
            Operation::SettleLetter { .. } => "effectd.settle_letter",
            Operation::SeekGroup { .. } => "effectd.seek_group",
            Operation::QuarantineArtifact { .. } => "effectd.quarantine_artifact",
            Operation::ReleaseArtifact { .. } => "effectd.release_artifact",
            Operation::RotateKey {} => "effectd.rotate_key",
            Operation::GrantConsent { .. } => "effectd.grant_consent",
            Operation::RevokeConsent { .. } => "effectd.revoke_consent",
            Operation::SetMode { .. } => "effectd.set_mode",
            Operation::ReloadPolicy {} => "effectd.reload_policy",
            Operation::Retain {} => "effectd.retain",
            Operation::Erase { .. } => "effectd.erase",
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn an_operation_is_read_as_it_was_written_and_nothing_else_is_one() {
        let tool_id: ToolId = "files.write_text".parse().unwrap();
        for (operation, text) in [
            (Operation::Pause {}, r#"{"do":"pause"}"#),
            (
                Operation::DisableTool { tool_id },
                r#"{"do":"disable_tool","tool_id":"files.write_text"}"#,
            ),
            (
                Operation::SettleLetter {
                    letter: 3,
                    done: true,
                },
                r#"{"do":"settle_letter","letter":3,"done":true}"#,
            ),
        ] {
            assert_eq!(serde_json::to_string(&operation).unwrap(), text);
            assert_eq!(serde_json::from_str::<Operation>(text).unwrap(), operation);
        }
        for wrong in [
            r#"{"do":"explode"}"#,
            r#"{"do":"pause","for":"ever"}"#,
            r#"{"do":"drop_letters"}"#,
            "{}",
        ] {
            assert!(serde_json::from_str::<Operation>(wrong).is_err(), "{wrong}");
        }
    }
}
