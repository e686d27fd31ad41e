//! Names of topics, groups, families and resources: short enough for keys, labels and file names.

use std::fmt;

use effectd_contracts::Topic;

use crate::error::{StoreError, bound};
use crate::limits::{NAME_BYTES_MAX, RESOURCE_BYTES_MAX};

fn check(what: &'static str, text: &str) -> Result<(), StoreError> {
    bound(what, text.len(), NAME_BYTES_MAX)?;
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    if text.is_empty() || text.starts_with('.') || !text.chars().all(plain) {
        return Err(StoreError::Invalid(format!(
            "{what} must be letters, digits, '_', '-' or '.', and not begin with '.'"
        )));
    }
    Ok(())
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(std::sync::Arc<str>);

        impl $name {
            pub fn new(text: &str) -> Result<Self, StoreError> {
                check($what, text)?;
                Ok(Self(text.into()))
            }

            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.serialize_str(&self.0)
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                let text = String::deserialize(from)?;
                Self::new(&text).map_err(serde::de::Error::custom)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

name!(
    /// Names an ordered stream of events: `ACTION_DECISION`.
    TopicName, "topic"
);
name!(
    /// Names the consumers that share the events of one topic: `pipeline`.
    GroupName, "group"
);
name!(
    /// Names a family of key-value entries: `holds`.
    FamilyName, "family"
);

impl From<Topic> for TopicName {
    fn from(topic: Topic) -> Self {
        Self(topic.as_str().into())
    }
}

/// Names what an effect changes: `file:shared:household/notes/w36.txt`. Actions on one resource run one after another.
/// Only its hash is stored, since a path may be sensitive.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ResourceName(String);

impl ResourceName {
    pub fn new(text: impl Into<String>) -> Result<Self, StoreError> {
        let text = text.into();
        if text.is_empty() {
            return Err(StoreError::Invalid("resource must not be empty".into()));
        }
        bound("resource", text.len(), RESOURCE_BYTES_MAX)?;
        Ok(Self(text))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Its own name and those of its ancestors: `file:s/a/b`, `file:s/a`, `file:s`.
    pub fn with_ancestors(&self) -> impl Iterator<Item = &str> {
        let above = self.0.rmatch_indices('/').map(|(at, _)| &self.0[..at]);
        std::iter::once(self.as_str()).chain(above)
    }
}
