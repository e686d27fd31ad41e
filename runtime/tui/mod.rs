//! Full-screen terminal views: a screen that is always restored, its events, and text without terminal commands.
//!
//! Text on the screen comes from planners and tools. An escape sequence in it must stay text. Otherwise the person who decides
//! could see something other than what will happen.

mod events;
mod screen;

pub use effectd_gateway::text::shown;
pub(crate) use effectd_gateway::text::{shown_lines, shown_text};
pub use events::{Event, Events};
pub use screen::Screen;

pub use ratatui;
