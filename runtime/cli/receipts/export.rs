//! `effectd receipts export`: receipts as JSON lines, CSV, a dataset, or a verifiable bundle.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use effectd_contracts::text::counted;
use effectd_contracts::{
    AmendmentEntry, BundleHead, Choice, Judgement, Receipt, ReceiptId, Reward, canonical,
};
use effectd_gateway::client::Client;
use effectd_gateway::views::ReceiptList;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::log;
use super::verify::lacks_body;
use crate::cli::progress::Bar;
use crate::cli::receipt_filter::{PageQuery, ReceiptFilter, each_page, page};
use crate::cli::{CliError, Common, Depth, data, eprint_line, lines, with_client};
use crate::error::Error;
use crate::exit::Exit;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// One receipt per line, in canonical JSON, as it was signed.
    Jsonl,
    /// The frame: the figures of each receipt, with its amendments, as a row.
    Csv,
}

/// Write receipts, oldest first: to standard output, as a dataset, or as a bundle that anybody can verify
///
/// A dataset is a folder with `frame.jsonl` and `frame.csv` (a row per receipt, with its amendments), `receipts.jsonl`, `amendments.jsonl`
/// and `manifest.json`; the same receipts give the same bytes on every machine. It leaves out operators' own operations. A bundle holds entries of the log with a signed head: `effectd receipts verify` checks it anywhere. Memory does not grow with
/// the number of receipts.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  effectd receipts export 'tool:files.*' since:7d --format csv\n  effectd receipts export --dataset march until:2026-04-01T00:00:00Z\n  effectd receipts export --bundle receipts.bundle"
)]
pub(in crate::cli) struct Export {
    #[command(flatten)]
    which: ReceiptFilter,
    /// Format on standard output
    #[arg(long, value_enum, default_value = "jsonl", value_name = "FORMAT")]
    format: Format,
    /// Begin after this position, which an interrupted export printed
    #[arg(long, value_name = "NUMBER")]
    after: Option<u64>,
    /// Write a dataset into a new folder
    #[arg(long, value_name = "DIR", conflicts_with_all = ["bundle", "after"])]
    dataset: Option<PathBuf>,
    /// Include operators' own operations in the dataset
    #[arg(long, requires = "dataset")]
    operations: bool,
    /// Write a bundle of the log into a new file
    #[arg(long, value_name = "FILE", conflicts_with = "filter")]
    bundle: Option<PathBuf>,
    /// The first entry of the bundle
    #[arg(long, value_name = "ENTRY", default_value_t = 0, requires = "bundle")]
    from: u64,
}

impl Export {
    pub(super) async fn main(&self, common: &Common) -> Result<Exit, CliError> {
        let what = "exporting receipts";
        let is_file = self.bundle.is_some() || self.dataset.is_some();
        let bar = if is_file { Bar::new(what) } else { Bar::beside_output(what) };
        let said = with_client(common, Depth::Store, async |client| match &self.bundle {
            Some(path) => bundle(client, path, self.from, &bar).await.map(Some),
            None => self.receipts(client, &bar).await,
        })
        .await?;
        drop(bar);
        said.into_iter().for_each(|said| eprint_line(&said));
        Ok(Exit::Done)
    }

    /// Returns what to say at the end, as the other exports do.
    async fn receipts(&self, client: &mut Client, bar: &Bar) -> Result<Option<String>, CliError> {
        // A first request, so that no file is created if it fails.
        let first = PageQuery { limit: 1, ..PageQuery::OLDEST };
        page(client, &self.which, first).await?;
        if let Some(folder) = &self.dataset {
            let mut which = self.which.clone();
            if !self.operations {
                which.filter.push("-space:effectd".to_owned());
            }
            return dataset(client, &which, folder, self.operations, bar).await.map(Some);
        }
        if self.format == Format::Csv && self.after.is_none() {
            data(&header());
        }
        let amendments = self.format == Format::Csv;
        let query = PageQuery { after: self.after, amendments, ..PageQuery::OLDEST };
        let reached = each_page(client, &self.which, query, bar, |page| {
            Ok(match self.format {
                Format::Jsonl => lines(page.receipts.iter().map(text)),
                Format::Csv => lines(rows(page).map(|row| csv(&row))),
            })
        })
        .await?;
        Ok(reached.map(|reached| format!("to continue from here: --after {reached}")))
    }
}

/// A receipt in the form that was signed.
fn text(receipt: &Receipt) -> String {
    // Cannot fail: a receipt is plain data with text keys.
    canonical::of(receipt).unwrap_or_default()
}

/// A receipt with its amendments: a row of the frame.
struct Row<'a> {
    receipt: &'a Receipt,
    amendments: &'a [AmendmentEntry],
}

/// The rows of a page, in which the amendments are in the order of the receipts.
fn rows(page: &ReceiptList) -> impl Iterator<Item = Row<'_>> {
    let mut left = page.amendments.as_slice();
    page.receipts.iter().map(move |receipt| {
        let own = left.iter().take_while(|amendment| amendment.receipt_id == receipt.receipt_id).count();
        let (amendments, later) = left.split_at(own);
        left = later;
        Row { receipt, amendments }
    })
}

impl Row<'_> {
    /// The reward in force.
    fn reward(&self) -> &Reward {
        self.amendments.last().map_or(&self.receipt.reward, |last| &last.reward)
    }

    fn judged(&self) -> Judgement {
        Judgement::of(self.amendments)
    }

    /// A part of what the planner said about its choice; null if it said nothing.
    fn choice(&self, part: impl Fn(&Choice) -> Value) -> Value {
        self.receipt.choice.as_ref().map_or(Value::Null, part)
    }
}

type Column = (&'static str, fn(&Row<'_>) -> Value);

/// The columns of the frame; docs/receipts.md says what each means.
#[rustfmt::skip]
const COLUMNS: [Column; 31] = [
    ("receipt_id", |row| json!(row.receipt.receipt_id)),
    ("action_id", |row| json!(row.receipt.action_id)),
    ("tool_id", |row| json!(row.receipt.tool_id)),
    ("tool_version", |row| json!(row.receipt.tool_version)),
    ("space_id", |row| json!(row.receipt.space_id)),
    ("subject_id", |row| json!(row.receipt.subject_id)),
    ("principal", |row| json!(row.receipt.principal)),
    ("tier", |row| json!(row.receipt.decision.as_ref().map(|decision| decision.tier))),
    ("status", |row| json!(row.receipt.status)),
    ("outcome", |row| json!(row.receipt.outcome)),
    ("code", |row| json!(row.receipt.error.as_ref().map(|failure| failure.code))),
    ("started_at", |row| json!(row.receipt.timing.started_at)),
    ("ended_at", |row| json!(row.receipt.timing.ended_at)),
    ("queued_ms", |row| json!(row.receipt.timing.queued_ms)),
    ("exec_ms", |row| json!(row.receipt.timing.exec_ms)),
    ("total_ms", |row| json!(row.receipt.timing.total_ms)),
    ("cpu_ms", |row| json!(row.receipt.cost.cpu_ms)),
    ("energy_mwh", |row| json!(row.receipt.cost.energy_mwh)),
    ("peak_memory_bytes", |row| json!(row.receipt.cost.peak_memory_bytes)),
    ("bytes_written", |row| json!(row.receipt.cost.bytes_written)),
    ("attempts", |row| json!(row.receipt.attempts.len())),
    ("success", |row| json!(row.judged().is_success(row.receipt))),
    ("quality", |row| json!(row.judged().quality_of(row.receipt))),
    ("reward", |row| json!(row.reward().scalar)),
    ("reward_v2", |row| json!(row.reward().v2)),
    ("amendments", |row| json!(row.amendments.len())),
    ("chosen", |row| row.choice(|choice| json!(choice.chosen))),
    ("propensity", |row| row.choice(|choice| json!(choice.propensity))),
    ("candidates", |row| row.choice(|choice| json!(choice.candidates))),
    ("context", |row| row.choice(|choice| json!(choice.context))),
    ("trace_id", |row| json!(row.receipt.trace_id)),
];

fn header() -> String {
    COLUMNS.map(|(name, _)| name).join(",")
}

fn csv(row: &Row<'_>) -> String {
    let cells = COLUMNS.map(|(_, cell)| match cell(row) {
        Value::Null => String::new(),
        Value::String(text) => quoted(&text),
        other @ (Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_)) => {
            quoted(&canonical::to_string(&other))
        }
    });
    cells.join(",")
}

fn json_line(row: &Row<'_>) -> String {
    let cells = COLUMNS.map(|(name, cell)| (name.to_owned(), cell(row)));
    canonical::to_string(&Value::Object(cells.into_iter().collect()))
}

/// A CSV cell by RFC 4180. A cell that a spreadsheet would take for a formula gets an apostrophe.
fn quoted(cell: &str) -> String {
    let formula = cell.starts_with(['=', '+', '@', '\t', '\r'])
        || (cell.starts_with('-') && cell.parse::<f64>().is_err());
    let cell = if formula { format!("'{cell}") } else { cell.to_owned() };
    if cell.contains(['"', ',', '\n', '\r']) { format!("\"{}\"", cell.replace('"', "\"\"")) } else { cell }
}

/// A new file, and the digest of its content so far.
struct OutputFile {
    file: BufWriter<File>,
    path: PathBuf,
    digest: Sha256,
    lines: u64,
}

impl OutputFile {
    fn new(path: PathBuf) -> Result<Self, Error> {
        let file = File::create_new(&path).map_err(|error| failed(&path, &error))?;
        Ok(Self { file: BufWriter::new(file), path, digest: Sha256::new(), lines: 0 })
    }

    fn line(&mut self, text: &str) -> Result<(), Error> {
        self.digest.update(text);
        self.digest.update("\n");
        self.lines += 1;
        writeln!(self.file, "{text}").map_err(|error| failed(&self.path, &error))
    }

    /// Syncs the file; returns its digest and its number of lines.
    fn finish(mut self) -> Result<(String, u64), Error> {
        let written = self.file.flush().and_then(|()| self.file.get_ref().sync_all());
        written.map_err(|error| failed(&self.path, &error))?;
        let digest = effectd_contracts::Digest::from_bytes(self.digest.finalize().into());
        Ok((digest.to_string(), self.lines))
    }
}

fn failed(path: &Path, error: &io::Error) -> Error {
    Error::Request(format!("{} cannot be written: {error}", path.display()))
}

/// Writes the frame, receipts, amendments and a manifest. Their bytes do not depend on where or when they are written.
async fn dataset(
    client: &mut Client,
    which: &ReceiptFilter,
    folder: &Path,
    operations: bool,
    bar: &Bar,
) -> Result<String, CliError> {
    let filter = which.parsed()?;
    fs::create_dir(folder).map_err(|error| {
        if error.kind() == io::ErrorKind::AlreadyExists {
            Error::Request(format!("{} already exists; choose a new folder", folder.display()))
        } else {
            failed(folder, &error)
        }
    })?;
    let mut receipts = OutputFile::new(folder.join("receipts.jsonl"))?;
    let mut later = OutputFile::new(folder.join("amendments.jsonl"))?;
    let mut frame = OutputFile::new(folder.join("frame.jsonl"))?;
    let mut table = OutputFile::new(folder.join("frame.csv"))?;
    table.line(&header())?;
    let (mut first, mut last): (Option<ReceiptId>, Option<ReceiptId>) = (None, None);
    each_page(client, which, PageQuery { amendments: true, ..PageQuery::OLDEST }, bar, |page| {
        for row in rows(page) {
            let receipt = row.receipt;
            receipts.line(&text(receipt))?;
            for amendment in row.amendments {
                later.line(&canonical::of(amendment).unwrap_or_default())?;
            }
            frame.line(&json_line(&row))?;
            table.line(&csv(&row))?;
            first.get_or_insert_with(|| receipt.receipt_id.clone());
            last = Some(receipt.receipt_id.clone());
        }
        Ok(true)
    })
    .await?;
    let (receipts, count) = receipts.finish()?;
    let (later, amended) = later.finish()?;
    let (frame, rows) = frame.finish()?;
    let (table, table_lines) = table.finish()?;
    let manifest = json!({
        "dataset": 1,
        "since": filter.since().map(|time| time.to_string()),
        "until": filter.until().map(|time| time.to_string()),
        "first": first,
        "last": last,
        "operations": operations,
        "files": {
            "frame.jsonl": { "digest": frame, "lines": rows },
            "frame.csv": { "digest": table, "lines": table_lines },
            "receipts.jsonl": { "digest": receipts, "lines": count },
            "amendments.jsonl": { "digest": later, "lines": amended },
        },
    });
    let mut made = OutputFile::new(folder.join("manifest.json"))?;
    made.line(&canonical::to_string(&manifest))?;
    let (digest, _) = made.finish()?;
    let (count, amended) = (counted(count, "receipt"), counted(amended, "amendment"));
    Ok(format!("{count}, {amended}; the manifest's digest is {digest}"))
}

/// Writes the entries of the log from `from` on, up to a head that is signed now.
async fn bundle(client: &mut Client, path: &Path, from: u64, bar: &Bar) -> Result<String, CliError> {
    let head = log::head(client).await?;
    if from > head.size {
        let why = format!("the log has {}; there is no entry {from}", counted(head.size, "entry"));
        return Err(CliError::request(why));
    }
    let before = log::frontier(client, from).await?;
    let first = BundleHead {
        bundle: 1,
        from,
        frontier: before.peaks().to_vec(),
        keys: log::keys(client).await?,
        head: head.clone(),
    };
    let mut made = OutputFile::new(path.to_owned())?;
    made.line(&canonical::of(&first).unwrap_or_default())?;
    let mut next = from;
    while next < head.size {
        let lines = log::entries(client, next).await?;
        let Some(last) = lines.last() else { break };
        next = last.index + 1;
        bar.at(next - from, head.size - from);
        if let Some(line) = lines.iter().find(|line| lacks_body(line, &head)) {
            // Best effort: a check does not accept an incomplete bundle.
            let _ = fs::remove_file(path);
            let why = format!(
                "retention dropped entry {} while the bundle was written; export it again",
                line.index
            );
            return Err(CliError::request(why));
        }
        for entry in lines.iter().filter(|entry| entry.index < head.size) {
            made.line(&canonical::of(entry).unwrap_or_default())?;
        }
    }
    let (_, lines) = made.finish()?;
    let (written, covered) = (counted(lines - 1, "entry"), counted(head.size, "entry"));
    Ok(format!("{written}; the head covers {covered} and was signed at {}", head.at))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_row_has_a_cell_for_every_column_and_no_formula() {
        let golden = include_str!("../../../contracts/tests/golden/receipt.json");
        let mut receipt: Receipt = serde_json::from_str(golden).unwrap();
        receipt.trace_id = effectd_contracts::TraceId::new("=HYPERLINK(\"x\"),y").unwrap();
        let csv = |receipt: &Receipt| csv(&Row { receipt, amendments: &[] });
        let row = csv(&receipt);
        assert!(row.ends_with(",\"'=HYPERLINK(\"\"x\"\"),y\""), "{row}");
        receipt.trace_id = effectd_contracts::TraceId::new("t").unwrap();
        assert_eq!(csv(&receipt).split(',').count(), COLUMNS.len());
        assert_eq!((quoted("-0.1"), quoted("-x")), ("-0.1".to_owned(), "'-x".to_owned()));
    }

    #[test]
    fn success_and_quality_follow_from_the_status() {
        use effectd_contracts::{Outcome, Status};
        let golden = include_str!("../../../contracts/tests/golden/receipt.json");
        let mut receipt: Receipt = serde_json::from_str(golden).unwrap();
        for (outcome, status, success) in [
            (Outcome::Executed, Status::Ok, true),
            (Outcome::CachedHit, Status::Ok, true),
            (Outcome::DryRun, Status::Skipped, false),
            (Outcome::Failed, Status::Error, false),
        ] {
            (receipt.outcome, receipt.status) = (outcome, status);
            let row: Value =
                serde_json::from_str(&json_line(&Row { receipt: &receipt, amendments: &[] })).unwrap();
            assert_eq!(row["success"], success, "{row}");
            assert_eq!(row["quality"].as_f64().unwrap() > 0.0, success, "{row}");
        }
    }
}
