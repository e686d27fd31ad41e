//! `effectd approvals watch`: the inbox in the terminal. What waits, as it comes; what would change; one key to decide.
//!
//! A key decides about what is on the screen and nothing else: with the decision goes the digest of what was shown, and
//! when the question that was chosen is gone, none is chosen until the person chooses one.

mod picture;

use std::time::Duration;

use effectd_contracts::ApprovalId;
use effectd_gateway::client::Client;
use effectd_gateway::views::approvals::{
    ApprovalView, ApproveBody, DecisionView, DenyBody, HowWord, StandingView,
};

use super::super::backend::{Trouble, client_state, socket};
use super::{all, get, post};
use crate::cli::Common;
use crate::exit::Exit;
use crate::tui::ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use crate::tui::{Event, Events, Screen};

/// How often the daemon is asked.
const EVERY: Duration = Duration::from_secs(1);
const REASON_CHARS_MAX: usize = 500;
/// What `g` grants: so many more calls by the same session …
const GRANT_CALLS: u32 = 10;
/// … for so long.
const GRANT_LASTS_S: u64 = 3_600;
/// How long a decision waits for the end of the action.
const WAIT_MS: u64 = 1_500;
/// How far a page goes.
const PAGE_ROWS: u16 = 10;

#[derive(Debug, Clone, PartialEq, Eq)]
enum Doing {
    Looking,
    /// Typing why they say no.
    Denying(String),
    /// Asked whether they mean it: nobody would be asked any more.
    Confirming(String),
}

#[derive(Debug)]
struct Inbox {
    waiting: Vec<ApprovalView>,
    /// Something has waited since the inbox was opened.
    begun: bool,
    /// Chosen by the person, by its handle.
    chosen: Option<String>,
    /// The digest of the question that was drawn last: the only one that a key can decide about.
    drawn: Option<(String, String)>,
    scroll: u16,
    doing: Doing,
    /// What came of the last key, or what is wrong.
    news: String,
}

impl Inbox {
    fn chosen(&self) -> Option<&ApprovalView> {
        let id = self.chosen.as_ref()?;
        self.waiting.iter().find(|view| &view.approval_id == id)
    }

    /// What waits now. The first one that ever comes is chosen; after that the person chooses.
    fn take(&mut self, waiting: Vec<ApprovalView>) {
        self.waiting = waiting;
        if !self.begun && !self.waiting.is_empty() {
            self.begun = true;
            self.chosen = self.waiting.first().map(|view| view.approval_id.clone());
        }
        if self.chosen.is_some() && self.chosen().is_none() {
            self.chosen = None;
            self.scroll = 0;
            if self.doing != Doing::Looking {
                self.doing = Doing::Looking;
                "the question is gone: decided by somebody else, withdrawn or expired"
                    .clone_into(&mut self.news);
            }
        }
    }

    fn choose(&mut self, step: isize) {
        let at = self
            .chosen
            .as_ref()
            .and_then(|id| self.waiting.iter().position(|view| &view.approval_id == id));
        let next = match at {
            Some(at) => at.saturating_add_signed(step),
            None => 0,
        };
        let next = next.min(self.waiting.len().saturating_sub(1));
        self.chosen = self.waiting.get(next).map(|view| view.approval_id.clone());
        self.scroll = 0;
    }

    /// The question that is on the screen, if it is still the same.
    fn decidable(&self) -> Option<(ApprovalId, String)> {
        let view = self.chosen()?;
        let (id, digest) = self.drawn.as_ref()?;
        let same = (id, digest) == (&view.approval_id, &view.digest);
        let id = ApprovalId::new(view.approval_id.clone()).ok()?;
        same.then(|| (id, view.digest.clone()))
    }
}

/// What follows from a key.
enum Next {
    /// Nothing but another picture.
    Look,
    /// Ask the daemon at once.
    Refresh,
    Approve(HowWord),
    /// Find out what a yes for ever would change.
    AskAlways,
    Deny(String),
    Stop,
}

pub(super) async fn main(common: &Common) -> Result<Exit, Trouble> {
    let state = client_state(common);
    let mut client = Client::new(socket(common, &state)?);
    // Before the screen is taken, so that whoever has no daemon reads so.
    let waiting = all(&mut client).await?;
    let mut screen = Screen::take("`effectd approvals list -o json`")?;
    let mut events = Events::of_terminal(EVERY)?;
    let mut inbox = Inbox {
        waiting: Vec::new(),
        begun: false,
        chosen: None,
        drawn: None,
        scroll: 0,
        doing: Doing::Looking,
        news: String::new(),
    };
    inbox.take(waiting);
    loop {
        screen.draw(|frame| picture::draw(frame, &mut inbox))?;
        let next = match events.next().await {
            Event::Key(key) => press(&mut inbox, key),
            Event::Resized => Next::Look,
            Event::Tick => Next::Refresh,
            Event::Stop => Next::Stop,
        };
        match next {
            Next::Look => {}
            Next::Stop => return Ok(Exit::Done),
            Next::Refresh => refresh(&mut client, &mut inbox).await,
            Next::Approve(how) => {
                inbox.doing = Doing::Looking;
                approve(&mut client, &mut inbox, how).await;
                refresh(&mut client, &mut inbox).await;
            }
            Next::AskAlways => ask_always(&mut client, &mut inbox).await,
            Next::Deny(reason) => {
                inbox.doing = Doing::Looking;
                deny(&mut client, &mut inbox, reason).await;
                refresh(&mut client, &mut inbox).await;
            }
        }
    }
}

#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "a keyboard has more keys than an inbox"
)]
fn press(inbox: &mut Inbox, key: KeyEvent) -> Next {
    let doing = std::mem::replace(&mut inbox.doing, Doing::Looking);
    match doing {
        Doing::Looking => look(inbox, key),
        Doing::Denying(reason) => deny_reason(inbox, key, reason),
        Doing::Confirming(what) => match key.code {
            KeyCode::Char('y') => Next::Approve(HowWord::Always),
            KeyCode::Char('n') | KeyCode::Esc => {
                "nothing was decided".clone_into(&mut inbox.news);
                Next::Look
            }
            _ => {
                inbox.doing = Doing::Confirming(what);
                Next::Look
            }
        },
    }
}

#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "a keyboard has more keys than an inbox"
)]
fn look(inbox: &mut Inbox, key: KeyEvent) -> Next {
    if key
        .modifiers
        .intersects(KeyModifiers::CONTROL | KeyModifiers::ALT)
    {
        return Next::Look;
    }
    match key.code {
        KeyCode::Char('q') => return Next::Stop,
        KeyCode::Char('r') => return Next::Refresh,
        KeyCode::Up | KeyCode::Char('k') => inbox.choose(-1),
        KeyCode::Down | KeyCode::Char('j') => inbox.choose(1),
        KeyCode::PageUp => inbox.scroll = inbox.scroll.saturating_sub(PAGE_ROWS),
        KeyCode::PageDown | KeyCode::Char(' ') => inbox.scroll = inbox.scroll.saturating_add(PAGE_ROWS),
        KeyCode::Char('a') => return Next::Approve(HowWord::Once),
        KeyCode::Char('g') => return Next::Approve(HowWord::Grant),
        KeyCode::Char('A') => return Next::AskAlways,
        KeyCode::Char('d') if inbox.decidable().is_some() => {
            inbox.doing = Doing::Denying(String::new());
        }
        _ => {}
    }
    Next::Look
}

#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "a keyboard has more keys than an inbox"
)]
fn deny_reason(inbox: &mut Inbox, key: KeyEvent, mut reason: String) -> Next {
    match key.code {
        KeyCode::Enter => return Next::Deny(reason),
        KeyCode::Esc => {
            "nothing was decided".clone_into(&mut inbox.news);
            return Next::Look;
        }
        KeyCode::Backspace => drop(reason.pop()),
        KeyCode::Char(c) if !c.is_control() && reason.chars().count() < REASON_CHARS_MAX => reason.push(c),
        _ => {}
    }
    inbox.doing = Doing::Denying(reason);
    Next::Look
}

async fn refresh(client: &mut Client, inbox: &mut Inbox) {
    match all(client).await {
        Ok(waiting) => inbox.take(waiting),
        Err(trouble) => inbox.news = format!("what is shown may be old: {trouble}"),
    }
}

/// Nothing is chosen, or what is chosen is not what was drawn.
const LOOK_FIRST: &str = "nothing was decided: choose a question and look at it first";

async fn approve(client: &mut Client, inbox: &mut Inbox, how: HowWord) {
    let Some((id, digest)) = inbox.decidable() else {
        LOOK_FIRST.clone_into(&mut inbox.news);
        return;
    };
    let grant = how == HowWord::Grant;
    let body = ApproveBody {
        how,
        digest: Some(digest),
        calls_max: grant.then_some(GRANT_CALLS),
        lasts_s: grant.then_some(GRANT_LASTS_S),
        ..ApproveBody::default()
    };
    let told: Result<DecisionView, _> = post(client, &id, &format!("approve?wait_ms={WAIT_MS}"), &body).await;
    inbox.news = match told {
        Ok(decision) => {
            let ended = match &decision.action.receipt {
                Some(receipt) => format!("{}, receipt {}", receipt.status.as_str(), receipt.receipt_id),
                None => "on its way".to_owned(),
            };
            let grant = decision
                .grant
                .map(|grant| format!(", granted {}", grant.grant_id));
            format!("approved: {ended}{}", grant.unwrap_or_default())
        }
        Err(trouble) => format!("not approved: {trouble}"),
    };
}

async fn ask_always(client: &mut Client, inbox: &mut Inbox) {
    let Some((id, _)) = inbox.decidable() else {
        LOOK_FIRST.clone_into(&mut inbox.news);
        return;
    };
    let change: Result<StandingView, Trouble> = get(client, &id, "/always").await;
    match change {
        Ok(change) => {
            inbox.doing = Doing::Confirming(format!(
                "is that meant? y/n: the mode of {} in {} becomes allow; nobody would have been asked {} of the last {} times",
                change.tool, change.org, change.covered, change.asked
            ));
        }
        Err(trouble) => inbox.news = format!("not approved: {trouble}"),
    }
}

async fn deny(client: &mut Client, inbox: &mut Inbox, reason: String) {
    let Some((id, _)) = inbox.decidable() else {
        LOOK_FIRST.clone_into(&mut inbox.news);
        return;
    };
    let reason = (!reason.trim().is_empty()).then(|| reason.trim().to_owned());
    let told: Result<DecisionView, _> = post(client, &id, "deny", &DenyBody { reason }).await;
    inbox.news = match told {
        Ok(decision) => format!("denied: {}", decision.approval.tool_id),
        Err(trouble) => format!("not denied: {trouble}"),
    };
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn view(id: &str) -> ApprovalView {
        serde_json::from_value(serde_json::json!({
            "approval_id": id, "state": "pending", "action_ids": [], "tool_id": "t", "subject_id": "s",
            "space_id": "x", "principal": "p", "digest": format!("digest of {id}"), "asked_at": "",
        }))
        .unwrap()
    }

    fn inbox(ids: &[&str]) -> Inbox {
        let mut inbox = Inbox {
            waiting: Vec::new(),
            begun: false,
            chosen: None,
            drawn: None,
            scroll: 0,
            doing: Doing::Looking,
            news: String::new(),
        };
        inbox.take(ids.iter().map(|id| view(id)).collect());
        inbox
    }

    fn key(c: char) -> KeyEvent {
        KeyEvent::new(KeyCode::Char(c), KeyModifiers::NONE)
    }

    #[test]
    fn a_key_decides_only_about_what_is_on_the_screen() {
        let mut inbox = inbox(&["a", "b"]);
        assert_eq!(inbox.decidable(), None);
        inbox.drawn = Some(("a".to_owned(), "digest of a".to_owned()));
        assert_eq!(inbox.decidable().unwrap().0.as_str(), "a");
        // Another is chosen, and not drawn yet.
        inbox.choose(1);
        assert_eq!(inbox.decidable(), None);
        inbox.drawn = Some(("b".to_owned(), "digest of b".to_owned()));
        assert!(inbox.decidable().is_some());
        // It has changed since it was drawn.
        let mut other = view("b");
        other.digest = "another".to_owned();
        inbox.take(vec![other]);
        assert_eq!(inbox.decidable(), None);
    }

    #[test]
    fn when_the_chosen_one_goes_no_other_takes_its_place() {
        let mut inbox = inbox(&["a", "b"]);
        assert_eq!(inbox.chosen.as_deref(), Some("a"));
        inbox.doing = Doing::Denying("because".to_owned());
        inbox.take(vec![view("b")]);
        assert_eq!((inbox.chosen.as_deref(), &inbox.doing), (None, &Doing::Looking));
        inbox.take(vec![view("b")]);
        assert_eq!(inbox.chosen, None);
        inbox.choose(1);
        assert_eq!(inbox.chosen.as_deref(), Some("b"));
    }

    #[test]
    fn letters_of_a_reason_decide_nothing() {
        let mut inbox = inbox(&["a"]);
        inbox.drawn = Some(("a".to_owned(), "digest of a".to_owned()));
        assert!(matches!(press(&mut inbox, key('d')), Next::Look));
        for c in "agAq".chars() {
            assert!(matches!(press(&mut inbox, key(c)), Next::Look));
        }
        assert_eq!(inbox.doing, Doing::Denying("agAq".to_owned()));
        let enter = KeyEvent::new(KeyCode::Enter, KeyModifiers::NONE);
        assert!(matches!(press(&mut inbox, enter), Next::Deny(reason) if reason == "agAq"));
        // A yes for ever is asked for twice.
        inbox.doing = Doing::Confirming(String::new());
        assert!(matches!(press(&mut inbox, key('a')), Next::Look));
        assert!(matches!(inbox.doing, Doing::Confirming(_)));
        assert!(matches!(
            press(&mut inbox, key('y')),
            Next::Approve(HowWord::Always)
        ));
    }
}
