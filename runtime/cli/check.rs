//! `effectd check`: compare one figure of the running daemon with two thresholds, for monitoring.

use clap::ValueEnum;
use effectd_bus::stats::{DISK_FREE_BYTES, DISK_SIZE_BYTES};
use effectd_contracts::text::is_unprintable;
use effectd_gateway::client::{Client, ClientError};
use effectd_gateway::problem::Kind;
use effectd_gateway::views::dead_letters::CauseView;
use effectd_gateway::views::{BreakerView, Health, PolicyView};
use hyper::Method;
use hyper::body::Bytes;
use serde_json::json;

use super::backend::daemon_client;
use super::bus::{TopicGroup, all_groups};
use super::{CliError, Common, Form, approvals, data, line};
use crate::error::chain;
use crate::exit::Exit;

/// Check one figure of the running daemon against two thresholds
///
/// Exits with 0 if it is fine, 1 beyond `--warn`, 2 beyond `--critical`, 3 if it is unknown, as Nagios expects. `dlq`: dead letters that
/// are not quarantined. `held`: pending approvals. `lag`: unread events of the consumer group furthest behind, including the pipeline.
/// `breakers`: open breakers, without half-open ones. `disk`: free percent of the state's disk, where less is worse; always critical while
/// `/readyz` says that new work is refused, as on a full or read-only disk. `policy`: faults of the policy's files, which keep them out of force.
/// `store`: whether a read has met damage of the store since the daemon started. `jobs`: scheduled backups and checks
/// that failed the last time.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  effectd check dlq --warn 1 --critical 500\n  effectd check disk --warn 5 --critical 1 --format nagios\n  \
    effectd check lag --format prometheus"
)]
pub(super) struct Check {
    /// The figure
    #[arg(value_enum, value_name = "WHAT")]
    what: What,
    /// Threshold of a warning [default: dlq 1, held 10, lag 1000, breakers 1, disk 20, policy 1, store 1, jobs 1]
    #[arg(long, value_name = "NUMBER")]
    warn: Option<u64>,
    /// Critical threshold [default: dlq 1000, held 100, lag 10000, breakers 5, disk 10, policy 1, store 1, jobs 1]
    #[arg(long, value_name = "NUMBER")]
    critical: Option<u64>,
    /// Output format; `-o json` is the same as `--format json`
    #[arg(long, value_enum, default_value = "text", value_name = "FORMAT")]
    format: Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum What {
    Dlq,
    Held,
    Lag,
    Breakers,
    Disk,
    Policy,
    Store,
    Jobs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// A line for people.
    Text,
    /// One JSON value.
    Json,
    /// For the textfile collector of a node exporter.
    Prometheus,
    /// A line with performance data, for Nagios.
    Nagios,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Level {
    Fine,
    Warning,
    Critical,
    Unknown,
}

impl Level {
    const fn word(self) -> &'static str {
        match self {
            Level::Fine => "OK",
            Level::Warning => "WARNING",
            Level::Critical => "CRITICAL",
            Level::Unknown => "UNKNOWN",
        }
    }

    /// Monitoring plugins have exit codes of their own: here the numbers differ in meaning from [`Exit`].
    const fn exit(self) -> Exit {
        match self {
            Level::Fine => Exit::Done,
            Level::Warning => Exit::Failed,
            Level::Critical => Exit::Usage,
            Level::Unknown => Exit::Denied,
        }
    }
}

/// The name, the unit and the default thresholds of a figure.
struct Facts {
    word: &'static str,
    unit: &'static str,
    /// The unit of one.
    one: &'static str,
    warn: u64,
    critical: u64,
}

impl Facts {
    fn counted(&self, value: u64) -> String {
        format!("{value} {}", if value == 1 { self.one } else { self.unit })
    }
}

impl What {
    #[rustfmt::skip]
    const fn facts(self) -> Facts {
        match self {
            What::Dlq => Facts { word: "dlq", unit: "dead letters", one: "dead letter", warn: 1, critical: 1_000 },
            What::Held => Facts { word: "held", unit: "approvals are pending", one: "approval is pending", warn: 10, critical: 100 },
            What::Lag => Facts { word: "lag", unit: "events behind", one: "event behind", warn: 1_000, critical: 10_000 },
            What::Breakers => Facts { word: "breakers", unit: "breakers open", one: "breaker open", warn: 1, critical: 5 },
            What::Policy => Facts { word: "policy", unit: "faults of the policy's files", one: "fault of the policy's files", warn: 1, critical: 1 },
            What::Store => Facts { word: "store", unit: "damaged parts were read", one: "damaged part was read", warn: 1, critical: 1 },
            What::Jobs => Facts { word: "jobs", unit: "scheduled jobs failed", one: "scheduled job failed", warn: 1, critical: 1 },
            What::Disk => Facts { word: "disk", unit: "percent free", one: "percent free", warn: 20, critical: 10 },
        }
    }

    fn level(self, value: u64, warn: u64, critical: u64) -> Level {
        let beyond = |threshold: u64| match self {
            What::Disk => value <= threshold,
            What::Dlq | What::Held | What::Lag | What::Breakers | What::Policy | What::Store | What::Jobs => {
                value >= threshold
            }
        };
        if beyond(critical) {
            Level::Critical
        } else if beyond(warn) {
            Level::Warning
        } else {
            Level::Fine
        }
    }
}

impl Check {
    pub(super) async fn main(&self, common: &Common) -> Result<Exit, CliError> {
        let facts = self.what.facts();
        let (warn, critical) = (self.warn.unwrap_or(facts.warn), self.critical.unwrap_or(facts.critical));
        let mut why = String::new();
        let (level, value, says) = match self.found(common, &mut why).await {
            Ok((value, Some(refusal))) => {
                let says = format!("{}, and new work is refused: {refusal}", facts.counted(value));
                (Level::Critical, Some(value), says)
            }
            Ok((value, None)) => {
                let says = if why.is_empty() { why } else { format!(": {why}") };
                let says = format!("{}{says}", facts.counted(value));
                (self.what.level(value, warn, critical), Some(value), says)
            }
            Err(error) => (Level::Unknown, None, chain(&error)),
        };
        let format = if common.output == Form::Table { self.format } else { Format::Json };
        self.print(format, level, value, &says, (warn, critical));
        Ok(level.exit())
    }

    fn print(
        &self,
        format: Format,
        level: Level,
        value: Option<u64>,
        says: &str,
        (warn, critical): (u64, u64),
    ) {
        let facts = self.what.facts();
        let (what, word) = (facts.word, level.word());
        // Keep the text on one line; an error may have several.
        let says: String =
            says.chars().map(|c| if is_unprintable(c) || c == '|' { ' ' } else { c }).collect();
        match format {
            Format::Text => line(&format!("{what} {word}: {says} (warn {warn}, critical {critical})")),
            Format::Json => data(
                &json!({
                    "check": what, "status": word.to_lowercase(), "value": value, "unit": facts.unit,
                    "warn": warn, "critical": critical, "says": says,
                })
                .to_string(),
            ),
            Format::Prometheus => {
                line("# HELP effectd_check_status 0 ok, 1 warning, 2 critical, 3 unknown");
                line("# TYPE effectd_check_status gauge");
                line(&format!("effectd_check_status{{check=\"{what}\"}} {}", level.exit().code()));
                if let Some(value) = value {
                    line("# HELP effectd_check_value The checked value");
                    line("# TYPE effectd_check_value gauge");
                    line(&format!("effectd_check_value{{check=\"{what}\"}} {value}"));
                }
            }
            Format::Nagios => {
                let data = value.map_or_else(String::new, |value| {
                    // A colon makes the threshold a minimum: less is worse.
                    let ends = if self.what == What::Disk { ":" } else { "" };
                    format!(" | {what}={value};{warn}{ends};{critical}{ends};0")
                });
                line(&format!("EFFECTD {} {word} - {says}{data}", what.to_uppercase()));
            }
        }
    }

    /// The figure and, for the disk, why the daemon refuses new work. The daemon looks: this user may not see the state.
    async fn found(&self, common: &Common, why: &mut String) -> Result<(u64, Option<String>), CliError> {
        let mut client = daemon_client(common)?;
        let value = self.value(&mut client, why).await?;
        if self.what != What::Disk {
            return Ok((value, None));
        }
        match client.get::<Health>("/readyz").await {
            Ok(_) => Ok((value, None)),
            Err(ClientError::Refused(problem)) if problem.code == Kind::NotReady.code() => {
                Ok((value, Some(problem.detail)))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The figure; writes to `why` what there is to say beside it.
    async fn value(&self, client: &mut Client, why: &mut String) -> Result<u64, CliError> {
        match self.what {
            What::Dlq => {
                let causes: Vec<CauseView> = client.get("/v1/dlq/causes").await?;
                // A quarantined letter does not count as a failure.
                let failed = causes.iter().filter(|cause| !cause.is_quarantined());
                Ok(failed.map(|cause| cause.count).sum())
            }
            What::Held => Ok(approvals::all(client).await?.len() as u64),
            What::Lag => lag(client, why).await,
            What::Breakers => {
                let all: Vec<BreakerView> = client.get("/v1/breakers").await?;
                let open = all.iter().filter(|breaker| breaker.state == "open");
                Ok(open.count() as u64)
            }
            What::Policy => {
                let policy: PolicyView = client.get("/v1/policy").await?;
                *why = policy.faults.join("; ");
                Ok(policy.faults.len() as u64)
            }
            What::Store => {
                let health: Health = client.get("/healthz").await?;
                let damage = health.store_damage.as_slice();
                *why = damage.join("");
                Ok(damage.len() as u64)
            }
            What::Jobs => {
                let health: Health = client.get("/healthz").await?;
                let failed = health.failed_jobs();
                *why = failed.join("; ");
                Ok(failed.len() as u64)
            }
            What::Disk => free_percent(client).await,
        }
    }
}

/// The number of unread events of the slowest consumer group; `why` names it.
async fn lag(client: &mut Client, why: &mut String) -> Result<u64, CliError> {
    let groups = all_groups(client).await?;
    let worst = groups.iter().max_by_key(|of| of.group.behind).filter(|of| of.group.behind > 0);
    Ok(worst.map_or(0, |TopicGroup { topic, group }| {
        *why = format!("the group {} of {topic}", group.group);
        group.behind
    }))
}

/// The free percent of the state's disk.
async fn free_percent(client: &mut Client) -> Result<u64, CliError> {
    let (_, page) = client.ask(Method::GET, "/metrics", Bytes::new()).await?;
    let page = String::from_utf8_lossy(&page);
    let figure = |name: &str| -> Option<u64> {
        page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
    };
    let disk = figure(DISK_FREE_BYTES).zip(figure(DISK_SIZE_BYTES));
    let percent = disk.and_then(|(free, size)| free.saturating_mul(100).checked_div(size));
    percent.ok_or_else(|| ClientError::Strange("/metrics has no figures of the disk".to_owned()).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_is_worse_but_for_the_disk() {
        for (what, value, level) in [
            (What::Dlq, 0, Level::Fine),
            (What::Dlq, 5, Level::Warning),
            (What::Dlq, 10, Level::Critical),
            (What::Disk, 11, Level::Fine),
            (What::Disk, 10, Level::Critical),
        ] {
            assert_eq!(what.level(value, 5, 10), level, "{what:?} {value}");
        }
        assert_eq!(What::Disk.level(15, 20, 10), Level::Warning);
    }
}
