//! The ground of everything that takes over a terminal: a screen that is always given back, what happens to it, and text
//! that cannot command it.
//!
//! A program that dies in raw mode leaves its user with a terminal that shows nothing they type. And what is shown here was
//! written by planners and tools: an escape sequence in a file must stay text, or the person who is asked sees something
//! else than what will happen.

mod events;
mod screen;
mod text;

pub use events::{Event, Events};
pub use screen::Screen;
pub use text::{shown, shown_lines, shown_text};

/// What views are drawn with.
pub use ratatui;
