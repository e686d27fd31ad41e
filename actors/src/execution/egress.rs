//! The way of a network action: its child asks on the side channel, and the broker is asked for it.
//!
//! The child names a connection, which must be the action's own. Host and credential come from the connection's record; the secret is
//! unsealed here, for one call, and no child gets it. What went over the wire is remembered, since the child's word about it
//! does not count: a write that may have left makes the outcome of a failed call unclear, whatever the child replies.

use std::sync::Arc;
use std::time::Duration;

use effectd_contracts::access::HTTP_SOURCE;
use effectd_contracts::exchange::EXCHANGE_STREAM;
use effectd_contracts::limits::{EXCHANGE_MS_MAX, EXCHANGES_MAX};
use effectd_contracts::{
    CallMode, Clock, Code, Digest, EgressRecord, Exchange, ExchangeFailure, ExchangeFault, ExchangeReply,
    Failure, FrameReader, Millis, Monotonic, Phase, RiskLevel, SideEffect,
};
use effectd_egress::{Broker, Carried};
use effectd_sandbox::Piece;
use effectd_sandbox::limits::PIECE_BYTES_MAX;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use super::attempt::Attempted;
use super::steps::Execution;
use crate::action::preview::Preview;
use crate::limits::RETRY_AFTER_MAX;
use crate::metrics::Metrics;
use crate::services::egress::{Place, Way};
use crate::services::signer::Identity;

/// What a call may ask for.
pub(crate) struct Lane {
    broker: Arc<Broker>,
    /// The name by which the child must ask.
    connection: String,
    mode: CallMode,
    /// Whether the tool declares that it changes something.
    may_write: bool,
    way: Way,
    /// The one write that may leave, if a person or a rule has seen it.
    shown: Option<Digest>,
    identity: Arc<Identity>,
    clock: Arc<dyn Clock>,
    ends: Monotonic,
    metrics: Metrics,
    trace_id: String,
    _place: Place,
}

/// What went over the wire in one call.
#[derive(Debug, Default)]
pub(crate) struct Wired {
    pub(crate) records: Vec<EgressRecord>,
    /// Whether a write may have had its effect: it was answered with something else than a refusal, or not at all.
    pub(crate) may_have_effect: bool,
    /// When a service asks to be asked again.
    retry_after: Option<Duration>,
    /// Why the last exchange has no answer.
    failure: Option<ExchangeFailure>,
    writes: u32,
}

impl Execution<'_> {
    /// Whether the tool is a connection's, and changes nothing but what it asks for by exchanges. Another program's tool of such a name
    /// that declares more has no lane, since what it does beside its exchanges is not known here.
    pub(crate) fn is_wired(&self) -> bool {
        let spec = self.action.state.gated().tool().spec();
        let is_elsewhere = spec.side_effects.iter().all(|effect| *effect == SideEffect::NetworkCall);
        spec.tool_id.source().starts_with(HTTP_SOURCE) && is_elsewhere
    }

    /// The lane of a call of a connection's tool; `None` for every other tool.
    pub(crate) async fn lane(&self, mode: CallMode, left: Duration) -> Result<Option<Lane>, Failure> {
        let (services, action) = (self.services, self.action);
        let gated = action.state.gated();
        let source = gated.tool().spec().tool_id.source();
        if !self.is_wired() || !matches!(mode, CallMode::Run | CallMode::Probe) {
            return Ok(None);
        }
        let failed = |code, why: String| Failure::new(code, Phase::Dispatch, why);
        let missing = || {
            failed(
                Code::ConnectionMissing,
                format!("{source} is no enabled connection of the space's organisation, or has changed"),
            )
        };
        let org = services.org_of(&action.request.space_id).ok_or_else(missing)?;
        let enabled = services.connection(&org, source).ok_or_else(missing)?;
        // What the gate has judged, and no other: a connection that was changed since leads elsewhere.
        let facts = &gated.ruling().facts;
        if facts.connection_version != Some(enabled.version)
            || facts.connection_id.as_ref() != Some(&enabled.connection_id)
        {
            return Err(missing());
        }
        let (place, ends) = (services.egress.place(&org)?, services.clock.monotonic().plus(left));
        let way = services.way(&org, source, &enabled, left).await?;
        // An access token may have taken a while.
        if services.connection(&org, source).is_none_or(|now| now != enabled) {
            return Err(missing());
        }
        let shown = match action.ticket.preview.as_deref() {
            Some(Preview::Request(request)) => Some(request.digest),
            Some(Preview::Shown(_) | Preview::WouldFail(_) | Preview::Unavailable(_)) | None => None,
        };
        Ok(Some(Lane {
            broker: services.egress.broker.clone(),
            connection: source.to_owned(),
            mode,
            may_write: gated.tool().spec().level() != RiskLevel::Read,
            way,
            shown,
            identity: services.identity.clone(),
            clock: services.clock.clone(),
            ends,
            metrics: services.metrics.clone(),
            trace_id: action.ticket.trace_id.to_string(),
            _place: place,
        }))
    }
}

impl Lane {
    /// Answers the child until it ends. Pieces of other streams go on to `others`. Dropping this leaves the truth in `wired`.
    pub(crate) async fn serve(
        &self,
        mut pieces: mpsc::Receiver<Piece>,
        to_child: mpsc::Sender<Vec<u8>>,
        others: mpsc::Sender<Piece>,
        wired: &Mutex<Wired>,
    ) {
        let mut reader = FrameReader::of_exchanges();
        // The request's share of the daemon's memory; it begins with what a first piece may have.
        let mut room = None;
        let mut asked = 0;
        while let Some(piece) = pieces.recv().await {
            if piece.stream != EXCHANGE_STREAM {
                let _nobody_takes_it = others.send(piece).await;
                continue;
            }
            let added = reader.add(&piece.bytes);
            if room.is_none()
                && let Ok(Some(lengths)) = reader.lengths()
            {
                room = self.broker.room(lengths.rest()).await;
            }
            let reply = match added {
                Ok(None) => continue,
                Ok(Some((lengths, rest))) => match Exchange::from_frame(lengths, rest) {
                    Some(exchange) if asked < EXCHANGES_MAX => {
                        asked += 1;
                        self.carry(exchange, room.take(), wired).await
                    }
                    Some(_) => refused("the call has made as many requests as it may"),
                    None => refused("this is no request"),
                },
                // A child that floods the channel gets no answer, and its deadline ends it.
                Err(_) => break,
            };
            room = None;
            if let ExchangeReply::Failed(failure) = &reply {
                wired.lock().failure = Some(failure.clone());
            }
            let Ok(frame) = reply.to_frame() else {
                break;
            };
            for piece in frame.chunks(PIECE_BYTES_MAX) {
                if to_child.send(piece.to_vec()).await.is_err() {
                    return;
                }
            }
        }
    }

    /// Why the exchange may not leave.
    fn refusal(&self, exchange: &Exchange, wired: &Mutex<Wired>) -> Option<String> {
        if exchange.connection != self.connection {
            return Some("the action has no such connection".to_owned());
        }
        if let Err(why) = exchange.check() {
            return Some(why.to_string());
        }
        if !self.way.access.allows(exchange.method, &exchange.path) {
            let routes: Vec<_> = self.way.access.routes.iter().map(ToString::to_string).collect();
            return Some(format!("the connection does not allow this; it allows {}", routes.join(", ")));
        }
        if exchange.method.is_write() {
            if self.mode != CallMode::Run || !self.may_write {
                return Some("only the run of a tool that declares writes may write".to_owned());
            }
            let mut wired = wired.lock();
            wired.writes += 1;
            if let Some(shown) = &self.shown
                && (wired.writes > 1 || self.identity.keyed(&exchange.digest()) != *shown)
            {
                return Some("this is not the request that was shown, or it has left already".to_owned());
            }
        }
        None
    }

    async fn carry(
        &self,
        exchange: Exchange,
        room: Option<OwnedSemaphorePermit>,
        wired: &Mutex<Wired>,
    ) -> ExchangeReply {
        if let Some(why) = self.refusal(&exchange, wired) {
            self.metrics.egress.with_label_values(&[ExchangeFault::Refused.as_str()]).inc();
            return refused(&why);
        }
        let left = self.ends.since(self.clock.monotonic());
        let time_ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX).min(EXCHANGE_MS_MAX);
        let (method, is_write) = (exchange.method, exchange.method.is_write());
        let order = self.way.order(exchange, time_ms);
        // Set before the first byte leaves: if this is dropped meanwhile, the write may have happened, and nobody knows more.
        let before = {
            let mut wired = wired.lock();
            let before = wired.may_have_effect;
            wired.may_have_effect |= is_write;
            wired.records.push(EgressRecord {
                host: self.way.host().to_owned(),
                address: None,
                method,
                status: None,
                fault: Some(ExchangeFault::Gone),
                bytes_out: 0,
                bytes_in: 0,
                ms: Millis::ZERO,
                allowed_range: false,
            });
            before
        };
        let carried = self.broker.carry(order, room).await;
        let EgressRecord { host, status, fault, bytes_out, bytes_in, ms, .. } = &carried.record;
        let outcome = fault.map_or("answered", ExchangeFault::as_str);
        self.metrics.egress.with_label_values(&[outcome]).inc();
        self.metrics.egress_seconds.observe(ms.as_f64() / 1_000.0);
        tracing::info!(
            trace_id = self.trace_id,
            connection = self.connection,
            host,
            method = method.as_str(),
            status,
            outcome,
            bytes_out,
            bytes_in,
            "a request went to a service"
        );
        let is_unauthorized = *status == Some(401);
        wired.lock().answered(&carried, before, is_write);
        if is_unauthorized {
            self.way.unauthorized().await;
        }
        carried.reply
    }
}

impl Wired {
    /// Notes how an exchange has ended. `before` is whether an effect was possible before it.
    fn answered(&mut self, carried: &Carried, before: bool, is_write: bool) {
        self.failure = None;
        self.retry_after = None;
        if let ExchangeReply::Answered(answer) = &carried.reply {
            let seconds = answer.header("retry-after").and_then(|value| value.parse().ok());
            self.retry_after = seconds
                .map(|seconds| Duration::from_secs(seconds).min(RETRY_AFTER_MAX))
                .filter(|_| matches!(answer.status, 429 | 503));
        }
        self.may_have_effect = before || (is_write && may_have_effect(&carried.reply));
        if let Some(record) = self.records.last_mut() {
            record.clone_from(&carried.record);
        }
    }

    /// What an attempt means, given what went over the wire: a child that says that it failed is believed about the reason, never
    /// about what has left.
    pub(crate) fn judge(&self, attempted: Attempted) -> Attempted {
        let failure = match attempted {
            Attempted::Failed(failure) | Attempted::Unclear(failure) => failure,
            done_or_abandoned @ (Attempted::Done(_) | Attempted::Abandoned) => return done_or_abandoned,
        };
        let mut failure = match &self.failure {
            Some(known) => Failure::new(code_of(known.fault), Phase::Dispatch, known.message.clone()),
            None => failure,
        };
        if self.may_have_effect {
            return Attempted::Unclear(failure);
        }
        if let Some(after) = self.retry_after {
            failure = failure.retry_after(after);
        }
        Attempted::Failed(failure)
    }
}

fn code_of(fault: ExchangeFault) -> Code {
    match fault {
        ExchangeFault::Refused => Code::EgressRefused,
        ExchangeFault::Busy => Code::ToolBusy,
        ExchangeFault::Unresolved
        | ExchangeFault::Unreachable
        | ExchangeFault::Untrusted
        | ExchangeFault::TimedOut
        | ExchangeFault::TooLarge
        | ExchangeFault::Broken
        | ExchangeFault::Gone => Code::EgressFailed,
    }
}

/// Whether a write may have had its effect. A service that refuses says so by a status of the client's fault, or asks to be asked
/// again; any other failure of its own may come after the effect.
fn may_have_effect(reply: &ExchangeReply) -> bool {
    match reply {
        ExchangeReply::Failed(failure) => failure.sent,
        ExchangeReply::Answered(answer) => match answer.status {
            400..=499 | 501 | 505 => false,
            503 => answer.header("retry-after").is_none(),
            _ => true,
        },
    }
}

fn refused(why: &str) -> ExchangeReply {
    let (fault, message) = (ExchangeFault::Refused, why.to_owned());
    ExchangeReply::Failed(ExchangeFailure { fault, message, sent: false })
}

#[cfg(test)]
mod tests {
    use effectd_contracts::ExchangeAnswer;

    use super::*;

    fn answered(status: u16, retry_after: Option<&str>) -> bool {
        let headers = retry_after.map(|value| ("retry-after".to_owned(), value.to_owned()));
        let headers = headers.into_iter().collect();
        may_have_effect(&ExchangeReply::Answered(ExchangeAnswer { status, headers, body: Vec::new() }))
    }

    #[test]
    fn a_write_is_over_only_if_the_service_says_so() {
        for status in [400, 401, 403, 404, 409, 422, 429, 501] {
            assert!(!answered(status, None), "{status}");
        }
        for status in [200, 201, 204, 302, 303, 500, 502, 503, 504] {
            assert!(answered(status, None), "{status}");
        }
        assert!(!answered(503, Some("1")));
    }

    #[test]
    fn a_child_is_not_believed_about_what_has_left() {
        let said = || Attempted::Failed(Failure::new(Code::ToolBusy, Phase::Dispatch, "nothing happened"));
        let sent = Wired { may_have_effect: true, ..Wired::default() };
        assert!(matches!(sent.judge(said()), Attempted::Unclear(_)));
        let killed = Attempted::Unclear(Failure::new(Code::TimedOut, Phase::Dispatch, "killed"));
        assert!(matches!(Wired::default().judge(killed), Attempted::Failed(_)), "nothing has left");
        let retry_after = Some(Duration::from_secs(7));
        let later = Wired { retry_after, ..Wired::default() };
        let Attempted::Failed(failure) = later.judge(said()) else { panic!("nothing has left") };
        assert_eq!(failure.retry_after_ms, Some(7_000));
    }
}
