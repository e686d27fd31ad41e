//! Whose turn it is: places that are few, given out fairly.
//!
//! Each subject has a queue of its own, and places go round the subjects by deficit round robin: in each round a subject gets
//! as many as its weight. So one that floods waits behind itself, not in front of the others. No subject and no tool can
//! hold all places at once, and no more than a bounded number wait, for a bounded time.
//!
//! Within a subject the order is that of arrival, except that what waits for a full tool lets the next pass. Whoever is to
//! [stand in line](super::lines) for something from its turn on does so in the very moment of getting it, so that the order
//! of turns is the order of the line.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use effectd_contracts::{Clock, Monotonic, SubjectId, ToolId};
use tokio::sync::oneshot;

use super::lines::InLine;
use crate::limits::COMPANY_TIME;

/// How many places there are, and how they are shared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    /// Places in all.
    pub places: usize,
    /// Places that one subject may hold at once.
    pub subject_max: usize,
    /// Places that one tool may hold at once.
    pub tool_max: usize,
    /// How many may wait in all; a quarter of them for one subject.
    pub waiting_max: usize,
    /// Subjects that get more than one place in a round.
    pub weights: HashMap<SubjectId, u32>,
}

/// Gives out turns. Clones share the places.
#[derive(Clone)]
pub struct Turns(Arc<Inner>);

struct Inner {
    rules: Rules,
    among: Option<Among>,
    state: Mutex<State>,
}

/// Those among whom places are shared.
struct Among {
    /// Who is there at all: each of those subjects leaves room for the others, even while they do not wait here.
    crowd: Turns,
    /// Places while there is one subject only.
    alone: usize,
    clock: Arc<dyn Clock>,
    /// When there were last several.
    several: Mutex<Option<Monotonic>>,
}

impl Among {
    /// How many subjects have to find room.
    fn subjects(&self) -> usize {
        let subjects = self.crowd.lock().lanes.len();
        let mut several = self.several.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.clock.monotonic();
        if subjects > 1 {
            *several = Some(now);
            return subjects;
        }
        // Who asks for one thing after another is away for a moment in between, and finds it as it was.
        match *several {
            Some(last) if now.since(last) < COMPANY_TIME => 2,
            Some(_) | None => 1,
        }
    }
}

#[derive(Default)]
struct State {
    taken: usize,
    waiting: usize,
    lanes: HashMap<SubjectId, Lane>,
    /// Subjects that wait, the next one first.
    round: VecDeque<SubjectId>,
    tools: HashMap<ToolId, usize>,
    /// Places in line of those who were gone when their turn came: to be left when nothing is locked any more.
    left: Vec<InLine>,
}

#[derive(Default)]
struct Lane {
    taken: usize,
    /// What is left of its share in this round.
    share: u32,
    waiting: VecDeque<Waiter>,
}

struct Waiter {
    tool: ToolId,
    join: Option<Join>,
    turn: oneshot::Sender<Turn>,
}

/// Joins the line that belongs to a turn.
pub(crate) type Join = Box<dyn FnOnce() -> Option<InLine> + Send>;

/// How many of those who wait are looked at for one whose tool is not full.
const LOOK_PAST_MAX: usize = 32;

/// A place, given back when it is dropped.
pub struct Turn {
    turns: Option<Turns>,
    subject: SubjectId,
    tool: ToolId,
    line: Option<InLine>,
}

/// A turn that is still to come.
pub type Coming = oneshot::Receiver<Turn>;

/// Too many wait already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Crowded;

impl std::fmt::Debug for Turns {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.lock();
        write!(f, "Turns({} taken, {} waiting)", state.taken, state.waiting)
    }
}

impl std::fmt::Debug for Turn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Turn({})", self.subject)
    }
}

impl Turns {
    /// Places by these rules.
    pub fn new(rules: Rules) -> Self {
        Self(Arc::new(Inner {
            rules,
            among: None,
            state: Mutex::default(),
        }))
    }

    /// The same, shared by the subjects that hold or want a place of another kind: while there are several, none takes more
    /// than its part, so that whoever comes finds room at once and does not wait for what another has begun. As long as there is
    /// only one, there are so many places for it as are said to be for one alone.
    pub fn among(rules: Rules, crowd: &Turns, alone: usize, clock: &Arc<dyn Clock>) -> Self {
        let among = Among {
            crowd: crowd.clone(),
            alone,
            clock: clock.clone(),
            several: Mutex::default(),
        };
        Self(Arc::new(Inner {
            rules,
            among: Some(among),
            state: Mutex::default(),
        }))
    }

    /// How many places there are now, and how many of them for one subject.
    fn places(&self) -> (usize, usize) {
        let rules = &self.0.rules;
        match &self.0.among {
            None => (rules.places, rules.subject_max),
            Some(among) => match among.subjects() {
                0 | 1 => (among.alone, among.alone),
                several => {
                    let part = rules.places / several;
                    (rules.places, rules.subject_max.min(part.max(1)))
                }
            },
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a turn. The order of these calls is the order within a subject.
    pub(crate) fn stand(
        &self,
        subject: &SubjectId,
        tool: &ToolId,
        join: Option<Join>,
    ) -> Result<Coming, Crowded> {
        let mut state = self.lock();
        if self.is_crowded(&state, subject) {
            state.forget_the_gone(subject);
            if self.is_crowded(&state, subject) {
                return Err(Crowded);
            }
        }
        Ok(self.line_up(state, subject, tool, join))
    }

    /// The same for those whose number is bounded elsewhere.
    pub(crate) fn stand_bounded(&self, subject: &SubjectId, tool: &ToolId, join: Option<Join>) -> Coming {
        self.line_up(self.lock(), subject, tool, join)
    }

    /// A turn, if the subject has none and nobody has to be waited for.
    pub(crate) fn at_once(&self, subject: &SubjectId, tool: &ToolId) -> Option<Turn> {
        let state = self.lock();
        if state.waiting > 0 || state.lanes.contains_key(subject) {
            return None;
        }
        let coming = self.line_up(state, subject, tool, None).try_recv();
        if coming.is_err() {
            self.lock().forget_the_gone(subject);
        }
        coming.ok()
    }

    fn is_crowded(&self, state: &State, subject: &SubjectId) -> bool {
        let most = self.0.rules.waiting_max;
        let of_subject = state.lanes.get(subject).map_or(0, |lane| lane.waiting.len());
        state.waiting >= most || of_subject >= (most / 4).max(1)
    }

    fn line_up(
        &self,
        mut state: MutexGuard<'_, State>,
        subject: &SubjectId,
        tool: &ToolId,
        join: Option<Join>,
    ) -> Coming {
        let (turn, coming) = oneshot::channel();
        let lane = state.lanes.entry(subject.clone()).or_default();
        let tool = tool.clone();
        lane.waiting.push_back(Waiter { tool, join, turn });
        let first = lane.waiting.len() == 1;
        state.waiting += 1;
        if first {
            state.round.push_back(subject.clone());
        }
        self.give(&mut state);
        leave(state);
        coming
    }

    /// How many wait.
    pub fn waiting(&self) -> usize {
        self.lock().waiting
    }

    /// How many places are taken.
    pub fn taken(&self) -> usize {
        self.lock().taken
    }

    /// Gives out what is free.
    fn give(&self, state: &mut State) {
        let (rules, (places, subject_max)) = (&self.0.rules, self.places());
        let mut passed_over = 0;
        while state.taken < places && passed_over < state.round.len() {
            let Some(subject) = state.round.pop_front() else {
                return;
            };
            let State { lanes, tools, .. } = &mut *state;
            let Some(lane) = lanes.get_mut(&subject) else {
                continue;
            };
            let tool_is_free = |waiter: &Waiter| tools.get(&waiter.tool).is_none_or(|n| *n < rules.tool_max);
            let next = if lane.taken < subject_max {
                lane.waiting.iter().take(LOOK_PAST_MAX).position(tool_is_free)
            } else {
                None
            };
            let Some(waiter) = next.and_then(|next| lane.waiting.remove(next)) else {
                lane.share = 0;
                if lane.waiting.is_empty() {
                    state.tidy(&subject);
                } else {
                    passed_over += 1;
                    state.round.push_back(subject);
                }
                continue;
            };
            if lane.share == 0 {
                lane.share = rules.weights.get(&subject).copied().unwrap_or(1).max(1);
            }
            state.waiting -= 1;
            if self.hand_over(state, &subject, waiter) {
                passed_over = 0;
            }
            state.go_round(subject);
        }
    }

    /// Hands a place to whoever waits; `false` if nobody waits for it any more.
    fn hand_over(&self, state: &mut State, subject: &SubjectId, waiter: Waiter) -> bool {
        if waiter.turn.is_closed() {
            return false;
        }
        let turn = Turn {
            turns: Some(self.clone()),
            subject: subject.clone(),
            tool: waiter.tool.clone(),
            line: waiter.join.and_then(|join| join()),
        };
        if let Err(mut unwanted) = waiter.turn.send(turn) {
            // It was never counted, and its end must not be.
            unwanted.turns = None;
            state.left.extend(unwanted.line.take());
            return false;
        }
        state.taken += 1;
        *state.tools.entry(waiter.tool).or_default() += 1;
        if let Some(lane) = state.lanes.get_mut(subject) {
            lane.taken += 1;
            lane.share = lane.share.saturating_sub(1);
        }
        true
    }

    fn back(&self, subject: &SubjectId, tool: &ToolId) {
        let mut state = self.lock();
        state.taken = state.taken.saturating_sub(1);
        if let Some(count) = state.tools.get_mut(tool) {
            *count -= 1;
            if *count == 0 {
                state.tools.remove(tool);
            }
        }
        if let Some(lane) = state.lanes.get_mut(subject) {
            lane.taken = lane.taken.saturating_sub(1);
        }
        state.tidy(subject);
        self.give(&mut state);
        leave(state);
    }
}

/// Unlocks first: whoever stands behind is woken, and may have a turn to give back.
fn leave(mut state: MutexGuard<'_, State>) {
    let left = std::mem::take(&mut state.left);
    drop(state);
    drop(left);
}

impl Turn {
    /// The place in line that came with it.
    pub(crate) fn take_line(&mut self) -> Option<InLine> {
        self.line.take()
    }
}

impl State {
    /// Puts a subject that has just been served where it belongs: in front while it has a share of this round left, else behind
    /// the others.
    fn go_round(&mut self, subject: SubjectId) {
        let Some(lane) = self.lanes.get_mut(&subject) else {
            return;
        };
        if lane.waiting.is_empty() {
            lane.share = 0;
            self.tidy(&subject);
        } else if lane.share > 0 {
            self.round.push_front(subject);
        } else {
            self.round.push_back(subject);
        }
    }

    /// Forgets a subject that neither holds nor waits.
    fn tidy(&mut self, subject: &SubjectId) {
        let idle = |lane: &Lane| lane.taken == 0 && lane.waiting.is_empty();
        if self.lanes.get(subject).is_some_and(idle) {
            self.lanes.remove(subject);
        }
    }

    /// Removes those of a subject who have gone away.
    fn forget_the_gone(&mut self, subject: &SubjectId) {
        if let Some(lane) = self.lanes.get_mut(subject) {
            let before = lane.waiting.len();
            lane.waiting.retain(|waiter| !waiter.turn.is_closed());
            self.waiting -= before - lane.waiting.len();
            if lane.waiting.is_empty() {
                self.round.retain(|waits| waits != subject);
                self.tidy(subject);
            }
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(turns) = self.turns.take() {
            turns.back(&self.subject, &self.tool);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn who_is_there_finds_room_though_another_floods() {
        let (flooder, other, tool) = (
            SubjectId::new("agent://flooder").unwrap(),
            SubjectId::new("agent://other").unwrap(),
            ToolId::new("a.tool").unwrap(),
        );
        let places = Turns::new(rules(100));
        let hand = Arc::new(effectd_contracts::ManualClock::at(
            effectd_contracts::Timestamp::UNIX_EPOCH,
        ));
        let clock: Arc<dyn Clock> = hand.clone();
        let among = Rules {
            tool_max: 5,
            ..rules(2)
        };
        let starts = Turns::among(among, &places, 5, &clock);
        let place = |subject| places.stand_bounded(subject, &tool, None).try_recv().unwrap();
        let start = |subject| starts.stand_bounded(subject, &tool, None);
        let _of_flooder = place(&flooder);
        let mut flood: Vec<_> = (0..30).map(|_| start(&flooder)).collect();
        let mut given = || {
            let given: Vec<Turn> = flood.iter_mut().filter_map(|turn| turn.try_recv().ok()).collect();
            given
        };
        let mut held = given();
        assert_eq!(held.len(), 5, "alone it may have more than among others");
        // While the other is on its way, even before it wants to start, one place is left for it.
        let of_other = place(&other);
        held.truncate(1);
        assert!(given().is_empty());
        let started = start(&other).try_recv().unwrap();
        held.clear();
        held.extend(given());
        assert_eq!(held.len(), 1, "and the flood goes on with its part");
        drop((started, of_other));
        held.clear();
        held.extend(given());
        assert_eq!(held.len(), 1, "the other may come again in a moment");
        hand.advance(COMPANY_TIME);
        held.clear();
        held.extend(given());
        assert_eq!(held.len(), 5);
    }

    #[test]
    fn a_turn_at_once_is_for_who_has_none_and_leaves_nothing_behind() {
        let turns = Turns::new(rules(2));
        let at_once = |name| turns.at_once(&subject(name), &tool("x"));
        let (first, second) = (at_once("a").unwrap(), stand(&turns, "b").try_recv().unwrap());
        assert!(at_once("a").is_none() && at_once("c").is_none());
        assert_eq!((turns.taken(), turns.waiting()), (2, 0));
        drop((first, second));
        assert!(turns.lock().lanes.is_empty() && at_once("c").is_some());
    }

    fn rules(places: usize) -> Rules {
        Rules {
            places,
            subject_max: places,
            tool_max: places,
            waiting_max: 400,
            weights: HashMap::new(),
        }
    }

    fn subject(name: &str) -> SubjectId {
        format!("agent://{name}").parse().unwrap()
    }

    fn tool(name: &str) -> ToolId {
        format!("t.{name}").parse().unwrap()
    }

    fn stand(turns: &Turns, name: &str) -> Coming {
        turns.stand(&subject(name), &tool("x"), None).unwrap()
    }

    /// Gives places back one by one, and says whose turn came each time.
    fn order(mut waiting: Vec<(&'static str, Coming)>, mut held: Vec<Turn>) -> Vec<&'static str> {
        let mut order = Vec::new();
        while !waiting.is_empty() {
            drop(held.remove(0));
            let came = waiting
                .iter_mut()
                .position(|(_, coming)| match coming.try_recv() {
                    Ok(turn) => {
                        held.push(turn);
                        true
                    }
                    Err(_) => false,
                });
            order.push(waiting.remove(came.unwrap()).0);
        }
        order
    }

    #[test]
    fn a_subject_that_floods_waits_behind_itself() {
        let turns = Turns::new(rules(1));
        let held = vec![stand(&turns, "flood").try_recv().unwrap()];
        let mut waiting: Vec<_> = (0..50).map(|_| ("flood", stand(&turns, "flood"))).collect();
        waiting.push(("other", stand(&turns, "other")));
        waiting.push(("other", stand(&turns, "other")));
        let order = order(waiting, held);
        assert_eq!(order[..5], ["flood", "other", "flood", "other", "flood"]);
    }

    #[test]
    fn weights_are_shares_of_each_round() {
        let mut rules = rules(1);
        rules.weights.insert(subject("heavy"), 3);
        let turns = Turns::new(rules);
        let held = vec![stand(&turns, "nobody").try_recv().unwrap()];
        let mut waiting: Vec<_> = (0..9).map(|_| ("heavy", stand(&turns, "heavy"))).collect();
        waiting.extend((0..3).map(|_| ("light", stand(&turns, "light"))));
        let order = order(waiting, held);
        for round in order.chunks(4) {
            assert_eq!(
                round.iter().filter(|name| **name == "light").count(),
                1,
                "{order:?}"
            );
        }
    }

    #[test]
    fn neither_a_subject_nor_a_tool_holds_all_places() {
        let turns = Turns::new(Rules {
            subject_max: 3,
            tool_max: 2,
            ..rules(4)
        });
        let mut first: Vec<_> = (0..4).map(|_| stand(&turns, "a")).collect();
        let held: Vec<_> = first
            .iter_mut()
            .filter_map(|coming| coming.try_recv().ok())
            .collect();
        assert_eq!(held.len(), 2, "the tool is full");
        // Another tool passes by those who wait for the full one.
        let other = turns.stand(&subject("a"), &tool("y"), None).unwrap().try_recv();
        assert!(other.is_ok());
        assert!(
            turns
                .stand(&subject("a"), &tool("z"), None)
                .unwrap()
                .try_recv()
                .is_err(),
            "the subject is full"
        );
        let of_another = turns.stand(&subject("b"), &tool("y"), None).unwrap().try_recv();
        assert!(of_another.is_ok());
        assert_eq!(turns.taken(), 4);
    }

    #[test]
    fn who_goes_away_leaves_no_trace() {
        let turns = Turns::new(rules(1));
        let held = stand(&turns, "a").try_recv().unwrap();
        for n in 0..1_000 {
            drop(stand(&turns, &format!("s{n}")));
            if turns.waiting() >= 390 {
                break;
            }
        }
        drop(held);
        assert_eq!((turns.taken(), turns.waiting()), (0, 0));
        assert!(turns.lock().lanes.is_empty() && turns.lock().round.is_empty());
        // A turn that was given and not taken goes to the next.
        let given = stand(&turns, "a");
        let mut next = stand(&turns, "b");
        assert!(next.try_recv().is_err());
        drop(given);
        assert!(next.try_recv().is_ok());
    }

    #[test]
    fn a_bounded_number_waits_and_one_subject_does_not_take_all_of_that() {
        let turns = Turns::new(rules(1));
        let _held = stand(&turns, "a").try_recv().unwrap();
        let waiting: Vec<_> = (0..100).map(|_| stand(&turns, "a")).collect();
        assert_eq!(turns.stand(&subject("a"), &tool("x"), None).err(), Some(Crowded));
        assert!(turns.stand(&subject("b"), &tool("x"), None).is_ok());
        drop(waiting);
        assert!(
            turns.stand(&subject("a"), &tool("x"), None).is_ok(),
            "those who went away make room"
        );
    }
}
