//! Identifiers as types, so that a subject is never passed for a space.
//!
//! All of them are short printable text. Invisible characters, direction marks and surrounding blanks are refused, since ids
//! appear in log lines, index keys and terminals.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::limits::{ID_BYTES_MAX, IDEMPOTENCY_KEY_BYTES_MAX, REMOTE_ACTION_BYTES_MAX};
use crate::text::{IDENTIFIER, is_unprintable};
use crate::wire::schema_of;

/// An identifier that breaks the rules all identifiers share.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdInvalid {
    /// It is empty.
    #[error("{kind} must not be empty")]
    Empty {
        /// The kind of identifier.
        kind: &'static str,
    },
    /// It is too long.
    #[error("{kind} is {bytes} bytes long; at most {max} are allowed")]
    TooLong {
        /// The kind of identifier.
        kind: &'static str,
        /// Its length.
        bytes: usize,
        /// The longest that is allowed.
        max: usize,
    },
    /// It has an invisible character, or a blank at either end.
    #[error(
        "{kind} must be printable text without surrounding blanks, control characters, invisible characters or marks of direction"
    )]
    NotPrintable {
        /// The kind of identifier.
        kind: &'static str,
    },
}

fn check(kind: &'static str, text: &str, max: usize) -> Result<(), IdInvalid> {
    if text.is_empty() {
        return Err(IdInvalid::Empty { kind });
    }
    if text.len() > max {
        return Err(IdInvalid::TooLong { kind, bytes: text.len(), max });
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
            /// Checks the text.
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

        schema_of!($name, { "type": "string", "minLength": 1, "maxLength": $max, "pattern": IDENTIFIER });
    };
}

string_id!(
    /// An action. The planner chooses the id; it belongs to this action for ever and leads to exactly one receipt.
    ActionId, "action_id", ID_BYTES_MAX
);
string_id!(
    /// A receipt.
    ReceiptId, "receipt_id", ID_BYTES_MAX
);
string_id!(
    /// An approval: one question to a person, for which an action waits.
    ApprovalId, "approval_id", ID_BYTES_MAX
);
string_id!(
    /// A grant: approval in advance, for a number of calls or until a time.
    GrantId, "grant_id", ID_BYTES_MAX
);
string_id!(
    /// An event on the bus. Publishing the same id again has no effect.
    EventId, "event_id", ID_BYTES_MAX
);
string_id!(
    /// Who the planner claims to act for: `agent://planner@deviceA`. A claim, not a proof; see [`Principal`].
    SubjectId, "subject_id", ID_BYTES_MAX
);
string_id!(
    /// The space in which the action happens: `shared:household`. The part before the colon is its class.
    SpaceId, "space_id", ID_BYTES_MAX
);
string_id!(
    /// A tool: `<source>.<action>`, such as `files.write_text` or `connector:<uuid>.searchDocs`.
    ToolId, "tool_id", ID_BYTES_MAX
);
string_id!(
    /// The trace that links an action's receipt, events and log lines.
    TraceId, "trace_id", ID_BYTES_MAX
);
string_id!(
    /// The key that makes two requests in one space the same: the second one gets the first one's receipt.
    IdempotencyKey, "idempotency_key", IDEMPOTENCY_KEY_BYTES_MAX
);
string_id!(
    /// Who submitted a request, by the peer's uid: `user://alice`. The policy says for which subjects a principal may act.
    Principal, "principal", ID_BYTES_MAX
);
string_id!(
    /// A right that a tool requires and a role grants: `files.write`, `workspace:shared:write`.
    Capability, "capability", ID_BYTES_MAX
);
string_id!(
    /// An organisation: a name under `[orgs]` in the policy. A space belongs to at most one.
    OrgId, "org_id", ID_BYTES_MAX
);
string_id!(
    /// A session: what one agent does in one space, from its start to its end.
    SessionId, "session_id", ID_BYTES_MAX
);
string_id!(
    /// A connection: an organisation's way to an outside source.
    ConnectionId, "connection_id", ID_BYTES_MAX
);

string_id!(
    /// A webhook: events of an organisation, sent to a service.
    WebhookId, "webhook_id", ID_BYTES_MAX
);

string_id!(
    /// An automation: a plan of steps that runs by itself.
    AutomationId, "automation_id", ID_BYTES_MAX
);

string_id!(
    /// A token, by the part of it that is no secret.
    TokenId, "token_id", ID_BYTES_MAX
);

impl SpaceId {
    /// The class of the space, which capabilities name: `shared` of `shared:household`.
    pub fn class(&self) -> &str {
        self.0.split_once(':').map_or(self.as_str(), |(class, _)| class)
    }
}

impl ToolId {
    /// Who offers the tool: `files` of `files.write_text`, `connector:<uuid>` of `connector:<uuid>.searchDocs`.
    pub fn source(&self) -> &str {
        Self::split(&self.0).0
    }

    /// What the source calls it: `write_text` of `files.write_text`; empty for an alias without a dot.
    pub fn action(&self) -> &str {
        Self::split(&self.0).1
    }

    /// The source and the action of an id. The actions of a connector and of a database may have dots; of any other id, the last
    /// word is the action.
    pub fn split(id: &str) -> (&str, &str) {
        let dot = match remote_source(id) {
            Some(source) => id[source.len()..].starts_with('.').then_some(source.len()),
            None => id.rfind('.'),
        };
        dot.map_or((id, ""), |dot| (&id[..dot], &id[dot + 1..]))
    }

    /// The id that a key with a colon before the action means: `files:write_text` means `files.write_text`. The colon of
    /// `connector:<uuid>` belongs to the source. `None` if no colon separates.
    pub fn from_colon(key: &str) -> Option<String> {
        let colon = match remote_source(key) {
            Some(source) => key[source.len()..].starts_with(':').then_some(source.len()),
            None => key.find(':'),
        }?;
        Some(format!("{}.{}", &key[..colon], &key[colon + 1..]))
    }

    /// Whether a tool can be registered by this id.
    pub(crate) fn is_registrable(&self) -> bool {
        let (source, action) = Self::split(&self.0);
        let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
        let word = |word: &str| !word.is_empty() && word.bytes().all(plain);
        match remote_source(source) {
            Some(_) => {
                let fits = |b: u8| b.is_ascii_alphanumeric() || b"_.-".contains(&b);
                (1..=REMOTE_ACTION_BYTES_MAX).contains(&action.len()) && action.bytes().all(fits)
            }
            None => source.split('.').all(word) && word(action),
        }
    }
}

/// The connector or the database that an id begins with: `connector:<uuid>`, `db:<uuid>`. A UUID has one spelling here.
fn remote_source(text: &str) -> Option<&str> {
    let (kind, rest) = text.split_once(':')?;
    let id = rest.get(..uuid::fmt::Hyphenated::LENGTH)?;
    let is_id = uuid::Uuid::try_parse(id).is_ok_and(|uuid| uuid.to_string() == id);
    (matches!(kind, "connector" | "db") && is_id).then(|| &text[..kind.len() + 1 + id.len()])
}

macro_rules! fresh_ids {
    ($($name:ident),*) => {
        $(impl $name {
            /// A new id: a UUID of version 7, so that ids sort by time.
            pub fn fresh() -> Self {
                Self(uuid::Uuid::now_v7().to_string())
            }
        })*
    };
}

fresh_ids!(
    ActionId,
    ReceiptId,
    ApprovalId,
    GrantId,
    EventId,
    SessionId,
    ConnectionId,
    WebhookId,
    AutomationId
);

impl TraceId {
    /// A new id, for requests without a trace.
    pub fn fresh() -> Self {
        Self(uuid::Uuid::now_v7().simple().to_string())
    }
}

impl TokenId {
    /// A new id: 32 hex digits, so that a token is one word.
    pub fn fresh() -> Self {
        Self(uuid::Uuid::now_v7().simple().to_string())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn ids_refuse_what_would_break_logs_and_indexes() {
        assert_eq!(ActionId::new(""), Err(IdInvalid::Empty { kind: "action_id" }));
        assert_eq!(ActionId::new("a\nb"), Err(IdInvalid::NotPrintable { kind: "action_id" }));
        assert_eq!(ActionId::new(" a"), Err(IdInvalid::NotPrintable { kind: "action_id" }));
        assert_eq!(ActionId::new("a\u{1b}[2J"), Err(IdInvalid::NotPrintable { kind: "action_id" }));
        for hidden in ['\u{202e}', '\u{200b}', '\u{2028}', '\u{feff}', '\u{e000}', '\u{ffff}'] {
            assert_eq!(
                SubjectId::new(format!("agent://a{hidden}b")),
                Err(IdInvalid::NotPrintable { kind: "subject_id" })
            );
        }
        let long = "x".repeat(ID_BYTES_MAX + 1);
        let error = IdInvalid::TooLong { kind: "action_id", bytes: ID_BYTES_MAX + 1, max: ID_BYTES_MAX };
        assert_eq!(ActionId::new(long), Err(error));
        assert!(ActionId::new("x".repeat(ID_BYTES_MAX)).is_ok());
    }

    const UUID: &str = "0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a50";

    #[test]
    fn a_tool_id_splits_by_its_structure_into_source_and_action() {
        let far = |rest: &str| format!("connector:{UUID}{rest}");
        let db = format!("db:{UUID}");
        for (id, source, action, is_registrable) in [
            ("files.write_text", "files", "write_text", true),
            ("github.repos.list", "github.repos", "list", true),
            (&far(".searchDocs"), &far(""), "searchDocs", true),
            (&far(".issues.list-all"), &far(""), "issues.list-all", true),
            (&format!("{db}.query"), &db, "query", true),
            (&far(&format!(".{}", "a".repeat(128))), &far(""), &"a".repeat(128), true),
            (&far(&format!(".{}", "a".repeat(129))), &far(""), &"a".repeat(129), false),
            // A name with a colon would be another source's in a mode's key.
            (&far(".ns:get"), &far(""), "ns:get", false),
            (&far("."), &far(""), "", false),
            (&far(""), &far(""), "", false),
            (&far("x.get"), &far("x.get"), "", false),
            (&far(".get").to_uppercase(), &far("").to_uppercase(), "GET", false),
            ("connector:7f3a.get", "connector:7f3a", "get", false),
            ("files.Write", "files", "Write", false),
            ("files..x", "files.", "x", false),
            (".x", "", "x", false),
            ("write", "write", "", false),
        ] {
            let id = ToolId::new(id).unwrap();
            let found = (id.source(), id.action(), id.is_registrable());
            assert_eq!(found, (source, action, is_registrable), "{id}");
        }
    }

    #[test]
    fn the_colon_of_a_connector_is_its_own() {
        for (key, id) in [
            ("files:write_text", Some("files.write_text".to_owned())),
            ("github:repos.list", Some("github.repos.list".to_owned())),
            ("db:query", Some("db.query".to_owned())),
            (&format!("connector:{UUID}:get"), Some(format!("connector:{UUID}.get"))),
            (&format!("connector:{UUID}:ns:get"), Some(format!("connector:{UUID}.ns:get"))),
            (&format!("connector:{UUID}.ns:get"), None),
            (&format!("connector:{UUID}.get"), None),
            ("files.write_text", None),
        ] {
            assert_eq!(ToolId::from_colon(key), id, "{key}");
        }
    }

    #[test]
    fn a_space_knows_its_class() {
        assert_eq!(SpaceId::new("shared:household").map(|s| s.class().to_owned()), Ok("shared".to_owned()));
        assert_eq!(SpaceId::new("attic").map(|s| s.class().to_owned()), Ok("attic".to_owned()));
    }
}
