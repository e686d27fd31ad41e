//! `effectd approvals watch`: pending approvals in the terminal, decided with one key.
//!
//! A key decides only about the approval on the screen: the decision carries the digest of what was shown. After a decision of this
//! person the next approval is selected, and keys do nothing until it is on the screen and none has come for a moment. When somebody
//! else ends the selected approval, none is selected until the person selects one. An approval is marked while it is on the screen,
//! and a decision about marked ones carries the digests of that moment.

mod view;

use std::time::Duration;

use effectd_contracts::ApprovalId;
use effectd_gateway::client::Client;
use effectd_gateway::views::approvals::{
    ApprovalView, ApproveBody, DecisionView, DenyBody, HowWord, StandingView,
};
use effectd_gateway::views::grants::GrantWould;

use super::{ONE_BY_ONE, all, get, post, tier};
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
    /// The person types the reason of a denial of these approvals.
    Denying(Vec<(ApprovalId, String)>, String),
    /// The person confirms a standing approval, or a grant that starts others.
    Confirming(HowWord, String),
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
    /// Ids and digests of the marked approvals, as they were drawn.
    marked: Vec<(ApprovalId, String)>,
    scroll: u16,
    /// Whether the selected approval has the screen for itself.
    opened: bool,
    /// Whether keys do nothing yet, because the person has not selected the approval that comes to the screen.
    resting: bool,
    input: Input,
    /// Whether an approval went that the person was deciding about: keys do nothing until `Esc`, so that none of them, such as a letter
    /// of a reason, decides about others.
    interrupted: bool,
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
        let still = |(id, digest): &(ApprovalId, String)| {
            self.waiting.iter().any(|view| view.approval_id == id.as_str() && view.digest == *digest)
        };
        let marked = self.marked.len();
        self.marked.retain(still);
        if self.marked.len() < marked {
            self.interrupt("a marked approval is gone; nothing was decided (Esc continues)");
        }
        if !self.begun && !self.waiting.is_empty() {
            self.begun = true;
            self.chosen = self.waiting.first().map(|view| view.approval_id.clone());
        }
        if self.chosen.is_some() && self.chosen().is_none() {
            self.chosen = None;
            self.scroll = 0;
            if self.input != Input::Browsing {
                self.interrupt(
                    "the approval is gone: decided by somebody else, cancelled or expired (Esc continues)",
                );
            }
        }
    }

    fn interrupt(&mut self, why: &str) {
        (self.input, self.interrupted) = (Input::Browsing, true);
        why.clone_into(&mut self.news);
    }

    fn choose(&mut self, step: isize) {
        let next = match self.position() {
            Some(at) => at.saturating_add_signed(step),
            None => 0,
        };
        let next = next.min(self.waiting.len().saturating_sub(1));
        self.chosen = self.waiting.get(next).map(|view| view.approval_id.clone());
        self.scroll = 0;
    }

    /// The position of the selected approval.
    fn position(&self) -> Option<usize> {
        let id = self.chosen.as_ref()?;
        self.waiting.iter().position(|view| &view.approval_id == id)
    }

    /// Selects the approval that follows a decided one.
    fn choose_next(&mut self, decided: Option<usize>) {
        if let (Some(at), None) = (decided, self.chosen()) {
            let next = at.min(self.waiting.len().saturating_sub(1));
            self.chosen = self.waiting.get(next).map(|view| view.approval_id.clone());
            (self.scroll, self.resting) = (0, self.chosen.is_some());
        }
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

impl Inbox {
    /// What a key decides about: the marked approvals, or else the one on the screen.
    fn targets(&self) -> Vec<(ApprovalId, String)> {
        match self.marked.is_empty() {
            true => self.decidable().into_iter().collect(),
            false => self.marked.clone(),
        }
    }

    /// Marks the approval on the screen, or removes its mark.
    fn mark(&mut self) {
        let Some(shown) = self.decidable() else {
            return LOOK_FIRST.clone_into(&mut self.news);
        };
        if self.chosen().is_some_and(|view| tier(view) == ONE_BY_ONE) {
            self.news = format!("an action of tier {ONE_BY_ONE} is decided alone");
        } else if self.marked.contains(&shown) {
            self.marked.retain(|marked| *marked != shown);
        } else {
            self.marked.push(shown);
        }
    }
}

/// What to do after a key.
enum Next {
    Redraw,
    Refresh,
    Approve(HowWord),
    /// Show what a standing approval would change.
    AskAlways,
    /// Show how many others a grant would start, if any.
    AskGrant,
    Deny(Vec<(ApprovalId, String)>, String),
    Stop,
}

pub(super) async fn main(common: &Common) -> Result<Exit, CliError> {
    let mut client = daemon_client(common)?;
    // Fetched before the screen is taken over, so that the error is readable if no daemon runs.
    let waiting = all(&mut client).await?;
    client.announce().await?;
    let mut screen = Screen::take("`effectd approvals list`")?;
    let mut events = Events::of_terminal(EVERY)?;
    let mut inbox = Inbox::default();
    inbox.take(waiting);
    run(&mut client, &mut screen, &mut events, inbox).await?;
    Ok(Exit::Done)
}

/// Shows the inbox with this approval opened, until the person leaves it. Returns `true` if the program is to end.
pub(in crate::cli) async fn open(
    client: &mut Client,
    screen: &mut Screen,
    events: &mut Events,
    approval: String,
) -> Result<bool, CliError> {
    // A key for the last screen decides nothing here.
    let mut inbox =
        Inbox { begun: true, chosen: Some(approval), opened: true, resting: true, ..Inbox::default() };
    inbox.take(all(client).await?);
    run(client, screen, events, inbox).await
}

/// Shows the inbox until `q`, or until an event ends the program; then it returns `true`.
async fn run(
    client: &mut Client,
    screen: &mut Screen,
    events: &mut Events,
    mut inbox: Inbox,
) -> Result<bool, CliError> {
    loop {
        screen.draw(|frame| view::draw(frame, &mut inbox))?;
        if inbox.resting {
            inbox.resting = false;
            if events.rest().await {
                return Ok(true);
            }
            continue;
        }
        let decided = inbox.position();
        let next = match events.next().await {
            Event::Key(key) => press(&mut inbox, key),
            Event::Resized => Next::Redraw,
            Event::Tick => Next::Refresh,
            Event::Stop => return Ok(true),
        };
        match next {
            Next::Redraw => {}
            Next::Stop => return Ok(false),
            Next::Refresh => refresh(client, &mut inbox).await,
            Next::Approve(how) => {
                inbox.input = Input::Browsing;
                approve(client, &mut inbox, how).await;
                refresh(client, &mut inbox).await;
                inbox.choose_next(decided);
            }
            Next::AskAlways => ask_always(client, &mut inbox).await,
            Next::AskGrant => {
                ask_grant(client, &mut inbox).await;
                refresh(client, &mut inbox).await;
                inbox.choose_next(decided);
            }
            Next::Deny(targets, reason) => {
                inbox.input = Input::Browsing;
                deny(client, &mut inbox, targets, reason).await;
                refresh(client, &mut inbox).await;
                inbox.choose_next(decided);
            }
        }
    }
}

#[expect(clippy::wildcard_enum_match_arm, reason = "a keyboard has more keys than an inbox")]
fn press(inbox: &mut Inbox, key: KeyEvent) -> Next {
    if inbox.interrupted {
        if key.code == KeyCode::Esc {
            inbox.interrupted = false;
            inbox.news.clear();
        } else {
            "a decision was interrupted; nothing was decided (Esc continues)".clone_into(&mut inbox.news);
        }
        return Next::Redraw;
    }
    let input = std::mem::replace(&mut inbox.input, Input::Browsing);
    match input {
        Input::Browsing => browse(inbox, key),
        Input::Denying(targets, reason) => deny_reason(inbox, key, targets, reason),
        Input::Confirming(how, what) => match key.code {
            KeyCode::Char('y') => Next::Approve(how),
            KeyCode::Char('n') | KeyCode::Esc => {
                "nothing was decided".clone_into(&mut inbox.news);
                Next::Redraw
            }
            _ => {
                inbox.input = Input::Confirming(how, what);
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
        KeyCode::Enter if inbox.chosen.is_some() => inbox.opened = !inbox.opened,
        KeyCode::Enter => inbox.choose(0),
        KeyCode::Esc => inbox.opened = false,
        KeyCode::Char('r') => return Next::Refresh,
        KeyCode::Up | KeyCode::Char('k') => inbox.choose(-1),
        KeyCode::Down | KeyCode::Char('j') => inbox.choose(1),
        KeyCode::PageUp => inbox.scroll = inbox.scroll.saturating_sub(PAGE_ROWS),
        KeyCode::PageDown | KeyCode::Char(' ') => inbox.scroll = inbox.scroll.saturating_add(PAGE_ROWS),
        KeyCode::Char('a') => return Next::Approve(HowWord::Once),
        KeyCode::Char('g') => return Next::AskGrant,
        KeyCode::Char('A') => return Next::AskAlways,
        KeyCode::Char('m') => inbox.mark(),
        KeyCode::Char('d') => {
            let targets = inbox.targets();
            if !targets.is_empty() {
                inbox.input = Input::Denying(targets, String::new());
            }
        }
        _ => {}
    }
    Next::Redraw
}

#[expect(clippy::wildcard_enum_match_arm, reason = "a keyboard has more keys than an inbox")]
fn deny_reason(
    inbox: &mut Inbox,
    key: KeyEvent,
    targets: Vec<(ApprovalId, String)>,
    mut reason: String,
) -> Next {
    match key.code {
        KeyCode::Enter => return Next::Deny(targets, reason),
        KeyCode::Esc => {
            "nothing was decided".clone_into(&mut inbox.news);
            return Next::Redraw;
        }
        KeyCode::Backspace => drop(reason.pop()),
        KeyCode::Char(c) if !c.is_control() && reason.chars().count() < REASON_CHARS_MAX => reason.push(c),
        _ => {}
    }
    inbox.input = Input::Denying(targets, reason);
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
/// Shown if a key for one approval is pressed while some are marked.
const UNMARK_FIRST: &str = "nothing was decided: about marked approvals only `a` and `d` decide";

async fn approve(client: &mut Client, inbox: &mut Inbox, how: HowWord) {
    let targets = inbox.targets();
    if targets.is_empty() {
        return LOOK_FIRST.clone_into(&mut inbox.news);
    }
    if how != HowWord::Once && !inbox.marked.is_empty() {
        return UNMARK_FIRST.clone_into(&mut inbox.news);
    }
    let mut news = Vec::new();
    for (id, digest) in targets {
        news.push(approve_one(client, &id, digest, how).await);
    }
    inbox.marked.clear();
    inbox.news = news.join("; ");
}

async fn approve_one(client: &mut Client, id: &ApprovalId, digest: String, how: HowWord) -> String {
    let grant = how == HowWord::Grant;
    let body = ApproveBody {
        how,
        digest: Some(digest),
        calls_max: grant.then_some(GRANT_CALLS),
        lasts_s: grant.then_some(GRANT_LASTS_S),
        ..ApproveBody::default()
    };
    let reply: Result<DecisionView, _> = post(client, id, &format!("approve?wait_ms={WAIT_MS}"), &body).await;
    match reply {
        Ok(decision) => {
            let ended = match &decision.action.receipt {
                Some(receipt) => format!("{}, receipt {}", receipt.status.as_str(), receipt.receipt_id),
                None => "in flight".to_owned(),
            };
            let grant = decision.grant.map(|grant| format!(", granted {}", grant.grant_id));
            format!("approved: {ended}{}", grant.unwrap_or_default())
        }
        Err(error) => format!("not approved: {error}"),
    }
}

/// Grants, after a confirmation if the grant would start others.
async fn ask_grant(client: &mut Client, inbox: &mut Inbox) {
    if !inbox.marked.is_empty() {
        return UNMARK_FIRST.clone_into(&mut inbox.news);
    }
    let Some((id, _)) = inbox.decidable() else {
        LOOK_FIRST.clone_into(&mut inbox.news);
        return;
    };
    let would: Result<GrantWould, CliError> =
        get(client, &id, &format!("/grant?calls_max={GRANT_CALLS}")).await;
    match would {
        Ok(would) if would.released > 0 => {
            let what = format!("continue? y/n: {} others that wait start, too", would.released);
            inbox.input = Input::Confirming(HowWord::Grant, what);
        }
        Ok(_) => approve(client, inbox, HowWord::Grant).await,
        Err(error) => inbox.news = format!("not approved: {error}"),
    }
}

async fn ask_always(client: &mut Client, inbox: &mut Inbox) {
    if !inbox.marked.is_empty() {
        return UNMARK_FIRST.clone_into(&mut inbox.news);
    }
    let Some((id, _)) = inbox.decidable() else {
        LOOK_FIRST.clone_into(&mut inbox.news);
        return;
    };
    let change: Result<StandingView, CliError> = get(client, &id, "/always").await;
    match change {
        Ok(change) => {
            let what = format!(
                "continue? y/n: the mode of {} in {} becomes allow, which would have made {} of the last {} approvals unnecessary; {} others start",
                change.tool, change.org, change.covered, change.asked, change.released
            );
            inbox.input = Input::Confirming(HowWord::Always, what);
        }
        Err(error) => inbox.news = format!("not approved: {error}"),
    }
}

async fn deny(client: &mut Client, inbox: &mut Inbox, targets: Vec<(ApprovalId, String)>, reason: String) {
    let reason = (!reason.trim().is_empty()).then(|| reason.trim().to_owned());
    let mut news = Vec::new();
    for (id, _) in targets {
        let body = DenyBody { reason: reason.clone() };
        let reply: Result<DecisionView, _> = post(client, &id, "deny", &body).await;
        news.push(match reply {
            Ok(decision) => format!("denied: {}", decision.approval.tool_id),
            Err(error) => format!("not denied: {error}"),
        });
    }
    inbox.marked.clear();
    inbox.news = news.join("; ");
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
        inbox.input = Input::Denying(Vec::new(), "because".to_owned());
        inbox.take(vec![view("b")]);
        assert_eq!((inbox.chosen.as_deref(), &inbox.input), (None, &Input::Browsing));
        // The rest of a typed reason is no command.
        assert!(matches!(press(&mut inbox, key('j')), Next::Redraw));
        assert_eq!(inbox.chosen, None);
        inbox.take(vec![view("b")]);
        assert_eq!(inbox.chosen, None);
        inbox.choose(1);
        assert_eq!(inbox.chosen.as_deref(), Some("b"));
    }

    #[test]
    fn after_a_decision_the_next_one_is_chosen() {
        let mut inbox = inbox(&["a", "b", "c"]);
        inbox.choose(1);
        let decided = inbox.position();
        inbox.take(vec![view("a"), view("c")]);
        inbox.choose_next(decided);
        assert_eq!((inbox.chosen.as_deref(), inbox.resting), (Some("c"), true));
        assert_eq!(inbox.decidable(), None, "it is not on the screen yet");
        // A decision that failed leaves the selection, and the last one is followed by the one before.
        inbox.choose_next(inbox.position());
        assert_eq!(inbox.chosen.as_deref(), Some("c"));
        let decided = inbox.position();
        inbox.take(vec![view("a")]);
        inbox.choose_next(decided);
        assert_eq!(inbox.chosen.as_deref(), Some("a"));
        let decided = inbox.position();
        inbox.resting = false;
        inbox.take(Vec::new());
        inbox.choose_next(decided);
        assert_eq!((inbox.chosen.as_deref(), inbox.resting), (None, false));
    }

    #[test]
    fn what_is_marked_is_decided_as_it_was_drawn() {
        let mut inbox = inbox(&["a", "b", "c"]);
        let marked = |inbox: &Inbox| -> Vec<String> {
            inbox.targets().iter().map(|(id, digest)| format!("{id}: {digest}")).collect()
        };
        assert!(matches!(press(&mut inbox, key('m')), Next::Redraw));
        assert!(inbox.marked.is_empty(), "it is not on the screen yet");
        for id in ["a", "b"] {
            inbox.drawn = Some((id.to_owned(), format!("digest of {id}")));
            press(&mut inbox, key('m'));
            inbox.choose(1);
        }
        assert_eq!(marked(&inbox), ["a: digest of a", "b: digest of b"]);
        // One changes: it has to be read and marked again. An R4 action cannot be marked.
        let (mut changed, mut dangerous) = (view("a"), view("c"));
        changed.digest = "another".to_owned();
        let prompt = serde_json::json!({
            "params": {}, "tool_version": "1", "reasons": [], "rule": "", "tier": "R4", "dry_run": false, "stands": [],
            "grant_allowed": false, "session": "", "round": 1,
        });
        dangerous.prompt = Some(serde_json::from_value(prompt).unwrap());
        inbox.take(vec![changed, view("b"), dangerous]);
        press(&mut inbox, KeyEvent::new(KeyCode::Esc, KeyModifiers::NONE));
        inbox.drawn = Some(("c".to_owned(), "digest of c".to_owned()));
        press(&mut inbox, key('m'));
        assert_eq!(marked(&inbox), ["b: digest of b"]);
        // The same key removes a mark.
        inbox.choose(-1);
        inbox.drawn = Some(("b".to_owned(), "digest of b".to_owned()));
        press(&mut inbox, key('m'));
        assert!(inbox.marked.is_empty());
    }

    #[test]
    fn when_a_marked_one_goes_no_other_is_decided_instead() {
        let mut inbox = inbox(&["b", "c"]);
        inbox.drawn = Some(("b".to_owned(), "digest of b".to_owned()));
        press(&mut inbox, key('m'));
        inbox.choose(1);
        inbox.drawn = Some(("c".to_owned(), "digest of c".to_owned()));
        // The targets of a denial are fixed when it begins.
        press(&mut inbox, key('d'));
        let Input::Denying(targets, _) = &inbox.input else { panic!("{:?}", inbox.input) };
        assert_eq!(targets.iter().map(|(id, _)| id.as_str()).collect::<Vec<_>>(), ["b"]);
        inbox.take(vec![view("c")]);
        assert_eq!(inbox.input, Input::Browsing);
        assert!(inbox.news.starts_with("a marked approval is gone; nothing was decided"), "{}", inbox.news);
        for c in "adgAm".chars() {
            assert!(matches!(press(&mut inbox, key(c)), Next::Redraw), "{c}");
            assert_eq!((&inbox.input, inbox.marked.len()), (&Input::Browsing, 0), "{c}");
        }
        // The person has seen it, and decides about what is drawn.
        press(&mut inbox, KeyEvent::new(KeyCode::Esc, KeyModifiers::NONE));
        assert!(matches!(press(&mut inbox, key('a')), Next::Approve(HowWord::Once)));
        assert_eq!(inbox.targets().iter().map(|(id, _)| id.as_str()).collect::<Vec<_>>(), ["c"]);
    }

    #[test]
    fn letters_of_a_reason_decide_nothing() {
        let mut inbox = inbox(&["a"]);
        inbox.drawn = Some(("a".to_owned(), "digest of a".to_owned()));
        assert!(matches!(press(&mut inbox, key('d')), Next::Redraw));
        for c in "agAq".chars() {
            assert!(matches!(press(&mut inbox, key(c)), Next::Redraw));
        }
        assert!(matches!(&inbox.input, Input::Denying(_, reason) if reason == "agAq"));
        let enter = KeyEvent::new(KeyCode::Enter, KeyModifiers::NONE);
        assert!(matches!(press(&mut inbox, enter), Next::Deny(_, reason) if reason == "agAq"));
        // A standing approval needs a confirmation.
        inbox.input = Input::Confirming(HowWord::Always, String::new());
        assert!(matches!(press(&mut inbox, key('a')), Next::Redraw));
        assert!(matches!(inbox.input, Input::Confirming(..)));
        assert!(matches!(press(&mut inbox, key('y')), Next::Approve(HowWord::Always)));
    }
}
