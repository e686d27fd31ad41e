//! How results are shown: a table for people, JSON for programs, JSON lines for streams.

use std::io::{self, Write};
use std::sync::OnceLock;

use clap::ValueEnum;
use serde_json::Value;

use super::complain;
use crate::exit::Exit;
use crate::tui::{shown, shown_text};

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
            Form::Jsonl => data(&value.to_string()),
            Form::Json => {
                if self.many {
                    data(if first { "[" } else { "," });
                }
                match serde_json::to_string_pretty(value) {
                    Ok(text) => data(&text),
                    Err(error) => complain(&error),
                }
            }
        }
    }

    /// One row. A cell is one line, whatever is in it.
    fn aligned(&self, cells: &[&str]) -> String {
        let padded = self
            .columns
            .iter()
            .zip(cells)
            .map(|((_, width), cell)| format!("{:<width$}", shown(cell, usize::MAX)));
        padded.collect::<Vec<_>>().join("  ")
    }

    pub(super) fn finish(self) {
        if self.form == Form::Json && self.many {
            if self.printed == 0 {
                data("[");
            }
            data("]");
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
        Ok(text) => data(&text),
        Err(error) => complain(&error),
    }
    true
}

/// Standard output: every command writes through this. What cannot be written is noted, and the program ends with
/// [`Exit::Output`]; a reader that has closed the pipe has seen enough, and that is no failure.
pub(super) struct Stdout;

static FAILED: OnceLock<String> = OnceLock::new();

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        note(io::stdout().write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        note(io::stdout().flush())
    }
}

/// Notes a failure to write to standard output.
pub(super) fn note<T>(done: io::Result<T>) -> io::Result<T> {
    let harmless = [io::ErrorKind::BrokenPipe, io::ErrorKind::Interrupted];
    if let Err(error) = &done
        && !harmless.contains(&error.kind())
    {
        // The first one is told.
        let _ = FAILED.set(error.to_string());
    }
    done
}

/// How the program ends after all output is written.
pub(super) fn ended(exit: Exit) -> Exit {
    // A failure is noted.
    let _ = Stdout.flush();
    let Some(why) = FAILED.get() else {
        return exit;
    };
    complain(&format!("standard output cannot be written: {why}"));
    Exit::Output
}

/// Lines of data: `false` if they cannot be written, or their reader is gone.
pub(super) fn lines(texts: impl Iterator<Item = String>) -> bool {
    let mut out = io::BufWriter::new(Stdout);
    let mut texts = texts;
    texts.try_for_each(|text| writeln!(out, "{text}")).is_ok() && out.flush().is_ok()
}

/// A line for people, or several: text from elsewhere in it commands no terminal.
pub(super) fn line(text: &str) {
    data(&shown_text(text));
}

/// A line for programs, as it is.
pub(super) fn data(text: &str) {
    // A failure is noted.
    let _ = writeln!(Stdout, "{text}");
}

#[cfg(test)]
mod tests {
    use effectd_contracts::text::is_unprintable;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_row_of_a_table_has_an_unprintable_character(
            cells in proptest::collection::vec(proptest::collection::vec(any::<char>(), 0..40), 3),
            hidden in "[\\p{Cc}\\p{Cf}\\p{Zl}\\p{Zp}\\p{Co}]{1,3}",
        ) {
            let printer = Printer::new(Form::Table, true, &[("A", 8), ("B", 0), ("C", 3)]);
            let mut cells: Vec<String> = cells.into_iter().map(|cell| cell.into_iter().collect()).collect();
            cells[1].push_str(&hidden);
            let cells: Vec<&str> = cells.iter().map(String::as_str).collect();
            let row = printer.aligned(&cells);
            prop_assert!(!row.chars().any(is_unprintable), "{row:?}");
            prop_assert_eq!(shown_text(&row), row);
        }
    }
}
