//! Log lines that hold up no action: if nobody reads them, they are lost and counted.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde_json::json;

use super::LogForm;

/// How long a line without room waits, in milliseconds, and how often one may.
const WAIT_MS_MAX: u16 = 500;
const WAIT_EVERY: Duration = Duration::from_secs(10);
/// A pipe that is ready takes as much at once.
const PIECE_BYTES_MAX: usize = 4_096;

#[derive(Debug)]
pub(super) struct Lines<W> {
    to: W,
    form: LogForm,
    /// The lines lost since the last one that was written.
    lost: u64,
    /// Whether the last piece that was written is not the end of its line.
    is_cut: bool,
    /// When a line waited last.
    waited: Option<Instant>,
}

impl<W: Write + AsFd> Lines<W> {
    pub(super) const fn new(to: W, form: LogForm) -> Self {
        Self { to, form, lost: 0, is_cut: false, waited: None }
    }

    #[expect(clippy::disallowed_methods, reason = "how long a reader may take")]
    fn has_room(&mut self) -> bool {
        let is_ready = |to: &W, wait: u16| {
            let mut to = [PollFd::new(to.as_fd(), PollFlags::POLLOUT)];
            poll(&mut to, PollTimeout::from(wait)).is_ok_and(|ready| ready > 0)
        };
        if is_ready(&self.to, 0) {
            return true;
        }
        if self.waited.is_some_and(|at| at.elapsed() < WAIT_EVERY) {
            return false;
        }
        self.waited = Some(Instant::now());
        is_ready(&self.to, WAIT_MS_MAX)
    }

    /// The line about those that were lost.
    fn told(&self) -> String {
        let (what, lost) = ("lines of the log were lost, because nobody read them", self.lost);
        let end = if self.is_cut { "\n" } else { "" };
        match self.form {
            LogForm::Text => format!("{end} WARN {what} lost={lost}\n"),
            LogForm::Json => {
                let line = json!({ "level": "WARN", "target": "effectd", "message": what, "lost": lost });
                format!("{end}{line}\n")
            }
        }
    }
}

impl<W: Write + AsFd> Write for Lines<W> {
    /// Never fails: `tracing` would report that on standard error, and panic if nobody can read it.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let written = if !self.has_room() {
            None
        } else if self.lost > 0 {
            let told = self.told();
            if self.to.write_all(told.as_bytes()).is_ok() {
                (self.lost, self.is_cut) = (0, false);
                // It took some of the room.
                return self.write(line);
            }
            None
        } else {
            let written = self.to.write(&line[..line.len().min(PIECE_BYTES_MAX)]).ok();
            self.is_cut = written.map_or(self.is_cut, |written| written < line.len());
            written
        };
        self.lost += u64::from(written.is_none());
        Ok(written.unwrap_or(line.len()))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::Read;

    use super::*;

    #[test]
    fn a_log_that_nobody_reads_holds_nobody_up() {
        let (mut reader, writer) = io::pipe().unwrap();
        let mut lines = Lines::new(writer, LogForm::Json);
        // More than a pipe holds; without a bound, this would wait for ever.
        let line = [b'x'; 1_024];
        (0..1_100).for_each(|_| lines.write_all(&line).unwrap());
        let lost = lines.lost;
        assert!((1..1_100).contains(&lost), "{lost}");
        let mut written = vec![0; (1_100 - usize::try_from(lost).unwrap()) * line.len()];
        reader.read_exact(&mut written).unwrap();
        lines.write_all(b"back\n").unwrap();
        drop(lines);
        let mut told = String::new();
        reader.read_to_string(&mut told).unwrap();
        let (first, rest) = told.split_once('\n').unwrap();
        let first: serde_json::Value = serde_json::from_str(first).unwrap();
        assert_eq!((&first["lost"], rest), (&lost.into(), "back\n"));
    }

    #[test]
    fn a_line_that_was_cut_does_not_hide_the_next_one() {
        let (mut reader, writer) = io::pipe().unwrap();
        let mut lines = Lines::new(writer, LogForm::Json);
        // Longer than a pipe holds: the beginning is written, the rest is lost.
        lines.write_all(&vec![b'x'; 4 << 20]).unwrap();
        assert_eq!(lines.lost, 1);
        reader.read_exact(&mut [0; PIECE_BYTES_MAX]).unwrap();
        lines.write_all(b"back\n").unwrap();
        drop(lines);
        let mut told = String::new();
        reader.read_to_string(&mut told).unwrap();
        let told = told.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        assert_eq!(told.map(|line| line["lost"].clone()).collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn a_log_without_a_reader_is_no_error() {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let mut lines = Lines::new(writer, LogForm::Text);
        (0..2).for_each(|_| lines.write_all(b"line\n").unwrap());
        assert_eq!(lines.lost, 2);
    }
}
