//! Calls of connectors by stdio. The child that speaks MCP and the program that it speaks with are two calls of the sandbox; effectd hands
//! their lines on, and looks at those of the child: it may greet, list, and ask for the one call that was judged.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use effectd_contracts::connector::NO_SPACE;
use effectd_contracts::limits::{HARVEST_MS_MAX, TOOL_REPLY_BYTES_MAX};
use effectd_contracts::{
    Ask, CallMode, Code, Failure, Harvest, Isolation, OrgId, Phase, RiskLevel, SandboxProfile, SpaceId,
    ToolCall, ToolId, ToolReply, TraceId, Transport, Upstream, json,
};
use effectd_sandbox::limits::CALL_TIME_MAX;
use effectd_sandbox::{Call, Ending, Limits, Narrowing, Piece, SandboxError, SideChannel, View};
use parking_lot::Mutex;
use serde_json::{Map, Value};
use tokio::sync::mpsc;

use super::egress::Wired;
use super::steps::Execution;
use super::upstream::is_call;
use crate::effects::streams;
use crate::limits::STDIO_MEMORY_BYTES_MAX;
use crate::services::Services;
use crate::services::connections::Enabled;
use crate::services::egress::Place;
use crate::services::stdio::{Key, Lease, Program};

/// What a call says to a program.
pub(crate) struct Dialogue {
    lease: Lease,
    /// What was judged; `None` if tools are listed.
    call: Option<(String, Arc<Map<String, Value>>)>,
    /// Whether the call may have an effect.
    may_write: bool,
    has_folder: bool,
    /// A program is slow, too.
    _place: Place,
}

impl Execution<'_> {
    /// The program of a connector's tool, ready to be spoken with; `None` for every other tool.
    pub(crate) async fn dialogue(&self, mode: CallMode, left: Duration) -> Result<Option<Dialogue>, Failure> {
        let (services, action) = (self.services, self.action);
        let gated = action.state.gated();
        let tool = gated.tool();
        let upstream = tool.definition().upstream.as_deref();
        let Some(transport @ Transport::Stdio { .. }) = upstream.map(|upstream| &upstream.transport) else {
            return Ok(None);
        };
        if mode != CallMode::Run {
            return Ok(None);
        }
        let (source, space) = (tool.spec().tool_id.source(), &action.request.space_id);
        let missing = || {
            let why =
                format!("{source} is no enabled connection of the space's organisation, or has changed");
            Failure::new(Code::ConnectionMissing, Phase::Dispatch, why)
        };
        let org = services.org_of(space).ok_or_else(missing)?;
        let enabled = services.connection(&org, source).ok_or_else(missing)?;
        if enabled.connector.as_ref().is_none_or(|own| own.transport != *transport) {
            return Err(missing());
        }
        // What the gate has judged, and no other: a connection that was changed since is another program.
        let facts = &gated.ruling().facts;
        if facts.connection_version != Some(enabled.version)
            || facts.connection_id.as_ref() != Some(&enabled.connection_id)
        {
            return Err(missing());
        }
        let key = Key {
            connection: enabled.connection_id.clone(),
            version: enabled.version,
            org: org.clone(),
            principal: action.ticket.principal.clone(),
            subject: action.request.subject_id.clone(),
            space: space.clone(),
        };
        let _place = services.egress.place(&org)?;
        let has_folder = matches!(transport, Transport::Stdio { folder: Some(_), .. });
        let program = program_of(services, Some(space), transport);
        let lease = services.programs.lease(&key, program, left).await?;
        let may_write = tool.spec().level() != RiskLevel::Read;
        let call = Some((tool.spec().tool_id.action().to_owned(), gated.params().clone()));
        Ok(Some(Dialogue { lease, call, may_write, has_folder, _place }))
    }
}

impl Dialogue {
    /// Hands lines on until this is dropped. Whether the call has left is noted in `wired` before it does.
    pub(crate) async fn serve(
        &mut self,
        pieces: mpsc::Receiver<Piece>,
        to_child: mpsc::Sender<Vec<u8>>,
        others: mpsc::Sender<Piece>,
        wired: &Mutex<Wired>,
    ) {
        let Self { lease, call, may_write, .. } = self;
        let judged = call.as_ref().map(|(name, arguments)| (name.as_str(), &**arguments));
        let mut has_left = false;
        let check = |line: &[u8]| {
            if is_call(line, judged)? {
                if std::mem::replace(&mut has_left, true) {
                    return Err("the call has left already".to_owned());
                }
                wired.lock().called_server(*may_write);
            }
            Ok(())
        };
        lease.serve(pieces, to_child, others, check).await;
    }

    /// Ends the conversation, and says in the isolation of the call what the program had.
    pub(crate) async fn settle(self, isolation: Option<&mut Isolation>) {
        let Self { lease, has_folder, .. } = self;
        let shared = match lease.earlier {
            0 => "shared_process: false".to_owned(),
            earlier => format!(
                "shared_process: true, after {earlier} calls for this principal and subject in this space"
            ),
        };
        let sees =
            if has_folder { "one folder of the space, which it may change" } else { "no file of the space" };
        if let Some(isolation) = isolation {
            let program = format!("profile exec without network, sees {sees}, {shared}");
            isolation.mechanisms.insert("program".to_owned(), program);
        }
        lease.settle().await;
    }
}

/// The program of a connector, for an action in a space or, with an empty folder, for none.
async fn program_of(
    services: &Services,
    space: Option<&SpaceId>,
    transport: &Transport,
) -> Result<Program, Failure> {
    let Transport::Stdio { argv, programs, folder } = transport else {
        return Err(Failure::new(Code::Internal, Phase::Dispatch, "the server is no program"));
    };
    let (argv, programs, caches) = (argv.clone(), programs.clone(), services.files.caches.clone());
    let nowhere = no_space()?;
    let folder = folder.clone().filter(|_| space.is_some());
    let seen_space = space.filter(|_| folder.is_some()).unwrap_or(&nowhere);
    let refused = |error: SandboxError| error.failure();
    let kept = (services.kept_paths)(&services.policy());
    let making = services.files.blocking(seen_space, move |_, root| {
        let cpu_ms = u64::try_from(CALL_TIME_MAX.as_millis()).unwrap_or(u64::MAX);
        let mut view = View::new(STDIO_MEMORY_BYTES_MAX, cpu_ms);
        let seen = match &folder {
            None => root.beneath(Path::new(".")).map_err(refused)?,
            Some(folder) => {
                let path = Path::new(folder).strip_prefix("workspace").unwrap_or(Path::new(folder));
                let folder = root.beneath(&Path::new(".").join(path)).map_err(refused)?;
                caches.reserve(&mut view);
                view.add_writable(&folder, Path::new(".")).map_err(refused)?;
                folder
            }
        };
        for programs in programs.iter().map(Path::new) {
            // What an agent may write is never executed.
            View::check_outside(programs, &kept).map_err(refused)?;
            view.add_programs(root, programs).map_err(refused)?;
        }
        Ok(Program { argv, root: seen, has_folder: folder.is_some(), view })
    });
    making.await
}

/// The space whose root is empty: for programs without a folder, and for the children that speak with servers.
pub(crate) fn no_space() -> Result<SpaceId, Failure> {
    SpaceId::new(NO_SPACE).map_err(|error| Failure::new(Code::Internal, Phase::Dispatch, error.to_string()))
}

/// Starts a connector's program, and asks it for its tools.
pub(crate) async fn harvest(
    services: &Services,
    org: &OrgId,
    (source, _): (&str, &Enabled),
    transport: &Transport,
) -> Result<Harvest, Failure> {
    let failed = |code, why: String| Failure::new(code, Phase::Dispatch, why);
    let broken = |error: &dyn std::fmt::Display| failed(Code::Internal, error.to_string());
    let _place = services.egress.place(org)?;
    let mut lease = services.programs.once(program_of(services, None, transport).await?)?;
    let (space, trace_id) = (no_space()?, TraceId::fresh());
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
        upstream: Some(Box::new(upstream)),
        failed_checks: Vec::new(),
        mark: None,
        undoes: None,
    };
    let call = Call {
        tool_id,
        profile: SandboxProfile::default(),
        high_isolation: true,
        space_root: services.files.root(&space)?,
        request: serde_json::to_vec(&call).map_err(|error| broken(&error))?,
        limits: Limits::default(),
        timeout: Duration::from_millis(HARVEST_MS_MAX),
        trace_id,
        narrowing: Narrowing::read_only(),
        view: None,
    };
    let (to_child, replies) = mpsc::channel(1);
    let (outward, pieces) = streams::outward();
    let channel = SideChannel { inward: Some(replies), outward: Some(outward) };
    let sandbox = services.children.sandbox.clone();
    let answering = async { Ok(sandbox.ask_with(call, channel).await?.reap().await) };
    // It has no outputs.
    let (others, _) = mpsc::channel(1);
    let answer = tokio::select! {
        biased;
        answer = answering => answer.map_err(|error: SandboxError| error.failure()),
        () = lease.serve(pieces, to_child, others, |line| is_call(line, None).map(drop)) => {
            Err(failed(Code::Internal, "the program was not reached".to_owned()))
        }
    };
    lease.settle().await;
    let harvested = match answer?.ending {
        Ending::Replied(bytes) => match json::parse_reply(&bytes, TOOL_REPLY_BYTES_MAX) {
            Ok(ToolReply::Done(output)) => serde_json::from_value::<Harvest>(output.result).ok(),
            Ok(ToolReply::Failed(failure)) => return Err(failed(Code::ToolFailed, failure.message)),
            Ok(ToolReply::Probed(_) | ToolReply::Previewed(_) | ToolReply::Verified(_)) | Err(_) => None,
        },
        Ending::Killed { code, detail, .. } => return Err(failed(code, detail)),
    };
    harvested.ok_or_else(|| failed(Code::ResultInvalid, "the child's answer is no list of tools".to_owned()))
}
