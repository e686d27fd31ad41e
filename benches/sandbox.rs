//! One call into a fresh sandbox, beside what it replaces, in one run: a bare `posix_spawn` of the smallest program there is,
//! and bubblewrap where it is installed. The ratios count; the absolute figures belong to the machine.
//!
//! `cargo bench --bench sandbox` prints the table of `docs/sandbox.md`.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    missing_docs,
    reason = "a program that measures and prints"
)]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use effectd_contracts::{BaseProfile, SandboxProfile, ToolId, TraceId};
use effectd_sandbox::{Call, ChildCtx, Ending, Limits, Narrowing, Sandbox, SandboxConfig};

const ROUNDS: usize = 400;
const IN_FLIGHT: usize = 8;
/// Between two paced calls, so that a pool has refilled and the processor has slept, as for an action alone.
const PACE: Duration = Duration::from_millis(3);

/// The smallest work that is work: one file beneath the workspace, or one program.
fn dispatch(ctx: &ChildCtx, request: &[u8]) -> Vec<u8> {
    use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
    if let Some(program) = request.strip_prefix(b"run ") {
        let program = String::from_utf8_lossy(program).into_owned();
        let ended = Command::new(program).status();
        return ended.map_or_else(|error| error.to_string().into_bytes(), |_| b"done".to_vec());
    }
    let how = OpenHow::new()
        .flags(OFlag::O_WRONLY | OFlag::O_CREAT)
        .resolve(ResolveFlag::RESOLVE_BENEATH);
    let how = how.mode(nix::sys::stat::Mode::from_bits_truncate(0o644));
    match openat2(ctx.workspace(), "bench", how).map(|file| nix::unistd::write(&file, request)) {
        Ok(_) => b"done".to_vec(),
        Err(errno) => errno.to_string().into_bytes(),
    }
}

fn main() {
    effectd_sandbox::init(dispatch);
    let base = std::env::temp_dir().join(format!("effectd-bench-{}", std::process::id()));
    let workspace = base.join("workspace");
    std::fs::create_dir_all(&workspace).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let sandbox = Sandbox::start(SandboxConfig::new(std::env::current_exe().unwrap())).unwrap();
    runtime.block_on(measure(&sandbox, &workspace, &tiny_program(&base)));
    drop(sandbox);
    let _left = std::fs::remove_dir_all(base);
}

/// A static program that only ends, from a few bytes of assembly; `/bin/true` where there is no compiler.
fn tiny_program(base: &Path) -> PathBuf {
    let (source, program) = (base.join("tiny.c"), base.join("tiny"));
    let text = "void _start(void){__asm__ volatile(\"mov $60,%eax; xor %edi,%edi; syscall\");}";
    std::fs::write(&source, text).unwrap();
    let mut compiler = Command::new("cc");
    compiler
        .args(["-static", "-nostdlib", "-o"])
        .arg(&program)
        .arg(&source)
        .stderr(Stdio::null());
    if compiler.status().is_ok_and(|status| status.success()) {
        program
    } else {
        "/bin/true".into()
    }
}

fn call(workspace: &Path, base: BaseProfile, request: &str) -> Call {
    Call {
        tool_id: ToolId::new("bench.call").unwrap(),
        profile: SandboxProfile {
            base,
            high_isolation: false,
        },
        high_isolation: false,
        space_root: workspace.to_owned(),
        request: request.as_bytes().to_vec(),
        limits: Limits::default(),
        timeout: Duration::from_secs(5),
        trace_id: TraceId::new("bench").unwrap(),
        narrowing: Narrowing::default(),
    }
}

async fn one(sandbox: &Sandbox, call: Call) -> Duration {
    let begun = Instant::now();
    let answer = sandbox.call(call).await.unwrap();
    let took = begun.elapsed();
    assert_eq!(answer.ending, Ending::Replied(b"done".to_vec()), "{answer:?}");
    took
}

fn spawn(mut command: Command) -> Duration {
    let begun = Instant::now();
    assert!(
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .unwrap()
            .success()
    );
    begun.elapsed()
}

fn bubblewrap(workspace: &Path) -> Option<Command> {
    let mut command = Command::new("bwrap");
    command.args([
        "--unshare-all",
        "--die-with-parent",
        "--ro-bind",
        "/",
        "/",
        "--proc",
        "/proc",
        "--dev",
        "/dev",
    ]);
    command
        .arg("--bind")
        .arg(workspace)
        .arg(workspace)
        .arg("/bin/true");
    command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
        .then_some(command)
}

struct Row(&'static str, Vec<Duration>);

impl Row {
    fn at(&self, quantile: f64) -> f64 {
        let mut sorted = self.1.clone();
        sorted.sort();
        let at = ((sorted.len() - 1) as f64 * quantile) as usize;
        sorted[at].as_secs_f64() * 1e6
    }
}

async fn measure(sandbox: &Sandbox, workspace: &Path, tiny: &Path) {
    use BaseProfile::{Default, Exec};
    for base in [Default, Exec] {
        sandbox
            .warm(
                SandboxProfile {
                    base,
                    high_isolation: false,
                },
                workspace,
            )
            .await
            .unwrap();
    }
    let with_bubblewrap = bubblewrap(workspace).is_some();
    let mut rows = [
        Row("posix_spawn of a tiny static program", Vec::new()),
        Row("call, default profile", Vec::new()),
        Row("posix_spawn of /bin/true", Vec::new()),
        Row("call, exec profile, running /bin/true", Vec::new()),
        Row("bubblewrap --unshare-all /bin/true", Vec::new()),
    ];
    // Interleaved, so that whatever else the machine does meets all of them alike.
    for _ in 0..ROUNDS {
        rows[0].1.push(spawn(Command::new(tiny)));
        tokio::time::sleep(PACE).await;
        rows[1]
            .1
            .push(one(sandbox, call(workspace, Default, "text")).await);
        tokio::time::sleep(PACE).await;
        rows[2].1.push(spawn(Command::new("/bin/true")));
        tokio::time::sleep(PACE).await;
        rows[3]
            .1
            .push(one(sandbox, call(workspace, Exec, "run /bin/true")).await);
        tokio::time::sleep(PACE).await;
        if with_bubblewrap && let Some(command) = bubblewrap(workspace) {
            rows[4].1.push(spawn(command));
        }
    }
    print(&rows);
    closed_loop(sandbox, workspace, tiny).await;
}

fn print(rows: &[Row]) {
    let bare = rows[0].at(0.5);
    println!("paced, {ROUNDS} rounds                          p50 µs   p99 µs   × bare spawn");
    for row in rows {
        match row.1.is_empty() {
            true => println!("{:<44} not installed", row.0),
            false => println!(
                "{:<44} {:>6.0} {:>8.0} {:>11.2}",
                row.0,
                row.at(0.5),
                row.at(0.99),
                row.at(0.5) / bare
            ),
        }
    }
}

async fn closed_loop(sandbox: &Sandbox, workspace: &Path, tiny: &Path) {
    let calls = |lanes: usize| async move {
        let begun = Instant::now();
        let lane = || async {
            for _ in 0..ROUNDS / lanes * 4 {
                one(sandbox, call(workspace, BaseProfile::Default, "text")).await;
            }
        };
        let lanes_all: Vec<_> = (0..lanes).map(|_| lane()).collect();
        join_all(lanes_all).await;
        (ROUNDS / lanes * 4 * lanes) as f64 / begun.elapsed().as_secs_f64()
    };
    let (alone, together) = (calls(1).await, calls(IN_FLIGHT).await);
    let begun = Instant::now();
    for _ in 0..ROUNDS {
        spawn(Command::new(tiny));
    }
    let spawned = ROUNDS as f64 / begun.elapsed().as_secs_f64();
    println!(
        "closed loop, per second: bare spawn {spawned:.0}; calls one at a time {alone:.0}, {IN_FLIGHT} in flight {together:.0}"
    );
}

/// Drives all futures in one task, so that no worker is spawned for the measurement itself.
async fn join_all<F: Future<Output = ()>>(futures: Vec<F>) {
    let mut futures: Vec<_> = futures.into_iter().map(|future| Some(Box::pin(future))).collect();
    std::future::poll_fn(|context| {
        for slot in &mut futures {
            if slot
                .as_mut()
                .is_some_and(|future| future.as_mut().poll(context).is_ready())
            {
                *slot = None;
            }
        }
        if futures.iter().all(Option::is_none) {
            std::task::Poll::Ready(())
        } else {
            std::task::Poll::Pending
        }
    })
    .await;
}
