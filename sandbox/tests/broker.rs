//! What the egress broker cannot do. Each attack succeeds without the confinement, in a process of its own.
#![allow(clippy::unwrap_used, clippy::disallowed_types, clippy::disallowed_methods, clippy::print_stdout)]

use std::fs;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

use libtest_mimic::{Arguments, Trial};

type Attack = fn(&str) -> std::io::Result<()>;

/// `true`: the broker needs it, and may.
const ATTACKS: &[(&str, bool, Attack)] = &[
    ("reads_a_file_of_the_state", false, |place| fs::read(format!("{place}/secret")).map(drop)),
    ("lists_the_state", false, |place| fs::read_dir(place).map(drop)),
    ("writes_a_file", false, |place| fs::write(format!("{place}/new"), "x")),
    ("removes_a_file", false, |place| fs::remove_file(format!("{place}/secret"))),
    ("starts_a_program", false, |_| Command::new("/bin/true").status().map(drop)),
    ("starts_itself_again", false, |_| {
        let child = Command::new("/proc/self/exe").arg("__nothing").stdout(Stdio::null()).spawn();
        child?.wait().map(drop)
    }),
    ("reads_the_daemons_memory", false, |_| {
        let parent = std::os::unix::process::parent_id();
        fs::read(format!("/proc/{parent}/environ")).map(drop)
    }),
    ("reaches_a_unix_socket", false, |place| UnixStream::connect(format!("{place}/socket")).map(drop)),
    ("makes_a_unix_socket", false, |place| UnixListener::bind(format!("{place}/mine")).map(drop)),
    ("listens", false, |_| TcpListener::bind("127.0.0.1:0").map(drop)),
    ("reads_the_users", false, |_| fs::read("/etc/passwd").map(drop)),
    ("dials", true, |place| {
        let address = fs::read_to_string(format!("{place}/readable"))?;
        TcpStream::connect(address.trim()).map(drop)
    }),
    ("starts_a_thread", true, |_| {
        std::thread::spawn(|| ()).join().map_err(|_| std::io::Error::other("the thread"))
    }),
    ("asks_by_datagram", false, |_| UdpSocket::bind("127.0.0.1:0").map(drop)),
    ("resolves_localhost", true, |_| {
        use std::net::ToSocketAddrs;
        ("localhost", 80).to_socket_addrs().map(drop)
    }),
    ("takes_all_memory", false, |_| {
        let mut all: Vec<u8> = Vec::new();
        all.try_reserve_exact(400 << 20).map_err(std::io::Error::other)?;
        all.resize(400 << 20, 1);
        std::hint::black_box(&all);
        Ok(())
    }),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["__attack", name, leg, place] => return attack(name, leg, place),
        ["__nothing"] => return ExitCode::SUCCESS,
        _ => {}
    }
    let trials = ATTACKS.iter().map(|(name, may, _)| {
        Trial::test(*name, move || {
            let place = Place::new();
            if !place.run(name, "free") {
                return Err("it fails without the confinement, too".into());
            }
            let place = Place::new();
            if place.run(name, "confined") == *may {
                Ok(())
            } else {
                Err("confined it should be otherwise".into())
            }
        })
    });
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit_code()
}

/// Exit code 0: done. 3: refused. Anything else is a fault of this test.
fn attack(name: &str, leg: &str, place: &str) -> ExitCode {
    let (_, _, attack) = ATTACKS.iter().find(|(known, _, _)| *known == name).unwrap();
    if leg == "confined" {
        let readable = ["readable", "missing"].map(|file| PathBuf::from(format!("{place}/{file}")));
        let names = ["/etc/hosts", "/etc/nsswitch.conf", "/etc/resolv.conf"].map(PathBuf::from);
        let readable: Vec<_> = readable.into_iter().chain(names).collect();
        if let Err(error) = effectd_sandbox::confine_broker(&readable) {
            println!("not confined: {error}");
            return ExitCode::from(4);
        }
    }
    match attack(place) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::from(3),
    }
}

/// A folder as the state of a daemon, with a socket and a listener.
struct Place {
    folder: tempfile::TempDir,
    _doors: (UnixListener, TcpListener),
}

impl Place {
    fn new() -> Self {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        // The broker's own uid must not be what refuses: only its confinement counts.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let at = |name: &str| folder.path().join(name);
        let doors = (UnixListener::bind(at("socket")).unwrap(), TcpListener::bind("127.0.0.1:0").unwrap());
        fs::set_permissions(at("socket"), fs::Permissions::from_mode(0o777)).unwrap();
        fs::write(at("secret"), "canary").unwrap();
        fs::write(at("readable"), doors.1.local_addr().unwrap().to_string()).unwrap();
        Self { folder, _doors: doors }
    }

    fn run(&self, name: &str, leg: &str) -> bool {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["__attack", name, leg]).arg(self.folder.path());
        let output = command.output().unwrap();
        match output.status.code() {
            Some(0) => true,
            Some(3) => false,
            _ => panic!("{name} {leg}: {:?} {}", output.status, String::from_utf8_lossy(&output.stdout)),
        }
    }
}
