//! W3C Trace Context: `traceparent` and `tracestate`, which make an action a span in its planner's trace.
//!
//! Receipts, events and responses name the action's span, with the planner's span as its parent. The span id is derived from
//! trace and action, so every part of effectd computes the same one, also after a restart.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::ids::{ActionId, TraceId};
use crate::limits::{TRACESTATE_BYTES_MAX, TRACESTATE_MEMBERS_MAX};
use crate::wire::text_type;

/// A span: `00-<trace>-<span>-<flags>`, in version 00 of the standard.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TraceParent(String);

/// An invalid `traceparent` or `tracestate`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TraceInvalid {
    /// An invalid `traceparent`.
    #[error("traceparent must be 00-<32 hex digits>-<16 hex digits>-<2 hex digits>, neither id all zero")]
    Parent,
    /// An invalid `tracestate`.
    #[error(
        "tracestate must be key=value members, separated by commas: at most {TRACESTATE_MEMBERS_MAX} of them, {TRACESTATE_BYTES_MAX} bytes"
    )]
    State,
}

/// The flags of version 00: sampled, and a random trace id. Others must not be propagated.
const FLAGS_KNOWN: u8 = 0b11;
/// Sampled: the flag of actions without a `traceparent`, which are always logged.
const SAMPLED: u8 = 1;

impl TraceParent {
    /// Parses version 00 or a later one; drops the fields that a later version adds, as the standard demands.
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

    /// The action's span in a trace, with the flags of the caller's span. `None` if the trace id does not fit the standard.
    pub fn of_action(trace: &TraceId, action: &ActionId, parent: Option<&Self>) -> Option<Self> {
        let trace = trace.as_str();
        if !is_hex(trace, 32) || is_zero(trace) {
            return None;
        }
        let flags =
            parent.and_then(|parent| u8::from_str_radix(parent.part(53..55), 16).ok()).unwrap_or(SAMPLED);
        Some(Self::of(trace, &span_id(trace, action), flags))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The trace id.
    pub fn trace(&self) -> &str {
        self.part(3..35)
    }

    /// The span id.
    pub fn span(&self) -> &str {
        self.part(36..52)
    }

    fn part(&self, range: std::ops::Range<usize>) -> &str {
        // Version 00 is ASCII with fixed offsets.
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

/// The tracing vendors' `key=value` members, separated by commas. Opaque to effectd.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TraceState(String);

impl TraceState {
    /// Parses one header, or several that are joined with commas.
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

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn is_member(member: &str) -> bool {
    let Some((key, value)) = member.split_once('=') else {
        return false;
    };
    let begins = key.bytes().next().is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    let of_key = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"_-*/@".contains(&b);
    let of_value = |b: u8| (0x20..=0x7e).contains(&b) && b != b'=';
    begins
        && key.bytes().all(of_key)
        && key.len() <= 256
        && (1..=256).contains(&value.len())
        && value.bytes().all(of_value)
}

/// The action's span in its planner's trace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TraceContext {
    /// The action's span, which is the parent of everything that follows from it.
    pub traceparent: TraceParent,
    /// The planner's span: 16 hex digits.
    pub parent_id: String,
    /// The vendors' members, unchanged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tracestate: Option<TraceState>,
}

/// The pattern of [`TraceState`]: members, separated by commas and blanks.
fn members() -> String {
    let member = r"[a-z0-9][a-z0-9_*/@-]{0,255}=[ -+\--<>-~]{0,255}[!-+\--<>-~]";
    let more = TRACESTATE_MEMBERS_MAX - 1;
    format!(r"^[ \t,]*{member}([ \t]*,[ \t,]*{member}){{0,{more}}}[ \t,]*$")
}

macro_rules! span_text {
    ($name:ident, $schema:tt) => {
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        text_type!($name, $name::new, TraceInvalid, $schema);
    };
}

span_text!(
    TraceParent,
    { "type": "string", "pattern": "^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}" }
);
span_text!(
    TraceState,
    { "type": "string", "minLength": 3, "maxLength": TRACESTATE_BYTES_MAX, "pattern": members() }
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
        assert!(under.as_str().ends_with("-00"), "it says whether the trace is kept");
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
        for bad in ["", "novalue", "A=1", "=1", "a=", "a=b=c", "a=\u{1b}", &many, &long] {
            assert_eq!(TraceState::new(bad), Err(TraceInvalid::State), "{bad}");
        }
    }
}
