//! `effectd check`: compare one figure of the running daemon with two thresholds, for monitoring.

use std::path::Path;

use clap::ValueEnum;
use effectd_bus::{StoreError, embedded};
use effectd_contracts::text::is_unprintable;
use effectd_gateway::client::{Client, percent_encoded};
use effectd_gateway::views::approvals::ApprovalList;
use effectd_gateway::views::dead_letters::CauseView;
use effectd_gateway::views::store::{GroupView, StoreView};
use effectd_gateway::views::{BreakerView, Health, PolicyView};
use serde_json::json;

use super::backend::{daemon_client, readable_settings};
use super::{CliError, Common, Form, data, line, state_dir_of};
use crate::error::{Error, chain};
use crate::exit::Exit;

/// Check one figure of the running daemon against two thresholds
///
/// Exits with 0 if it is fine, 1 beyond `--warn`, 2 beyond `--critical`, 3 if it is unknown, as Nagios expects. `dlq`: dead letters that
/// are not quarantined. `held`: pending approvals. `lag`: unread events of the consumer group furthest behind, including the pipeline.
/// `breakers`: open breakers, without half-open ones. `disk`: free percent of the state's disk, where less is worse; always critical while
/// new work is refused because the disk is full or read-only. `policy`: faults of the policy's files, which keep them out of force.
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
        let state = state_dir_of(common);
        let mut why = String::new();
        let found = self.value(common, &state, &mut why).await;
        let found = found.and_then(|value| Ok((value, self.refusal(common, &state)?)));
        let (level, value, says) = match found {
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

    /// For the check of the disk: why the store refuses new work, by the rule that the daemon applies.
    fn refusal(&self, common: &Common, state: &Path) -> Result<Option<StoreError>, CliError> {
        if self.what != What::Disk {
            return Ok(None);
        }
        let settings = readable_settings(common, state)?;
        Ok(embedded::refusal(state, settings.values().store.disk_free_bytes_min))
    }

    /// The figure; writes to `why` what there is to say beside it.
    async fn value(&self, common: &Common, state: &Path, why: &mut String) -> Result<u64, CliError> {
        let mut client = daemon_client(common)?;
        match self.what {
            What::Dlq => {
                let causes: Vec<CauseView> = client.get("/v1/dlq/causes").await?;
                // A quarantined letter does not count as a failure.
                let failed = causes.iter().filter(|cause| !cause.is_quarantined());
                Ok(failed.map(|cause| cause.count).sum())
            }
            What::Held => held(&mut client).await,
            What::Lag => lag(&mut client).await,
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
            What::Disk => free_percent(state),
        }
    }
}

async fn held(client: &mut Client) -> Result<u64, CliError> {
    let split = |page: ApprovalList| (page.approvals, page.next);
    Ok(client.pages("/v1/approvals", split).await?.len() as u64)
}

/// The number of unread events of the slowest consumer group.
async fn lag(client: &mut Client) -> Result<u64, CliError> {
    let store: StoreView = client.get("/v1/store").await?;
    let mut worst = 0;
    for topic in store.events.keys() {
        let path = format!("/v1/store/topics/{}/groups", percent_encoded(topic));
        let groups: Vec<GroupView> = client.get(&path).await?;
        worst = groups.iter().map(|group| group.behind).fold(worst, u64::max);
    }
    Ok(worst)
}

/// The free percent of the state's disk.
fn free_percent(state: &Path) -> Result<u64, CliError> {
    let stat = nix::sys::statvfs::statvfs(state)
        .map_err(|errno| Error::State { path: state.to_owned(), source: errno.into() })?;
    let all = stat.blocks().max(1);
    Ok(stat.blocks_available().saturating_mul(100) / all)
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
