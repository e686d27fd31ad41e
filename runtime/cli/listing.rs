//! What every command that lists things takes, and the receipts that several of them list.

use std::fmt::Write as _;

use effectd_actors::history;
use effectd_bus::{Cursor, Order, ReceiptQuery, Store};
use effectd_contracts::{SpaceId, Status, SubjectId, Timestamp, ToolId};
use effectd_gateway::views::ReceiptList;
use hyper::Method;

use super::backend::Trouble;
use crate::client::{Client, percent_encoded};
use crate::error::Error;

/// A time on the command line: as RFC 3339 has it, or so long ago.
#[derive(Debug, Clone, Copy)]
pub(super) struct Since(pub(super) Timestamp);

/// `2026-01-01T00:00:00Z`, `90s`, `15m`, `2h`, `7d`.
pub(super) fn since(text: &str) -> Result<Since, String> {
    if let Ok(time) = text.parse::<Timestamp>() {
        return Ok(Since(time));
    }
    let wrong =
        || format!("{text:?} is no time; say 2026-01-01T00:00:00Z, or how long ago: 90s, 15m, 2h, 7d");
    let unit = text.chars().last().ok_or_else(wrong)?;
    let seconds = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3_600,
        'd' => 86_400,
        _ => return Err(wrong()),
    };
    let number: u64 = text[..text.len() - unit.len_utf8()]
        .parse()
        .map_err(|_| wrong())?;
    let ago = std::time::Duration::from_secs(number.checked_mul(seconds).ok_or_else(wrong)?);
    use effectd_contracts::Clock;
    let now = effectd_contracts::SystemClock.now();
    now.checked_sub(ago).map(Since).map_err(|_| wrong())
}

/// Which receipts.
#[derive(Debug, Clone, Default, clap::Args)]
pub(super) struct Which {
    /// Only of this tool
    #[arg(long, value_name = "ID")]
    pub(super) tool: Option<ToolId>,
    /// Only of this subject
    #[arg(long, value_name = "ID")]
    pub(super) subject: Option<SubjectId>,
    /// Only in this space
    #[arg(long, value_name = "ID")]
    pub(super) space: Option<SpaceId>,
    /// Only of this status: ok, error, denied, skipped …
    #[arg(long, value_name = "STATUS", value_parser = status)]
    pub(super) status: Option<Status>,
    /// Only from this time on: 2026-01-01T00:00:00Z, or how long ago: 90s, 15m, 2h, 7d
    #[arg(long, value_name = "TIME", value_parser = since)]
    pub(super) since: Option<Since>,
}

fn status(text: &str) -> Result<Status, String> {
    serde_json::from_value(text.into()).map_err(|error| error.to_string())
}

/// Where receipts are read from.
pub(super) enum Source<'a> {
    Daemon(&'a mut Client),
    Direct(&'a dyn Store),
}

/// How a page is asked for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Turn {
    pub(super) order: Order,
    pub(super) after: Option<u64>,
    pub(super) limit: usize,
    /// How long to wait for one to come, if there is none.
    pub(super) wait_ms: Option<u64>,
}

impl Source<'_> {
    /// One page of them.
    pub(super) async fn page(&mut self, which: &Which, turn: Turn) -> Result<ReceiptList, Trouble> {
        match self {
            Source::Daemon(client) => {
                let path = path(which, turn);
                let answer = client.call(Method::GET, &path, Vec::new()).await?;
                answer.map_err(Trouble::Refused)
            }
            Source::Direct(store) => {
                let query = ReceiptQuery {
                    tool_id: which.tool.clone(),
                    subject_id: which.subject.clone(),
                    space_id: which.space.clone(),
                    status: which.status,
                    since: which.since.map(|since| since.0),
                    order: turn.order,
                    cursor: turn.after.map(Cursor),
                    limit: turn.limit,
                    ..ReceiptQuery::default()
                };
                let page = history::page(*store, &query, |_| true).map_err(Error::from)?;
                Ok(page.into())
            }
        }
    }
}

fn path(which: &Which, turn: Turn) -> String {
    let mut path = format!("/v1/receipts?limit={}", turn.limit);
    let mut add = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            // Writing to a text does not fail.
            let _ = write!(path, "&{name}={}", percent_encoded(&value));
        }
    };
    let order = match turn.order {
        Order::OldestFirst => "oldest",
        Order::NewestFirst => "newest",
    };
    add("order", Some(order.to_owned()));
    add("tool", which.tool.as_ref().map(ToString::to_string));
    add("subject", which.subject.as_ref().map(ToString::to_string));
    add("space", which.space.as_ref().map(ToString::to_string));
    add("status", which.status.map(|status| status.as_str().to_owned()));
    add("since", which.since.map(|since| since.0.to_string()));
    add("after", turn.after.map(|after| after.to_string()));
    add("wait_ms", turn.wait_ms.map(|wait| wait.to_string()));
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_given_as_such_or_as_how_long_ago() {
        use effectd_contracts::Clock;
        let Ok(Since(then)) = since("2h") else {
            panic!("2h is a time")
        };
        let ago = effectd_contracts::SystemClock
            .now()
            .duration_since(then)
            .as_secs();
        assert!((7_199..=7_210).contains(&ago), "{ago}");
        assert!(since("2026-01-01T00:00:00Z").is_ok());
        for wrong in [
            "",
            "2",
            "h",
            "2y",
            "-1h",
            "99999999999999999999d",
            "9999999999999d",
        ] {
            assert!(since(wrong).is_err(), "{wrong}");
        }
    }
}
