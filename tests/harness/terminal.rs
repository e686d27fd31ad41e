//! A real terminal: a program in a detached tmux of a fixed size, which gets keys and whose screen is read.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::{Place, program, until};

/// No user configuration, no status line, and the screen stays after the program ended.
const SETTINGS: &str = "set -g status off\nset -g remain-on-exit on\nset -g remain-on-exit-format ''\n\
    set -g default-terminal screen-256color\nset -g escape-time 0\n";

/// Runs a command and writes its exit code to the file named first: tmux does not always know it. Signals from the terminal
/// are for the command; traps set here do not apply to it.
const NOTE_STATUS: &str =
    "trap : INT QUIT HUP TERM; \"$@\"; echo $? >\"$0.partial\"; mv \"$0.partial\" \"$0\"";

static STARTED: AtomicUsize = AtomicUsize::new(0);

/// A program at a terminal; killed when it is dropped.
pub struct Terminal {
    socket: PathBuf,
    settings: PathBuf,
    status: PathBuf,
    columns: u16,
    rows: u16,
}

impl Terminal {
    /// effectd with these arguments, in a window of this many columns and rows.
    pub fn effectd(place: &Place, arguments: &[&str], columns: u16, rows: u16) -> Self {
        let command: Vec<&str> = std::iter::once(program()).chain(arguments.iter().copied()).collect();
        Self::start(place, &command, columns, rows)
    }

    pub fn start(place: &Place, command: &[&str], columns: u16, rows: u16) -> Self {
        let settings = place.path("tmux.conf");
        std::fs::write(&settings, SETTINGS).unwrap();
        // A tmux server for this terminal alone: an earlier one may just be ending.
        let nth = STARTED.fetch_add(1, Ordering::Relaxed);
        let terminal = Self {
            socket: place.path(&format!("tmux.{nth}.sock")),
            settings,
            status: place.path(&format!("tmux.{nth}.status")),
            columns,
            rows,
        };
        terminal.run(&place.path("."), command);
        terminal
    }

    fn run(&self, folder: &Path, command: &[&str]) {
        let (columns, rows) = (self.columns.to_string(), self.rows.to_string());
        let mut tmux = self.tmux();
        tmux.args(["new-session", "-d", "-x", &columns, "-y", &rows, "-c"])
            .arg(folder)
            .args([
                "--",
                "env",
                "-i",
                "PATH=/usr/bin:/bin",
                "TERM=screen-256color",
                "LANG=C.UTF-8",
                "sh",
                "-c",
                NOTE_STATUS,
            ])
            .arg(&self.status)
            .args(command);
        told(tmux);
    }

    fn tmux(&self) -> Command {
        let mut tmux = Command::new("tmux");
        tmux.env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("LANG", "C.UTF-8")
            .arg("-u")
            .arg("-S")
            .arg(&self.socket)
            .arg("-f")
            .arg(&self.settings);
        tmux
    }

    /// Presses keys, by tmux's names: `Enter`, `Escape`, `C-c`, `Down`, `a`.
    pub fn press(&self, keys: &[&str]) {
        let mut tmux = self.tmux();
        tmux.arg("send-keys").args(keys);
        told(tmux);
    }

    /// Types a text as it is.
    pub fn write(&self, text: &str) {
        let mut tmux = self.tmux();
        tmux.args(["send-keys", "-l", text]);
        told(tmux);
    }

    pub fn resize(&self, columns: u16, rows: u16) {
        let mut tmux = self.tmux();
        tmux.args(["resize-window", "-x", &columns.to_string(), "-y", &rows.to_string()]);
        told(tmux);
    }

    /// The text on the screen, without colours.
    pub fn screen(&self) -> String {
        let mut tmux = self.tmux();
        tmux.args(["capture-pane", "-p"]);
        told(tmux)
    }

    /// The text on the screen, with the escape sequences of its colours.
    pub fn coloured_screen(&self) -> String {
        let mut tmux = self.tmux();
        tmux.args(["capture-pane", "-e", "-p"]);
        told(tmux)
    }

    /// A tmux variable of the terminal, such as `#{alternate_on}`.
    pub fn knows(&self, what: &str) -> String {
        let mut tmux = self.tmux();
        tmux.args(["display-message", "-p", what]);
        told(tmux).trim_end().to_owned()
    }

    /// Waits until a text is on the screen, and returns the screen.
    #[track_caller]
    pub fn wait_for(&self, text: &str) -> String {
        self.wait(&format!("{text:?} on the screen"), |screen| screen.contains(text))
    }

    /// Waits until the screen satisfies a condition, and returns the screen.
    #[track_caller]
    pub fn wait(&self, what: &str, holds: impl Fn(&str) -> bool) -> String {
        let mut last = String::new();
        let waited = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            until(what, || {
                last = self.screen();
                holds(&last)
            });
        }));
        assert!(waited.is_ok(), "{what} did not come about; the screen is:\n{last}");
        last
    }

    /// Waits until the program has ended, and returns its exit code.
    #[track_caller]
    pub fn ended(&self) -> String {
        self.wait("the end of the program", |_| self.knows("#{pane_dead}") == "1");
        let status = std::fs::read_to_string(&self.status);
        status.unwrap_or_else(|error| panic!("how it ended was not noted: {error}")).trim_end().to_owned()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.tmux().arg("kill-server").output();
    }
}

#[track_caller]
fn told(mut tmux: Command) -> String {
    let ran = tmux.output().expect("tmux is installed");
    assert!(ran.status.success(), "{tmux:?}: {}", String::from_utf8_lossy(&ran.stderr));
    String::from_utf8(ran.stdout).unwrap()
}
