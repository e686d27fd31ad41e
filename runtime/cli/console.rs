//! `effectd console`: a one-time link to the console, opened in the browser where there is one.
#![expect(clippy::disallowed_types, reason = "opens the browser of the person who asks")]

use std::fs::OpenOptions;
use std::io::{self, IsTerminal, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use effectd_gateway::views::console::ConsoleLink;
use serde_json::json;

use super::{CliError, Common, Depth, eprint_line, line, post, print_json};
use crate::exit::Exit;

/// Opens what has a desktop's default program.
const OPENER: &str = "xdg-open";
const PAGE: &str = "effectd-console.html";

/// Open the console in a browser, signed in as you
///
/// The link works once, within two minutes; whoever has it acts as you. The daemon must listen at an address: `effectd serve --listen
/// 127.0.0.1:7070`. The link is printed; on a desktop, the browser opens it, too.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  effectd console --print")]
pub(super) struct Console {
    /// Open no browser
    #[arg(long)]
    print: bool,
}

impl Console {
    pub(super) async fn main(self, common: &Common) -> Result<Exit, CliError> {
        let link: ConsoleLink = post(common, Depth::Policy, "/v1/console/link", &json!({})).await?;
        if print_json(common.output, &link) {
            return Ok(Exit::Done);
        }
        eprint_line(&format!("signs in as {}; works once, until {}", link.principal, link.expires_at));
        line(&link.url);
        if !self.print && io::stdout().is_terminal() && open(&link.url) {
            eprint_line(&"the desktop opens it in a browser");
        }
        Ok(Exit::Done)
    }
}

/// Lets the desktop open a link; `false` if there is none. Every user sees the arguments of a program, so the link is in a file that only
/// this one reads. effectd does not wait for the opener: it may be the browser itself, which runs until its last window is closed.
fn open(url: &str) -> bool {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let Some(folder) =
        std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|folder| folder.is_dir())
    else {
        return false;
    };
    if !is_set("DISPLAY") && !is_set("WAYLAND_DISPLAY") {
        return false;
    }
    let page = folder.join(PAGE);
    let opened = write(&page, url).and_then(|()| {
        let mut opener = Command::new(OPENER);
        opener.arg(&page).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        // Its own group: an interrupt at this terminal is not for the browser.
        opener.process_group(0).spawn()
    });
    opened.is_ok()
}

/// A page that leads on at once. What is at the path already may be another file than it seems, so it is replaced.
fn write(page: &Path, url: &str) -> io::Result<()> {
    match std::fs::remove_file(page) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(page)?;
    write!(
        file,
        "<!doctype html><meta http-equiv=\"refresh\" content=\"0; url={url}\"><title>effectd</title>"
    )
}
