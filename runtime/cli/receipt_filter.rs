//! The filter for receipts on the command line, and the pages of receipts that it selects.

use std::fmt::Write as _;

use effectd_bus::Order;
use effectd_contracts::{Clock, Filter, SpaceId, Status, SubjectId, SystemClock, Timestamp, ToolId, filter};
use effectd_gateway::client::{Client, percent_encoded};
use effectd_gateway::views::ReceiptList;

use super::CliError;
use super::completions::{complete, tools};
use super::progress::Bar;

/// A time on the command line: RFC 3339, or how long ago.
#[derive(Debug, Clone, Copy)]
pub(super) struct Since(pub(super) Timestamp);

/// Parses `2026-01-01T00:00:00Z`, `90s`, `15m`, `2h` or `7d`.
pub(super) fn since(text: &str) -> Result<Since, String> {
    filter::moment(text, SystemClock.now()).map(Since).map_err(|error| error.to_string())
}

#[derive(Debug, Clone, Default, clap::Args)]
pub(super) struct ReceiptFilter {
    /// Conditions that must all hold: tool:files.* status:error subject:agent://planner@* since:2h
    ///
    /// The fields are tool, status, outcome, code, subject, space, principal, session, org, action, receipt, trace, key, since
    /// and until. Commas separate alternatives, `*` matches any text, and a leading minus sign negates a condition (after `--`, so that
    /// it is not taken for a flag).
    #[arg(value_name = "FILTER")]
    pub(super) filter: Vec<String>,
    /// Only of this tool
    #[arg(long, value_name = "ID", add = complete(tools))]
    pub(super) tool: Option<ToolId>,
    /// Only of this subject
    #[arg(long, value_name = "ID")]
    pub(super) subject: Option<SubjectId>,
    /// Only in this space
    #[arg(long, value_name = "ID")]
    pub(super) space: Option<SpaceId>,
    /// Only of this status: ok, error, skipped, quarantined
    #[arg(long, value_name = "STATUS", value_parser = status)]
    pub(super) status: Option<Status>,
    /// Only from this time on: 2026-01-01T00:00:00Z, or how long ago: 90s, 15m, 2h, 7d
    #[arg(long, value_name = "TIME", value_parser = since)]
    pub(super) since: Option<Since>,
}

impl ReceiptFilter {
    pub(super) fn text(&self) -> String {
        let mut words = self.filter.clone();
        let mut add = |name: &str, value: Option<String>| {
            words.extend(value.map(|value| format!("{name}:\"{value}\"")));
        };
        add("tool", self.tool.as_ref().map(ToString::to_string));
        add("subject", self.subject.as_ref().map(ToString::to_string));
        add("space", self.space.as_ref().map(ToString::to_string));
        add("status", self.status.map(|status| status.as_str().to_owned()));
        add("since", self.since.map(|since| since.0.to_string()));
        words.join(" ")
    }

    pub(super) fn parsed(&self) -> Result<Filter, CliError> {
        let filter = Filter::parse(&self.text(), SystemClock.now());
        filter.map_err(|error| CliError::request(error.to_string()))
    }
}

fn status(text: &str) -> Result<Status, String> {
    serde_json::from_value(text.into()).map_err(|error| error.to_string())
}

/// The number of receipts in one request.
pub(super) const PAGE: usize = 100;

/// Selects a page of receipts.
#[derive(Debug, Clone, Copy)]
pub(super) struct PageQuery {
    pub(super) order: Order,
    pub(super) after: Option<u64>,
    pub(super) limit: usize,
    /// How long the request waits for a new receipt if there is none.
    pub(super) wait_ms: Option<u64>,
    /// Whether the page has the amendments of its receipts.
    pub(super) amendments: bool,
}

impl PageQuery {
    /// The first page, the oldest receipt first.
    pub(super) const OLDEST: Self =
        Self { order: Order::OldestFirst, after: None, limit: PAGE, wait_ms: None, amendments: false };
}

pub(super) async fn page(
    client: &mut Client,
    filter: &ReceiptFilter,
    query: PageQuery,
) -> Result<ReceiptList, CliError> {
    // Reports a faulty filter before a request is made.
    filter.parsed()?;
    Ok(client.get(&path(filter, query)).await?)
}

/// Visits receipts page by page, and shows how far it has come. Returns the position reached, or `None` if `page_of` returned
/// `false`.
pub(super) async fn each_page(
    client: &mut Client,
    filter: &ReceiptFilter,
    mut query: PageQuery,
    bar: &Bar,
    mut page_of: impl FnMut(&ReceiptList) -> Result<bool, CliError>,
) -> Result<Option<u64>, CliError> {
    loop {
        let page = page(client, filter, query).await?;
        if !page_of(&page)? {
            return Ok(None);
        }
        query.after = page.next.or(page.follow).or(query.after);
        if page.next.is_none() {
            return Ok(query.after);
        }
        bar.at(query.after.unwrap_or(0), page.follow.unwrap_or(0));
    }
}

fn path(filter: &ReceiptFilter, query: PageQuery) -> String {
    let mut path = format!("/v1/receipts?limit={}", query.limit);
    let mut add = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            // Writing to a string cannot fail.
            let _ = write!(path, "&{name}={}", percent_encoded(&value));
        }
    };
    let order = match query.order {
        Order::OldestFirst => "oldest",
        Order::NewestFirst => "newest",
    };
    add("order", Some(order.to_owned()));
    add("q", Some(filter.text()).filter(|text| !text.is_empty()));
    add("after", query.after.map(|after| after.to_string()));
    add("wait_ms", query.wait_ms.map(|wait| wait.to_string()));
    add("amendments", query.amendments.then(|| "true".to_owned()));
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_given_as_such_or_as_how_long_ago() {
        let Ok(Since(then)) = since("2h") else { panic!("2h is a time") };
        let ago = effectd_contracts::SystemClock.now().duration_since(then).as_secs();
        assert!((7_199..=7_300).contains(&ago), "{ago}");
        assert!(since("2026-01-01T00:00:00Z").is_ok());
        for wrong in ["", "2", "h", "2y", "-1h", "99999999999999999999d", "9999999999999d"] {
            assert!(since(wrong).is_err(), "{wrong}");
        }
    }
}
