//! The terminal's alternate screen, which is left again in every case.

use std::io::{self, IsTerminal, Stdout, stdout};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::prelude::CrosstermBackend;
use ratatui::{Frame, Terminal};

use crate::error::Error;

/// Whether the terminal is taken over and must be restored.
static TAKEN: AtomicBool = AtomicBool::new(false);
static ON_PANIC: Once = Once::new();

/// The terminal in raw mode. Dropping this restores it. If any thread panics, it is restored before the panic's message is
/// printed, which the alternate screen would lose. Signals arrive as [`super::Event::Stop`], so that the owner can drop this.
#[derive(Debug)]
pub struct Screen {
    terminal: Terminal<CrosstermBackend<Stdout>>,
}

impl Screen {
    /// Takes over the terminal. If there is none, or one without a screen, the error names the command to use `instead`.
    pub fn take(instead: &str) -> Result<Self, Error> {
        if !io::stdin().is_terminal() || !stdout().is_terminal() {
            return Err(Error::Request(format!(
                "this needs a terminal for input and output; for programs there is {instead}"
            )));
        }
        if std::env::var_os("TERM").is_some_and(|term| term == "dumb") {
            return Err(Error::Request(format!("this terminal cannot show it; use {instead}")));
        }
        ON_PANIC.call_once(|| {
            let default_hook = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                restore();
                default_hook(panic);
            }));
        });
        TAKEN.store(true, Ordering::SeqCst);
        Self::enter().map_err(|error| {
            restore();
            Error::Request(format!("the terminal cannot be taken over: {error}"))
        })
    }

    fn enter() -> io::Result<Self> {
        enable_raw_mode()?;
        execute!(stdout(), EnterAlternateScreen)?;
        let terminal = Terminal::new(CrosstermBackend::new(stdout()))?;
        Ok(Self { terminal })
    }

    /// Draws the next frame.
    pub fn draw(&mut self, picture: impl FnOnce(&mut Frame<'_>)) -> Result<(), Error> {
        // A panic in another thread has restored the terminal; drawing would garble it.
        if !TAKEN.load(Ordering::SeqCst) {
            return Err(Error::Internal("another thread has panicked".to_owned()));
        }
        let drawn = self.terminal.draw(picture);
        drawn.map(drop).map_err(|error| Error::Request(format!("the terminal cannot be written to: {error}")))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

/// Restores the terminal if it is taken over. This fails only if the terminal is gone.
fn restore() {
    if TAKEN.swap(false, Ordering::SeqCst) {
        let _ = execute!(stdout(), LeaveAlternateScreen, Show);
        let _ = disable_raw_mode();
    }
}
