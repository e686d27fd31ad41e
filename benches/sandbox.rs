//! One call into a fresh sandbox, beside what it replaces, in one run: a bare `posix_spawn` of the smallest program there is,
//! and bubblewrap. The ratios count; the absolute figures belong to the machine.
//!
//! `apt-get install bubblewrap`, then `cargo bench --bench sandbox`, as root, on a machine that does nothing else. It prints
//! the tables of `docs/performance.md`. Without bubblewrap it says so and continues.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "a program that measures and prints"
)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use effectd_contracts::{BaseProfile, SandboxProfile, ToolId, TraceId};
use effectd_sandbox::{Call, ChildCtx, Ending, Limits, Narrowing, Sandbox, SandboxConfig, SpaceRoot};

/// As in the program.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const ROUNDS: usize = 400;
const LOOP_CALLS: usize = 4_000;
const IN_FLIGHT: usize = 8;
const KILL_ROUNDS: usize = 60;
const KILL_AFTER: Duration = Duration::from_millis(20);
/// Between two paced calls, so that a pool has refilled and the processor has slept, as for an action alone.
const PACE: Duration = Duration::from_millis(3);

const DEFAULT: SandboxProfile = profile(BaseProfile::Default, false);
const HIGH: SandboxProfile = profile(BaseProfile::Default, true);
const EXEC: SandboxProfile = profile(BaseProfile::Exec, false);
const EXEC_HIGH: SandboxProfile = profile(BaseProfile::Exec, true);

const fn profile(base: BaseProfile, high_isolation: bool) -> SandboxProfile {
    SandboxProfile { base, high_isolation }
}

/// The smallest work that is work: one file beneath the workspace, one program, or a tree of processes that stays.
fn dispatch(ctx: &ChildCtx, request: &[u8]) -> Vec<u8> {
    use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
    if let Some(program) = request.strip_prefix(b"run ") {
        let ended = Command::new(String::from_utf8_lossy(program).into_owned()).status();
        return ended.map_or_else(|error| error.to_string().into_bytes(), |_| b"done".to_vec());
    }
    if request == b"stay" {
        let stay = || Command::new("/bin/sleep").arg("1000").spawn();
        let _tree: Vec<_> = (0..8).map(|_| stay()).collect();
        loop {
            std::thread::park();
        }
    }
    let how = OpenHow::new().flags(OFlag::O_WRONLY | OFlag::O_CREAT).resolve(ResolveFlag::RESOLVE_BENEATH);
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
    fs::create_dir_all(&workspace).unwrap();
    let tiny = tiny_program(&base);
    let layers = effectd_sandbox::layers::costs(&workspace, ROUNDS);

    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let sandbox = Sandbox::start(SandboxConfig::new(std::env::current_exe().unwrap())).unwrap();
    let bench = Arc::new(Bench { sandbox, workspace, bare: tiny.clone(), inside: Installed::new(&tiny) });
    // In a separate task, as the pipeline makes its calls: the thread that enters the runtime would be woken twice.
    let measured = Arc::clone(&bench);
    runtime.block_on(runtime.spawn(async move { measured.all().await })).unwrap();
    print_layers(layers);
    drop(bench);
    let _left = fs::remove_dir_all(base);
}

/// A static program that only ends, from a few bytes of assembly; `/bin/true` where there is no compiler.
fn tiny_program(base: &Path) -> PathBuf {
    let (source, program) = (base.join("tiny.c"), base.join("tiny"));
    let text = "void _start(void){__asm__ volatile(\"mov $60,%eax; xor %edi,%edi; syscall\");}";
    fs::write(&source, text).unwrap();
    let mut compiler = Command::new("cc");
    compiler.args(["-static", "-nostdlib", "-o"]).arg(&program).arg(&source).stderr(Stdio::null());
    if compiler.status().is_ok_and(|status| status.success()) {
        program
    } else {
        println!("no C compiler: /bin/true stands for the tiny program");
        "/bin/true".into()
    }
}

/// The tiny program where the profile `exec` can see it, for as long as the bench runs.
struct Installed(PathBuf);

impl Installed {
    fn new(tiny: &Path) -> Self {
        let place = PathBuf::from(format!("/usr/local/bin/effectd-bench-{}", std::process::id()));
        match fs::copy(tiny, &place) {
            Ok(_) => Self(place),
            Err(error) => {
                println!("{}: {error}; exec runs /bin/true instead", place.display());
                Self("/bin/true".into())
            }
        }
    }
}

impl Drop for Installed {
    fn drop(&mut self) {
        if self.0.starts_with("/usr/local/bin") {
            let _gone = fs::remove_file(&self.0);
        }
    }
}

struct Bench {
    sandbox: Sandbox,
    workspace: PathBuf,
    bare: PathBuf,
    inside: Installed,
}

/// One measurement: its name and its times.
struct Row(String, Vec<Duration>);

impl Row {
    fn new(name: &str) -> Self {
        Self(name.to_owned(), Vec::new())
    }

    fn at(&self, quantile: f64) -> f64 {
        let mut sorted = self.1.clone();
        sorted.sort();
        let at = ((sorted.len() - 1) as f64 * quantile) as usize;
        sorted[at].as_secs_f64() * 1e6
    }
}

impl Bench {
    fn call(&self, profile: SandboxProfile, request: &str) -> Call {
        Call {
            tool_id: ToolId::new("bench.call").unwrap(),
            profile,
            high_isolation: false,
            space_root: SpaceRoot::open(&self.workspace).unwrap(),
            request: request.as_bytes().to_vec(),
            limits: Limits::default(),
            timeout: Duration::from_secs(5),
            trace_id: TraceId::new("bench").unwrap(),
            narrowing: Narrowing { writable: Some(vec![PathBuf::from(".")]), ..Narrowing::default() },
            view: None,
        }
    }

    /// From the request to the reply, and to the accounts.
    async fn one(&self, profile: SandboxProfile, request: &str) -> [Duration; 2] {
        let call = self.call(profile, request);
        let begun = Instant::now();
        let reply = self.sandbox.ask(call).await.unwrap();
        let replied = begun.elapsed();
        let answer = reply.reap().await;
        let settled = begun.elapsed();
        assert_eq!(answer.ending, Ending::Replied(b"done".to_vec()), "{answer:?}");
        [replied, settled]
    }

    async fn all(&self) {
        for profile in [DEFAULT, HIGH, EXEC, EXEC_HIGH] {
            self.sandbox.warm(profile, &SpaceRoot::open(&self.workspace).unwrap()).await.unwrap();
        }
        self.memory();
        self.paced().await;
        self.closed_loops().await;
        self.kills().await;
    }

    async fn paced(&self) {
        let run = format!("run {}", self.inside.0.display());
        let calls = [
            ("default", DEFAULT, "text"),
            ("default, high_isolation", HIGH, "text"),
            ("exec, the tiny program", EXEC, run.as_str()),
            ("exec, high_isolation, the tiny program", EXEC_HIGH, run.as_str()),
            ("exec, /bin/true", EXEC, "run /bin/true"),
        ];
        let mut spawns = [
            Row::new("posix_spawn of the tiny program"),
            Row::new("posix_spawn of /bin/true"),
            Row::new("bubblewrap --unshare-all, the tiny program"),
            Row::new("bubblewrap --unshare-all, /bin/true"),
        ];
        let mut replies = calls.map(|(name, _, _)| Row::new(&format!("{name}: reply")));
        let mut settled = calls.map(|(name, _, _)| Row::new(&format!("{name}: accounts")));
        let programs = [self.inside.0.as_path(), Path::new("/bin/true")];
        let with_bubblewrap = bubblewrap_is_there();
        // Interleaved, so that whatever else the machine does meets all of them alike.
        for _ in 0..ROUNDS {
            spawns[0].1.push(spawn(Command::new(&self.bare)));
            tokio::time::sleep(PACE).await;
            spawns[1].1.push(spawn(Command::new("/bin/true")));
            tokio::time::sleep(PACE).await;
            for (row, program) in spawns[2..].iter_mut().zip(programs) {
                if with_bubblewrap {
                    row.1.push(spawn(self.bubblewrap(program)));
                    tokio::time::sleep(PACE).await;
                }
            }
            for (at, (_, profile, request)) in calls.iter().enumerate() {
                let [replied, done] = self.one(*profile, request).await;
                replies[at].1.push(replied);
                settled[at].1.push(done);
                tokio::time::sleep(PACE).await;
            }
        }
        let bare = spawns[0].at(0.5);
        println!("paced, {ROUNDS} rounds                                 p50 µs   p99 µs   × bare spawn");
        for row in spawns.iter().chain(replies.iter().zip(&settled).flat_map(|(a, b)| [a, b])) {
            match row.1.is_empty() {
                true => println!("{:<52} NOT INSTALLED: no comparison", row.0),
                false => println!(
                    "{:<52} {:>6.0} {:>8.0} {:>11.2}",
                    row.0,
                    row.at(0.5),
                    row.at(0.99),
                    row.at(0.5) / bare
                ),
            }
        }
        if with_bubblewrap {
            let times = |row: &Row| row.at(0.5) / replies[0].at(0.5);
            println!(
                "a reply in default is {:.1} and {:.1} times faster than bubblewrap with the one and the other",
                times(&spawns[2]),
                times(&spawns[3])
            );
        }
    }

    async fn closed_loops(&self) {
        let run = format!("run {}", self.inside.0.display());
        println!("closed loop                                          p50 µs   p99 µs   calls/s");
        for (name, profile, request) in [
            ("default", DEFAULT, "text"),
            ("default, high_isolation", HIGH, "text"),
            ("exec, the tiny program", EXEC, run.as_str()),
        ] {
            for lanes in [1, IN_FLIGHT] {
                let begun = Instant::now();
                let lane = || async {
                    let mut times = Vec::new();
                    for _ in 0..LOOP_CALLS / lanes {
                        times.push(self.one(profile, request).await[0]);
                    }
                    times
                };
                let times = join_all((0..lanes).map(|_| lane()).collect()).await.concat();
                let rate = times.len() as f64 / begun.elapsed().as_secs_f64();
                let row = Row(format!("{name}, {lanes} in flight: reply"), times);
                println!("{:<52} {:>6.0} {:>8.0} {rate:>9.0}", row.0, row.at(0.5), row.at(0.99));
            }
        }
        let begun = Instant::now();
        let times = (0..LOOP_CALLS / 4).map(|_| spawn(Command::new(&self.bare))).collect();
        let rate = (LOOP_CALLS / 4) as f64 / begun.elapsed().as_secs_f64();
        let row = Row::new("posix_spawn of the tiny program, 1 in flight");
        let row = Row(row.0, times);
        println!("{:<52} {:>6.0} {:>8.0} {rate:>9.0}", row.0, row.at(0.5), row.at(0.99));
    }

    /// From the deadline to the last of nine processes being gone.
    async fn kills(&self) {
        let mut row = Row::new("");
        for _ in 0..KILL_ROUNDS {
            let call = Call { timeout: KILL_AFTER, ..self.call(EXEC, "stay") };
            let answer = self.sandbox.call(call).await.unwrap();
            assert!(matches!(answer.ending, Ending::Killed { .. }), "{answer:?}");
            row.1.push(answer.usage.wall.saturating_sub(KILL_AFTER));
        }
        println!(
            "from the deadline to the last of up to nine processes reaped: p50 {:.1} ms, p99 {:.1} ms",
            row.at(0.5) / 1e3,
            row.at(0.99) / 1e3
        );
    }

    /// What an idle zygote takes: guard, zygote and the children that wait, each with its share of what they share.
    fn memory(&self) {
        for zygote in self.sandbox.zygotes() {
            let all = with_children(zygote.guard_pid);
            let kib: Option<u64> = all.iter().map(|pid| proportional_kib(*pid)).sum();
            match kib {
                Some(kib) => println!(
                    "idle, {}: {} processes, {:.1} MiB",
                    zygote.profile,
                    all.len(),
                    kib as f64 / 1024.0
                ),
                None => println!("idle, {}: only root may ask", zygote.profile),
            }
        }
    }

    fn bubblewrap(&self, program: &Path) -> Command {
        let mut command = Command::new("bwrap");
        command
            .args(["--unshare-all", "--die-with-parent", "--ro-bind", "/", "/"])
            .args(["--proc", "/proc", "--dev", "/dev", "--bind"])
            .args([self.workspace.as_path(), &self.workspace, program]);
        command
    }
}

fn bubblewrap_is_there() -> bool {
    let version = Command::new("bwrap").arg("--version").stdout(Stdio::null()).status();
    version.is_ok_and(|status| status.success())
}

fn spawn(mut command: Command) -> Duration {
    let begun = Instant::now();
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    let took = begun.elapsed();
    assert!(status.unwrap().success(), "{command:?}");
    took
}

fn with_children(pid: u32) -> Vec<u32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let children = children.split_whitespace().flat_map(|child| with_children(child.parse().unwrap()));
    std::iter::once(pid).chain(children).collect()
}

fn proportional_kib(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    line.trim().trim_end_matches(" kB").parse().ok()
}

fn print_layers(layers: std::io::Result<Vec<effectd_sandbox::layers::Layer>>) {
    match layers {
        Ok(layers) => {
            println!("each layer alone, p50 µs");
            for (name, took) in layers {
                println!("{name:<52} {:>6.1}", took.as_secs_f64() * 1e6);
            }
        }
        Err(error) => println!("layers: {error}"),
    }
}

/// Drives all futures in one task, so that no worker is spawned for the measurement itself.
async fn join_all<T, F: Future<Output = T>>(futures: Vec<F>) -> Vec<T> {
    let mut futures: Vec<_> = futures.into_iter().map(|future| Some(Box::pin(future))).collect();
    let mut results = Vec::new();
    std::future::poll_fn(|context| {
        for slot in &mut futures {
            let Some(future) = slot else { continue };
            if let std::task::Poll::Ready(result) = future.as_mut().poll(context) {
                results.push(result);
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
    results
}
