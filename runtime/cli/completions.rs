//! `effectd completions` and `effectd man`: for shells and for manual pages.

use std::io::Write;
use std::path::PathBuf;

use clap_complete::Shell;

use super::complain;
use super::output::Stdout;
use crate::exit::Exit;

/// Print completions for a shell
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  effectd completions bash\n  effectd completions fish")]
pub(super) struct Completions {
    /// For which shell
    #[arg(value_enum)]
    shell: Shell,
}

/// Print the manual page, or write those of all commands into a folder
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  effectd man\n  effectd man --into man1")]
pub(super) struct Man {
    /// Where the pages of all commands go; the folder is made if it is not there
    #[arg(long, value_name = "DIR")]
    into: Option<PathBuf>,
}

impl Completions {
    pub(super) fn main(self) -> Exit {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut super::command(), "effectd", &mut script);
        print(&script)
    }
}

impl Man {
    pub(super) fn main(self) -> Exit {
        let written = match &self.into {
            Some(folder) => std::fs::create_dir_all(folder)
                .and_then(|()| clap_mangen::generate_to(super::command(), folder))
                .map_err(|error| format!("{} cannot be written: {error}", folder.display())),
            None => {
                let mut page = Vec::new();
                let rendered = clap_mangen::Man::new(super::command()).render(&mut page);
                return match rendered {
                    Ok(()) => print(&page),
                    Err(error) => {
                        complain(&error);
                        Exit::Failed
                    }
                };
            }
        };
        match written {
            Ok(()) => Exit::Done,
            Err(what) => {
                complain(&what);
                Exit::Failed
            }
        }
    }
}

fn print(bytes: &[u8]) -> Exit {
    // A failure is noted.
    let _ = Stdout.write_all(bytes);
    Exit::Done
}
