//! `effectd receipts stats`: statistics of each tool, from its receipts.

use std::collections::BTreeMap;

use effectd_contracts::{Code, Millis, Receipt, Status};
use effectd_gateway::client::Client;
use serde_json::{Value, json};

use crate::cli::progress::Bar;
use crate::cli::receipt_filter::{PageQuery, ReceiptFilter, each_page};
use crate::cli::{CliError, Common, Depth, Printer, with_client};
use crate::exit::Exit;

/// Statistics by tool: number, success rate, percentiles of latency, cost
///
/// Percentiles are exact to one percent, and leave out the time until a person decided. `-o json` has that time, too, queued, exec and
/// total times, and failures by code.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  effectd receipts stats since:24h\n  effectd receipts stats 'tool:files.*' -o json"
)]
pub(in crate::cli) struct Stats {
    #[command(flatten)]
    which: ReceiptFilter,
}

const COLUMNS: [(&str, usize); 9] = [
    ("TOOL", 24),
    ("COUNT", 8),
    ("OK", 7),
    ("P50 MS", 9),
    ("P95 MS", 9),
    ("P99 MS", 9),
    ("CPU MS", 10),
    ("ENERGY MWH", 10),
    ("RETRIES", 0),
];

/// Tools that are counted separately. Requests can name tools that do not exist, so all further ids share one count.
const TOOLS_MAX: usize = 1_000;
const THE_REST: &str = "(others)";

impl Stats {
    pub(super) async fn main(&self, common: &Common) -> Result<Exit, CliError> {
        let tools = with_client(common, Depth::Store, async |client| self.all(client).await).await?;
        let mut printer = Printer::new(common.output, true, &COLUMNS);
        for (tool, count) in &tools {
            printer.row(&count.value(tool), &count.cells(tool));
        }
        printer.finish();
        Ok(Exit::Done)
    }

    async fn all(&self, client: &mut Client) -> Result<BTreeMap<String, Count>, CliError> {
        let mut tools = BTreeMap::new();
        let bar = Bar::new("reading receipts");
        each_page(client, &self.which, PageQuery::OLDEST, &bar, |page| {
            page.receipts.iter().for_each(|receipt| add(&mut tools, receipt));
            Ok(true)
        })
        .await?;
        Ok(tools)
    }
}

fn add(tools: &mut BTreeMap<String, Count>, receipt: &Receipt) {
    let id = receipt.tool_id.as_str();
    let known = tools.len() < TOOLS_MAX || tools.contains_key(id);
    let count = tools.entry(if known { id } else { THE_REST }.to_owned());
    count.or_default().add(receipt);
}

/// The statistics of one tool.
#[derive(Debug, Default)]
struct Count {
    number: u64,
    ok: u64,
    total: Histogram,
    queued: Histogram,
    exec: Histogram,
    /// Of actions that a person decided about.
    held: Histogram,
    cpu_micros: u64,
    energy_mwh: f64,
    bytes_written: u64,
    retries: u64,
    codes: BTreeMap<Code, u64>,
}

impl Count {
    fn add(&mut self, receipt: &Receipt) {
        self.number += 1;
        self.ok += u64::from(receipt.status == Status::Ok);
        let held = receipt.held();
        self.total.add(receipt.timing.total_ms.less(held));
        self.queued.add(receipt.timing.queued_ms.less(held));
        if receipt.asked().is_some() {
            self.held.add(held);
        }
        self.exec.add(receipt.timing.exec_ms);
        self.cpu_micros = self.cpu_micros.saturating_add(receipt.cost.cpu_ms.micros());
        self.energy_mwh += receipt.cost.energy_mwh;
        let written = receipt.cost.bytes_written.unwrap_or(0);
        self.bytes_written = self.bytes_written.saturating_add(written);
        self.retries += receipt.attempts.len().saturating_sub(1) as u64;
        if let Some(failure) = &receipt.error {
            *self.codes.entry(failure.code).or_default() += 1;
        }
    }

    fn success(&self) -> f64 {
        self.ok as f64 / self.number.max(1) as f64
    }

    fn value(&self, tool: &str) -> Value {
        let codes: BTreeMap<&str, u64> = self.codes.iter().map(|(code, n)| (code.as_str(), *n)).collect();
        json!({
            "tool_id": tool, "count": self.number, "ok": self.ok, "success_rate": self.success(),
            "total_ms": self.total.value(), "queued_ms": self.queued.value(), "exec_ms": self.exec.value(), "held_ms": self.held.value(),
            "cpu_ms": Millis::from_micros(self.cpu_micros), "energy_mwh": self.energy_mwh,
            "bytes_written": self.bytes_written, "retries": self.retries, "codes": codes,
        })
    }

    fn cells(&self, tool: &str) -> [String; 9] {
        let ms = |share: f64| format!("{:.2}", self.total.below(share).as_f64());
        [
            tool.to_owned(),
            self.number.to_string(),
            format!("{:.1} %", self.success() * 100.0),
            ms(0.5),
            ms(0.95),
            ms(0.99),
            format!("{:.1}", self.cpu_micros as f64 / 1_000.0),
            format!("{:.4}", self.energy_mwh),
            self.retries.to_string(),
        ]
    }
}

/// A histogram of times. Each bucket is 2 % wide, so that memory does not grow with the number of times.
#[derive(Debug, Default)]
struct Histogram(BTreeMap<u16, u64>);

const WIDTH: f64 = 1.02;

impl Histogram {
    fn add(&mut self, time: Millis) {
        // The logarithm of a u64 fits, and is never below zero.
        let class = (time.micros() as f64).max(1.0).log(WIDTH).round() as u16;
        let class = if time == Millis::ZERO { 0 } else { class + 1 };
        *self.0.entry(class).or_default() += 1;
    }

    /// The time that this share of the times does not exceed.
    fn below(&self, share: f64) -> Millis {
        let number: u64 = self.0.values().sum();
        let wanted = (share * number as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        for (class, count) in &self.0 {
            seen += count;
            if seen >= wanted {
                let micros = class.checked_sub(1).map_or(0.0, |power| WIDTH.powi(power.into()));
                return Millis::from_micros(micros.round() as u64);
            }
        }
        Millis::ZERO
    }

    fn value(&self) -> Value {
        json!({ "p50": self.below(0.5), "p95": self.below(0.95), "p99": self.below(0.99) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_right_to_one_in_a_hundred() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.below(0.5), Millis::ZERO);
        for micros in 1..=100_000 {
            histogram.add(Millis::from_micros(micros));
        }
        for share in [0.01, 0.5, 0.95, 0.99, 1.0] {
            let (found, exact) = (histogram.below(share).micros() as f64, share * 100_000.0);
            assert!((found / exact - 1.0).abs() < 0.011, "{share}: {found}");
        }
        let mut nothing = Histogram::default();
        (0..10).for_each(|_| nothing.add(Millis::ZERO));
        assert_eq!(nothing.below(0.99), Millis::ZERO);
    }

    const GOLDEN: &str = include_str!("../../../contracts/tests/golden/receipt.json");

    #[test]
    fn a_persons_time_is_no_latency() {
        let mut count = Count::default();
        if let (Ok(mut receipt), Ok(approval)) = (
            serde_json::from_str::<Receipt>(GOLDEN),
            serde_json::from_value(json!({
                "approval_id": "ap-1", "verdict": "once", "by": "user://ann", "authority": "separate",
                "digest": format!("hmac-sha256:{}", "0".repeat(64)),
                "asked_at": "2026-01-01T00:00:00Z", "at": "2026-01-01T00:11:40Z",
            })),
        ) {
            receipt.approval = Some(approval);
            receipt.timing.queued_ms = Millis::from_micros(700_000_400);
            receipt.timing.total_ms = Millis::from_micros(700_003_500);
            count.add(&receipt);
        }
        assert_eq!(count.number, 1);
        assert!(count.total.below(0.95).as_f64() < 10.0 && count.queued.below(0.95).as_f64() < 10.0);
        assert!((count.held.below(0.95).as_f64() / 700_000.0 - 1.0).abs() < 0.011);
    }

    #[test]
    fn names_from_outside_do_not_make_it_grow() {
        let mut tools = BTreeMap::new();
        if let Ok(mut receipt) = serde_json::from_str::<Receipt>(GOLDEN) {
            for n in 0..TOOLS_MAX + 50 {
                receipt.tool_id = effectd_contracts::ToolId::new(format!("t.{n}")).unwrap_or(receipt.tool_id);
                add(&mut tools, &receipt);
            }
        }
        assert_eq!(tools.len(), TOOLS_MAX + 1);
        assert_eq!(tools[THE_REST].number, 50);
    }
}
