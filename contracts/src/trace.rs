//! The W3C's words for where an action stands in somebody else's trace: `traceparent` and `tracestate`.
//!
//! A planner that is traced sends both; whatever effectd hands on (receipt, events, answers) names the action as a span of
//! that trace, with the planner's span as its parent. The span's id follows from trace and action, so that every part of
//! effectd, and every start of it, means the same span without having to remember one.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::ids::{ActionId, TraceId};
use crate::limits::{TRACESTATE_BYTES_MAX, TRACESTATE_MEMBERS_MAX};

/// A span of a trace: `00-<trace>-<span>-<flags>`, in version 00 of the standard.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TraceParent(String);

/// Text that is no `traceparent` or `tracestate` of the standard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TraceInvalid {
    /// Not a span of a trace.
    #[error("traceparent must be 00-<32 hex digits>-<16 hex digits>-<2 hex digits>, neither id all zero")]
    Parent,
    /// Not a list of vendors' values.
    #[error(
        "tracestate must be key=value members, parted by commas: at most {TRACESTATE_MEMBERS_MAX} of them, {TRACESTATE_BYTES_MAX} bytes"
    )]
    State,
}

/// The flags that version 00 knows: sampled, and a random trace id. Others must not be handed on.
const FLAGS_KNOWN: u8 = 0b11;
/// Sampled: whoever asks without a trace finds the action in our log.
const SAMPLED: u8 = 1;

impl TraceParent {
    /// Reads one, of this version or a later one; what a later one adds is left out, as the standard demands.
    pub fn new(text: &str) -> Result<Self, TraceInvalid> {
        let parts: Vec<&str> = text.splitn(5, '-').collect();
        let &[version, trace, span, flags, ref rest @ ..] = parts.as_slice() else {
            return Err(TraceInvalid::Parent);
        };
        let well_formed = is_hex(version, 2) && is_hex(trace, 32) && is_hex(span, 16) && is_hex(flags, 2);
        // Later versions may add fields; version 00 has none, and ff is forbidden.
        let version_fits = version != "ff" && (version != "00" || rest.is_empty());
        if !well_formed || !version_fits || is_zero(trace) || is_zero(span) {
            return Err(TraceInvalid::Parent);
        }
        let flags = u8::from_str_radix(flags, 16).map_err(|_| TraceInvalid::Parent)?;
        Ok(Self::of(trace, span, flags))
    }

    fn of(trace: &str, span: &str, flags: u8) -> Self {
        Self(format!("00-{trace}-{span}-{:02x}", flags & FLAGS_KNOWN))
    }

    /// The span of an action in its trace; `None` if the standard cannot carry that trace. `came` is what the caller
    /// sent, and says whether the trace is kept elsewhere.
    pub fn of_action(trace: &TraceId, action: &ActionId, came: Option<&Self>) -> Option<Self> {
        let trace = trace.as_str();
        if !is_hex(trace, 32) || is_zero(trace) {
            return None;
        }
        let flags = came
            .and_then(|came| u8::from_str_radix(came.part(53..55), 16).ok())
            .unwrap_or(SAMPLED);
        Some(Self::of(trace, &span_id(trace, action), flags))
    }

    /// The whole of it.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The trace.
    pub fn trace(&self) -> &str {
        self.part(3..35)
    }

    /// The span.
    pub fn span(&self) -> &str {
        self.part(36..52)
    }

    fn part(&self, range: std::ops::Range<usize>) -> &str {
        // All digits are ASCII, at places that never change.
        self.0.get(range).unwrap_or_default()
    }
}

/// The id of an action's span: 16 hex digits of a digest, never all zero.
fn span_id(trace: &str, action: &ActionId) -> String {
    let mut id = Digest::of(format!("span\0{trace}\0{action}").as_bytes()).hex();
    id.truncate(16);
    if is_zero(&id) {
        id.replace_range(15.., "1");
    }
    id
}

fn is_hex(text: &str, length: usize) -> bool {
    let digit = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    text.len() == length && text.bytes().all(digit)
}

fn is_zero(text: &str) -> bool {
    text.bytes().all(|b| b == b'0')
}

/// What vendors of tracing want to be handed on beside the span: `key=value` members, parted by commas. Opaque to effectd.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TraceState(String);

impl TraceState {
    /// Reads one, as it came in one header or in several that are joined with commas.
    pub fn new(text: &str) -> Result<Self, TraceInvalid> {
        let members = text.split(',').map(|member| member.trim_matches([' ', '\t']));
        let members: Vec<&str> = members.filter(|member| !member.is_empty()).collect();
        let text = members.join(",");
        let fits =
            (1..=TRACESTATE_MEMBERS_MAX).contains(&members.len()) && text.len() <= TRACESTATE_BYTES_MAX;
        if fits && members.iter().all(|member| is_member(member)) {
            Ok(Self(text))
        } else {
            Err(TraceInvalid::State)
        }
    }

    /// The whole of it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn is_member(member: &str) -> bool {
    let Some((key, value)) = member.split_once('=') else {
        return false;
    };
    let begins = key
        .bytes()
        .next()
        .is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    let of_key = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"_-*/@".contains(&b);
    let of_value = |b: u8| (0x20..=0x7e).contains(&b) && b != b'=';
    begins
        && key.bytes().all(of_key)
        && key.len() <= 256
        && (1..=256).contains(&value.len())
        && value.bytes().all(of_value)
}

/// The action's place in the trace of whoever asked for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TraceContext {
    /// The action itself, as the parent of whatever follows from it.
    pub traceparent: TraceParent,
    /// The span that asked for it: 16 hex digits.
    pub parent_id: String,
    /// What came beside it, handed on as it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tracestate: Option<TraceState>,
}

macro_rules! text_type {
    ($name:ident, $schema:expr) => {
        impl TryFrom<String> for $name {
            type Error = TraceInvalid;
            fn try_from(text: String) -> Result<Self, TraceInvalid> {
                Self::new(&text)
            }
        }

        impl From<$name> for String {
            fn from(it: $name) -> String {
                it.0
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
                $schema
            }
        }
    };
}

text_type!(
    TraceParent,
    json_schema!({ "type": "string", "pattern": "^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}" })
);
text_type!(
    TraceState,
    json_schema!({ "type": "string", "minLength": 3, "maxLength": TRACESTATE_BYTES_MAX })
);

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

    #[test]
    fn a_span_of_the_standard_is_read_and_nothing_else() {
        let parent = TraceParent::new(&format!("00-{TRACE}-b7ad6b7169203331-01")).unwrap();
        assert_eq!((parent.trace(), parent.span()), (TRACE, "b7ad6b7169203331"));
        let later = TraceParent::new(&format!("01-{TRACE}-b7ad6b7169203331-ff-more")).unwrap();
        assert_eq!(later.as_str(), format!("00-{TRACE}-b7ad6b7169203331-03"));
        let bad = [
            format!("00-{TRACE}-b7ad6b7169203331-01-more"),
            format!("ff-{TRACE}-b7ad6b7169203331-01"),
            format!("00-{}-b7ad6b7169203331-01", "0".repeat(32)),
            format!("00-{TRACE}-0000000000000000-01"),
            format!("00-{}-b7ad6b7169203331-01", TRACE.to_uppercase()),
            format!("00-{TRACE}-b7ad6b7169203331"),
            format!("00-{TRACE}-b7ad6b7169203331-0ä"),
            String::new(),
        ];
        for text in bad {
            assert_eq!(TraceParent::new(&text), Err(TraceInvalid::Parent), "{text}");
        }
    }

    #[test]
    fn an_action_is_the_same_span_whoever_asks() {
        let (trace, action) = (TraceId::new(TRACE).unwrap(), ActionId::new("a-1").unwrap());
        let own = TraceParent::of_action(&trace, &action, None).unwrap();
        assert!(own.as_str().ends_with("-01"));
        assert_eq!(own.trace(), TRACE);
        let came = TraceParent::new(&format!("00-{TRACE}-b7ad6b7169203331-00")).unwrap();
        let under = TraceParent::of_action(&trace, &action, Some(&came)).unwrap();
        assert_eq!(under.span(), own.span());
        assert!(
            under.as_str().ends_with("-00"),
            "it says whether the trace is kept"
        );
        let other = TraceParent::of_action(&trace, &ActionId::new("a-2").unwrap(), None).unwrap();
        assert_ne!(other.span(), own.span());
        let ours = TraceId::new("trace-123").unwrap();
        assert_eq!(TraceParent::of_action(&ours, &action, None), None);
    }

    #[test]
    fn what_vendors_send_is_handed_on_within_bounds() {
        let state = TraceState::new("congo=t61rcWkgMzE , rojo=00f0,, 1a@b=x y").unwrap();
        assert_eq!(state.as_str(), "congo=t61rcWkgMzE,rojo=00f0,1a@b=x y");
        let many = vec!["a=1"; TRACESTATE_MEMBERS_MAX + 1].join(",");
        let long = format!("a={},b={}", "x".repeat(256), "x".repeat(256));
        for bad in [
            "", "novalue", "A=1", "=1", "a=", "a=b=c", "a=\u{1b}", &many, &long,
        ] {
            assert_eq!(TraceState::new(bad), Err(TraceInvalid::State), "{bad}");
        }
    }
}
