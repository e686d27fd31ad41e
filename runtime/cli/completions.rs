//! `effectd completions` and `effectd man`: shell completions and manual pages.

use std::io::Write;
use std::path::PathBuf;

use clap_complete::Shell;

use super::output::Stdout;
use super::{CliError, command};
use crate::exit::Exit;

/// Print completions for a shell
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  effectd completions bash\n  effectd completions fish")]
pub(super) struct Completions {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

/// Print the manual page, or write those of all commands into a folder
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  effectd man\n  effectd man --into man1")]
pub(super) struct Man {
    /// The folder for the pages of all commands; it is created if it is missing
    #[arg(long, value_name = "DIR")]
    into: Option<PathBuf>,
}

impl Completions {
    pub(super) fn main(self) -> Exit {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut command(), "effectd", &mut script);
        print(&script)
    }
}

impl Man {
    pub(super) fn main(self) -> Result<Exit, CliError> {
        let mut page = Vec::new();
        let written = match &self.into {
            Some(folder) => std::fs::create_dir_all(folder)
                .and_then(|()| clap_mangen::generate_to(command(), folder))
                .map_err(|error| format!("{} cannot be written: {error}", folder.display())),
            None => clap_mangen::Man::new(command()).render(&mut page).map_err(|error| error.to_string()),
        };
        if let Err(why) = written {
            return Err(CliError::request(why).exiting(Exit::Failed));
        }
        Ok(print(&page))
    }
}

fn print(bytes: &[u8]) -> Exit {
    // [`Stdout`] remembers a failure.
    let _ = Stdout.write_all(bytes);
    Exit::Done
}
