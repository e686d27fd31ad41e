//! Identifiers as types, so that a subject is never passed where a space is meant.
//!
//! All of them are short printable text. Characters that are not seen or that turn a line round, and surrounding blanks,
//! are refused at the edge, since ids end up in log lines, index keys and terminals.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::limits::{ID_BYTES_MAX, IDEMPOTENCY_KEY_BYTES_MAX};
use crate::text::is_unprintable;

/// An identifier that breaks the rules all identifiers share.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdInvalid {
    /// Nothing was given.
    #[error("{kind} must not be empty")]
    Empty {
        /// Which kind of identifier.
        kind: &'static str,
    },
    /// More than the kind's bound.
    #[error("{kind} is {bytes} bytes long; at most {max} are allowed")]
    TooLong {
        /// Which kind of identifier.
        kind: &'static str,
        /// How long it was.
        bytes: usize,
        /// How long it may be.
        max: usize,
    },
    /// A character that is not seen, or a blank at either end.
    #[error(
        "{kind} must be printable text without surrounding blanks, control characters, invisible characters or marks of direction"
    )]
    NotPrintable {
        /// Which kind of identifier.
        kind: &'static str,
    },
}

fn check(kind: &'static str, text: &str, max: usize) -> Result<(), IdInvalid> {
    if text.is_empty() {
        return Err(IdInvalid::Empty { kind });
    }
    if text.len() > max {
        return Err(IdInvalid::TooLong {
            kind,
            bytes: text.len(),
            max,
        });
    }
    let blank_end = text.starts_with(char::is_whitespace) || text.ends_with(char::is_whitespace);
    if blank_end || text.chars().any(is_unprintable) {
        return Err(IdInvalid::NotPrintable { kind });
    }
    Ok(())
}

macro_rules! string_id {
    ($(#[$doc:meta])* $name:ident, $kind:literal, $max:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// Checks the text and takes it.
            pub fn new(text: impl Into<String>) -> Result<Self, IdInvalid> {
                let text = text.into();
                check($kind, &text, $max)?;
                Ok(Self(text))
            }

            /// The text itself.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = IdInvalid;
            fn try_from(text: String) -> Result<Self, IdInvalid> {
                Self::new(text)
            }
        }

        impl std::str::FromStr for $name {
            type Err = IdInvalid;
            fn from_str(text: &str) -> Result<Self, IdInvalid> {
                Self::new(text)
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.0
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl JsonSchema for $name {
            fn schema_name() -> Cow<'static, str> {
                stringify!($name).into()
            }
            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({ "type": "string", "minLength": 1, "maxLength": $max })
            }
        }
    };
}

string_id!(
    /// Names one action for ever: the planner chooses it, and it resolves to exactly one receipt.
    ActionId, "action_id", ID_BYTES_MAX
);
string_id!(
    /// Names one receipt.
    ReceiptId, "receipt_id", ID_BYTES_MAX
);
string_id!(
    /// Names one question to a person: the handle under which an action waits.
    ApprovalId, "approval_id", ID_BYTES_MAX
);
string_id!(
    /// Names one pre-approval.
    GrantId, "grant_id", ID_BYTES_MAX
);
string_id!(
    /// Names one event on the bus; publishing the same id twice is a no-op.
    EventId, "event_id", ID_BYTES_MAX
);
string_id!(
    /// On whose behalf the action is claimed to be: `agent://planner@deviceA`. A claim, not a proof; see [`Principal`].
    SubjectId, "subject_id", ID_BYTES_MAX
);
string_id!(
    /// Where the action happens: `shared:household`. The part before the colon is the space's class.
    SpaceId, "space_id", ID_BYTES_MAX
);
string_id!(
    /// Which tool: `files.write_text`.
    ToolId, "tool_id", ID_BYTES_MAX
);
string_id!(
    /// Follows one action through receipt, event and every log line.
    TraceId, "trace_id", ID_BYTES_MAX
);
string_id!(
    /// Two requests with one key in one space are the same action; the second gets the first one's receipt.
    IdempotencyKey, "idempotency_key", IDEMPOTENCY_KEY_BYTES_MAX
);
string_id!(
    /// Who the door saw: `user://alice` by the peer's uid. The policy says for which subjects a principal may speak.
    Principal, "principal", ID_BYTES_MAX
);
string_id!(
    /// A right that a tool requires and a role grants: `files.write`, `workspace:shared:write`.
    Capability, "capability", ID_BYTES_MAX
);

impl SpaceId {
    /// The class of the space, which capabilities are parameterised with: `shared` of `shared:household`.
    pub fn class(&self) -> &str {
        self.0.split_once(':').map_or(self.as_str(), |(class, _)| class)
    }
}

impl ActionId {
    /// A fresh id, for requests that are made by hand.
    pub fn fresh() -> Self {
        Self(uuid::Uuid::now_v7().to_string())
    }
}

impl ReceiptId {
    /// A fresh id. Version 7 ids sort by time, which keeps receipts of one hour side by side in the index.
    pub fn fresh() -> Self {
        Self(uuid::Uuid::now_v7().to_string())
    }
}

impl ApprovalId {
    /// A fresh id; the ids of what waited longer sort first.
    pub fn fresh() -> Self {
        Self(uuid::Uuid::now_v7().to_string())
    }
}

impl GrantId {
    /// A fresh id; see [`ApprovalId::fresh`].
    pub fn fresh() -> Self {
        Self(uuid::Uuid::now_v7().to_string())
    }
}

impl EventId {
    /// A fresh id; see [`ReceiptId::fresh`].
    pub fn fresh() -> Self {
        Self(uuid::Uuid::now_v7().to_string())
    }
}

impl TraceId {
    /// A fresh id, for requests that bring none.
    pub fn fresh() -> Self {
        Self(uuid::Uuid::now_v7().simple().to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_refuse_what_would_break_logs_and_indexes() {
        assert_eq!(ActionId::new(""), Err(IdInvalid::Empty { kind: "action_id" }));
        assert_eq!(
            ActionId::new("a\nb"),
            Err(IdInvalid::NotPrintable { kind: "action_id" })
        );
        assert_eq!(
            ActionId::new(" a"),
            Err(IdInvalid::NotPrintable { kind: "action_id" })
        );
        assert_eq!(
            ActionId::new("a\u{1b}[2J"),
            Err(IdInvalid::NotPrintable { kind: "action_id" })
        );
        for hidden in [
            '\u{202e}', '\u{200b}', '\u{2028}', '\u{feff}', '\u{e000}', '\u{ffff}',
        ] {
            assert_eq!(
                SubjectId::new(format!("agent://a{hidden}b")),
                Err(IdInvalid::NotPrintable { kind: "subject_id" })
            );
        }
        let long = "x".repeat(ID_BYTES_MAX + 1);
        let error = IdInvalid::TooLong {
            kind: "action_id",
            bytes: ID_BYTES_MAX + 1,
            max: ID_BYTES_MAX,
        };
        assert_eq!(ActionId::new(long), Err(error));
        assert!(ActionId::new("x".repeat(ID_BYTES_MAX)).is_ok());
    }

    #[test]
    fn a_space_knows_its_class() {
        assert_eq!(
            SpaceId::new("shared:household").map(|s| s.class().to_owned()),
            Ok("shared".to_owned())
        );
        assert_eq!(
            SpaceId::new("attic").map(|s| s.class().to_owned()),
            Ok("attic".to_owned())
        );
    }
}
