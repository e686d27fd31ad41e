//! The stage for actions that the policy asks a person about: somebody has said yes already, a pre-approval stands in, or
//! it is put away until somebody decides.

use std::sync::Arc;
use std::time::Duration;

use effectd_bus::{Lookup, Store, StoreError};
use effectd_contracts::{ActionId, Code, Failure, Phase, ReceiptId, SafetyClass};

use super::ask::Ask;
use super::entries;
use super::grants;
use super::hold::{Hold, HoldState, written};
use super::park::{Parked, is_full, park, question, reopen};
use super::tidy;
use crate::action::{Action, Asked, Gated};
use crate::failpoint::hit;
use crate::idempotency::{ID_TAKEN, Terms, key_taken, refused};
use crate::limits::{HELD_ROUNDS_MAX, OVERLOAD_RETRY};
use crate::messages::Record;
use crate::open::intent_of;
use crate::parts::Parts;
use crate::preview::{self, Preview, Trial};
use crate::stage::{Address, Stage, pass, put_off, store_failed, wait_behind};

/// Proof that somebody said yes to exactly this. Made only here.
#[derive(Debug)]
pub(crate) struct Evidence(());

#[derive(Clone)]
pub(crate) struct Holder {
    pub(crate) parts: Arc<Parts>,
    pub(crate) idempotency: Address<Action<Gated>>,
    pub(crate) recorder: Address<Record>,
}

/// How it goes on with an action that needs a person's yes.
enum Then {
    /// There is one.
    GoOn(Evidence),
    Waits(Box<Hold>),
    /// Another copy of it is on its way, or it has just ended.
    Elsewhere,
    /// It was done before.
    Before(ReceiptId),
    /// Another is doing the same: see what comes of that.
    Behind(ActionId),
    /// It ends here, with a receipt.
    Refused(Failure),
    /// Its id stands for something else.
    Conflict,
    /// It comes again after a pause: too many of its session wait, or it cannot be tried out now.
    Later(Failure, Duration),
}

/// How long a decision from the bus is put off whose session has too many open questions.
const FULL_PAUSE: Duration = Duration::from_secs(5);

impl Stage for Holder {
    const NAME: &'static str = "hold";
    type Message = Action<Asked>;

    fn parts(&self) -> &Arc<Parts> {
        &self.parts
    }

    async fn work(&self, mut action: Action<Asked>, this: &Address<Action<Asked>>) {
        hit("held.begin", &action.ticket.action_id).await;
        match self.find_way(&mut action).await {
            Ok(then) => self.act_on(then, action, this),
            Err(error) => store_failed(&self.recorder, action, Phase::Hold, &error),
        }
    }
}

impl Holder {
    async fn find_way(&self, action: &mut Action<Asked>) -> Result<Then, StoreError> {
        let (parts, asked) = (&self.parts, &action.state);
        let ask = Ask::of(
            parts,
            &action.request,
            &action.ticket.principal,
            asked.entry(),
            asked.params(),
            &asked.ruling().decision,
        )
        .await;
        // Another copy of it may have been faster.
        if let Some(ended) = parts.store.receipt_of(&action.ticket.action_id)? {
            return Ok(Then::Before(ended.receipt_id));
        }
        let begun = has_intent(&*parts.store, &action.ticket.action_id).await?;
        if action.ticket.approved.is_some() {
            return self.evidence(action, &ask, begun).await;
        }
        if let Some(then) = self.standing(action).await? {
            return Ok(then);
        }
        if begun {
            return self.begun(action);
        }
        // A success that is known needs no new approval.
        let terms = Terms::of(parts, &action.request, &action.state);
        match terms.look_up(parts, action)? {
            Lookup::Done { receipt_id } => return Ok(Then::Before(receipt_id)),
            Lookup::InFlight { action_id } if action_id != action.ticket.action_id => {
                return Ok(Then::Behind(action_id));
            }
            Lookup::Conflict => return Ok(Then::Refused(key_taken())),
            Lookup::InFlight { .. } | Lookup::Unknown => {}
        }
        if let Some(record) = grants::consume(parts, action, &ask).await? {
            action.ticket.granted = Some(record);
            return Ok(Then::GoOn(Evidence(())));
        }
        self.park(action, &ask).await
    }

    async fn park(&self, action: &Action<Asked>, ask: &Ask) -> Result<Then, StoreError> {
        let id = &action.ticket.action_id;
        if is_full(&self.parts, action, ask)? {
            return Ok(full(&self.parts));
        }
        let new = match self.preview(action, ask).await {
            Ok(preview) => question(&self.parts, action, ask, preview),
            Err(failure) => return Ok(Then::Later(failure, OVERLOAD_RETRY)),
        };
        hit("held.before_park", id).await;
        let parked = park(&self.parts, new, action.ticket.lease()).await;
        hit("held.after_park", id).await;
        Ok(match parked? {
            Parked::Waits(hold) => Then::Waits(hold),
            Parked::Full => full(&self.parts),
        })
    }

    /// What a person is shown of it.
    async fn preview(&self, action: &Action<Asked>, ask: &Ask) -> Result<Box<Preview>, Failure> {
        if let Some(why) = ask.blind() {
            return Ok(Box::new(Preview::Unavailable(why)));
        }
        let (request, asked) = (&action.request, &action.state);
        let trial = Trial {
            subject: &request.subject_id,
            space: &request.space_id,
            entry: asked.entry(),
            params: asked.params(),
            high_isolation: asked.ruling().decision.safety_class == SafetyClass::High,
            trace_id: &action.ticket.trace_id,
            stands: Some(&ask.stands),
        };
        Ok(Box::new(preview::of(&self.parts, &trial).await?))
    }

    /// It was begun before, and its own effect may be what has changed. If a grant stood in then, it goes on and is settled
    /// by what its tool declares; if nobody was asked then, it cannot wait for a person as if nothing had happened.
    fn begun(&self, action: &mut Action<Asked>) -> Result<Then, StoreError> {
        let used = grants::used(&*self.parts.store, &action.ticket.action_id)?;
        let Some(record) = used else {
            return Ok(Then::Refused(begun()));
        };
        action.ticket.granted = Some(record);
        Ok(Then::GoOn(Evidence(())))
    }

    /// Somebody said yes. It counts if it is about exactly what would happen now, or if it was begun with it: then its own
    /// effect may be what has changed, and it is settled by what its tool declares.
    async fn evidence(&self, action: &mut Action<Asked>, ask: &Ask, begun: bool) -> Result<Then, StoreError> {
        let store = &*self.parts.store;
        let id = action
            .ticket
            .approved
            .as_ref()
            .and_then(|approved| approved.record.approval_id.clone());
        let hold = id.map(|id| entries::hold(store, &id)).transpose()?.flatten();
        let ours = hold.filter(|hold| {
            hold.value.is_approved()
                && hold
                    .value
                    .lead()
                    .is_some_and(|lead| lead.action_id == action.ticket.action_id)
        });
        let Some(hold) = ours else {
            if begun {
                return Ok(Then::Refused(self::begun()));
            }
            // A question that is settled was about another life of this action: it was requeued since, or its end is on disk.
            action.ticket.approved = None;
            return self.park(action, ask).await;
        };
        let agreed = hold.value.decided().map(|approval| approval.digest.clone());
        if begun || agreed == Some(written(&ask.digest)) {
            action.ticket.preview.clone_from(&hold.value.prompt.preview);
            // What stands there now is what was agreed to, or, if it was begun, perhaps its own effect.
            action.ticket.expect = if begun { Vec::new() } else { ask.stands.clone() };
            return Ok(Then::GoOn(Evidence(())));
        }
        if hold.value.round >= HELD_ROUNDS_MAX {
            let message = format!(
                "it was approved {} times, and each time it had changed since",
                HELD_ROUNDS_MAX
            );
            return Ok(Then::Refused(Failure::new(
                Code::PolicyDenied,
                Phase::Hold,
                message,
            )));
        }
        let why = "what was approved is not what would happen now: the tool, a rule or a file has changed";
        let new = match self.preview(action, ask).await {
            Ok(preview) => question(&self.parts, action, ask, preview),
            Err(failure) => return Ok(Then::Later(failure, OVERLOAD_RETRY)),
        };
        let new = reopen(&self.parts, &hold, new, why, action.ticket.lease()).await?;
        Ok(Then::Waits(Box::new(new)))
    }

    /// What is known of this very action.
    async fn standing(&self, action: &Action<Asked>) -> Result<Option<Then>, StoreError> {
        let ticket = &action.ticket;
        let Some(hold) = entries::hold_of(&*self.parts.store, &ticket.action_id)? else {
            return Ok(None);
        };
        let same = hold
            .value
            .member(&ticket.action_id)
            .is_some_and(|member| member.digest == ticket.digest);
        if !same || hold.value.decision.principal != ticket.principal {
            return Ok(Some(Then::Conflict));
        }
        if hold.value.is_open(self.parts.clock.now()) {
            if let Some(lease) = ticket.lease() {
                self.parts.store.ack(lease).await?;
            }
            return Ok(Some(Then::Waits(Box::new(hold.value))));
        }
        if let HoldState::Pending = hold.value.state {
            // Nobody swept.
            tidy::expire(&self.parts, &hold).await?;
        }
        Ok(Some(match self.parts.store.receipt_of(&ticket.action_id)? {
            Some(receipt) => Then::Before(receipt.receipt_id),
            None => Then::Elsewhere,
        }))
    }

    fn act_on(&self, then: Then, action: Action<Asked>, this: &Address<Action<Asked>>) {
        match then {
            Then::GoOn(evidence) => {
                let action = action.advance(|asked| asked.permitted(&evidence));
                pass(&self.idempotency, action);
            }
            Then::Waits(hold) => self.waits(action, &hold),
            Then::Elsewhere => {
                if let Some(lease) = action.ticket.lease() {
                    drop(self.parts.store.ack(lease));
                }
                action.ticket.settled();
            }
            Then::Before(receipt_id) => pass(&self.recorder, Record::before(action, receipt_id)),
            Then::Behind(other) => wait_behind(&self.parts, action, &other, this),
            Then::Refused(failure) => pass(&self.recorder, refused(action, |asked| asked, failure)),
            Then::Conflict => {
                let failure = Failure::new(Code::ActionConflict, Phase::Hold, ID_TAKEN);
                pass(&self.recorder, Record::unrecorded(action, failure));
            }
            Then::Later(failure, pause) => put_off(&self.parts, *action.ticket, &failure, pause),
        }
    }

    fn waits(&self, mut action: Action<Asked>, hold: &Hold) {
        let id = action.ticket.action_id.clone();
        tracing::info!(parent: &action.ticket.span, trace_id = %action.ticket.trace_id, approval_id = %hold.approval_id, "held");
        self.parts.metrics.held.inc();
        let told = hold.told();
        if !action.ticket.hold_at_door(&told) {
            self.parts.answers.tell_held(&id, &told);
        }
        action.ticket.settled();
    }
}

pub(crate) async fn has_intent(store: &dyn Store, action: &ActionId) -> Result<bool, StoreError> {
    Ok(intent_of(store, action).await?.is_some())
}

fn begun() -> Failure {
    let message = "it was begun, and since then a rule asks a person about it";
    Failure::new(Code::PolicyDenied, Phase::Hold, message)
}

fn full(parts: &Parts) -> Then {
    let most = parts.settings.held_per_session_max;
    let message = format!("{most} actions of this session wait for a person already");
    let failure = Failure::new(Code::PendingLimit, Phase::Hold, message).retry_after(FULL_PAUSE);
    Then::Later(failure, FULL_PAUSE)
}
