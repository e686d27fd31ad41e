//! `effectd check`: one figure of the running daemon against two thresholds, for whatever watches machines.

use std::path::Path;

use clap::ValueEnum;
use effectd_bus::{StoreError, embedded};
use effectd_contracts::text::is_unprintable;
use effectd_gateway::client::{Client, percent_encoded};
use effectd_gateway::letters::CauseView;
use effectd_gateway::replay::GroupView;
use effectd_gateway::upkeep::StoreView;
use effectd_gateway::views::BreakerView;
use effectd_gateway::views::approvals::ApprovalList;
use serde_json::json;

use super::Common;
use super::backend::{Trouble, client_state, readable_settings, socket};
use super::output::{data, line};
use crate::error::Error;
use crate::exit::Exit;

/// Check one figure of the running daemon against two thresholds
///
/// Exits with 0 if it is fine, 1 if it is beyond `--warn`, 2 if it is beyond `--critical`, 3 if it cannot be told, as Nagios and its kin
/// expect. `dlq`: dead letters that are not quarantined. `held`: questions that wait for a person. `lag`: events that the group furthest behind has
/// still to read, the pipeline among them. `breakers`: breakers that are open. `disk`: percent of the state's disk that are free, where less is worse;
/// critical in any case while the disk is so full, or read-only, that new work is refused.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  effectd check dlq --warn 1 --critical 500\n  effectd check disk --warn 5 --critical 1 --format nagios\n  \
    effectd check lag --format prometheus"
)]
pub(super) struct Check {
    /// Which figure
    #[arg(value_enum, value_name = "WHAT")]
    what: What,
    /// From here on it is a warning [default: dlq 1, held 10, lag 1000, breakers 1, disk 20]
    #[arg(long, value_name = "NUMBER")]
    warn: Option<u64>,
    /// From here on it is critical [default: dlq 1000, held 100, lag 10000, breakers 5, disk 10]
    #[arg(long, value_name = "NUMBER")]
    critical: Option<u64>,
    /// How it is told
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
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// A line for people.
    Text,
    /// One JSON value.
    Json,
    /// For the textfile collector of a node exporter.
    Prometheus,
    /// A line with performance data, as Nagios and its kin read it.
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

    /// The exit codes that monitoring knows. They have the numbers of other exits of ours, and another meaning here.
    const fn exit(self) -> Exit {
        match self {
            Level::Fine => Exit::Done,
            Level::Warning => Exit::Failed,
            Level::Critical => Exit::Usage,
            Level::Unknown => Exit::Denied,
        }
    }
}

impl What {
    const fn word(self) -> &'static str {
        match self {
            What::Dlq => "dlq",
            What::Held => "held",
            What::Lag => "lag",
            What::Breakers => "breakers",
            What::Disk => "disk",
        }
    }

    const fn unit(self) -> &'static str {
        match self {
            What::Dlq => "dead letters",
            What::Held => "questions wait for a person",
            What::Lag => "events behind",
            What::Breakers => "breakers open",
            What::Disk => "percent free",
        }
    }

    const fn thresholds(self) -> (u64, u64) {
        match self {
            What::Dlq => (1, 1_000),
            What::Held => (10, 100),
            What::Lag => (1_000, 10_000),
            What::Breakers => (1, 5),
            What::Disk => (20, 10),
        }
    }

    fn level(self, value: u64, warn: u64, critical: u64) -> Level {
        let beyond = |threshold: u64| match self {
            What::Disk => value <= threshold,
            What::Dlq | What::Held | What::Lag | What::Breakers => value >= threshold,
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
    pub(super) fn main(&self, common: &Common) -> Exit {
        super::block_on(async {
            let (warn, critical) = self.what.thresholds();
            let (warn, critical) = (self.warn.unwrap_or(warn), self.critical.unwrap_or(critical));
            let state = client_state(common);
            let found = self.value(common, &state).await;
            let found = found.and_then(|value| Ok((value, self.refusal(common, &state)?)));
            let (level, value, says) = match found {
                Ok((value, Some(refusal))) => {
                    let says = format!("{value} {}, and new work is refused: {refusal}", self.what.unit());
                    (Level::Critical, Some(value), says)
                }
                Ok((value, None)) => {
                    let says = format!("{value} {}", self.what.unit());
                    (self.what.level(value, warn, critical), Some(value), says)
                }
                Err(trouble) => (Level::Unknown, None, trouble.to_string()),
            };
            self.tell(level, value, &says, (warn, critical));
            Ok(level.exit())
        })
    }

    fn tell(&self, level: Level, value: Option<u64>, says: &str, (warn, critical): (u64, u64)) {
        let (what, word) = (self.what.word(), level.word());
        // One line, whatever an error says.
        let says: String = says
            .chars()
            .map(|c| if is_unprintable(c) || c == '|' { ' ' } else { c })
            .collect();
        match self.format {
            Format::Text => line(&format!(
                "{what} {word}: {says} (warn {warn}, critical {critical})"
            )),
            Format::Json => data(
                &json!({
                    "check": what, "status": word.to_lowercase(), "value": value, "unit": self.what.unit(),
                    "warn": warn, "critical": critical, "says": says,
                })
                .to_string(),
            ),
            Format::Prometheus => {
                line("# HELP effectd_check_status 0 ok, 1 warning, 2 critical, 3 unknown");
                line("# TYPE effectd_check_status gauge");
                line(&format!(
                    "effectd_check_status{{check=\"{what}\"}} {}",
                    level.exit().code()
                ));
                if let Some(value) = value {
                    line("# HELP effectd_check_value What was checked");
                    line("# TYPE effectd_check_value gauge");
                    line(&format!("effectd_check_value{{check=\"{what}\"}} {value}"));
                }
            }
            Format::Nagios => {
                let data = value.map_or_else(String::new, |value| {
                    // Where less is worse, a range says so.
                    let ends = if self.what == What::Disk { ":" } else { "" };
                    format!(" | {what}={value};{warn}{ends};{critical}{ends};0")
                });
                line(&format!("EFFECTD {} {word} - {says}{data}", what.to_uppercase()));
            }
        }
    }

    /// Why the store refuses new work, for the check of its disk: the daemon's own judgement.
    fn refusal(&self, common: &Common, state: &Path) -> Result<Option<StoreError>, Trouble> {
        if self.what != What::Disk {
            return Ok(None);
        }
        let settings = readable_settings(common, state)?;
        Ok(embedded::refusal(
            state,
            settings.values().store.disk_free_bytes_min,
        ))
    }

    async fn value(&self, common: &Common, state: &Path) -> Result<u64, Trouble> {
        let mut client = Client::new(socket(common, state)?);
        match self.what {
            What::Dlq => {
                let causes: Vec<CauseView> = client.get("/v1/dlq/causes").await?;
                // What is held for review is not a failure.
                let failed = causes.iter().filter(|cause| !cause.is_quarantined());
                Ok(failed.map(|cause| cause.count).sum())
            }
            What::Held => held(&mut client).await,
            What::Lag => lag(&mut client).await,
            What::Breakers => {
                let all: Vec<BreakerView> = client.get("/v1/breakers").await?;
                let open = all.iter().filter(|breaker| breaker.state != "closed");
                Ok(open.count() as u64)
            }
            What::Disk => free_percent(state),
        }
    }
}

async fn held(client: &mut Client) -> Result<u64, Trouble> {
    let split = |page: ApprovalList| (page.approvals, page.next);
    Ok(client.pages("/v1/approvals", split).await?.len() as u64)
}

/// How far the group is behind that is furthest.
async fn lag(client: &mut Client) -> Result<u64, Trouble> {
    let store: StoreView = client.get("/v1/store").await?;
    let mut worst = 0;
    for topic in store.events.keys() {
        let path = format!("/v1/store/topics/{}/groups", percent_encoded(topic));
        let groups: Vec<GroupView> = client.get(&path).await?;
        worst = groups.iter().map(|group| group.behind).fold(worst, u64::max);
    }
    Ok(worst)
}

/// How much of the disk is free for us.
fn free_percent(state: &Path) -> Result<u64, Trouble> {
    let stat = nix::sys::statvfs::statvfs(state).map_err(|errno| Error::State {
        path: state.to_owned(),
        source: errno.into(),
    })?;
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
