//! How results are shown: a table for people, JSON for programs, JSON lines for streams.

use clap::ValueEnum;
use serde_json::Value;

use super::complain;
use crate::error::Error;

/// How results are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Form {
    /// For people.
    #[value(alias = "text")]
    Table,
    /// For programs: one JSON value.
    Json,
    /// For programs that read as it comes: one JSON value a line.
    Jsonl,
}

/// Prints results one after another, as they come.
pub(super) struct Printer {
    form: Form,
    /// Several results are an array in JSON.
    many: bool,
    columns: &'static [(&'static str, usize)],
    printed: usize,
}

impl Printer {
    pub(super) fn new(form: Form, many: bool, columns: &'static [(&'static str, usize)]) -> Self {
        Self {
            form,
            many,
            columns,
            printed: 0,
        }
    }

    /// One result: the whole of it, and what stands in the columns.
    pub(super) fn row(&mut self, value: &Value, cells: &[&str]) {
        let first = self.printed == 0;
        self.printed += 1;
        match self.form {
            Form::Table => {
                if first {
                    let names: Vec<_> = self.columns.iter().map(|(name, _)| *name).collect();
                    line(self.aligned(&names).trim_end());
                }
                line(self.aligned(cells).trim_end());
            }
            Form::Jsonl => line(&value.to_string()),
            Form::Json => {
                if self.many {
                    line(if first { "[" } else { "," });
                }
                match serde_json::to_string_pretty(value) {
                    Ok(text) => line(&text),
                    Err(error) => complain(&error),
                }
            }
        }
    }

    fn aligned(&self, cells: &[&str]) -> String {
        let padded = self
            .columns
            .iter()
            .zip(cells)
            .map(|((_, width), cell)| format!("{cell:<width$}"));
        padded.collect::<Vec<_>>().join("  ")
    }

    /// After the last result.
    pub(super) fn finish(self) {
        if self.form == Form::Json && self.many {
            if self.printed == 0 {
                line("[");
            }
            line("]");
        }
    }
}

/// One value, for programs: `false` if people want to read something else.
pub(super) fn for_programs(form: Form, value: &impl serde::Serialize) -> bool {
    let text = match form {
        Form::Table => return false,
        Form::Json => serde_json::to_string_pretty(value),
        Form::Jsonl => serde_json::to_string(value),
    };
    match text {
        Ok(text) => line(&text),
        Err(error) => complain(&error),
    }
    true
}

/// Lines of data that must not be lost: `false` if nobody reads them any more, an error if they cannot be written.
pub(super) fn lines(texts: impl Iterator<Item = String>) -> Result<bool, Error> {
    use std::io::Write;
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let write = || {
        for text in texts {
            writeln!(out, "{text}")?;
        }
        out.flush()
    };
    match write() {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Error::Request(format!("standard output: {error}"))),
    }
}

/// A line of data. Whoever has closed the other end has seen enough.
pub(super) fn line(text: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stdout().lock(), "{text}");
}
