//! Tools that work on files of a space.

mod write_text;

pub use write_text::WriteText;
