//! Prints results: a table for people, JSON for programs, JSON lines for streams.

use std::io::{self, Write};
use std::sync::OnceLock;

use clap::ValueEnum;
use serde::Serialize;

use super::eprint_line;
use crate::exit::Exit;
use crate::tui::{shown, shown_text};

/// An output format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Form {
    /// For people.
    #[value(alias = "text")]
    Table,
    /// For programs: one JSON value.
    Json,
    /// For programs that read a stream: one JSON value per line.
    Jsonl,
}

/// The name and the width of a column.
pub(super) type Column = (&'static str, usize);

/// Prints results one by one.
pub(super) struct Printer {
    form: Form,
    /// Whether JSON output is an array of results.
    many: bool,
    columns: &'static [Column],
    printed: usize,
}

/// Prints a list.
pub(super) fn print_rows<T: Serialize, const N: usize>(
    form: Form,
    columns: &'static [Column; N],
    items: &[T],
    cells: impl Fn(&T) -> [String; N],
) {
    let mut printer = Printer::new(form, true, columns);
    items.iter().for_each(|item| printer.row(item, &cells(item)));
    printer.finish();
}

impl Printer {
    pub(super) fn new(form: Form, many: bool, columns: &'static [Column]) -> Self {
        Self { form, many, columns, printed: 0 }
    }

    /// Prints one result; `cells` are its columns in a table.
    pub(super) fn row(&mut self, value: &impl Serialize, cells: &[impl AsRef<str>]) {
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
            Form::Jsonl | Form::Json => {
                if self.many && self.form == Form::Json {
                    data(if first { "[" } else { "," });
                }
                // Cannot fail: results are plain data with text keys.
                print_json(self.form, &serde_json::to_value(value).unwrap_or_default());
            }
        }
    }

    /// One row of a table. Line breaks in a cell are escaped.
    fn aligned(&self, cells: &[impl AsRef<str>]) -> String {
        let padded = self
            .columns
            .iter()
            .zip(cells)
            .map(|((_, width), cell)| format!("{:<width$}", shown(cell.as_ref(), usize::MAX)));
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

/// Prints a value as JSON; `false` if the format is a table, which the caller prints.
pub(super) fn print_json(form: Form, value: &impl Serialize) -> bool {
    let text = match form {
        Form::Table => return false,
        Form::Json => serde_json::to_string_pretty(value),
        Form::Jsonl => serde_json::to_string(value),
    };
    match text {
        Ok(text) => data(&text),
        Err(error) => eprint_line(&error),
    }
    true
}

/// Standard output of all commands. After a failed write the program ends with [`Exit::Output`]. If the reader has closed the
/// pipe, that is not an error.
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

/// Remembers a failed write to standard output.
pub(super) fn note<T>(done: io::Result<T>) -> io::Result<T> {
    let harmless = [io::ErrorKind::BrokenPipe, io::ErrorKind::Interrupted];
    if let Err(error) = &done
        && !harmless.contains(&error.kind())
    {
        // Only the first failure is kept.
        let _ = FAILED.set(error.to_string());
    }
    done
}

/// The exit code of the program, after it has flushed all output.
pub(super) fn ended(exit: Exit) -> Exit {
    // [`Stdout`] remembers a failure.
    let _ = Stdout.flush();
    let Some(why) = FAILED.get() else {
        return exit;
    };
    eprint_line(&format!("standard output cannot be written: {why}"));
    Exit::Output
}

/// Prints lines for programs. Returns `false` if they cannot be written or the reader has closed the pipe.
pub(super) fn lines(texts: impl Iterator<Item = String>) -> bool {
    let mut out = io::BufWriter::new(Stdout);
    let mut texts = texts;
    texts.try_for_each(|text| writeln!(out, "{text}")).is_ok() && out.flush().is_ok()
}

/// Prints text for people, without terminal commands.
pub(super) fn line(text: &str) {
    data(&shown_text(text));
}

/// Prints a line for programs, unchanged.
pub(super) fn data(text: &str) {
    // [`Stdout`] remembers a failure.
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
