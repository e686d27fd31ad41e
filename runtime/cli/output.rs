//! Prints results: a table for people, JSON for programs, JSON lines for streams.
//!
//! At a terminal a table fits the width, with short ids and relative times, and important words have colours.

use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;

use clap::ValueEnum;
use clap::builder::styling::{AnsiColor, Style};
use effectd_contracts::{Clock, SystemClock, Timestamp};
use serde::Serialize;
use unicode_width::UnicodeWidthStr;

use super::eprint_line;
use super::short_id::{self, is_long};
use crate::exit::Exit;
use crate::tui::{ratatui, shown, shown_text};

/// When to use colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum ColorChoice {
    /// At a terminal, unless NO_COLOR is set, CLICOLOR is 0 or TERM is `dumb`; everywhere if CLICOLOR_FORCE is set
    Auto,
    Always,
    Never,
}

impl ColorChoice {
    pub(super) fn applies_to(self, stream: &impl IsTerminal) -> bool {
        let set =
            |name, than: fn(&std::ffi::OsStr) -> bool| std::env::var_os(name).is_some_and(|it| than(&it));
        match self {
            ColorChoice::Auto if set("NO_COLOR", |it| !it.is_empty()) => false,
            ColorChoice::Auto if set("CLICOLOR_FORCE", |it| !it.is_empty() && it != "0") => true,
            ColorChoice::Auto => {
                stream.is_terminal() && !set("CLICOLOR", |it| it == "0") && !set("TERM", |it| it == "dumb")
            }
            ColorChoice::Always => true,
            ColorChoice::Never => false,
        }
    }
}

/// What standard output can show.
#[derive(Debug, Clone, Copy, Default)]
struct Look {
    colours: bool,
    /// The width of the terminal; `None` if it is not a terminal.
    columns: Option<usize>,
}

static LOOK: OnceLock<Look> = OnceLock::new();

static FORM: OnceLock<Form> = OnceLock::new();

/// The output format, for messages and dry runs.
pub(super) fn form() -> Form {
    FORM.get().copied().unwrap_or(Form::Table)
}

/// Decides once how results and errors look.
pub(super) fn set_look(color: ColorChoice, form: Form) {
    let _ = FORM.set(form);
    let out = io::stdout();
    let size = || ratatui::crossterm::terminal::size().ok().filter(|(columns, _)| *columns > 0);
    let columns = if out.is_terminal() { size().map(|(columns, _)| usize::from(columns)) } else { None };
    let colours = color.applies_to(&out);
    // The full-screen views follow the same decision.
    ratatui::crossterm::style::force_color_output(colours);
    // Called once, before any output.
    let _ = LOOK.set(Look { colours, columns });
}

fn look() -> Look {
    LOOK.get().copied().unwrap_or_default()
}

/// How a line looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tone {
    Heading,
    Good,
    Waiting,
    Bad,
}

impl Tone {
    fn style(self) -> Style {
        let bold = Style::new().bold();
        match self {
            Tone::Heading => bold,
            Tone::Good => bold.fg_color(Some(AnsiColor::Green.into())),
            Tone::Waiting => bold.fg_color(Some(AnsiColor::Yellow.into())),
            Tone::Bad => bold.fg_color(Some(AnsiColor::Red.into())),
        }
    }
}

/// Prints text for people, whose first line has this tone; names in front of the other lines are dim.
pub(super) fn headed(text: &str, tone: Tone) {
    let mut lines = text.trim_end().split('\n');
    toned(lines.next().unwrap_or_default(), tone);
    for text in lines {
        match text.split_at_checked(NAME_COLUMNS).filter(|_| look().colours) {
            Some((name, value)) => {
                let dim = Style::new().dimmed();
                data(&format!("{dim}{}{dim:#}{}", shown_text(name), shown_text(value)));
            }
            None => line(text),
        }
    }
}

/// Columns of the name in front of a line: two blanks, nine letters and a blank.
const NAME_COLUMNS: usize = 12;

pub(super) fn toned(text: &str, tone: Tone) {
    if look().colours {
        let style = tone.style();
        data(&format!("{style}{}{style:#}", shown_text(text)));
    } else {
        line(text);
    }
}

/// A time in a table: without fractions of a second, and with its zone.
pub(super) fn second(time: &str) -> String {
    match time.split_once('.') {
        Some((second, _)) => format!("{second}Z"),
        None => time.to_owned(),
    }
}

/// How long ago a time was, or in how long it will be.
fn relative(time: Timestamp, now: Timestamp) -> String {
    let seconds = now.as_second() - time.as_second();
    let span = match seconds.unsigned_abs() {
        0 => return "now".to_owned(),
        span @ 1..60 => format!("{span}s"),
        span @ 60..3_600 => format!("{}m", span / 60),
        span @ 3_600..172_800 => format!("{}h", span / 3_600),
        span => format!("{}d", span / 86_400),
    };
    if seconds > 0 { format!("{span} ago") } else { format!("in {span}") }
}

/// How a table at a terminal shows times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Times {
    /// `59m ago`
    Relative,
    /// `11-17 10:05:33+01:00`, in local time: for lines that stay on the screen while time passes.
    Clock,
}

impl Times {
    /// The width of a column of times.
    const fn columns(self) -> usize {
        match self {
            Times::Relative => 7,
            Times::Clock => 20,
        }
    }

    fn text(self, time: Timestamp, clock: &dyn Clock) -> String {
        match self {
            Times::Relative => relative(time, clock.now()),
            Times::Clock => {
                let offset = clock.utc_offset_min(time);
                let local = time.as_second() + i64::from(offset) * 60;
                let local = Timestamp::from_second(local).unwrap_or(time).to_string();
                let (sign, minutes) = (if offset < 0 { '-' } else { '+' }, offset.unsigned_abs());
                let local = local.get(5..19).unwrap_or(&local).replace('T', " ");
                format!("{local}{sign}{:02}:{:02}", minutes / 60, minutes % 60)
            }
        }
    }
}

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

/// Columns that have times.
const TIMES: [&str; 7] = ["ENDED", "EXPIRES", "FIRST", "LAST", "SENT", "SINCE", "TIME"];
/// Columns that people copy from: their cells are never cut, even if the line becomes longer than the terminal.
const WHOLE: [&str; 3] = ["KEY", "PUBLIC", "VALUE"];
/// The narrowest that a column gets.
const NARROW: usize = 6;
/// Blanks between two columns.
const GAP: usize = 2;

/// The widths of columns in a terminal this wide. Ids become short first, then the widest columns narrower, times last. A short id
/// stays long enough to be unique, even if the line becomes longer than the terminal. The last column takes what is left.
fn fitted(columns: &[Column], terminal: usize, times: Times) -> Vec<usize> {
    let narrowest = |column: &Column| if is_id(column) { short_id::SHOWN } else { NARROW };
    let is_firm = |column: &Column| TIMES.contains(&column.0) || WHOLE.contains(&column.0) || is_id(column);
    let room = terminal.saturating_sub(GAP * columns.len().saturating_sub(1));
    let mut widths: Vec<usize> = columns
        .iter()
        .map(|(name, width)| match *width {
            _ if TIMES.contains(name) => times.columns(),
            0 => 4 * NARROW,
            width => width,
        })
        .collect();
    if widths.iter().sum::<usize>() > room {
        widths
            .iter_mut()
            .filter(|width| **width >= short_id::FULL)
            .for_each(|width| *width = short_id::SHOWN);
    }
    for firm in [false, true] {
        while widths.iter().sum::<usize>() > room {
            let narrower = widths
                .iter_mut()
                .zip(columns)
                .filter(|(width, column)| (firm || !is_firm(column)) && **width > narrowest(column));
            let Some(widest) = narrower.map(|(width, _)| width).max() else {
                break;
            };
            *widest -= 1;
        }
    }
    let left = room.saturating_sub(widths.iter().sum());
    if let Some(last) = widths.last_mut() {
        *last += left;
    }
    widths
}

/// Whether a column has ids.
const fn is_id(column: &Column) -> bool {
    column.1 >= short_id::FULL
}

/// Prints results one by one.
pub(super) struct Printer {
    form: Form,
    /// Whether JSON output is an array of results.
    many: bool,
    columns: &'static [Column],
    /// The terminal's width.
    terminal: Option<usize>,
    times: Times,
    widths: Vec<usize>,
    printed: usize,
}

/// A cell at a terminal: a time as the table shows times, and an id is short if its column is narrow.
fn short_cell(name: &str, width: usize, cell: &str, times: Times, clock: &dyn Clock) -> String {
    // Some times come without fraction and zone, which is UTC.
    let time = || cell.parse().or_else(|_| format!("{cell}Z").parse::<Timestamp>()).ok();
    match TIMES.contains(&name).then(time).flatten() {
        Some(time) => times.text(time, clock),
        None if is_long(cell) && width < cell.len() && !WHOLE.contains(&name) => {
            cell[..short_id::SHOWN].to_owned()
        }
        None => shown(cell, usize::MAX),
    }
}

/// Prints one result.
pub(super) fn print_one<T: Serialize, const N: usize>(
    form: Form,
    columns: &'static [Column; N],
    item: &T,
    cells: impl Fn(&T) -> [String; N],
) -> Exit {
    let mut printer = Printer::new(form, false, columns);
    printer.row(item, &cells(item));
    printer.finish();
    Exit::Done
}

/// Prints a list.
pub(super) fn print_rows<T: Serialize, const N: usize>(
    form: Form,
    columns: &'static [Column; N],
    items: &[T],
    cells: impl Fn(&T) -> [String; N],
) -> Exit {
    let mut printer = Printer::new(form, true, columns);
    items.iter().for_each(|item| printer.row(item, &cells(item)));
    printer.finish_list();
    Exit::Done
}

impl Printer {
    pub(super) fn new(form: Form, many: bool, columns: &'static [Column]) -> Self {
        let terminal = look().columns;
        let widths = match terminal {
            Some(terminal) => fitted(columns, terminal, Times::Relative),
            None => columns.iter().map(|(_, width)| *width).collect(),
        };
        Self { form, many, columns, terminal, times: Times::Relative, widths, printed: 0 }
    }

    /// Shows the time of the clock instead of relative times.
    pub(super) fn with_clock_times(mut self) -> Self {
        self.times = Times::Clock;
        if let Some(terminal) = self.terminal {
            self.widths = fitted(self.columns, terminal, self.times);
        }
        self
    }

    /// Prints one result; `cells` are its columns in a table.
    pub(super) fn row(&mut self, value: &impl Serialize, cells: &[impl AsRef<str>]) {
        let first = self.printed == 0;
        self.printed += 1;
        match self.form {
            Form::Table => {
                if first {
                    let names: Vec<_> = self.columns.iter().map(|(name, _)| *name).collect();
                    toned(self.aligned(&names).trim_end(), Tone::Heading);
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

    /// One row of a table. Line breaks in a cell are escaped. At a terminal, cells are cut if the row is too long.
    fn aligned(&self, cells: &[impl AsRef<str>]) -> String {
        let Some(terminal) = self.terminal else {
            let cells = cells.iter().map(|cell| shown(cell.as_ref(), usize::MAX));
            return self.padded(cells);
        };
        // The last cell that is not empty has the rest of the row.
        let last = cells.iter().rposition(|cell| !cell.as_ref().is_empty());
        let rest =
            |at| self.widths.iter().skip(at).map(|width| width + GAP).sum::<usize>().saturating_sub(GAP);
        let columns = self.columns.iter().zip(&self.widths).zip(cells).enumerate();
        let short = columns.map(|(at, (((name, _), width), cell))| {
            let width = if Some(at) == last { rest(at) } else { *width };
            short_cell(name, width, cell.as_ref(), self.times, &SystemClock)
        });
        let cells: Vec<String> = short.collect();
        let row = self.padded(cells.iter().cloned());
        if row.trim_end().width() <= terminal {
            return row;
        }
        let is_whole = |column: &Column| WHOLE.contains(&column.0);
        let cut =
            cells.iter().zip(self.columns).zip(&self.widths).map(|((cell, column), width)| {
                if is_whole(column) { cell.clone() } else { shown(cell, *width) }
            });
        let row = self.padded(cut);
        let may_be_longer = |column: &Column| is_whole(column) || is_id(column);
        if self.columns.iter().any(may_be_longer) { row } else { shown(&row, terminal) }
    }

    fn padded(&self, cells: impl Iterator<Item = String>) -> String {
        let padded = self.widths.iter().zip(cells).map(|(width, cell)| {
            let blanks = width.saturating_sub(cell.width());
            format!("{cell}{}", " ".repeat(blanks))
        });
        padded.collect::<Vec<_>>().join(&" ".repeat(GAP))
    }

    /// [`Printer::finish`] of a list, which says so if it is empty.
    pub(super) fn finish_list(self) {
        if self.form == Form::Table && self.printed == 0 {
            eprint_line(&"the list is empty");
        }
        self.finish();
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
    #![allow(clippy::unwrap_used)]
    use effectd_contracts::ManualClock;
    use effectd_contracts::text::is_unprintable;
    use proptest::prelude::*;

    use super::*;

    const COLUMNS: &[Column] = &[("ENDED", 24), ("TOOL", 20), ("ACTION", 36), ("RECEIPT", 36)];
    const ID: &str = "0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a36";

    #[test]
    fn a_row_fits_any_terminal() {
        let then = Timestamp::from_second(SystemClock.now().as_second() - 300).unwrap().to_string();
        for terminal in [20, 40, 80, 81, 120, 200] {
            let mut printer = Printer::new(Form::Table, true, COLUMNS);
            (printer.terminal, printer.widths) = (Some(terminal), fitted(COLUMNS, terminal, Times::Relative));
            // Two short ids, and two other columns that are as narrow as they get.
            let terminal_or_ids = terminal.max(2 * short_id::SHOWN + 2 * NARROW + 3 * GAP);
            for tool in ["files.stat", "a.very_long_name_of_a_tool_that_does_not_fit_into_its_column"] {
                let row = printer.aligned(&[then.as_str(), tool, ID, ID]);
                assert!(row.trim_end().width() <= terminal_or_ids, "{terminal}: {row}");
                assert!(row.contains("ago"), "{row}");
                assert_eq!(row.matches(ID).count(), if terminal >= 120 { 2 } else { 0 }, "{row}");
                assert_eq!(row.matches(&ID[..short_id::SHOWN]).count(), 2, "{terminal}: {row}");
            }
            // An action without a receipt cannot be found by a short id.
            let row = printer.aligned(&[then.as_str(), "files.stat", ID, ""]);
            assert!(row.trim_end().width() <= terminal_or_ids, "{terminal}: {row}");
            assert_eq!(row.contains(ID), terminal >= 80, "{terminal}: {row}");
        }
    }

    #[test]
    fn times_are_relative_to_now() {
        let now: Timestamp = "2026-11-17T10:00:00Z".parse().unwrap();
        for (time, text) in [
            ("2026-11-17T10:00:00.9Z", "now"),
            ("2026-11-17T09:59:59Z", "1s ago"),
            ("2026-11-17T09:00:01Z", "59m ago"),
            ("2026-11-16T10:00:00Z", "24h ago"),
            ("2026-11-10T10:00:00Z", "7d ago"),
            ("2026-11-17T10:05:00Z", "in 5m"),
        ] {
            assert_eq!(relative(time.parse().unwrap(), now), text, "{time}");
        }
        for time in ["2026-11-17T09:00:00.123Z", "2026-11-17T09:00:00Z"] {
            assert_eq!(second(time), "2026-11-17T09:00:00Z", "a time has a zone");
        }
        assert_eq!(second("-"), "-");
        let clock = ManualClock::at(now);
        let cell = |name, cell, times| short_cell(name, 10, cell, times, &clock);
        assert_eq!(cell("TIME", "2026-11-17T09:00:00", Times::Relative), "1h ago");
        assert_eq!(cell("TIME", "2026-11-17T09:00:00.123Z", Times::Clock), "11-17 09:00:00+00:00");
        assert_eq!(cell("TOOL", "2026-11-17T09:00:00Z", Times::Relative), "2026-11-17T09:00:00Z");
    }

    /// In a process of its own, since a process has one zone.
    #[test]
    #[expect(clippy::disallowed_types, reason = "starts itself")]
    fn a_clock_time_has_the_offset_of_its_day() {
        const ZONE: &str = "CET-1CEST,M3.5.0,M10.5.0/3";
        if std::env::var("TZ").as_deref() != Ok(ZONE) {
            let test = "cli::output::tests::a_clock_time_has_the_offset_of_its_day";
            let mut command = std::process::Command::new(std::env::current_exe().unwrap());
            let ran = command.args(["--exact", test]).env("TZ", ZONE).output().unwrap();
            let told = String::from_utf8_lossy(&ran.stdout);
            assert!(ran.status.success() && told.contains("1 passed"), "{told}");
            return;
        }
        let cell = |time| short_cell("TIME", 20, time, Times::Clock, &SystemClock);
        assert_eq!(cell("2026-07-01T12:00:00Z"), "07-01 14:00:00+02:00");
        assert_eq!(cell("2026-11-17T12:00:00Z"), "11-17 13:00:00+01:00");
    }

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
