//! PostgreSQL: one connection for one statement, in a transaction that only reads and is rolled back.
//!
//! The server is asked for its values as text, so that it tells every type by itself and nothing is decoded here. Rows are read value
//! by value: what is longer than a value may be is counted and not kept, so a server cannot make the broker hold more than an answer.

use std::time::Duration;

use effectd_contracts::ExchangeFault;
use effectd_contracts::limits::{SQL_CELL_BYTES_MAX, SQL_RESULT_BYTES_MAX, SQL_ROWS_MAX};
use effectd_contracts::sql::{SqlAnswer, SqlCell, SqlColumn, SqlRefusal, SqlRows};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader, sink};

use super::courier::Fault;
use super::scram::Scram;
use crate::limits::SQL_MESSAGE_BYTES_MAX;
use crate::order::Login;

/// What each connection begins with. The first statement fixes the transaction: from then on not even the server's own functions make
/// it one that writes. The settings decide how values look, and that a backslash in a plain string is only that.
const BEGIN: &str = "BEGIN READ ONLY; SET LOCAL standard_conforming_strings = on; SET LOCAL DateStyle = 'ISO, YMD'; \
    SET LOCAL IntervalStyle = iso_8601; SET LOCAL TimeZone = 'UTC'; SET LOCAL bytea_output = hex; \
    SET LOCAL extra_float_digits = 1; SELECT pg_catalog.current_setting('transaction_read_only')";
/// Asks for TLS, before anything else.
pub(super) const TLS_REQUEST: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];
/// Version 3.0.
const PROTOCOL: i32 = 196_608;
/// Longest message of the server that is told.
const MESSAGE_CHARS_MAX: usize = 300;

/// A server that is logged in, or is about to be.
pub(super) struct Server<S> {
    stream: BufReader<S>,
    /// The transaction's state after the last answer.
    status: u8,
}

fn broken(why: &str) -> Fault {
    Fault::new(ExchangeFault::Broken, why)
}

fn closed(_: std::io::Error) -> Fault {
    broken("the server closed the connection in the middle of an answer")
}

fn unreadable() -> Fault {
    broken("what the server sent is not PostgreSQL's protocol")
}

/// A message: its kind, its length, what it says.
fn message(kind: u8, parts: &[&[u8]]) -> Vec<u8> {
    let length = parts.iter().map(|part| part.len()).sum::<usize>() + 4;
    // A message of ours has a statement at most.
    let length = u32::try_from(length).unwrap_or_default().to_be_bytes();
    [&[kind], length.as_slice()].into_iter().chain(parts.iter().copied()).flatten().copied().collect()
}

/// Reads numbers and texts of one message, which a stranger wrote.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Fault> {
        let (found, rest) = self.0.split_first_chunk().ok_or_else(unreadable)?;
        self.0 = rest;
        Ok(*found)
    }

    /// Text up to its zero byte.
    fn text(&mut self) -> Result<&'a [u8], Fault> {
        let end = self.0.iter().position(|byte| *byte == 0).ok_or_else(unreadable)?;
        let text = &self.0[..end];
        self.0 = &self.0[end + 1..];
        Ok(text)
    }
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

impl<S: AsyncRead + AsyncWrite + Unpin> Server<S> {
    /// Logs in. The password itself is never sent, and a server that does not prove that it knows it, too, is refused.
    pub(super) async fn log_in(stream: S, login: &Login) -> Result<Self, Fault> {
        let mut server = Self { stream: BufReader::new(stream), status: 0 };
        let settings = [
            ("user", &*login.user),
            ("database", &login.name),
            ("client_encoding", "UTF8"),
            ("application_name", "effectd"),
        ];
        let settings: String = settings.map(|(name, value)| format!("{name}\0{value}\0")).concat() + "\0";
        // The first message has no kind.
        server.send(&message(0, &[&PROTOCOL.to_be_bytes(), settings.as_bytes()])[1..]).await?;
        let mut scram = Scram::new();
        loop {
            let (kind, length) = server.head().await?;
            let body = server.body(length).await?;
            let mut fields = Fields(&body);
            match (kind, scram.is_proven()) {
                (b'R', is_proven) => match (i32::from_be_bytes(fields.take()?), is_proven) {
                    (0, true) => {}
                    (10, false) => {
                        if !fields.0.split(|byte| *byte == 0).any(|name| name == b"SCRAM-SHA-256") {
                            return Err(unfit_login());
                        }
                        let first = scram.first();
                        let length = u32::try_from(first.len()).unwrap_or_default().to_be_bytes();
                        server.send(&message(b'p', &[b"SCRAM-SHA-256\0", &length, first.as_bytes()])).await?;
                    }
                    (11, false) => {
                        let last = scram.answer(login.password.as_str(), fields.0).map_err(untrusted)?;
                        server.send(&message(b'p', &[last.as_bytes()])).await?;
                    }
                    (12, false) => scram.verify(fields.0).map_err(untrusted)?,
                    (_, _) => return Err(unfit_login()),
                },
                (b'E', _) => {
                    let SqlRefusal { sqlstate, .. } = refusal(&body)?;
                    let what = match &*sqlstate {
                        "28P01" | "28000" => "the server does not let this user in with this password",
                        "3D000" => "the server has no such database",
                        "53300" | "57P03" => "the server takes no connection now",
                        _ => "the server refuses the login",
                    };
                    return Err(Fault::new(
                        ExchangeFault::Unreachable,
                        format!("{what} (SQLSTATE {sqlstate})"),
                    ));
                }
                (b'Z', true) => return Ok(server),
                // Notices, settings, and the key by which another connection could cancel.
                (b'N', _) | (b'S' | b'K', true) => {}
                (_, _) => return Err(unreadable()),
            }
        }
    }

    /// Carries the statement out, for which the server has this time, and hands back what it answered.
    pub(super) async fn ask(&mut self, sql: &str, time: Duration) -> Result<SqlAnswer, Fault> {
        let timeout = format!("SET LOCAL statement_timeout = {}", time.as_millis().max(1));
        let begin = BEGIN.replacen(';', &format!("; {timeout};"), 1);
        let begun = self.simple(&begin).await?;
        let is_read_only =
            |rows: &SqlRows| rows.rows.iter().flatten().flatten().map(|cell| &*cell.text).eq(["on"]);
        match begun {
            SqlAnswer::Rows(rows) if is_read_only(&rows) && self.status == b'T' => {}
            SqlAnswer::Rows(_) => {
                return Err(broken("the server does not begin a transaction that only reads"));
            }
            refused @ SqlAnswer::Refused(_) => return Ok(refused),
        }
        // One statement by the protocol itself; all values as text; one row more than is told.
        let rows_max = (SQL_ROWS_MAX as u32 + 1).to_be_bytes();
        let parts = [
            message(b'P', &[b"\0", sql.as_bytes(), b"\0\0\0"]),
            message(b'B', &[&[0; 8]]),
            message(b'D', &[b"P\0"]),
            message(b'E', &[b"\0", &rows_max]),
            message(b'S', &[]),
        ];
        self.send(&parts.concat()).await?;
        let mut rows = match self.answer().await? {
            SqlAnswer::Rows(rows) => rows,
            refused @ SqlAnswer::Refused(_) => {
                let _told = self.simple("ROLLBACK").await;
                return Ok(refused);
            }
        };
        let names = rows
            .columns
            .iter()
            .map(|column| format!("pg_catalog.format_type({}, {})", column.oid, column.modifier));
        let names = names.collect::<Vec<_>>().join(", ");
        if let SqlAnswer::Rows(named) = self.simple(&format!("SELECT {names}; ROLLBACK")).await? {
            for (column, name) in rows.columns.iter_mut().zip(named.rows.into_iter().flatten()) {
                column.type_name = name.map(|name| name.text).unwrap_or_default();
            }
        }
        // Whether it arrives does not matter: nothing was changed, and the connection is closed.
        let _told = self.send(&message(b'X', &[])).await;
        Ok(SqlAnswer::Rows(rows))
    }

    /// Statements of ours, in one message.
    async fn simple(&mut self, sql: &str) -> Result<SqlAnswer, Fault> {
        self.send(&message(b'Q', &[sql.as_bytes(), b"\0"])).await?;
        self.answer().await
    }

    async fn send(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        self.stream.write_all(bytes).await.map_err(closed)?;
        self.stream.flush().await.map_err(closed)
    }

    /// The kind of the next message, and how many bytes follow.
    async fn head(&mut self) -> Result<(u8, usize), Fault> {
        let kind = self.stream.read_u8().await.map_err(closed)?;
        let length = self.stream.read_u32().await.map_err(closed)?;
        let length = length.checked_sub(4).and_then(|length| usize::try_from(length).ok());
        Ok((kind, length.ok_or_else(unreadable)?))
    }

    async fn body(&mut self, length: usize) -> Result<Vec<u8>, Fault> {
        if length > SQL_MESSAGE_BYTES_MAX {
            return Err(unreadable());
        }
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).await.map_err(closed)?;
        Ok(body)
    }

    /// Reads to the end of an answer: the last rows, or the first error.
    async fn answer(&mut self) -> Result<SqlAnswer, Fault> {
        let (mut rows, mut refused, mut bytes) = (SqlRows::default(), None, 0);
        loop {
            let (kind, length) = self.head().await?;
            if kind == b'D' {
                self.row(length, (&mut rows, &mut bytes)).await?;
                continue;
            }
            let body = self.body(length).await?;
            match kind {
                b'T' => rows = SqlRows { columns: columns(&body)?, ..SqlRows::default() },
                b'E' => refused = refused.or(Some(refusal(&body)?)),
                // The portal has more rows than were fetched.
                b's' => rows.truncated = true,
                b'Z' => {
                    self.status = body.first().copied().unwrap_or_default();
                    return Ok(refused.map_or(SqlAnswer::Rows(rows), SqlAnswer::Refused));
                }
                // The statement is parsed, bound, described or done; a notice; a setting.
                b'1' | b'2' | b'n' | b'C' | b'I' | b'N' | b'S' | b'A' => {}
                _ => return Err(unreadable()),
            }
        }
    }

    /// Reads one row. Rows beyond the bounds are read, and not kept.
    async fn row(&mut self, length: usize, (rows, bytes): (&mut SqlRows, &mut usize)) -> Result<(), Fault> {
        let count = usize::from(self.stream.read_u16().await.map_err(closed)?);
        let mut left =
            length.checked_sub(2).filter(|_| count == rows.columns.len()).ok_or_else(unreadable)?;
        let mut cells = Vec::with_capacity(count);
        for _ in 0..count {
            let length = self.stream.read_i32().await.map_err(closed)?;
            left = left.checked_sub(4).ok_or_else(unreadable)?;
            let Ok(length) = usize::try_from(length) else {
                cells.push(None);
                continue;
            };
            left = left.checked_sub(length).ok_or_else(unreadable)?;
            let is_full = rows.truncated || rows.rows.len() == SQL_ROWS_MAX || *bytes > SQL_RESULT_BYTES_MAX;
            let kept = if is_full { 0 } else { length.min(SQL_CELL_BYTES_MAX) };
            let mut begins = vec![0; kept];
            self.stream.read_exact(&mut begins).await.map_err(closed)?;
            let rest = (length - kept) as u64;
            let skipped =
                tokio::io::copy(&mut (&mut self.stream).take(rest), &mut sink()).await.map_err(closed)?;
            if skipped != rest {
                return Err(closed(std::io::ErrorKind::UnexpectedEof.into()));
            }
            *bytes += kept;
            let text = match str::from_utf8(&begins) {
                Ok(text) => text.to_owned(),
                // Cut within a character.
                Err(cut) if cut.error_len().is_none() && kept < length => lossy(&begins[..cut.valid_up_to()]),
                Err(_) => lossy(&begins),
            };
            cells.push(Some(SqlCell { text, bytes: length }));
        }
        if left > 0 {
            return Err(unreadable());
        }
        *bytes += 16 * count;
        rows.truncated |= rows.rows.len() == SQL_ROWS_MAX || *bytes > SQL_RESULT_BYTES_MAX;
        if !rows.truncated {
            rows.rows.push(cells);
        }
        Ok(())
    }
}

fn untrusted(why: &str) -> Fault {
    Fault::new(ExchangeFault::Untrusted, why)
}

/// The password would be of no use, or could be read by whoever answers.
fn unfit_login() -> Fault {
    untrusted(
        "the server does not ask for the password by SCRAM-SHA-256, the only way in which effectd logs in",
    )
}

fn columns(body: &[u8]) -> Result<Vec<SqlColumn>, Fault> {
    let mut fields = Fields(body);
    let count = u16::from_be_bytes(fields.take()?);
    let mut columns = Vec::new();
    for _ in 0..count {
        let name = lossy(fields.text()?);
        // The table and its column, then the type, its length and its modifier, then the format.
        let _table: [u8; 6] = fields.take()?;
        let oid = u32::from_be_bytes(fields.take()?);
        let _length: [u8; 2] = fields.take()?;
        let modifier = i32::from_be_bytes(fields.take()?);
        let _format: [u8; 2] = fields.take()?;
        columns.push(SqlColumn { name, oid, modifier, type_name: String::new() });
    }
    Ok(columns)
}

fn refusal(body: &[u8]) -> Result<SqlRefusal, Fault> {
    let (mut fields, mut refusal) = (Fields(body), SqlRefusal::default());
    loop {
        let [kind] = fields.take()?;
        if kind == 0 {
            return Ok(refusal);
        }
        let text = lossy(fields.text()?);
        match kind {
            b'C' => refusal.sqlstate = text.chars().filter(char::is_ascii_alphanumeric).take(5).collect(),
            b'M' => {
                refusal.message =
                    text.lines().next().unwrap_or_default().chars().take(MESSAGE_CHARS_MAX).collect()
            }
            b'P' => refusal.position = text.parse().ok(),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
