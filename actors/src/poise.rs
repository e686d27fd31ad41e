//! The call of an action, and a call that is in its child's hand while the claim is still being written.
//!
//! Before a child does anything it is woken, reads the request and confines itself to it. None of that can be seen from outside, so it need
//! not wait for the disk: for an action that is likely to be claimed, a child is handed the request at once, and waits for the word to
//! go. The word is given by the executor, like any call, when the intent is on disk. An action that turns out not to be ours takes its child
//! along: that one is killed, and has done nothing.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use effectd_contracts::{
    ActionRequest, CallMode, Code, Failure, Phase, Restore, SafetyClass, Seen, ToolCall, Touch, UNDO_TOOL,
};
use effectd_sandbox::limits::NARROWING_PATHS_MAX;
use effectd_sandbox::{Call, Limits, Narrowing};
use prometheus::IntCounterVec;
use serde_json::{Map, Value};

use crate::action::{Action, Gated, Ticket};
use crate::control::breakers;
use crate::control::turns::Turn;
use crate::disturbed;
use crate::idempotency::Terms;
use crate::parts::Parts;
use crate::registry::{Entry, Source};
use crate::running::Alive;

/// What a call is made of, beside the request itself.
pub(crate) struct Told<'a> {
    pub(crate) mode: CallMode,
    /// What the tool may change.
    pub(crate) touched: &'a [Touch],
    /// What stood there before the first run.
    pub(crate) before: Option<&'a [Seen]>,
    /// What is to be put back.
    pub(crate) restore: &'a [Restore],
    /// What must stand there.
    pub(crate) expect: Vec<Seen>,
    /// How long it may take.
    pub(crate) left: Duration,
}

/// The smallest of what the caller asks for, what the tool needs and what its class allows.
pub(crate) fn allowed_time(request: &ActionRequest, gated: &Gated) -> Duration {
    let asked = request.qos.timeout_ms.unwrap_or(u64::MAX);
    let class = gated.ruling().decision.timeout_ms_max;
    Duration::from_millis(asked.min(gated.entry().spec().timeout_ms).min(class))
}

/// The call of a permitted action.
pub(crate) fn call_of(
    parts: &Parts,
    (request, ticket): (&ActionRequest, &Ticket),
    gated: &Gated,
    told: Told<'_>,
) -> Result<Call, Failure> {
    if told.left.is_zero() {
        return Err(Failure::new(
            Code::TimedOut,
            Phase::Dispatch,
            "no time was left to run the tool",
        ));
    }
    let narrowing = match told.mode {
        CallMode::Run => narrowed(told.touched, gated.entry(), gated.params()),
        CallMode::DryRun | CallMode::Probe | CallMode::Preview => Narrowing::read_only(),
    };
    let spec = gated.entry().spec();
    let call = ToolCall {
        tool_id: spec.tool_id.clone(),
        mode: told.mode,
        space_id: request.space_id.clone(),
        params: gated.params().as_ref().clone(),
        timeout_ms: u64::try_from(told.left.as_millis()).unwrap_or(u64::MAX),
        trace_id: ticket.trace_id.clone(),
        before: told.before.map(<[Seen]>::to_vec),
        restore: told.restore.to_vec(),
        expect: told.expect,
    };
    let bytes = serde_json::to_vec(&call)
        .map_err(|error| Failure::new(Code::Internal, Phase::Dispatch, error.to_string()))?;
    Ok(Call {
        tool_id: call.tool_id,
        profile: spec.effective_profile(),
        high_isolation: gated.ruling().decision.safety_class == SafetyClass::High,
        space_root: (parts.space_roots)(&request.space_id)?,
        request: bytes,
        limits: Limits::default(),
        timeout: told.left,
        trace_id: call.trace_id,
        narrowing,
        makes_room: true,
    })
}

/// A tool that says what it may change can change nothing else: the folders of those paths, or where they are to be made.
/// One that says that it changes no file of the space can change none.
fn narrowed(touched: &[Touch], entry: &Entry, params: &Map<String, Value>) -> Narrowing {
    if touched.is_empty() {
        let changes_none = !disturbed::changes_files(entry.spec()) || entry.touches(params).is_some();
        return if changes_none {
            Narrowing::read_only()
        } else {
            Narrowing::default()
        };
    }
    let beneath = |touch: &Touch| {
        let path = PathBuf::from(touch.path.strip_prefix("workspace/")?);
        Some(path.parent().map(Path::to_owned).unwrap_or_default())
    };
    let folders: BTreeSet<_> = touched.iter().filter_map(beneath).collect();
    let writable = if folders.len() > NARROWING_PATHS_MAX {
        vec![PathBuf::new()]
    } else {
        folders.into_iter().collect()
    };
    Narrowing {
        writable: Some(writable),
        ..Narrowing::default()
    }
}

/// A child that has the request of an action in hand, and waits for the word to go.
#[derive(Debug)]
pub(crate) struct Poised {
    child: effectd_sandbox::Poised,
    alive: Alive,
    /// What stood there before, as the child was told.
    pub(crate) before: Option<Vec<Seen>>,
    turn: Option<Turn>,
    fate: Fate,
}

/// What becomes of such a call, for the figures.
#[derive(Debug)]
struct Fate(IntCounterVec, &'static str);

impl Drop for Fate {
    fn drop(&mut self) {
        self.0.with_label_values(&[self.1]).inc();
    }
}

impl Poised {
    /// It is carried out; what is left of it is the child, and that it is alive.
    pub(crate) fn carried_out(mut self) -> (effectd_sandbox::Poised, Alive) {
        self.fate.1 = "carried_out";
        (self.child, self.alive)
    }

    /// Its turn to start something.
    pub(crate) fn take_turn(&mut self) -> Option<Turn> {
        self.turn.take()
    }
}

/// Hands the call of an action to a child, if that needs no waiting and will hardly be in vain: it is the only one that its subject has
/// running, nothing goes along with it, nobody has to have seen what it meets, and its breaker is closed. Tools that effectd does not bring
/// itself get no request before its intent is on disk.
pub(crate) fn poise(parts: &Parts, action: &Action<Gated>, terms: &Terms) -> Option<Poised> {
    let (gated, request, ticket) = (&action.state, &action.request, &action.ticket);
    let is_plain = gated.entry().source() == Source::Core
        && gated.entry().spec().tool_id.as_str() != UNDO_TOOL
        && gated.dry_run().is_none()
        && terms.pinned.is_none()
        && ticket.preview.is_none()
        && ticket.expect.is_empty()
        && terms.before.is_some() != terms.touched.is_empty();
    let control = &parts.control;
    let key = breakers::key_of(request);
    if !is_plain || !control.breakers.is_closed(key, &request.tool_id) {
        return None;
    }
    let turn = control.starts.at_once(&request.subject_id, &request.tool_id)?;
    let alive = parts.running.enter(&ticket.action_id)?;
    let told = Told {
        mode: CallMode::Run,
        touched: &terms.touched,
        before: terms.before.as_deref(),
        restore: &[],
        expect: Vec::new(),
        left: allowed_time(request, gated),
    };
    let call = call_of(parts, (request, ticket), gated, told).ok()?;
    Some(Poised {
        child: parts.sandbox.poise(&call)?,
        alive,
        before: terms.before.clone(),
        turn: Some(turn),
        fate: Fate(parts.metrics.early_calls.clone(), "withdrawn"),
    })
}
