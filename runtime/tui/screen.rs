//! The screen while a program has it, and the terminal as it was before.

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

/// Whether the terminal is ours right now: then, and only then, there is something to give back.
static TAKEN: AtomicBool = AtomicBool::new(false);
static ON_PANIC: Once = Once::new();

/// The terminal, taken over. It is given back when this is dropped, and also when any thread panics, before the panic is
/// told: its message would be lost with the other screen. Signals that end a program come as [`super::Event::Stop`], so that
/// what holds this can drop it.
#[derive(Debug)]
pub struct Screen {
    terminal: Terminal<CrosstermBackend<Stdout>>,
}

impl Screen {
    /// Takes the terminal over. Where there is none, `instead` says what programs use.
    pub fn take(instead: &str) -> Result<Self, Error> {
        if !io::stdin().is_terminal() || !stdout().is_terminal() {
            return Err(Error::Request(format!(
                "this needs a terminal for input and output; for programs there is {instead}"
            )));
        }
        ON_PANIC.call_once(|| {
            let told = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                give_back();
                told(panic);
            }));
        });
        TAKEN.store(true, Ordering::SeqCst);
        Self::enter().map_err(|error| {
            give_back();
            Error::Request(format!("the terminal cannot be taken over: {error}"))
        })
    }

    fn enter() -> io::Result<Self> {
        enable_raw_mode()?;
        execute!(stdout(), EnterAlternateScreen)?;
        let terminal = Terminal::new(CrosstermBackend::new(stdout()))?;
        Ok(Self { terminal })
    }

    /// Shows the next picture; only what is different is written.
    pub fn draw(&mut self, picture: impl FnOnce(&mut Frame<'_>)) -> Result<(), Error> {
        // A thread that panicked has given the terminal back: what is drawn now would go between other people's lines.
        if !TAKEN.load(Ordering::SeqCst) {
            return Err(Error::Internal("a part of the program has failed".to_owned()));
        }
        let drawn = self.terminal.draw(picture);
        drawn
            .map(drop)
            .map_err(|error| Error::Request(format!("the terminal cannot be written to: {error}")))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}

/// Gives the terminal back, once. What fails here fails because there is no terminal any more.
fn give_back() {
    if TAKEN.swap(false, Ordering::SeqCst) {
        let _ = execute!(stdout(), LeaveAlternateScreen, Show);
        let _ = disable_raw_mode();
    }
}
