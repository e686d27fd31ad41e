//! A bar on standard error for long work: only at a terminal, and only after two seconds.

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use effectd_bus::Progress;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use parking_lot::Mutex;

use super::Form;
use super::output::form;

/// What ends sooner needs no bar.
const SHOWN_AFTER: Duration = Duration::from_secs(2);
const TICK: Duration = Duration::from_millis(100);

/// The bar of one command. Dropping it clears it, which must happen before results are printed.
pub(super) struct Bar {
    shown: Arc<Shown>,
    /// The thread that shows the bar when its time has come; `None` if there is to be no bar.
    waiting: Option<(Sender<()>, JoinHandle<()>)>,
}

struct Shown {
    bar: ProgressBar,
    /// What is being done, and how much of it there is.
    phase: Mutex<(&'static str, u64)>,
}

impl Bar {
    /// There is none in a pipe, in a terminal that cannot move its cursor, and beside results for programs.
    pub(super) fn new(what: &'static str) -> Self {
        let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        Self::shown_if(what, io::stderr().is_terminal() && !is_dumb && form() == Form::Table)
    }

    /// The bar of a command that prints results while it works: there is none if both would be on one screen.
    pub(super) fn beside_output(what: &'static str) -> Self {
        if io::stdout().is_terminal() { Self::shown_if(what, false) } else { Self::new(what) }
    }

    fn shown_if(what: &'static str, is_wanted: bool) -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
        let shown = Arc::new(Shown { bar, phase: Mutex::new(("", 0)) });
        shown.at(what, 0, 0);
        let waiting = is_wanted.then(|| show_later(shown.bar.clone())).flatten();
        Self { shown, waiting }
    }

    /// How much is done, of how much: 0 if that is not known.
    pub(super) fn at(&self, done: u64, total: u64) {
        let what = self.shown.phase.lock().0;
        self.shown.at(what, done, total);
    }

    /// Shows what the store and the backup report.
    pub(super) fn hook(&self) -> Progress {
        let shown = self.shown.clone();
        Progress::new(move |what, done, total| shown.at(what, done, total))
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.waiting.take() {
            drop(stop);
            // The thread does not panic; if it did, there is no bar.
            let _ = thread.join();
        }
        self.shown.bar.finish_and_clear();
    }
}

fn show_later(bar: ProgressBar) -> Option<(Sender<()>, JoinHandle<()>)> {
    let (stop, stopped) = channel();
    let wait = move || {
        if stopped.recv_timeout(SHOWN_AFTER) == Err(RecvTimeoutError::Timeout) {
            bar.set_draw_target(ProgressDrawTarget::stderr());
            bar.enable_steady_tick(TICK);
        }
    };
    let thread = thread::Builder::new().name("progress".into()).spawn(wait);
    thread.ok().map(|thread| (stop, thread))
}

impl Shown {
    fn at(&self, what: &'static str, done: u64, total: u64) {
        let mut phase = self.phase.lock();
        if *phase != (what, total) {
            *phase = (what, total);
            self.bar.set_style(style(total > 0));
            self.bar.set_message(what);
            if total > 0 {
                self.bar.set_length(total);
            } else {
                self.bar.unset_length();
            }
        }
        self.bar.set_position(done);
    }
}

/// Without colours, so that nothing needs to be said about them.
fn style(is_total_known: bool) -> ProgressStyle {
    let template = if is_total_known {
        "{spinner} {msg} [{bar:24}] {percent:>3} %, {eta} left"
    } else {
        "{spinner} {msg}, {elapsed}"
    };
    let style = ProgressStyle::with_template(template);
    style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("=> ").tick_chars("|/-\\ ")
}
