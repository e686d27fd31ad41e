//! MCP over the standard input and output of a program, which runs confined beside this child. Lines travel over the side channel.
//!
//! The program may have been greeted before: the first piece is what the last call noted about it. Nothing else is told to the next
//! call, and only if this one has ended well; otherwise effectd ends the program.

use effectd_contracts::exchange::{STDIO_NOTE_STREAM, STDIO_STREAM};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::client::{Client, Dialect, Transport, Trouble, failed};
use super::lines::Lines;
use super::message::{Message, Said, printable, read};
use crate::prelude::*;

/// Most lines, and most bytes, of a program that are read before its answer.
const LINES_MAX: usize = 10_000;
const BYTES_MAX: usize = 16 * 1_048_576;

/// What one call notes for the next one of the same process.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Note {
    /// The version of MCP in which it was greeted.
    version: Option<String>,
    /// An id that no request had yet.
    next_id: u64,
}

pub(super) struct Stdio<'a> {
    workspace: &'a Workspace<'a>,
    lines: Lines,
}

/// A client of the program.
pub(super) fn client<'a>(workspace: &'a Workspace<'a>) -> Result<Client<Stdio<'a>>, Failure> {
    let transport = Stdio { workspace, lines: Lines::default() };
    let note = transport.receive()?;
    let note: Note =
        serde_json::from_slice(&note).map_err(|_| failed("the note of the last call is broken"))?;
    let known = note.version.as_deref().and_then(Dialect::of);
    Ok(Client::new(transport, known, note.next_id))
}

/// Notes what the next call of this process should know.
pub(super) fn note(client: &mut Client<Stdio<'_>>) -> Result<(), Failure> {
    let note = Note { version: Some(client.dialect().version().to_owned()), next_id: client.next_id() };
    let bytes = serde_json::to_vec(&note).map_err(|error| failed(error.to_string()))?;
    client.transport().write(STDIO_NOTE_STREAM, &bytes)
}

impl Transport for Stdio<'_> {
    fn send(&mut self, message: &Message<'_>, _: &Dialect) -> Result<Value, Trouble> {
        self.line(message.to_bytes())?;
        let Some(id) = message.id else {
            return Ok(Value::Null);
        };
        let (mut lines, mut bytes) = (0, 0);
        loop {
            let Some(line) = self.lines.next() else {
                let piece = self.receive()?;
                bytes += piece.len();
                self.lines
                    .add(&piece)
                    .map_err(|_| failed("the server's program writes a line without an end"))?;
                continue;
            };
            lines += 1;
            if lines > LINES_MAX || bytes > BYTES_MAX {
                return Err(failed("the server's program writes and does not answer").into());
            }
            match read(line) {
                Some(Said::Answer(of, said)) if of == id => return said.map_err(Trouble::Rpc),
                Some(Said::Answer(..) | Said::Talks) | None => {}
            }
        }
    }
}

impl Stdio<'_> {
    fn line(&self, mut message: Vec<u8>) -> Result<(), Failure> {
        // JSON without spaces has no line end in it.
        message.push(b'\n');
        self.write(STDIO_STREAM, &message)
    }

    fn write(&self, stream: u8, bytes: &[u8]) -> Result<(), Failure> {
        let sent = self.workspace.side_channel().send_piece(stream, bytes);
        sent.map_err(|error| failed(format!("the server's program cannot be reached: {error}")))
    }

    fn receive(&self) -> Result<Vec<u8>, Failure> {
        let receive = || {
            let piece = self.workspace.side_channel().receive_piece();
            piece.map_err(|error| failed(format!("the server's program cannot be reached: {error}")))
        };
        let piece = receive()?;
        if !piece.is_empty() {
            return Ok(piece);
        }
        let words = receive()?;
        Err(failed(printable(&String::from_utf8_lossy(&words))))
    }
}
