//! The way of a network action: its child asks on the side channel, and the broker is asked for it.
//!
//! The child names a connection, which must be the action's own. Host and credential come from the connection's record; the secret is
//! unsealed here, for one call, and no child gets it. What went over the wire is remembered, since the child's word about it
//! does not count: a write that may have left makes the outcome of a failed call unclear, whatever the child replies.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use effectd_contracts::access::is_wired;
use effectd_contracts::exchange::{EXCHANGE_STREAM, PARAM_HEADER};
use effectd_contracts::limits::{
    EXCHANGE_MS_MAX, EXCHANGES_MAX, HARVEST_EXCHANGES_MAX, HARVEST_MS_MAX, TOOL_REPLY_BYTES_MAX,
};
use effectd_contracts::{
    Ask, CallMode, Clock, Code, Digest, EgressRecord, Exchange, ExchangeFailure, ExchangeFault,
    ExchangeReply, Failure, FrameReader, Harvest, Millis, Monotonic, OrgId, Phase, RiskLevel, SandboxProfile,
    SideEffect, ToolCall, ToolId, ToolReply, TraceId, Transport, Upstream, headers_of, json,
};
use effectd_egress::{Broker, Carried};
use effectd_sandbox::limits::PIECE_BYTES_MAX;
use effectd_sandbox::{Call, Ending, Limits, Narrowing, Piece, SandboxError, SideChannel};
use parking_lot::Mutex;
use serde_json::{Map, Value};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use super::attempt::Attempted;
use super::stdio::no_space;
use super::steps::Execution;
use super::upstream::is_call;
use crate::action::preview::Preview;
use crate::effects::streams;
use crate::limits::RETRY_AFTER_MAX;
use crate::metrics::Metrics;
use crate::registry::RegisteredTool;
use crate::services::Services;
use crate::services::connections::Enabled;
use crate::services::egress::{Place, Way};
use crate::services::signer::Identity;

/// What a call may ask for.
pub(crate) struct Lane {
    broker: Arc<Broker>,
    /// The name by which the child must ask.
    connection: String,
    mode: CallMode,
    /// The tool that asks; `None` for a harvest, which only reads.
    tool: Option<Arc<RegisteredTool>>,
    way: Way,
    /// The one write or statement that may leave, if a person or a rule has seen it.
    shown: Option<Digest>,
    /// What an MCP server may be asked; `None` for any other service.
    server: Option<Server>,
    identity: Arc<Identity>,
    clock: Arc<dyn Clock>,
    ends: Monotonic,
    metrics: Metrics,
    trace_id: String,
    _place: Place,
}

/// What an MCP server may be asked: to list its tools, and to carry out the call that was judged, if there is one.
#[derive(Debug)]
struct Server {
    call: Option<(String, Arc<Map<String, Value>>)>,
    /// The parameters of the call that may stand in headers, too.
    headers: Vec<(String, String)>,
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
    /// Whether the call of an MCP server has left.
    has_called: bool,
    /// Whether the service is an MCP server. It says in a whole answer that it has refused a call.
    is_server: bool,
}

impl Execution<'_> {
    /// Whether the tool is a connection's, and changes nothing but what it asks for by exchanges. Another program's tool of such a name
    /// that declares more has no lane, since what it does beside its exchanges is not known here.
    pub(crate) fn is_wired(&self) -> bool {
        let tool = self.action.state.gated().tool();
        let spec = tool.spec();
        let is_elsewhere = spec.side_effects.iter().all(|effect| *effect == SideEffect::NetworkCall);
        (is_wired(spec.tool_id.source()) || server(tool).is_some()) && is_elsewhere
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
        let tool = gated.tool();
        let call = || (tool.spec().tool_id.action().to_owned(), gated.params().clone());
        Ok(Some(Lane {
            server: server(tool).map(|upstream| Server {
                call: Some(call()),
                headers: headers_of(&upstream.headers, gated.params()),
            }),
            broker: services.egress.broker.clone(),
            connection: source.to_owned(),
            mode,
            tool: Some(gated.tool().clone()),
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
        // A call pages through the list, too.
        let exchanges_max = if self.server.is_some() { HARVEST_EXCHANGES_MAX } else { EXCHANGES_MAX };
        wired.lock().is_server = self.server.is_some();
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
                    Some(exchange) if asked < exchanges_max => {
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

    /// Whether the tool declares that it changes something.
    fn may_write(&self) -> bool {
        self.tool.as_ref().is_some_and(|tool| tool.spec().level() != RiskLevel::Read)
    }

    /// Whether the exchange may have an effect. The error says why it may not leave.
    fn checked(&self, exchange: &Exchange, wired: &Mutex<Wired>) -> Result<bool, String> {
        if exchange.connection != self.connection {
            return Err("the action has no such connection".to_owned());
        }
        exchange.check().map_err(|why| why.to_string())?;
        if !self.way.access.allows(exchange.method, &exchange.path) {
            return Err(format!(
                "the connection does not allow this; it allows {}",
                self.way.access.allowed()
            ));
        }
        if let Some(Server { call, headers }) = &self.server {
            let judged = call.as_ref().map(|(name, arguments)| (name.as_str(), &**arguments));
            let is_call = is_call(&exchange.body, judged)?;
            let mut repeated = exchange.headers.iter().filter(|(name, _)| name.starts_with(PARAM_HEADER));
            if repeated.any(|header| !is_call || !headers.contains(header)) {
                return Err("a header says what the call that was judged does not".to_owned());
            }
            if !is_call {
                return Ok(false);
            }
            if self.mode != CallMode::Run || std::mem::replace(&mut wired.lock().has_called, true) {
                return Err("the call has left already".to_owned());
            }
            return Ok(self.may_write());
        }
        let is_write = self.tool.as_ref().is_some_and(|tool| !tool.only_reads(exchange));
        // A statement only reads, and yet it is what was shown.
        if is_write || exchange.method.is_sql() {
            if is_write && (self.mode != CallMode::Run || !self.may_write()) {
                return Err("only the run of a tool that declares writes may write".to_owned());
            }
            let mut wired = wired.lock();
            wired.writes += 1;
            if let Some(shown) = &self.shown
                && (wired.writes > 1 || self.identity.keyed(&exchange.digest()) != *shown)
            {
                return Err("this is not the request that was shown, or it has left already".to_owned());
            }
        }
        Ok(is_write)
    }

    async fn carry(
        &self,
        exchange: Exchange,
        room: Option<OwnedSemaphorePermit>,
        wired: &Mutex<Wired>,
    ) -> ExchangeReply {
        let had_called = wired.lock().has_called;
        let is_write = match self.checked(&exchange, wired) {
            Ok(is_write) => is_write,
            Err(why) => {
                self.metrics.egress.with_label_values(&[ExchangeFault::Refused.as_str()]).inc();
                return refused(&why);
            }
        };
        let left = self.ends.since(self.clock.monotonic());
        let time_ms = u64::try_from(left.as_millis()).unwrap_or(u64::MAX).min(EXCHANGE_MS_MAX);
        let method = exchange.method;
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
        let (is_unauthorized, is_gone) = (*status == Some(401), *status == Some(404));
        {
            let mut wired = wired.lock();
            wired.answered(&carried, before, is_write);
            // A server that does not know its session any more has not called.
            if is_gone {
                wired.has_called = had_called;
            }
        }
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

    /// Whether a write has one whole answer with a status of success: then what that says is the service's word, whoever reads it.
    fn is_answered(&self) -> bool {
        let is_success =
            |record: &EgressRecord| record.status.is_some_and(|status| (200..300).contains(&status));
        self.writes == 1 && self.failure.is_none() && self.records.last().is_some_and(is_success)
    }

    /// Notes that the call of an MCP server leaves now, by another way than an exchange.
    pub(crate) fn called_server(&mut self, may_write: bool) {
        self.is_server = true;
        self.may_have_effect |= may_write;
    }

    /// If the time of the call is over while a service is to answer, the service was too slow, whichever of the two clocks rings first.
    fn end_open(&mut self, attempted: &Attempted) {
        let is_over = matches!(attempted, Attempted::Unclear(failure) if failure.code == Code::TimedOut);
        let open = self.records.last_mut().filter(|record| record.fault == Some(ExchangeFault::Gone));
        if let Some(record) = open.filter(|_| is_over && self.failure.is_none()) {
            record.fault = Some(ExchangeFault::TimedOut);
            let message = "the service did not answer in time".to_owned();
            self.failure = Some(ExchangeFailure { fault: ExchangeFault::TimedOut, message, sent: true });
        }
    }

    /// What an attempt means, given what went over the wire: a child that says that it failed is believed about the reason, never
    /// about what has left. What a whole answer means, effectd's own tools say: some services refuse with status 200.
    pub(crate) fn judge(&mut self, attempted: Attempted, is_ours: bool) -> Attempted {
        self.end_open(&attempted);
        let (failure, was_said) = match attempted {
            Attempted::Failed(failure) => (failure, true),
            Attempted::Unclear(failure) => (failure, false),
            done_or_abandoned @ (Attempted::Done(_) | Attempted::Abandoned) => return done_or_abandoned,
        };
        let mut failure = match &self.failure {
            Some(known) => Failure::new(code_of(known.fault), Phase::Dispatch, known.message.clone()),
            None => failure,
        };
        // A server that answers that the parameters do not fit, or that it has no such tool, has refused, as by a status of HTTP.
        let is_refused = match matches!(failure.code, Code::ParamsInvalid | Code::UnknownTool) {
            true => self.is_server && self.failure.is_none() && was_said,
            false => failure.code == Code::ServiceRefused && is_ours && self.is_answered(),
        };
        if self.may_have_effect && !is_refused {
            return Attempted::Unclear(failure);
        }
        if let Some(after) = self.retry_after {
            failure = failure.retry_after(after);
        }
        Attempted::Failed(failure)
    }
}

/// The MCP server of a tool, if it is reached by HTTP.
fn server(tool: &RegisteredTool) -> Option<&Upstream> {
    let upstream = tool.definition().upstream.as_deref();
    upstream.filter(|upstream| matches!(upstream.transport, Transport::Http { .. }))
}

/// Asks an MCP server for its tools, by a child that may do nothing else.
pub(crate) async fn harvest(
    services: &Services,
    org: &OrgId,
    (source, enabled): (&str, &Enabled),
    transport: &Transport,
) -> Result<Harvest, Failure> {
    let time = Duration::from_millis(HARVEST_MS_MAX);
    let ends = services.clock.monotonic().plus(time);
    let failed = |code, why: String| Failure::new(code, Phase::Dispatch, why);
    let broken = |error: &dyn std::fmt::Display| failed(Code::Internal, error.to_string());
    let (place, trace_id) = (services.egress.place(org)?, TraceId::fresh());
    let lane = Lane {
        server: Some(Server { call: None, headers: Vec::new() }),
        broker: services.egress.broker.clone(),
        connection: source.to_owned(),
        mode: CallMode::Run,
        tool: None,
        way: services.way(org, source, enabled, time).await?,
        shown: None,
        identity: services.identity.clone(),
        clock: services.clock.clone(),
        ends,
        metrics: services.metrics.clone(),
        trace_id: trace_id.to_string(),
        _place: place,
    };
    let space = no_space()?;
    let tool_id = ToolId::new(format!("{source}.harvest")).map_err(|error| broken(&error))?;
    let (transport, ask) = (transport.clone(), Ask::Harvest {});
    let upstream = Upstream { transport, ask, protocol: None, headers: Vec::new() };
    let call = ToolCall {
        tool_id: tool_id.clone(),
        mode: CallMode::Run,
        space_id: space.clone(),
        params: Map::new(),
        timeout_ms: HARVEST_MS_MAX,
        trace_id: trace_id.clone(),
        before: None,
        restore: Vec::new(),
        expect: Vec::new(),
        mark: None,
        undoes: None,
        upstream: Some(Box::new(upstream)),
        failed_checks: Vec::new(),
    };
    let call = Call {
        tool_id,
        profile: SandboxProfile::default(),
        high_isolation: true,
        space_root: services.files.root(&space)?,
        request: serde_json::to_vec(&call).map_err(|error| broken(&error))?,
        limits: Limits::default(),
        timeout: time,
        trace_id,
        narrowing: Narrowing::read_only(),
        view: None,
    };
    let (to_child, replies) = mpsc::channel(1);
    let (outward, pieces) = streams::outward();
    let channel = SideChannel { inward: Some(replies), outward: Some(outward) };
    let sandbox = services.children.sandbox.clone();
    let answering = async { Ok(sandbox.ask_with(call, channel).await?.reap().await) };
    let wired = Mutex::new(Wired::default());
    // It has no outputs.
    let (others, _) = mpsc::channel(1);
    let asking = async {
        lane.serve(pieces, to_child, others, &wired).await;
        std::future::pending::<Infallible>().await
    };
    let answer = tokio::select! {
        biased;
        answer = answering => answer.map_err(|error: SandboxError| error.failure())?,
        never = asking => match never {},
    };
    let harvested = match answer.ending {
        Ending::Replied(bytes) => match json::parse_reply(&bytes, TOOL_REPLY_BYTES_MAX) {
            Ok(ToolReply::Done(output)) => serde_json::from_value::<Harvest>(output.result).ok(),
            Ok(ToolReply::Failed(failure)) => {
                let failure = wired.lock().failure.take().map_or(failure.message, |known| known.message);
                return Err(failed(Code::ToolFailed, failure));
            }
            Ok(ToolReply::Probed(_) | ToolReply::Previewed(_) | ToolReply::Verified(_)) | Err(_) => None,
        },
        Ending::Killed { code, detail, .. } => return Err(failed(code, detail)),
    };
    harvested.ok_or_else(|| failed(Code::ResultInvalid, "the child's answer is no list of tools".to_owned()))
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

    fn record(status: Option<u16>) -> EgressRecord {
        EgressRecord {
            host: "slack.com".to_owned(),
            address: None,
            method: effectd_contracts::Method::Post,
            status,
            fault: None,
            bytes_out: 1,
            bytes_in: 1,
            ms: Millis::ZERO,
            allowed_range: false,
        }
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
        let mut sent = Wired { may_have_effect: true, ..Wired::default() };
        assert!(matches!(sent.judge(said(), true), Attempted::Unclear(_)));
        let killed = || Attempted::Unclear(Failure::new(Code::TimedOut, Phase::Dispatch, "killed"));
        assert!(matches!(Wired::default().judge(killed(), true), Attempted::Failed(_)), "nothing has left");
        // The service had not answered when the time was over.
        let mut open = Wired { records: vec![record(None)], ..Wired::default() };
        open.records[0].fault = Some(ExchangeFault::Gone);
        let Attempted::Failed(failure) = open.judge(killed(), true) else { panic!("a read has no effect") };
        assert_eq!(
            (failure.code, open.records[0].fault),
            (Code::EgressFailed, Some(ExchangeFault::TimedOut))
        );
        let retry_after = Some(Duration::from_secs(7));
        let mut later = Wired { retry_after, ..Wired::default() };
        let Attempted::Failed(failure) = later.judge(said(), true) else { panic!("nothing has left") };
        assert_eq!(failure.retry_after_ms, Some(7_000));
    }

    #[test]
    fn a_refusal_with_success_counts_once_it_is_whole() {
        let refused = || Attempted::Failed(Failure::new(Code::ServiceRefused, Phase::Dispatch, "ok: false"));
        let wired = |status, writes| Wired {
            records: vec![record(status)],
            may_have_effect: true,
            writes,
            ..Wired::default()
        };
        assert!(matches!(wired(Some(200), 1).judge(refused(), true), Attempted::Failed(_)));
        for (status, writes, is_ours) in
            [(Some(200), 1, false), (Some(200), 2, true), (Some(302), 1, true), (None, 1, true)]
        {
            let judged = wired(status, writes).judge(refused(), is_ours);
            assert!(matches!(judged, Attempted::Unclear(_)), "{status:?} {writes} {is_ours}");
        }
    }
}
