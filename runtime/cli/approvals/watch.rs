//! `effectd approvals watch`: pending approvals in the terminal, decided with one key.
//!
//! A key decides only about the approval on the screen: the decision carries the digest of what was shown. When the selected
//! approval is gone, none is selected until the person selects one.

mod view;

use std::time::Duration;

use effectd_contracts::ApprovalId;
use effectd_gateway::client::Client;
use effectd_gateway::views::approvals::{
    ApprovalView, ApproveBody, DecisionView, DenyBody, HowWord, StandingView,
};

use super::{all, get, post};
use crate::cli::backend::daemon_client;
use crate::cli::{CliError, Common};
use crate::exit::Exit;
use crate::tui::ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use crate::tui::{Event, Events, Screen};

/// How often the list is refreshed.
const EVERY: Duration = Duration::from_secs(1);
const REASON_CHARS_MAX: usize = 500;
/// `g` grants this number of further calls by the same session …
const GRANT_CALLS: u32 = 10;
/// … for this time.
const GRANT_LASTS_S: u64 = 3_600;
/// How long a decision waits for the action to end.
const WAIT_MS: u64 = 1_500;
const PAGE_ROWS: u16 = 10;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
enum Input {
    #[default]
    Browsing,
    /// The person types the reason of a denial.
    Denying(String),
    /// The person confirms a standing approval.
    Confirming(String),
}

#[derive(Debug, Default)]
struct Inbox {
    waiting: Vec<ApprovalView>,
    /// Whether the inbox has had an approval since it was opened.
    begun: bool,
    /// The id of the selected approval.
    chosen: Option<String>,
    /// Id and digest of the approval that was drawn last: keys decide only about this one.
    drawn: Option<(String, String)>,
    scroll: u16,
    input: Input,
    /// The result of the last key, or an error.
    news: String,
}

impl Inbox {
    fn chosen(&self) -> Option<&ApprovalView> {
        let id = self.chosen.as_ref()?;
        self.waiting.iter().find(|view| &view.approval_id == id)
    }

    /// Takes a new list. The first approval since the start is selected; after that the person selects.
    fn take(&mut self, waiting: Vec<ApprovalView>) {
        self.waiting = waiting;
        if !self.begun && !self.waiting.is_empty() {
            self.begun = true;
            self.chosen = self.waiting.first().map(|view| view.approval_id.clone());
        }
        if self.chosen.is_some() && self.chosen().is_none() {
            self.chosen = None;
            self.scroll = 0;
            if self.input != Input::Browsing {
                self.input = Input::Browsing;
                "the approval is gone: decided by somebody else, cancelled or expired"
                    .clone_into(&mut self.news);
            }
        }
    }

    fn choose(&mut self, step: isize) {
        let at =
            self.chosen.as_ref().and_then(|id| self.waiting.iter().position(|view| &view.approval_id == id));
        let next = match at {
            Some(at) => at.saturating_add_signed(step),
            None => 0,
        };
        let next = next.min(self.waiting.len().saturating_sub(1));
        self.chosen = self.waiting.get(next).map(|view| view.approval_id.clone());
        self.scroll = 0;
    }

    /// The selected approval, if it is the one on the screen and has not changed since.
    fn decidable(&self) -> Option<(ApprovalId, String)> {
        let view = self.chosen()?;
        let (id, digest) = self.drawn.as_ref()?;
        let same = (id, digest) == (&view.approval_id, &view.digest);
        let id = ApprovalId::new(view.approval_id.clone()).ok()?;
        same.then(|| (id, view.digest.clone()))
    }
}

/// What to do after a key.
enum Next {
    Redraw,
    Refresh,
    Approve(HowWord),
    /// Show what a standing approval would change.
    AskAlways,
    Deny(String),
    Stop,
}

pub(super) async fn main(common: &Common) -> Result<Exit, CliError> {
    let mut client = daemon_client(common)?;
    // Fetched before the screen is taken over, so that the error is readable if no daemon runs.
    let waiting = all(&mut client).await?;
    let mut screen = Screen::take("`effectd approvals list -o json`")?;
    let mut events = Events::of_terminal(EVERY)?;
    let mut inbox = Inbox::default();
    inbox.take(waiting);
    loop {
        screen.draw(|frame| view::draw(frame, &mut inbox))?;
        let next = match events.next().await {
            Event::Key(key) => press(&mut inbox, key),
            Event::Resized => Next::Redraw,
            Event::Tick => Next::Refresh,
            Event::Stop => Next::Stop,
        };
        match next {
            Next::Redraw => {}
            Next::Stop => return Ok(Exit::Done),
            Next::Refresh => refresh(&mut client, &mut inbox).await,
            Next::Approve(how) => {
                inbox.input = Input::Browsing;
                approve(&mut client, &mut inbox, how).await;
                refresh(&mut client, &mut inbox).await;
            }
            Next::AskAlways => ask_always(&mut client, &mut inbox).await,
            Next::Deny(reason) => {
                inbox.input = Input::Browsing;
                deny(&mut client, &mut inbox, reason).await;
                refresh(&mut client, &mut inbox).await;
            }
        }
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "a keyboard has more keys than an inbox")]
fn press(inbox: &mut Inbox, key: KeyEvent) -> Next {
    let input = std::mem::replace(&mut inbox.input, Input::Browsing);
    match input {
        Input::Browsing => browse(inbox, key),
        Input::Denying(reason) => deny_reason(inbox, key, reason),
        Input::Confirming(what) => match key.code {
            KeyCode::Char('y') => Next::Approve(HowWord::Always),
            KeyCode::Char('n') | KeyCode::Esc => {
                "nothing was decided".clone_into(&mut inbox.news);
                Next::Redraw
            }
            _ => {
                inbox.input = Input::Confirming(what);
                Next::Redraw
            }
        },
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "a keyboard has more keys than an inbox")]
fn browse(inbox: &mut Inbox, key: KeyEvent) -> Next {
    if key.modifiers.intersects(KeyModifiers::CONTROL | KeyModifiers::ALT) {
        return Next::Redraw;
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
            inbox.input = Input::Denying(String::new());
        }
        _ => {}
    }
    Next::Redraw
}

#[expect(clippy::wildcard_enum_match_arm, reason = "a keyboard has more keys than an inbox")]
fn deny_reason(inbox: &mut Inbox, key: KeyEvent, mut reason: String) -> Next {
    match key.code {
        KeyCode::Enter => return Next::Deny(reason),
        KeyCode::Esc => {
            "nothing was decided".clone_into(&mut inbox.news);
            return Next::Redraw;
        }
        KeyCode::Backspace => drop(reason.pop()),
        KeyCode::Char(c) if !c.is_control() && reason.chars().count() < REASON_CHARS_MAX => reason.push(c),
        _ => {}
    }
    inbox.input = Input::Denying(reason);
    Next::Redraw
}

async fn refresh(client: &mut Client, inbox: &mut Inbox) {
    match all(client).await {
        Ok(waiting) => inbox.take(waiting),
        Err(error) => inbox.news = format!("the list may be outdated: {error}"),
    }
}

/// Shown if nothing is selected, or if the selection is not drawn yet.
const LOOK_FIRST: &str = "nothing was decided: select an approval and read it first";

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
    let reply: Result<DecisionView, _> =
        post(client, &id, &format!("approve?wait_ms={WAIT_MS}"), &body).await;
    inbox.news = match reply {
        Ok(decision) => {
            let ended = match &decision.action.receipt {
                Some(receipt) => format!("{}, receipt {}", receipt.status.as_str(), receipt.receipt_id),
                None => "in flight".to_owned(),
            };
            let grant = decision.grant.map(|grant| format!(", granted {}", grant.grant_id));
            format!("approved: {ended}{}", grant.unwrap_or_default())
        }
        Err(error) => format!("not approved: {error}"),
    };
}

async fn ask_always(client: &mut Client, inbox: &mut Inbox) {
    let Some((id, _)) = inbox.decidable() else {
        LOOK_FIRST.clone_into(&mut inbox.news);
        return;
    };
    let change: Result<StandingView, CliError> = get(client, &id, "/always").await;
    match change {
        Ok(change) => {
            inbox.input = Input::Confirming(format!(
                "continue? y/n: the mode of {} in {} becomes allow, which would have made {} of the last {} approvals unnecessary",
                change.tool, change.org, change.covered, change.asked
            ));
        }
        Err(error) => inbox.news = format!("not approved: {error}"),
    }
}

async fn deny(client: &mut Client, inbox: &mut Inbox, reason: String) {
    let Some((id, _)) = inbox.decidable() else {
        LOOK_FIRST.clone_into(&mut inbox.news);
        return;
    };
    let reason = (!reason.trim().is_empty()).then(|| reason.trim().to_owned());
    let reply: Result<DecisionView, _> = post(client, &id, "deny", &DenyBody { reason }).await;
    inbox.news = match reply {
        Ok(decision) => format!("denied: {}", decision.approval.tool_id),
        Err(error) => format!("not denied: {error}"),
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
        let mut inbox = Inbox::default();
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
        // Another approval is selected, and not drawn yet.
        inbox.choose(1);
        assert_eq!(inbox.decidable(), None);
        inbox.drawn = Some(("b".to_owned(), "digest of b".to_owned()));
        assert!(inbox.decidable().is_some());
        // The approval has changed since it was drawn.
        let mut other = view("b");
        other.digest = "another".to_owned();
        inbox.take(vec![other]);
        assert_eq!(inbox.decidable(), None);
    }

    #[test]
    fn when_the_chosen_one_goes_no_other_takes_its_place() {
        let mut inbox = inbox(&["a", "b"]);
        assert_eq!(inbox.chosen.as_deref(), Some("a"));
        inbox.input = Input::Denying("because".to_owned());
        inbox.take(vec![view("b")]);
        assert_eq!((inbox.chosen.as_deref(), &inbox.input), (None, &Input::Browsing));
        inbox.take(vec![view("b")]);
        assert_eq!(inbox.chosen, None);
        inbox.choose(1);
        assert_eq!(inbox.chosen.as_deref(), Some("b"));
    }

    #[test]
    fn letters_of_a_reason_decide_nothing() {
        let mut inbox = inbox(&["a"]);
        inbox.drawn = Some(("a".to_owned(), "digest of a".to_owned()));
        assert!(matches!(press(&mut inbox, key('d')), Next::Redraw));
        for c in "agAq".chars() {
            assert!(matches!(press(&mut inbox, key(c)), Next::Redraw));
        }
        assert_eq!(inbox.input, Input::Denying("agAq".to_owned()));
        let enter = KeyEvent::new(KeyCode::Enter, KeyModifiers::NONE);
        assert!(matches!(press(&mut inbox, enter), Next::Deny(reason) if reason == "agAq"));
        // A standing approval needs a confirmation.
        inbox.input = Input::Confirming(String::new());
        assert!(matches!(press(&mut inbox, key('a')), Next::Redraw));
        assert!(matches!(inbox.input, Input::Confirming(_)));
        assert!(matches!(press(&mut inbox, key('y')), Next::Approve(HowWord::Always)));
    }
}
