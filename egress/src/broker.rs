//! The process of the broker: `effectd __egress`, started by the daemon with a socket as its standard input.

mod body;
mod certificate;
mod courier;
mod dial;
mod echo;
mod places;
mod pool;
mod postgres;
mod resolve;
mod scram;
mod serve;
mod tls;

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use crate::limits::LOOKUPS_MAX;

/// The argument by which a program becomes the broker.
pub const BROKER_ARGUMENT: &str = "__egress";

/// What a lookup of the C library reads.
const NAME_FILES: [&str; 5] =
    ["/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf", "/etc/host.conf", "/etc/gai.conf"];

/// The files that decide what a name is. The daemon starts another broker when they change: a confined one may not read the new
/// ones, since most programs replace them.
pub(crate) fn name_files() -> Vec<PathBuf> {
    NAME_FILES.map(PathBuf::from).into()
}

/// Call it first in `main`, before any thread starts. In an ordinary process it returns at once; in a process that the daemon
/// started as its broker it never returns.
pub fn init() {
    if std::env::args_os().nth(1).is_some_and(|argument| argument == BROKER_ARGUMENT) {
        main();
    }
}

fn main() -> ! {
    let closed = effectd_sandbox::close_inherited_files();
    // A person who starts a broker by hand has no socket there.
    let Ok(socket) = socket() else {
        #[expect(clippy::print_stderr, reason = "the only reader is a person who started this by hand")]
        {
            eprintln!("{BROKER_ARGUMENT} is started by effectd itself, never by hand");
        }
        std::process::exit(2)
    };
    std::panic::set_hook(Box::new(|_| {}));
    // Read before the confinement, which leaves no file of certificates.
    let roots = tls::system_roots();
    resolve::warm_up();
    // It makes a pair of unix sockets for signals, which the confinement forbids. It starts no thread.
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(LOOKUPS_MAX).build();
    let confined = closed.and_then(|()| effectd_sandbox::confine_broker(&name_files()));
    let confined = confined.map_err(|error| error.to_string());
    let ended = runtime.and_then(|runtime| {
        let ended = runtime.block_on(serve::serve(socket, confined, roots));
        // A lookup that hangs must not hold the process: it is not waited for.
        runtime.shutdown_background();
        ended
    });
    std::process::exit(i32::from(ended.is_err()))
}

fn socket() -> io::Result<UnixStream> {
    let stdin = io::stdin();
    let socket = UnixStream::from(stdin.as_fd().try_clone_to_owned()?);
    socket.local_addr()?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}
