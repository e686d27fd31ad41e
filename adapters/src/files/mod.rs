//! Tools for the files of a space.

mod append_text;
mod apply_patch;
mod archive;
mod copy;
mod delete;
mod edit_text;
mod extract;
pub mod fuzz;
pub mod glob;
mod list;
mod make_dir;
mod move_file;
pub mod patch;
mod read_text;
mod search;
mod stat;
mod undo;
mod write_text;

pub use append_text::AppendText;
pub use apply_patch::ApplyPatch;
pub use archive::Archive;
pub use copy::Copy;
pub use delete::Delete;
pub use edit_text::EditText;
pub use extract::Extract;
pub use list::List;
pub use make_dir::MakeDir;
pub use move_file::Move;
pub use read_text::ReadText;
pub use search::Search;
pub use stat::Stat;
pub use undo::Undo;
pub use write_text::WriteText;
