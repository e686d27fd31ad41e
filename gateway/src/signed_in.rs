//! Who is signed in to the console: the sessions of browsers, and the one-time links that begin one.
//!
//! Both are in memory, by the hash of a random value that only the browser has: a restart signs everybody out, and no backup has them.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::OnceLock;
use std::time::Duration;

use axum::http::{HeaderMap, HeaderValue, header};
use effectd_contracts::{ApprovalId, Clock, Digest, Timestamp};
use parking_lot::Mutex;

use crate::limits::{
    CONSOLE_LINK_TIME, CONSOLE_SEEN_BYTES_MAX, CONSOLE_SEEN_MAX, CONSOLE_SESSION_TIME_MAX,
    CONSOLE_SESSIONS_MAX, CONSOLE_SESSIONS_PER_HOLDER_MAX,
};
use crate::peer::Peer;
use crate::problem::{Kind, Problem};
use crate::slots::Holder;

/// What a browser keeps: 256 random bits.
const VALUE_BYTES: usize = 32;
const COOKIE: &str = "effectd-console";
/// A browser takes a cookie of this name over TLS only, for this host alone, and for all paths.
const COOKIE_TLS: &str = "__Host-effectd-console";

#[derive(Default)]
pub(crate) struct SignedIn {
    sessions: Mutex<HashMap<Digest, Session>>,
    links: Mutex<HashMap<Digest, Link>>,
    /// Where the daemon listens on the network.
    pub(crate) url: OnceLock<String>,
}

struct Session {
    peer: Peer,
    ends: Timestamp,
    /// The questions that it was shown last, as text: if one changes, the browser is shown how.
    seen: Vec<(ApprovalId, String)>,
}

struct Link {
    peer: Peer,
    ends: Timestamp,
}

impl SignedIn {
    /// Begins a session, and returns its value and its end: after twelve hours, or earlier with the peer's token. Where this holder or all
    /// together have too many, one makes room: of who has the most, the session that ends first.
    pub(crate) fn enter(&self, peer: Peer, clock: &dyn Clock) -> Result<(String, Timestamp), Problem> {
        let (value, now) = (random()?, clock.now());
        let token_ends = peer.claims().and_then(|claims| claims.expires_at);
        let ends = after(now, CONSOLE_SESSION_TIME_MAX);
        let ends = token_ends.map_or(ends, |token| token.min(ends));
        let mut sessions = self.sessions.lock();
        sessions.retain(|_, session| session.ends > now);
        let mut counts: HashMap<Holder, usize> = HashMap::new();
        for session in sessions.values() {
            *counts.entry(session.peer.holder()).or_default() += 1;
        }
        let holder = peer.holder();
        let is_crowded = counts.get(&holder).is_some_and(|own| *own >= CONSOLE_SESSIONS_PER_HOLDER_MAX);
        if is_crowded || sessions.len() >= CONSOLE_SESSIONS_MAX {
            let of_holder = sessions.iter().map(|(key, session)| (key, session, session.peer.holder()));
            let first = of_holder
                .filter(|(_, _, other)| !is_crowded || *other == holder)
                .min_by_key(|(_, session, other)| (Reverse(counts.get(other)), session.ends));
            let first = first.map(|(key, ..)| *key);
            first.and_then(|key| sessions.remove(&key));
        }
        sessions.insert(Digest::of(value.as_bytes()), Session { peer, ends, seen: Vec::new() });
        Ok((value, ends))
    }

    /// Who has this cookie's value.
    pub(crate) fn peer(&self, value: &str, now: Timestamp) -> Option<Peer> {
        let sessions = self.sessions.lock();
        let session = sessions.get(&Digest::of(value.as_bytes())).filter(|session| session.ends > now)?;
        Some(session.peer.clone())
    }

    pub(crate) fn leave(&self, value: &str) {
        self.sessions.lock().remove(&Digest::of(value.as_bytes()));
    }

    /// Makes a link that signs its first visitor in as this peer, and returns its value and its end. It replaces the peer's last one.
    pub(crate) fn link(&self, peer: Peer, clock: &dyn Clock) -> Result<(String, Timestamp), Problem> {
        let (value, now) = (random()?, clock.now());
        let ends = after(now, CONSOLE_LINK_TIME);
        let mut links = self.links.lock();
        let holder = peer.holder();
        links.retain(|_, link| link.ends > now && link.peer.holder() != holder);
        links.insert(Digest::of(value.as_bytes()), Link { peer, ends });
        Ok((value, ends))
    }

    /// Whom this link signs in; it stays usable.
    pub(crate) fn linked(&self, value: &str, now: Timestamp) -> Option<Peer> {
        let links = self.links.lock();
        links.get(&Digest::of(value.as_bytes())).filter(|link| link.ends > now).map(|link| link.peer.clone())
    }

    /// Uses a link up.
    pub(crate) fn redeem(&self, value: &str, now: Timestamp) -> Option<Peer> {
        let link = self.links.lock().remove(&Digest::of(value.as_bytes()));
        link.filter(|link| link.ends > now).map(|link| link.peer)
    }

    /// Notes how a question looked when it was shown to this session, and returns how it looked before.
    pub(crate) fn shown(&self, value: &str, id: &ApprovalId, text: String) -> Option<String> {
        let mut sessions = self.sessions.lock();
        let seen = &mut sessions.get_mut(&Digest::of(value.as_bytes()))?.seen;
        let before = seen.iter().position(|(known, _)| known == id).map(|at| seen.remove(at).1);
        if text.len() <= CONSOLE_SEEN_BYTES_MAX {
            seen.push((id.clone(), text));
        }
        if seen.len() > CONSOLE_SEEN_MAX {
            seen.remove(0);
        }
        before
    }

    /// Notes that a question is asked again under another id.
    pub(crate) fn asked_again(&self, value: &str, id: &ApprovalId, again: &ApprovalId) {
        let mut sessions = self.sessions.lock();
        let seen = sessions.get_mut(&Digest::of(value.as_bytes())).map(|session| &mut session.seen);
        for (known, _) in seen.into_iter().flatten().filter(|(known, _)| known == id) {
            *known = again.clone();
        }
    }
}

fn random() -> Result<String, Problem> {
    let mut bytes = [0; VALUE_BYTES];
    getrandom::fill(&mut bytes)
        .map_err(|error| Problem::of(Kind::Internal, format!("the system gives no randomness: {error}")))?;
    Ok(Digest::from_bytes(bytes).hex())
}

fn after(now: Timestamp, time: Duration) -> Timestamp {
    now.checked_add(time).unwrap_or(now)
}

/// The value of the session cookie. Two cookies of its name are none: another page may have set one of them.
pub(crate) fn cookie(headers: &HeaderMap, is_tls: bool) -> Option<&str> {
    let name = if is_tls { COOKIE_TLS } else { COOKIE };
    let lines = headers.get_all(header::COOKIE).iter().filter_map(|line| line.to_str().ok());
    let pairs = lines.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
    let mut own = pairs.filter(|(key, _)| *key == name).map(|(_, value)| value);
    own.next().filter(|value| own.next().is_none() && value.len() == 2 * VALUE_BYTES)
}

/// The header that gives a browser its cookie; without a value, the one that takes it away.
pub(crate) fn set_cookie(is_tls: bool, value: Option<(&str, Duration)>) -> HeaderValue {
    let (name, secure) = if is_tls { (COOKIE_TLS, "; Secure") } else { (COOKIE, "") };
    let (value, age) = value.map_or(("", 0), |(value, lasts)| (value, lasts.as_secs()));
    let text = format!("{name}={value}; Path=/; Max-Age={age}; HttpOnly; SameSite=Strict{secure}");
    let mut header = HeaderValue::from_str(&text).unwrap_or(HeaderValue::from_static(""));
    header.set_sensitive(true);
    header
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;

    use effectd_actors::services::tokens::Claims;
    use effectd_contracts::{ManualClock, TokenKind};

    use super::*;
    use crate::peer::Caller;

    fn user(uid: u32) -> Peer {
        let principal = format!("user://{uid}").parse().unwrap();
        Peer { caller: Caller::User(uid), principal, operator: false }
    }

    fn clock() -> ManualClock {
        ManualClock::at("2026-11-18T12:00:00Z".parse().unwrap())
    }

    #[test]
    fn a_session_ends_after_twelve_hours_or_with_its_token() {
        let (clock, signed_in) = (clock(), SignedIn::default());
        let (value, ends) = signed_in.enter(user(1), &clock).unwrap();
        assert_eq!(ends.to_string(), "2026-11-19T00:00:00Z");
        let before = "2026-11-18T23:59:59Z".parse().unwrap();
        assert!(signed_in.peer(&value, before).is_some() && signed_in.peer(&value, ends).is_none());
        let token_ends = "2026-11-18T13:00:00Z".parse().unwrap();
        let claims = Claims {
            token_id: "t".to_owned(),
            account: "account://home/ada".parse().unwrap(),
            kind: TokenKind::User,
            org: "home".parse().unwrap(),
            principal: "account://home/ada".parse().unwrap(),
            session: None,
            roles: Vec::new(),
            expires_at: Some(token_ends),
        };
        let peer = Peer { caller: Caller::Token(Arc::new(claims)), ..user(1) };
        assert_eq!(signed_in.enter(peer, &clock).unwrap().1, token_ends);
        signed_in.leave(&value);
        assert!(signed_in.peer(&value, before).is_none());
    }

    #[test]
    fn a_link_signs_in_once_and_only_the_last_one() {
        let (clock, signed_in) = (clock(), SignedIn::default());
        let now = clock.now();
        let (first, _) = signed_in.link(user(1), &clock).unwrap();
        let (second, ends) = signed_in.link(user(1), &clock).unwrap();
        let (other, _) = signed_in.link(user(2), &clock).unwrap();
        assert!(signed_in.redeem(&first, now).is_none());
        assert!(signed_in.linked(&second, now).is_some(), "to look uses nothing up");
        assert_eq!(signed_in.redeem(&second, now).unwrap().principal.as_str(), "user://1");
        assert!(signed_in.redeem(&second, now).is_none());
        assert!(signed_in.redeem(&other, ends).is_none(), "it is too late");
    }

    #[test]
    fn one_holder_has_few_sessions_and_the_first_makes_room() {
        let (clock, signed_in) = (clock(), SignedIn::default());
        let (other, _) = signed_in.enter(user(2), &clock).unwrap();
        let mut values = Vec::new();
        for _ in 0..=CONSOLE_SESSIONS_PER_HOLDER_MAX {
            values.push(signed_in.enter(user(1), &clock).unwrap().0);
            clock.advance(Duration::from_secs(1));
        }
        let known = |value: &String| signed_in.peer(value, clock.now()).is_some();
        assert!(!known(&values[0]) && values[1..].iter().all(known) && known(&other));
    }

    #[test]
    fn who_has_many_sessions_makes_room_for_others() {
        let (clock, signed_in) = (clock(), SignedIn::default());
        let (quiet, _) = signed_in.enter(user(0), &clock).unwrap();
        for holder in 1..=CONSOLE_SESSIONS_MAX / CONSOLE_SESSIONS_PER_HOLDER_MAX {
            for _ in 0..CONSOLE_SESSIONS_PER_HOLDER_MAX {
                signed_in.enter(user(holder as u32), &clock).unwrap();
            }
        }
        assert_eq!(signed_in.sessions.lock().len(), CONSOLE_SESSIONS_MAX);
        let (late, _) = signed_in.enter(user(99), &clock).unwrap();
        assert!([quiet, late].iter().all(|value| signed_in.peer(value, clock.now()).is_some()));
    }

    #[test]
    fn one_cookie_of_the_right_name_counts() {
        let value = "a".repeat(2 * VALUE_BYTES);
        let found = |lines: &[String], is_tls| {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append(header::COOKIE, line.parse().unwrap());
            }
            cookie(&headers, is_tls).is_some()
        };
        let own = format!("{COOKIE}={value}");
        assert!(found(&[format!("x=1; {own}")], false));
        assert!(!found(std::slice::from_ref(&own), true), "over TLS it has the other name");
        assert!(found(&[format!("{COOKIE_TLS}={value}")], true));
        assert!(!found(&[own.clone(), own.clone()], false));
        assert!(!found(&[format!("{own}; {own}")], false));
        assert!(!found(&[format!("{COOKIE}=short")], false));
    }

    #[test]
    fn a_cookie_is_for_this_site_and_no_script() {
        let lasts = Some(("v", Duration::from_secs(60)));
        let plain = set_cookie(false, lasts);
        assert_eq!(plain, "effectd-console=v; Path=/; Max-Age=60; HttpOnly; SameSite=Strict");
        let secure = set_cookie(true, lasts);
        let text = secure.to_str().unwrap();
        assert!(text.starts_with("__Host-") && text.ends_with("; Secure") && secure.is_sensitive());
        assert!(set_cookie(false, None).to_str().unwrap().contains("=; Path=/; Max-Age=0;"));
    }
}
