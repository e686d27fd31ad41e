//! `doctor`: what this host can enforce, each line proved by an attack in a real child.
#![expect(clippy::disallowed_types, reason = "listens on a port that no child may reach")]

use std::fmt;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use effectd_contracts::{BaseProfile, Code, SandboxProfile, ToolId, TraceId};
use serde::Serialize;

use crate::call::{Answer, Call, Ending, Limits, Narrowing};
use crate::drill::Drill;
use crate::error::SandboxError;
use crate::root::SpaceRoot;
use crate::sandbox::{Sandbox, SandboxConfig, check_landlock};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The promise withstood an attack.
    Enforced,
    /// The promise holds in a weaker form, which receipts state; profiles that need more are refused.
    Weaker,
    /// The promise does not hold.
    Missing,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The promise, in one word or two.
    pub promise: &'static str,
    pub verdict: Verdict,
    /// What was tried, and with what result.
    pub what: String,
    pub fix: Option<String>,
    /// Whether effectd refuses to serve if the promise does not hold.
    pub required: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    pub findings: Vec<Finding>,
}

impl Report {
    /// Whether effectd may serve on this host: everything that the `default` profile promises holds.
    pub fn may_serve(&self) -> bool {
        let holds = |finding: &Finding| !finding.required || finding.verdict != Verdict::Missing;
        self.findings.iter().all(holds)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for finding in &self.findings {
            let mark = match finding.verdict {
                Verdict::Enforced => "ok     ",
                Verdict::Weaker => "weaker ",
                Verdict::Missing => "MISSING",
            };
            writeln!(f, "{mark}  {:<16} {}", finding.promise, finding.what)?;
            if let Some(fix) = &finding.fix {
                writeln!(f, "{:26}to fix: {fix}", "")?;
            }
        }
        let verdict = if self.may_serve() {
            "effectd may serve on this host"
        } else {
            "effectd must not serve on this host"
        };
        write!(f, "{verdict}")
    }
}

/// Attacks a sandbox of its own, in a fresh folder beneath `scratch`, and reports what held.
///
/// It blocks for about two seconds, because one attack has to use a second of processor time. It works inside and outside
/// of an async runtime.
pub fn examine(config: &SandboxConfig, scratch: &Path) -> Report {
    let mut findings = vec![match check_landlock() {
        Ok(abi) => Finding::new("landlock", format!("version {abi}, by the raw system call")),
        Err(error) => from_error("landlock", error),
    }];
    if findings[0].verdict != Verdict::Missing {
        let (config, scratch) = (config.clone(), scratch.to_owned());
        // A thread of its own, because a runtime cannot be started within another.
        let examined = std::thread::spawn(move || examine_children(config, &scratch)).join();
        findings.extend(examined.unwrap_or_else(|_| vec![failed("examination", "it panicked".to_owned())]));
    }
    Report { findings }
}

impl Finding {
    fn new(promise: &'static str, what: String) -> Self {
        Self { promise, verdict: Verdict::Enforced, what, fix: None, required: true }
    }
}

fn failed(promise: &'static str, what: String) -> Finding {
    Finding { verdict: Verdict::Missing, ..Finding::new(promise, what) }
}

fn from_error(promise: &'static str, error: SandboxError) -> Finding {
    let (what, fix) = match error {
        SandboxError::Unavailable { what, fix }
        | SandboxError::Workspace { what, fix, .. }
        | SandboxError::Path { what, fix, .. } => (what, Some(fix)),
        SandboxError::Profile(_)
        | SandboxError::Refused(_)
        | SandboxError::Busy(_)
        | SandboxError::Closed
        | SandboxError::Io { .. } => (error.to_string(), None),
    };
    Finding { fix, ..failed(promise, what) }
}

fn examine_children(config: SandboxConfig, scratch: &Path) -> Vec<Finding> {
    let examination = match Examination::prepare(config, scratch) {
        Ok(examination) => examination,
        Err(finding) => return vec![*finding],
    };
    let mut findings = examination.confinement();
    // Where no child can be confined, there is nothing to attack.
    let is_enforced = |finding: &Finding| finding.verdict == Verdict::Enforced;
    if findings.iter().all(is_enforced) {
        findings.extend(examination.attacks());
        findings.push(examination.tree_memory());
        findings.extend(examination.exec());
    }
    examination.remove();
    findings
}

struct Examination {
    base: PathBuf,
    workspace: PathBuf,
    secret: PathBuf,
    sandbox: Sandbox,
    runtime: tokio::runtime::Runtime,
}

const DEFAULT: SandboxProfile = SandboxProfile { base: BaseProfile::Default, high_isolation: false };
const EXEC: SandboxProfile = SandboxProfile { base: BaseProfile::Exec, high_isolation: false };

enum Expected {
    Done,
    Refused,
    Ends(Code),
}

impl Examination {
    fn prepare(config: SandboxConfig, scratch: &Path) -> Result<Self, Box<Finding>> {
        let cannot = |what: &str, error: &dyn fmt::Display| {
            Box::new(failed("scratch folder", format!("{what}: {error}")))
        };
        let base = scratch.join(format!("doctor-{}", std::process::id()));
        fs::create_dir_all(base.join("workspace")).map_err(|error| cannot("it cannot be created", &error))?;
        let base = base.canonicalize().map_err(|error| cannot("it cannot be found", &error))?;
        let secret = base.join("secret");
        fs::write(&secret, "secret").map_err(|error| cannot("it cannot be written", &error))?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        Ok(Self {
            workspace: base.join("workspace"),
            secret,
            base,
            runtime: runtime.map_err(|error| cannot("no runtime", &error))?,
            sandbox: Sandbox::start(config).map_err(|error| Box::new(from_error("sandbox", error)))?,
        })
    }

    fn remove(self) {
        drop(self.sandbox);
        let _left = fs::remove_dir_all(self.base);
    }

    fn run(&self, profile: SandboxProfile, drill: Drill, limits: Limits) -> Result<Answer, SandboxError> {
        let (Ok(tool_id), Ok(trace_id)) = (ToolId::new("effectd.doctor"), TraceId::new("doctor")) else {
            return Err(SandboxError::Closed);
        };
        // On a busy host, a second of processor time may take many seconds; a slow host is not a weak one.
        let timeout_ms = if drill == Drill::Stay { 100 } else { 60_000 };
        let call = Call {
            tool_id,
            profile,
            high_isolation: false,
            space_root: SpaceRoot::open(&self.workspace)?,
            request: Vec::new(),
            limits,
            timeout: Duration::from_millis(timeout_ms),
            trace_id,
            narrowing: Narrowing::default(),
            view: None,
        };
        self.runtime.block_on(self.sandbox.drill(call, drill))
    }

    /// Runs a drill in the profile `default`.
    fn attack(&self, promise: &'static str, what: &str, drill: Drill, expected: Expected) -> Finding {
        self.attack_in(DEFAULT, promise, what, drill, expected)
    }

    /// Runs a drill, and reports whether it ended as expected.
    fn attack_in(
        &self,
        profile: SandboxProfile,
        promise: &'static str,
        what: &str,
        drill: Drill,
        expected: Expected,
    ) -> Finding {
        let mut limits = Limits::default();
        if matches!(drill, Drill::Burn | Drill::Eat(_)) {
            limits.cpu_ms = Some(1_000);
            limits.memory_bytes = Some(32 << 20);
        }
        let answer = match self.run(profile, drill, limits) {
            Ok(answer) => answer,
            Err(error) => return from_error(promise, error),
        };
        let (held, outcome) = match (expected, &answer.ending) {
            (Expected::Done, Ending::Replied(error)) => (error.is_empty(), "done".to_owned()),
            (Expected::Refused, Ending::Replied(error)) => {
                (!error.is_empty(), String::from_utf8_lossy(error).into_owned())
            }
            (Expected::Ends(wanted), Ending::Killed { code, .. }) => (wanted == *code, code.to_string()),
            (Expected::Done | Expected::Refused, Ending::Killed { code, detail, .. }) => {
                (false, format!("{code}: {detail}"))
            }
            (Expected::Ends(_), Ending::Replied(_)) => (false, "it was not stopped".to_owned()),
        };
        let mut finding = Finding::new(promise, format!("{what}: {outcome}"));
        if !held {
            finding.verdict = Verdict::Missing;
            finding.fix = Some("this is a fault of effectd or of this kernel; please report it".to_owned());
        }
        finding
    }

    fn confinement(&self) -> Vec<Finding> {
        let confined = self.attack("confinement", "a child confined itself", Drill::Answer, Expected::Done);
        if confined.verdict != Verdict::Enforced {
            return vec![confined];
        }
        let create = Drill::Create("created".into());
        let mut created = self.attack("ownership", "a file was created", create, Expected::Done);
        let owner = |path: &Path| fs::metadata(path).map(|metadata| metadata.uid()).ok();
        let (file, folder) = (owner(&self.workspace.join("created")), owner(&self.workspace));
        if created.verdict == Verdict::Enforced && file != folder {
            created.verdict = Verdict::Missing;
            created.what = format!("the file belongs to {file:?}, its workspace to {folder:?}");
        }
        vec![confined, created]
    }

    fn attacks(&self) -> Vec<Finding> {
        use Expected::{Ends, Refused};
        let network = match TcpListener::bind("127.0.0.1:0")
            .and_then(|listener| Ok((listener.local_addr()?, listener)))
        {
            Ok((address, _listener)) => {
                let connect = Drill::Connect(address);
                let denied = Ends(Code::NetworkDenied);
                self.attack("network", "connecting to a live listener", connect, denied)
            }
            Err(error) => failed("network", format!("no listener could be created: {error}")),
        };
        let read = Drill::Read(self.secret.clone());
        let signal = Drill::Signal(std::process::id() as i32);
        let attack = |promise, what, drill, expected| self.attack(promise, what, drill, expected);
        vec![
            attack("files", "reading a file outside", read, Refused),
            network,
            attack("system calls", "making a namespace", Drill::Unshare, Ends(Code::SyscallDenied)),
            attack("processes", "signalling a process outside", signal, Refused),
            attack("deadline", "staying too long", Drill::Stay, Ends(Code::TimedOut)),
            attack("processor", "computing too long", Drill::Burn, Ends(Code::CpuLimit)),
            attack("memory", "taking too much", Drill::Eat(48 << 20), Ends(Code::MemoryLimit)),
        ]
    }

    fn tree_memory(&self) -> Finding {
        let finding = match self.sandbox.tree_memory() {
            Some(by) => Finding::new("tree memory", format!("bounded for whole process trees by {by}")),
            None => Finding {
                verdict: Verdict::Weaker,
                fix: Some(
                    "delegate a cgroup: run as a systemd service with Delegate=yes, or as root".to_owned(),
                ),
                ..Finding::new(
                    "tree memory",
                    "bounded for each process only; exec tools with high isolation are refused".to_owned(),
                )
            },
        };
        Finding { required: false, ..finding }
    }

    fn exec(&self) -> Vec<Finding> {
        let isolated = SandboxProfile { high_isolation: true, ..EXEC };
        let mut profiles = vec![("exec", EXEC)];
        profiles.extend(self.sandbox.tree_memory().map(|_| ("exec, isolated", isolated)));
        let run = |(promise, profile)| Finding {
            required: false,
            ..self.attack_in(
                profile,
                promise,
                "running a program",
                Drill::Execute("/bin/true".into()),
                Expected::Done,
            )
        };
        profiles.into_iter().map(run).collect()
    }
}
