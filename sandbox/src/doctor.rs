//! What this host can enforce, each line proved by trying it in a real child.

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
    /// It was attacked and held.
    Enforced,
    /// It holds in a weaker form, which receipts state; profiles that need more are refused.
    Weaker,
    /// It does not hold: nothing of this profile can run here.
    Missing,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The promise, in one word or two.
    pub promise: &'static str,
    pub verdict: Verdict,
    /// What was tried, and what came of it.
    pub what: String,
    pub fix: Option<String>,
    /// Whether effectd may serve without it.
    pub required: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// One for each promise, in the order in which they were tried.
    pub findings: Vec<Finding>,
}

impl Report {
    /// Whether effectd may serve on this host: everything that the `default` profile promises holds.
    pub fn may_serve(&self) -> bool {
        self.findings
            .iter()
            .all(|finding| !finding.required || finding.verdict != Verdict::Missing)
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
/// It blocks for about two seconds, since one attack has to use up a second of processor time, and works in and outside of
/// an async runtime.
pub fn examine(config: &SandboxConfig, scratch: &Path) -> Report {
    let mut findings = vec![landlock()];
    if findings[0].verdict != Verdict::Missing {
        let (config, scratch) = (config.clone(), scratch.to_owned());
        // A thread of its own, since a runtime must not be started within another.
        let examined = std::thread::spawn(move || examine_children(config, &scratch)).join();
        findings.extend(examined.unwrap_or_else(|_| vec![failed("examination", "it panicked".to_owned())]));
    }
    Report { findings }
}

fn failed(promise: &'static str, what: String) -> Finding {
    Finding {
        promise,
        verdict: Verdict::Missing,
        what,
        fix: None,
        required: true,
    }
}

fn landlock() -> Finding {
    match check_landlock() {
        Ok(abi) => Finding {
            promise: "landlock",
            verdict: Verdict::Enforced,
            what: format!("version {abi}, by the raw system call"),
            fix: None,
            required: true,
        },
        Err(error) => from_error("landlock", error),
    }
}

fn from_error(promise: &'static str, error: SandboxError) -> Finding {
    let (what, fix) = match error {
        SandboxError::Unavailable { what, fix } | SandboxError::Workspace { what, fix, .. } => {
            (what, Some(fix))
        }
        SandboxError::Profile(_)
        | SandboxError::Refused(_)
        | SandboxError::Busy(_)
        | SandboxError::Closed
        | SandboxError::Io { .. } => (error.to_string(), None),
    };
    Finding {
        promise,
        verdict: Verdict::Missing,
        what,
        fix,
        required: true,
    }
}

fn examine_children(config: SandboxConfig, scratch: &Path) -> Vec<Finding> {
    let ground = match Ground::prepare(config, scratch) {
        Ok(ground) => ground,
        Err(finding) => return vec![*finding],
    };
    let mut findings = ground.confinement();
    // Where no child can be confined, there is nothing left to attack.
    if findings
        .iter()
        .all(|finding| finding.verdict == Verdict::Enforced)
    {
        findings.extend(ground.attacks());
        findings.extend(ground.limits());
        findings.extend(ground.exec());
    }
    ground.remove();
    findings
}

struct Ground {
    base: PathBuf,
    workspace: PathBuf,
    secret: PathBuf,
    sandbox: Sandbox,
    runtime: tokio::runtime::Runtime,
}

const DEFAULT: SandboxProfile = SandboxProfile {
    base: BaseProfile::Default,
    high_isolation: false,
};
const EXEC: SandboxProfile = SandboxProfile {
    base: BaseProfile::Exec,
    high_isolation: false,
};
const EXEC_HIGH: SandboxProfile = SandboxProfile {
    base: BaseProfile::Exec,
    high_isolation: true,
};

enum Expected {
    Done,
    Refused,
    Ends(Code),
}

impl Ground {
    fn prepare(config: SandboxConfig, scratch: &Path) -> Result<Self, Box<Finding>> {
        let cannot = |what: &str, error: &dyn fmt::Display| {
            Box::new(failed("scratch folder", format!("{what}: {error}")))
        };
        let base = scratch.join(format!("doctor-{}", std::process::id()));
        let (workspace, secret) = (base.join("workspace"), base.join("secret"));
        fs::create_dir_all(&workspace).map_err(|error| cannot("it cannot be made", &error))?;
        let base = base
            .canonicalize()
            .map_err(|error| cannot("it cannot be found", &error))?;
        fs::write(&secret, "secret").map_err(|error| cannot("it cannot be written", &error))?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| cannot("no runtime", &error))?;
        let sandbox = Sandbox::start(config).map_err(|error| Box::new(from_error("sandbox", error)))?;
        Ok(Self {
            workspace: base.join("workspace"),
            secret: base.join("secret"),
            base,
            sandbox,
            runtime,
        })
    }

    fn remove(self) {
        drop(self.sandbox);
        let _left = fs::remove_dir_all(self.base);
    }

    fn run(
        &self,
        profile: SandboxProfile,
        drill: Drill,
        timeout_ms: u64,
        limits: Limits,
    ) -> Result<Answer, SandboxError> {
        let (Ok(tool_id), Ok(trace_id)) = (ToolId::new("effectd.doctor"), TraceId::new("doctor")) else {
            return Err(SandboxError::Closed);
        };
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
        };
        self.runtime.block_on(self.sandbox.drill(call, drill))
    }

    /// Attacks, and says whether what must come of it came.
    fn attack(
        &self,
        promise: &'static str,
        what: &str,
        (profile, drill): (SandboxProfile, Drill),
        limits: Limits,
        expected: &Expected,
    ) -> Finding {
        // On a busy host, a second of processor time may take many seconds; a slow host is not a weak one.
        let timeout_ms = if drill == Drill::Stay { 100 } else { 60_000 };
        let answer = match self.run(profile, drill, timeout_ms, limits) {
            Ok(answer) => answer,
            Err(error) => return from_error(promise, error),
        };
        let (held, came) = match (expected, &answer.ending) {
            (Expected::Done, Ending::Replied(said)) => (said.is_empty(), "done".to_owned()),
            (Expected::Refused, Ending::Replied(said)) => {
                (!said.is_empty(), String::from_utf8_lossy(said).into_owned())
            }
            (Expected::Ends(code), Ending::Killed { code: came, .. }) => (code == came, came.to_string()),
            (_, Ending::Killed { code, detail, .. }) => (false, format!("{code}: {detail}")),
            (Expected::Ends(_), Ending::Replied(_)) => (false, "it was not stopped".to_owned()),
        };
        let verdict = if held { Verdict::Enforced } else { Verdict::Missing };
        let fix =
            (!held).then(|| "this is a fault of effectd or of this kernel; please report it".to_owned());
        Finding {
            promise,
            verdict,
            what: format!("{what}: {came}"),
            fix,
            required: true,
        }
    }

    fn confinement(&self) -> Vec<Finding> {
        let none = Limits::default();
        let mut findings = vec![self.attack(
            "confinement",
            "a child confined itself",
            (DEFAULT, Drill::Answer),
            none,
            &Expected::Done,
        )];
        if findings[0].verdict == Verdict::Enforced {
            findings.push(self.ownership());
        }
        findings
    }

    fn ownership(&self) -> Finding {
        let create = (DEFAULT, Drill::Create("created".into()));
        let mut finding = self.attack(
            "ownership",
            "a file was created",
            create,
            Limits::default(),
            &Expected::Done,
        );
        let owner = |path: &Path| fs::metadata(path).map(|metadata| metadata.uid()).ok();
        let (file, folder) = (owner(&self.workspace.join("created")), owner(&self.workspace));
        if finding.verdict == Verdict::Enforced && file != folder {
            finding.verdict = Verdict::Missing;
            finding.what = format!("the file belongs to {file:?}, its workspace to {folder:?}");
        }
        finding
    }

    fn attacks(&self) -> Vec<Finding> {
        let none = Limits::default();
        let network = match TcpListener::bind("127.0.0.1:0")
            .and_then(|listener| Ok((listener.local_addr()?, listener)))
        {
            Ok((address, _listener)) => {
                let denied = Expected::Ends(Code::NetworkDenied);
                self.attack(
                    "network",
                    "connecting to a live listener",
                    (DEFAULT, Drill::Connect(address)),
                    none,
                    &denied,
                )
            }
            Err(error) => failed("network", format!("no listener could be made: {error}")),
        };
        let me = std::process::id() as i32;
        vec![
            self.attack(
                "files",
                "reading a file outside",
                (DEFAULT, Drill::Read(self.secret.clone())),
                none,
                &Expected::Refused,
            ),
            network,
            self.attack(
                "system calls",
                "making a namespace",
                (DEFAULT, Drill::Unshare),
                none,
                &Expected::Ends(Code::SyscallDenied),
            ),
            self.attack(
                "processes",
                "signalling a process outside",
                (DEFAULT, Drill::Signal(me)),
                none,
                &Expected::Refused,
            ),
        ]
    }

    fn limits(&self) -> Vec<Finding> {
        let none = Limits::default();
        let little = Limits {
            memory_bytes: Some(32 << 20),
            cpu_ms: Some(1_000),
            ..none
        };
        let mut findings = vec![
            self.attack(
                "deadline",
                "staying too long",
                (DEFAULT, Drill::Stay),
                none,
                &Expected::Ends(Code::TimedOut),
            ),
            self.attack(
                "processor",
                "computing too long",
                (DEFAULT, Drill::Burn),
                little,
                &Expected::Ends(Code::CpuLimit),
            ),
            self.attack(
                "memory",
                "taking too much",
                (DEFAULT, Drill::Eat(128 << 20)),
                little,
                &Expected::Ends(Code::MemoryLimit),
            ),
        ];
        findings.push(match self.sandbox.tree_memory() {
            Some(by) => Finding {
                promise: "tree memory",
                verdict: Verdict::Enforced,
                what: format!("bounded for whole process trees by {by}"),
                fix: None,
                required: false,
            },
            None => Finding {
                promise: "tree memory",
                verdict: Verdict::Weaker,
                what: "bounded for each process only; exec tools with high isolation are refused".to_owned(),
                fix: Some("delegate a cgroup: run as a systemd service with Delegate=yes and DelegateSubgroup=runtime, or as root".to_owned()),
                required: false,
            },
        });
        findings
    }

    fn exec(&self) -> Vec<Finding> {
        let none = Limits::default();
        let run = || Drill::Execute("/bin/true".into());
        let mut plain = self.attack("exec", "running a program", (EXEC, run()), none, &Expected::Done);
        plain.required = false;
        let mut findings = vec![plain];
        if self.sandbox.tree_memory().is_some() {
            let mut high = self.attack(
                "exec, isolated",
                "running a program",
                (EXEC_HIGH, run()),
                none,
                &Expected::Done,
            );
            high.required = false;
            findings.push(high);
        }
        findings
    }
}
