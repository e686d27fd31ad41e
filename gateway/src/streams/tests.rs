//! Streams without a daemon: who gets what, and what ends a stream.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "time is paused")]

use std::time::Duration;

use effectd_actors::approvals::invocation::Invocation;
use effectd_actors::services::tokens::Claims;
use effectd_bus::{NewBody, NewEvent, memory};
use effectd_contracts::{EventId, InvocationStatus, ManualClock, TokenKind, Topic, TraceId};
use serde_json::{Value, json};
use tokio::sync::broadcast::error::TryRecvError;
use tokio::sync::watch;

use super::body::hear;
use super::reader::tell;
use super::*;
use crate::limits::STREAM_HEARTBEAT;

fn clock() -> Arc<ManualClock> {
    Arc::new(ManualClock::at("2026-01-01T00:00:00Z".parse().unwrap()))
}

fn streams() -> Arc<Streams> {
    let gauge = IntGauge::new("streams", "streams").unwrap();
    let streams = Streams::new(&memory::open(clock()).unwrap(), &gauge);
    streams.open.lock().is_reading = true;
    streams
}

fn at(approvals: u64, executed: u64) -> Position {
    Position { approvals, executed }
}

fn invocation(id: &str, org: Option<&str>, session: &str) -> Invocation {
    Invocation {
        id: id.parse().unwrap(),
        session_id: session.to_owned(),
        organization_id: org.map(|org| org.parse().unwrap()),
        integration_id: None,
        integration: "files".to_owned(),
        action: "write_text".to_owned(),
        risk_level: None,
        mode: None,
        mode_source: None,
        params: json!({ "path": "a\nb" }).as_object().unwrap().clone(),
        status: InvocationStatus::Failed,
        error: Some("it failed".to_owned()),
        denied_reason: None,
        duration_ms: None,
        approved_by: None,
        approved_at: None,
        completed_at: None,
        expires_at: None,
        created_at: "2026-01-01T00:00:00Z".parse().unwrap(),
        receipt_id: None,
        grant_id: None,
    }
}

/// One event. The session `gone` is deleted.
fn told(org: Option<&str>, session: &str, next: Position) -> Vec<Told> {
    let is_there = |session: &str| Ok(session.starts_with("s-"));
    tell("action_completed", vec![invocation("a-1", org, session)], next, is_there).unwrap()
}

fn scope(orgs: &[(&str, Detail)], session: Option<&str>, others: Option<Detail>) -> Scope {
    let orgs = orgs.iter().map(|(org, detail)| (org.parse().unwrap(), *detail)).collect();
    Scope { orgs, session: session.map(|session| session.parse().unwrap()), others }
}

/// The `data` of an event with this cursor.
fn data(bytes: &Bytes, cursor: &str) -> Value {
    let text = String::from_utf8(bytes.to_vec()).unwrap();
    let lines: Vec<_> = text.lines().collect();
    let [name, id, data, ""] = lines[..] else { panic!("{text}") };
    assert_eq!((name, id), ("event: action_completed", &*format!("id: {cursor}")));
    serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap()
}

#[test]
fn events_go_to_their_organisation_session_and_lookers() {
    let streams = streams();
    let (full, brief) = (Detail::Full, Detail::Brief);
    let mut clients = [
        ("member", scope(&[("home", full)], None, None)),
        ("stranger", scope(&[("office", full)], None, None)),
        ("both", scope(&[("home", full), ("office", full)], None, None)),
        ("sandbox", scope(&[("home", full)], Some("s-1"), None)),
        ("other sandbox", scope(&[("home", full)], Some("s-2"), None)),
        ("looks", scope(&[("home", brief)], None, None)),
        ("reads sessions", scope(&[("home", Detail::Sessions)], None, None)),
        ("operator", scope(&[], None, Some(full))),
        ("looks at all", scope(&[("office", full)], None, Some(brief))),
    ]
    .map(|(name, scope)| {
        let (_, live) = streams.join(&scope).unwrap();
        (name, scope, live)
    });
    let mut hearing = |org: Option<&str>, session: &str, next: u64| {
        streams.hand_out(told(org, session, at(0, next)), at(0, next));
        assert_eq!(streams.position(), Some(at(0, next)));
        let mut hearing = Vec::new();
        for (name, scope, live) in &mut clients {
            let Ok(told) = live.try_recv() else { continue };
            assert_eq!(live.try_recv().err(), Some(TryRecvError::Empty), "one event is heard once");
            let Some(bytes) = scope.bytes(&told) else {
                assert_eq!(*name, "both", "what is not for a client does not reach it");
                continue;
            };
            let data = data(bytes, &format!("0-{next}"));
            let shown = (&data["params"]["path"], &data["error"]);
            let all = shown == (&json!("a\nb"), &json!("it failed"));
            assert!(all || shown == (&Value::Null, &Value::Null), "{data}");
            assert_eq!((&data["id"], &data["status"]), (&json!("a-1"), &json!("failed")));
            hearing.push((*name, all));
        }
        hearing
    };
    let of_session = hearing(Some("home"), "s-1", 1);
    let first = [("member", true), ("both", true), ("sandbox", true), ("looks", false)];
    let rest = [("operator", true), ("looks at all", false)];
    assert_eq!(of_session, [&first[..], &[("reads sessions", true)], &rest].concat());
    let without = [("member", true), ("both", true), ("looks", false), ("reads sessions", false)];
    assert_eq!(hearing(Some("home"), "agent:a", 2), [&without[..], &rest].concat());
    assert_eq!(hearing(Some("home"), "gone", 3), [&without[..], &rest].concat());
    assert_eq!(
        hearing(Some("office"), "agent:a", 4),
        [("stranger", true), ("both", true), ("operator", true), ("looks at all", true)]
    );
    assert_eq!(hearing(None, "agent:a", 5), [("operator", true), ("looks at all", false)]);
    drop(clients);
    assert_eq!(streams.skip_unless_heard(at(9, 9)), at(9, 9));
    assert!(streams.open.lock().channels.is_empty(), "nothing is left of them");
}

#[test]
fn the_reader_skips_only_what_nobody_hears() {
    let (streams, org) = (streams(), "home".parse().unwrap());
    assert!(streams.pass_by(Some(&org), at(1, 0)));
    assert_eq!(streams.skip_unless_heard(at(5, 5)), at(5, 5));
    let (begin, live) = streams.join(&scope(&[("home", Detail::Full)], Some("s-1"), None)).unwrap();
    assert_eq!(begin, at(5, 5));
    assert_eq!(streams.skip_unless_heard(at(7, 7)), at(5, 5));
    assert!(streams.pass_by(Some(&"office".parse().unwrap()), at(6, 5)));
    assert!(!streams.pass_by(Some(&org), at(7, 5)), "it may be about the session");
    assert_eq!(streams.position(), Some(at(6, 5)));
    drop(live);
    assert_eq!(streams.skip_unless_heard(at(7, 7)), at(7, 7));
}

#[test]
fn equal_requests_have_one_cursor_after_the_last() {
    let invocations = ["a-1", "a-2"].map(|id| invocation(id, Some("home"), "s-1"));
    let told = tell("action_completed", invocations.into(), at(3, 4), |_| Ok(true)).unwrap();
    let texts: Vec<_> = told.iter().map(|told| String::from_utf8(told.full.to_vec()).unwrap()).collect();
    let [first, last] = &texts[..] else { panic!("{texts:?}") };
    assert!(!first.contains("\nid: ") && first.contains("\"a-1\""), "{first}");
    assert!(last.contains("\nid: 3-4\n") && last.contains("\"a-2\""), "{last}");
}

#[tokio::test(start_paused = true)]
async fn a_stream_beats_and_ends_if_it_is_slow_or_the_daemon_stops() {
    let (streams, scope) = (streams(), scope(&[("home", Detail::Full)], None, None));
    let [mut reads, mut slow] = [(); 2].map(|()| streams.join(&scope).unwrap().1);
    let begun = tokio::time::Instant::now();
    assert_eq!(&*hear(&mut reads, &scope, at(0, 1)).await.unwrap(), b":\n\n");
    assert!(begun.elapsed() >= STREAM_HEARTBEAT);
    // The first was there before the stream began.
    for next in 1..=STREAM_EVENTS_MAX as u64 + 1 {
        streams.hand_out(told(Some("home"), "s-1", at(0, next)), at(0, next));
        if next > 1 {
            let bytes = hear(&mut reads, &scope, at(0, 1)).await.unwrap();
            assert_eq!(data(&bytes, &format!("0-{next}"))["id"], "a-1");
        }
    }
    assert_eq!(hear(&mut slow, &scope, at(0, 1)).await, None, "one event too many waits for it");
    // All have the same bytes.
    let [one, same] = [&mut slow, &mut reads].map(|live| live.resubscribe());
    streams.hand_out(told(Some("home"), "s-1", at(1, 0)), at(1, 0));
    let [one, same] = [one, same].map(|mut live| live.try_recv().unwrap());
    assert!(Arc::ptr_eq(&one, &same));
    streams.open.lock().is_reading = false;
    streams.end_all();
    assert!(hear(&mut reads, &scope, at(0, 1)).await.is_some(), "what was queued comes first");
    assert_eq!(hear(&mut reads, &scope, at(0, 1)).await, None);
    assert!(streams.join(&scope).is_none() && streams.position().is_none());
}

#[test]
fn slots_are_bounded_for_an_account_and_in_all() {
    let streams = streams();
    let token = |id: usize| {
        let claims = Claims {
            token_id: "t".to_owned(),
            account: format!("account://home/a-{id}").parse().unwrap(),
            kind: TokenKind::User,
            org: "home".parse().unwrap(),
            principal: "account://home/a".parse().unwrap(),
            session: None,
            roles: Vec::new(),
            expires_at: None,
        };
        let principal = claims.principal.clone();
        Peer { caller: Caller::Token(Arc::new(claims)), principal, operator: false }
    };
    let user = Peer { caller: Caller::User(7), principal: "user://7".parse().unwrap(), operator: false };
    let mut slots: Vec<Slot> = Vec::new();
    let refused = |peer: &Peer| {
        let problem = streams.enter(peer).err().unwrap();
        assert!(problem.retry_after_ms.is_some(), "{problem:?}");
        (problem.status, problem.code)
    };
    for _ in 0..STREAMS_PER_ACCOUNT_MAX {
        slots.push(streams.enter(&token(0)).ok().unwrap());
    }
    assert_eq!(refused(&token(0)), (429, "rate_limited".to_owned()));
    slots.pop();
    slots.push(streams.enter(&token(0)).ok().unwrap());
    for id in slots.len()..STREAMS_MAX - STREAMS_RESERVE {
        slots.push(streams.enter(&token(id)).ok().unwrap());
    }
    assert_eq!(refused(&token(1)), (503, "overloaded".to_owned()));
    // Users of the socket have the rest.
    while slots.len() < STREAMS_MAX {
        slots.push(streams.enter(&user).ok().unwrap());
    }
    assert_eq!(refused(&user), (503, "overloaded".to_owned()));
    drop(slots);
    assert!(streams.enter(&token(0)).is_ok());
    streams.open.lock().is_reading = false;
    assert_eq!(refused(&user), (503, "shutting_down".to_owned()));
}

#[test]
fn a_cursor_finds_its_position() {
    for position in [at(0, 0), at(1, 0), at(7, 4_000_000_000), Position::MAX] {
        assert_eq!(Position::of_cursor(&position.cursor()), Some(position));
    }
    let wrong = ["", "-", "5", "5-", "-5", "5.1", "+5-1", "05-1", "5-1-1", "5- 1", "5-18446744073709551616"];
    for wrong in wrong {
        assert_eq!(Position::of_cursor(wrong), None, "{wrong}");
    }
}

#[test]
fn a_page_has_both_topics_in_the_order_of_storing() {
    let clock = clock();
    let store = memory::open(clock.clone()).unwrap();
    let mut stored = Vec::new();
    // Most are receipts, so that the topics' pages do not end together.
    for n in 0..200_u32 {
        let topic = if n % 3 == 0 { Topic::Approvals } else { Topic::ActionExecuted };
        let id = EventId::new(format!("e-{n}")).unwrap();
        stored.push(id.clone());
        let event = NewEvent {
            event_id: id,
            time: "2026-01-01T00:00:00Z".parse().unwrap(),
            trace_id: TraceId::fresh(),
            action_id: None,
            body: NewBody::Clear(b"{}".to_vec()),
        };
        store.publish(&topic.into(), vec![event]).wait().unwrap();
        clock.advance(Duration::from_millis(2));
    }
    let end = Position::end_of(&store).unwrap();
    assert_eq!(end, at(67, 133));
    for to in [end, Position::MAX] {
        let (mut from, mut read) = (Position::default(), Vec::new());
        loop {
            let page = position::page(&store, from, to).unwrap();
            let Some((last, _)) = page.last() else { break };
            from = *last;
            read.extend(page.into_iter().map(|(_, event)| event.event_id));
        }
        assert_eq!((from, &read), (end, &stored));
    }
    // From every position on, it is the rest.
    let first = position::page(&store, Position::default(), end).unwrap();
    let (middle, _) = first[40];
    assert_eq!(middle.until(end), 200 - 41);
    assert_eq!(position::page(&store, middle, end).unwrap()[0].1.event_id, stored[41]);
    assert!(end.covers(middle) && !middle.covers(end));
    for (position, is_kept) in [(middle, true), (end, true), (at(68, 133), false), (at(67, 134), false)] {
        assert_eq!(position.is_kept(&store).unwrap(), is_kept, "{position:?}");
    }
}

#[tokio::test]
async fn missed_events_are_read_on_a_few_threads_of_their_own() {
    let (streams, own) = (streams(), std::thread::current().id());
    let thread = streams.read_page(async { std::thread::current().id() }).await;
    assert!(thread.is_some_and(|thread| thread != own));
    let (open, gate) = watch::channel(false);
    let clients = [(); STREAM_PAGES_MAX].map(|()| {
        let (streams, mut gate) = (streams.clone(), gate.clone());
        let page = async move { gate.wait_for(|open| *open).await.is_ok() };
        tokio::spawn(async move { streams.read_page(page).await })
    });
    while streams.pages.available_permits() > 0 {
        tokio::task::yield_now().await;
    }
    for client in clients {
        client.abort();
        assert!(client.await.is_err());
    }
    assert_eq!(streams.pages.available_permits(), 0, "the pages of clients that have gone are still read");
    open.send_replace(true);
    assert_eq!(streams.read_page(async { 7 }).await, Some(7));
}
