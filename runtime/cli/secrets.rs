//! `effectd secrets …`: secrets of organisations. A value is read from standard input or a file, and never shown again.

use std::fs::File;
use std::io::{IsTerminal, Read};
use std::path::{Path, PathBuf};

use clap::Subcommand;
use effectd_actors::limits::SECRET_BYTES_MAX;
use effectd_actors::services::connections::SecretValue;
use effectd_contracts::{OrgId, SecretName};
use effectd_gateway::client::percent_encoded;
use effectd_gateway::views::connections::SecretBody;
use hyper::Method;
use zeroize::Zeroizing;

use super::mutation::{ChangeArgs, RunMode, json_body, no_body, run_at};
use super::{CliError, Common, Depth, get, print_rows, second};
use crate::exit::Exit;

/// List, set and delete the secrets of organisations
///
/// Connections name secrets, and no command shows a value again. Operators and the organisation's admins may use this.
#[derive(Debug, Subcommand)]
#[command(after_help = "Example:\n  effectd secrets list")]
pub(super) enum SecretsCommand {
    /// List secrets, without their values
    #[command(after_help = "Example:\n  effectd secrets list -o json")]
    List,
    /// Set the value of a secret, from standard input or a file
    ///
    /// A line break at the end of the value is removed.
    #[command(
        after_help = "Examples:\n  effectd secrets set home linear-token --yes < token.txt\n  effectd secrets set home linear-token --file token.txt --yes"
    )]
    Set {
        #[command(flatten)]
        which: Which,
        /// The file that has the value; `-` is standard input
        #[arg(long, value_name = "FILE", default_value = "-")]
        file: PathBuf,
        #[command(flatten)]
        args: ChangeArgs,
    },
    /// Delete a secret that no connection needs
    #[command(after_help = "Example:\n  effectd secrets delete home old-token --yes")]
    Delete {
        #[command(flatten)]
        which: Which,
        #[command(flatten)]
        args: ChangeArgs,
    },
}

#[derive(Debug, clap::Args)]
pub(super) struct Which {
    /// The organisation, as named in the policy
    #[arg(value_name = "ORG")]
    org: OrgId,
    /// The secret's name
    #[arg(value_name = "NAME")]
    name: String,
}

impl Which {
    fn path(&self) -> String {
        format!("/v1/secrets/{}/{}", percent_encoded(self.org.as_str()), percent_encoded(&self.name))
    }
}

const COLUMNS: [(&str, usize); 4] = [("ORG", 16), ("NAME", 28), ("SET AT", 20), ("SET BY", 24)];

impl SecretsCommand {
    pub(super) async fn main(self, common: &Common) -> Result<Exit, CliError> {
        match self {
            Self::List => {
                let all: Vec<SecretName> = get(common, Depth::Policy, "/v1/secrets").await?;
                Ok(print_rows(common.output, &COLUMNS, &all, |SecretName { org, name, set_by, set_at }| {
                    [org.to_string(), name.clone(), second(&set_at.to_string()), set_by.to_string()]
                }))
            }
            Self::Set { which, file, args } => {
                let body = |mode| match mode {
                    RunMode::Preview => no_body(mode),
                    RunMode::Execute => {
                        let value = SecretValue::from(read(&file, "--file")?.to_string());
                        json_body(&SecretBody { value })(mode)
                    }
                };
                run_at(common, (Method::PUT, &which.path()), body, args).await
            }
            Self::Delete { which, args } => {
                run_at(common, (Method::DELETE, &which.path()), no_body, args).await
            }
        }
    }
}

/// A secret value, from the file that `flag` names or standard input. No error quotes it.
pub(super) fn read(file: &Path, flag: &str) -> Result<Zeroizing<String>, CliError> {
    let cannot = |why: &dyn std::fmt::Display| {
        CliError::request(format!("the value cannot be read from {}: {why}", file.display()))
    };
    let input: Box<dyn Read> = if file.as_os_str() == "-" {
        if std::io::stdin().is_terminal() {
            let why = format!("a terminal would show it; pipe it in, or name its file with {flag}");
            return Err(cannot(&why));
        }
        Box::new(std::io::stdin())
    } else {
        Box::new(File::open(file).map_err(|error| cannot(&error))?)
    };
    // Of the whole size from the start, so that no part of the value stays behind in memory.
    let mut bytes = Zeroizing::new(Vec::with_capacity(SECRET_BYTES_MAX + 2));
    input.take(SECRET_BYTES_MAX as u64 + 2).read_to_end(&mut bytes).map_err(|error| cannot(&error))?;
    let value = std::str::from_utf8(&bytes).map_err(|_| cannot(&"it is not UTF-8 text"))?;
    let value = value.strip_suffix('\n').map_or(value, |line| line.strip_suffix('\r').unwrap_or(line));
    Ok(Zeroizing::new(value.to_owned()))
}
