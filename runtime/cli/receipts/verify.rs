//! `effectd receipts verify|proof|head`: verify the log of receipts, a bundle or a proof.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use effectd_contracts::json::{JsonInvalid, parse_stored};
use effectd_contracts::limits::{REQUEST_BYTES_MAX, TOOL_REPLY_BYTES_MAX};
use effectd_contracts::merkle::Frontier;
use effectd_contracts::proof::{Checker, Report, check_proof};
use effectd_contracts::text::counted;
use effectd_contracts::{BundleHead, EntryKind, InclusionProof, LogEntry, LogHead, LogLine, ReceiptId};
use effectd_gateway::client::Client;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::log;
use crate::cli::progress::Bar;
use crate::cli::{CliError, Common, Depth, Form, eprint_line, line, print_json, with_client};
use crate::error::Error;
use crate::exit::Exit;

/// The longest line of a bundle: several times the largest receipt.
const LINE_BYTES_MAX: u64 = 4 * (REQUEST_BYTES_MAX + TOOL_REPLY_BYTES_MAX) as u64;
/// The number of lines of a bundle that are checked together.
const PAGE: usize = 500;
/// The bytes of a bundle in memory at one time; the last line may exceed them.
const PAGE_BYTES: usize = 16 * 1_048_576;

/// Check that every receipt is genuine, that none is missing, and that none was changed
///
/// Without FILE, it checks the whole log of this store: every hash and signature, the order, the tree against every signed head, and that
/// every intent has its receipt. With FILE, it checks a bundle (`receipts export --bundle`) or a proof (`receipts proof`), without a
/// store. Exits with 1 if anything is wrong, and names the entry.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  effectd receipts verify\n  effectd receipts export --bundle week.jsonl\n  effectd receipts verify week.jsonl"
)]
pub(in crate::cli) struct Verify {
    /// A bundle or a proof; without it, this store
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// A file with an earlier head: the log must still begin with the entries of that head
    #[arg(long, value_name = "FILE")]
    head: Option<PathBuf>,
    /// A key that must be among the signing keys: its id, or the whole key in hex
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
}

/// Print a proof that a receipt is in the log, for somebody without the store
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  effectd receipts proof 0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a12")]
pub(in crate::cli) struct Proof {
    /// The receipt, by its own id or its action's
    #[arg(value_name = "RECEIPT")]
    receipt: ReceiptId,
}

/// Sign the current head of the log, and print it
///
/// With a copy kept elsewhere you can later check that nothing before it was changed: `receipts verify --head`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  effectd receipts head")]
pub(in crate::cli) struct Head {}

impl Head {
    pub(super) async fn main(&self, common: &Common) -> Result<Exit, CliError> {
        let head = with_client(common, Depth::Store, log::head);
        print_json(Form::Json, &head.await?);
        Ok(Exit::Done)
    }
}

impl Proof {
    pub(super) async fn main(&self, common: &Common) -> Result<Exit, CliError> {
        let proof = with_client(common, Depth::Store, async |client| log::proof(client, &self.receipt).await);
        print_json(Form::Jsonl, &proof.await?);
        Ok(Exit::Done)
    }
}

impl Verify {
    pub(super) async fn main(&self, common: &Common) -> Result<Exit, CliError> {
        let known: Option<LogHead> = self.head.as_deref().map(read_json).transpose()?;
        let bar = Bar::new("verifying receipts");
        let report = match &self.file {
            Some(file) => self.of_file(file, known, &bar)?,
            None => {
                let verify = async |client: &mut Client| self.of_log(client, known, &bar).await;
                with_client(common, Depth::Store, verify).await?
            }
        };
        drop(bar);
        report.findings.iter().for_each(|finding| eprint_line(&finding.what));
        let more = report.findings_total - report.findings.len() as u64;
        if more > 0 {
            eprint_line(&format!("and {more} more"));
        }
        if !print_json(common.output, &report) {
            line(&summary(&report));
        }
        Ok(if report.ok { Exit::Done } else { Exit::Failed })
    }

    async fn of_log(
        &self,
        client: &mut Client,
        known: Option<LogHead>,
        bar: &Bar,
    ) -> Result<Report, CliError> {
        let mut head = log::head(client).await?;
        let mut checker = Checker::new(Frontier::default(), &log::keys(client).await?, head.clone());
        let mut from = 0;
        loop {
            let heads = log::heads(client, from).await?;
            let Some(last) = heads.last() else { break };
            from = last.index + 1;
            expect_heads(&mut checker, &heads, head.size);
        }
        known.into_iter().for_each(|known| checker.known(known));
        let mut lines = log::entries(client, 0).await?;
        loop {
            if lines.iter().any(|line| lacks_body(line, &head)) {
                // Retention may have dropped these bodies meanwhile; then a newer head says so.
                head = log::head(client).await?;
                checker.renew(head.clone());
            }
            lines.retain(|line| line.index < head.size);
            let Some(last) = lines.last() else { break };
            let next = last.index + 1;
            bar.at(next, head.size);
            // The next page comes while this one is checked.
            let checking = tokio::task::spawn_blocking(move || {
                checker.entries(&lines);
                checker
            });
            let (checked, page) = tokio::join!(checking, log::entries(client, next));
            checker = checked.map_err(|error| Error::Internal(format!("the check broke off: {error}")))?;
            lines = page?;
        }
        Ok(checker.finish(self.key.as_deref()))
    }

    fn of_file(&self, path: &Path, known: Option<LogHead>, bar: &Bar) -> Result<Report, CliError> {
        let mut lines = Lines::open(path)?;
        let first = lines.next().transpose()?.unwrap_or_default();
        let unusable = |why: String| CliError::request(format!("{}: {why}", path.display()));
        let first: Value = parse(&first)
            .map_err(|error| unusable(format!("this is neither a bundle nor a proof: {error}")))?;
        if first.get("proof").is_some() {
            let proof = InclusionProof::deserialize(first).map_err(|error| unusable(error.to_string()))?;
            if known.is_some_and(|known| known != proof.head) {
                let why = "the proof has another head than --head; verify a bundle, or omit --head";
                return Err(unusable(why.to_owned()));
            }
            return Ok(self.of_proof(&proof));
        }
        let bundle = BundleHead::deserialize(first)
            .map_err(|error| unusable(format!("this is neither a bundle nor a proof: {error}")))?;
        if bundle.bundle != 1 {
            let why =
                format!("{} is a bundle of format {}; this version knows 1", path.display(), bundle.bundle);
            return Err(CliError::request(why));
        }
        let before = Frontier::restore(bundle.from, bundle.frontier.clone())
            .ok_or_else(|| CliError::request(format!("{} begins with an invalid tree", path.display())))?;
        if let Some(known) = known.as_ref().filter(|known| known.size < bundle.from) {
            let why = format!(
                "the bundle begins after the entries of --head; export one with --from {} or less",
                known.size
            );
            return Err(unusable(why));
        }
        let mut checker = Checker::new(before, &bundle.keys, bundle.head.clone());
        // A head follows the entries that it covers, so all heads are read first.
        for line in lines {
            let line = line?;
            if is_head(&line)
                && let Ok(line) = parse::<LogLine>(&line)
            {
                expect_heads(&mut checker, &[line], bundle.head.size);
            }
        }
        known.into_iter().for_each(|known| checker.known(known));
        let (mut page, mut bytes) = (Vec::with_capacity(PAGE), 0);
        let size = bundle.head.size.saturating_sub(bundle.from);
        for (number, line) in Lines::open(path)?.enumerate().skip(1) {
            let line = line?;
            bytes += line.len();
            match parse::<LogLine>(&line) {
                Ok(line) => page.push(line),
                Err(error) => checker.fault(&page, format!("line {} cannot be read: {error}", number + 1)),
            }
            if page.len() == PAGE || bytes >= PAGE_BYTES {
                bar.at(page.last().map_or(0, |line| line.index.saturating_sub(bundle.from)), size);
                checker.entries(&page);
                page.clear();
                bytes = 0;
            }
        }
        checker.entries(&page);
        Ok(checker.finish(self.key.as_deref()))
    }

    fn of_proof(&self, proof: &InclusionProof) -> Report {
        let findings = check_proof(proof, self.key.as_deref());
        Report {
            ok: findings.is_empty(),
            from: proof.index,
            size: proof.head.size,
            root: Some(proof.head.root),
            receipts: 1,
            heads: 1,
            open: proof.head.open,
            kept_from: proof.head.kept_from,
            // An invalid key id is among the findings; here it is only escaped.
            keys: proof.keys.iter().map(|key| key.key_id.escape_debug().to_string()).collect(),
            findings_total: findings.len() as u64,
            findings,
            ..Report::default()
        }
    }
}

/// Whether a line of a bundle holds a head. Most lines do not, and this reads only one word of them.
fn is_head(line: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Line {
        entry: Option<Entry>,
    }
    #[derive(Deserialize)]
    struct Entry {
        entry: Option<EntryKind>,
    }
    let line: Option<Line> = serde_json::from_slice(line).ok();
    line.and_then(|line| line.entry?.entry) == Some(EntryKind::Head)
}

/// Tells the checker which heads to expect among some entries.
fn expect_heads(checker: &mut Checker, lines: &[LogLine], size: u64) {
    for entry in lines.iter().filter_map(|line| line.entry.as_ref()) {
        if let Ok(LogEntry::Head(head)) = LogEntry::parse(entry)
            && head.size <= size
        {
            checker.expect(head);
        }
    }
}

fn summary(report: &Report) -> String {
    let verdict = if report.ok { "whole" } else { "NOT WHOLE" };
    let root = report.root.map(|root| root.hex()).unwrap_or_default();
    let entries = counted(report.size.saturating_sub(report.from), "entry");
    let gone = match report.gone {
        0 => String::new(),
        gone => {
            format!(", {gone} without their bodies: retention keeps those from entry {} on", report.kept_from)
        }
    };
    format!(
        "{verdict}: {entries} from {} on, {}, {} of which {} open, {}{gone}\n  heads     {} compared\n  keys      {}\n  root      {root}",
        report.from,
        counted(report.receipts, "receipt"),
        counted(report.intents, "intent"),
        report.open,
        counted(report.amendments, "amendment"),
        report.heads,
        report.keys.join(", "),
    )
}

fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T, CliError> {
    let unusable = |why: String| CliError::request(format!("{}: {why}", path.display()));
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(LINE_BYTES_MAX).read_to_end(&mut bytes))
        .map_err(|error| unusable(error.to_string()))?;
    parse(&bytes).map_err(|error| unusable(error.to_string()))
}

/// Parses strictly, since parsers disagree about duplicate names.
fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, JsonInvalid> {
    parse_stored(bytes, bytes.len())
}

/// Whether an entry has no body although the head says that its body is kept.
pub(super) fn lacks_body(line: &LogLine, head: &LogHead) -> bool {
    line.entry.is_none() && line.index >= head.kept_from
}

/// The lines of a file, each with a maximum length.
struct Lines {
    path: PathBuf,
    reader: BufReader<File>,
}

impl Lines {
    fn open(path: &Path) -> Result<Self, CliError> {
        let file =
            File::open(path).map_err(|error| CliError::request(format!("{}: {error}", path.display())))?;
        Ok(Self { path: path.to_owned(), reader: BufReader::new(file) })
    }

    fn read(&mut self) -> Result<Vec<u8>, String> {
        let mut line = Vec::new();
        let mut bounded = (&mut self.reader).take(LINE_BYTES_MAX);
        bounded.read_until(b'\n', &mut line).map_err(|error| error.to_string())?;
        if line.len() as u64 == LINE_BYTES_MAX {
            return Err(format!("a line is longer than {LINE_BYTES_MAX} bytes"));
        }
        Ok(line)
    }
}

impl Iterator for Lines {
    type Item = Result<Vec<u8>, CliError>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.read() {
            Ok(line) if line.is_empty() => None,
            Ok(line) => Some(Ok(line)),
            Err(why) => Some(Err(CliError::request(format!("{}: {why}", self.path.display())))),
        }
    }
}
