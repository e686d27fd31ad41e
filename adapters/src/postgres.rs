//! `db:<uuid>.run_query`: one statement for an operator's own PostgreSQL, over the connection `db:<uuid>`.
//!
//! The child has no socket and no password: it hands the statement over ([`crate::exchange`]), and reads here what came back. The server
//! writes every value as text; what JSON holds exactly becomes JSON, and all else stays the text, with its type beside it.

use std::collections::BTreeSet;

use effectd_contracts::json::INTEGER_MAX;
use effectd_contracts::limits::SQL_BYTES_MAX;
use effectd_contracts::sql::{self, SqlAnswer, SqlCell, SqlRefusal, SqlRows};
use effectd_contracts::{Compensation, Exchange, RiskLevel, SideEffect, ToolId};

use crate::exchange::{connection_of, exchange};
use crate::prelude::*;

/// How an agent uses it.
pub const GUIDE: &str = include_str!("guides/postgres.md");

/// `db.run_query`, which each connection to a database has under its own name.
#[derive(Debug, Clone, Copy)]
pub struct RunQuery;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Params {
    /// One statement that only reads: SELECT, VALUES, TABLE, WITH, SHOW or EXPLAIN.
    #[schemars(length(min = 1, max = SQL_BYTES_MAX), extend("x-pii" = "required"))]
    sql: String,
}

impl TypedTool for RunQuery {
    const ID: &'static str = "db.run_query";
    const DESCRIPTION: &'static str = "Queries a PostgreSQL database of your organisation with one statement that only reads, and \
        returns at most 100 rows. Large numbers, dates and values of other types come as text, with their type in columns. \
        Use LIMIT, and left(column, 1000) for long values.";
    type Params = Params;

    fn spec(&self) -> ToolSpec {
        let column = params::object(&["name", "type"], json!({ "name": text(), "type": text() }));
        let result = json!({
            "columns": { "type": "array", "items": column },
            "rows": { "type": "array", "items": { "type": "array", "items": {} } }, "row_count": count(),
            "truncated": flag(), "cells_shortened": count(), "dry_run": flag(),
        });
        ToolSpec {
            caps_required: params::caps(["db.query"]),
            side_effects: BTreeSet::from([SideEffect::NetworkCall]),
            risk_level: Some(RiskLevel::Write),
            reversible: false,
            // The transaction is rolled back: there is nothing to make up for.
            compensation: Compensation::Declared,
            repeat: Repeat::Safe,
            timeout_ms: 30_000,
            ..params::writes::<Self>(&[], result)
        }
    }

    fn example(&self) -> Value {
        json!({ "sql": "SELECT id, total FROM orders WHERE paid_at IS NULL ORDER BY id LIMIT 20" })
    }

    fn check(&self, params: &Params) -> Result<(), Failure> {
        sql::check(&params.sql).map(drop).map_err(|why| params::invalid("sql", why))
    }

    fn exchange(&self, call: &Call<'_, Params>) -> Option<Exchange> {
        Exchange::sql(connection_of(&call.tool_id), &call.params.sql).ok()
    }

    fn run(&self, workspace: &Workspace<'_>, call: &Call<'_, Params>) -> Result<ToolOutput, Failure> {
        let asked = Exchange::sql(connection_of(&call.tool_id), &call.params.sql)
            .map_err(|why| params::invalid("sql", why))?;
        let answer = exchange(workspace, &asked)?;
        match serde_json::from_slice(&answer.body) {
            Ok(SqlAnswer::Rows(rows)) => Ok(found(rows)),
            Ok(SqlAnswer::Refused(refusal)) => Err(refused(&refusal)),
            Err(_) => Err(Failure::new(Code::ToolFailed, Phase::Dispatch, "the answer cannot be read")),
        }
    }

    fn dry_run(&self, _: &Workspace<'_>, _: &Call<'_, Params>) -> Result<ToolOutput, Failure> {
        Ok(params::dry(json!({})))
    }
}

/// Quality is 1 if all rows are returned, and 0.5 otherwise.
fn found(found: SqlRows) -> ToolOutput {
    let mut shortened = 0_u64;
    let rows = found.rows.iter().map(|row| {
        let cells = row.iter().zip(&found.columns).map(|(cell, column)| match cell {
            None => Value::Null,
            Some(cell) => {
                shortened += u64::from(cell.text.len() != cell.bytes);
                value(cell, column.oid)
            }
        });
        Value::Array(cells.collect())
    });
    let rows: Vec<Value> = rows.collect();
    let columns: Vec<Value> =
        found.columns.iter().map(|column| json!({ "name": column.name, "type": column.type_name })).collect();
    let quality = if found.truncated { 0.5 } else { 1.0 };
    let result = json!({
        "columns": columns, "row_count": rows.len(), "rows": rows, "truncated": found.truncated,
        "cells_shortened": shortened,
    });
    ToolOutput::new(result, Some(quality))
}

/// The ids of the types that JSON has, too. They are the same in every database.
const BOOL: u32 = 16;
const BYTEA: u32 = 17;
const INTEGERS: [u32; 4] = [20, 21, 23, 26];
const FLOATS: [u32; 2] = [700, 701];

/// A value as JSON, if JSON holds it exactly; else the text of the server, which is the value in any case.
fn value(cell: &SqlCell, oid: u32) -> Value {
    let text = cell.text.as_str();
    let whole = cell.text.len() == cell.bytes;
    let json = match oid {
        BOOL => {
            [("t", true), ("f", false)].into_iter().find(|(word, _)| *word == text).map(|(_, is)| json!(is))
        }
        BYTEA => text.strip_prefix("\\x").map(|hex| json!({ "bytes": (cell.bytes - 2) / 2, "hex": hex })),
        _ if !whole => None,
        _ if INTEGERS.contains(&oid) => text
            .parse()
            .ok()
            .filter(|value| (-INTEGER_MAX..=INTEGER_MAX).contains(value))
            .map(|value: i64| json!(value)),
        // The shortest text that means the number.
        _ if FLOATS.contains(&oid) => {
            text.parse().ok().filter(|value: &f64| value.is_finite()).map(|value| json!(value))
        }
        _ => None,
    };
    json.unwrap_or_else(|| json!(text))
}

/// An error of the server. What it says is told only if it names things, and not data: errors are in receipts in clear.
fn refused(SqlRefusal { sqlstate, message, position }: &SqlRefusal) -> Failure {
    let class = sqlstate.get(..2).unwrap_or_default();
    let told = match (class, &**sqlstate) {
        // It quotes the statement, or a value.
        (_, "42601") => "a syntax error",
        ("22", _) => "a value that does not fit its type, or cannot be computed with",
        ("25", _) => "the transaction only reads",
        ("0A" | "28" | "3D" | "3F" | "42" | "53" | "54" | "55" | "57", _) => message,
        _ => "the server refuses the statement",
    };
    let at = position.map(|at| format!(", at character {at}")).unwrap_or_default();
    let words = format!("{told}{at} (SQLSTATE {sqlstate})");
    let code = match (class, &**sqlstate) {
        (_, "57014") => Code::TimedOut,
        ("53", _) | (_, "57P03") => Code::ToolBusy,
        ("0A" | "22" | "25" | "3F" | "42" | "54", _) => return params::invalid("sql", words),
        _ => Code::ToolFailed,
    };
    Failure::new(code, Phase::Dispatch, words)
}

/// The tool that a connection to a database has under this id.
pub(crate) fn tool(id: &ToolId) -> Option<&'static dyn crate::tool::Tool> {
    let is_ours = id.source().starts_with(effectd_contracts::access::DATABASE_SOURCE);
    (is_ours && id.action() == "run_query").then_some(&RunQuery as _)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use effectd_contracts::sql::SqlColumn;

    use super::*;

    #[test]
    fn the_guide_names_the_action_and_a_statement_that_only_reads() {
        let statement = GUIDE.split("\"sql\": \"").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
        assert!(GUIDE.contains("--action run_query ") && sql::check(statement).is_ok(), "{statement}");
    }

    fn cell(text: &str) -> SqlCell {
        SqlCell { text: text.to_owned(), bytes: text.len() }
    }

    #[test]
    fn values_are_json_only_if_json_holds_them() {
        for (oid, text, wanted) in [
            (16, "t", json!(true)),
            (16, "f", json!(false)),
            (21, "-7", json!(-7)),
            (20, "9007199254740991", json!(9_007_199_254_740_991_i64)),
            (20, "9007199254740993", json!("9007199254740993")),
            (20, "-9223372036854775808", json!("-9223372036854775808")),
            (701, "0.1", json!(0.1)),
            (701, "1e-300", json!(1e-300)),
            (701, "NaN", json!("NaN")),
            (701, "-Infinity", json!("-Infinity")),
            (1700, "NaN", json!("NaN")),
            (
                1700,
                "12345678901234567890.000000000000000001",
                json!("12345678901234567890.000000000000000001"),
            ),
            (17, "\\x", json!({ "bytes": 0, "hex": "" })),
            (17, "\\x00ff", json!({ "bytes": 2, "hex": "00ff" })),
            (1184, "2026-11-19 08:00:00+00", json!("2026-11-19 08:00:00+00")),
            (1082, "infinity", json!("infinity")),
            (3802, "{\"a\": 1e400}", json!("{\"a\": 1e400}")),
            (1007, "{1,NULL,3}", json!("{1,NULL,3}")),
            (25, "", json!("")),
            (25, "t", json!("t")),
            // A server that lies about a type.
            (16, "maybe", json!("maybe")),
            (23, "x", json!("x")),
            (17, "x", json!("x")),
        ] {
            assert_eq!(value(&cell(text), oid), wanted, "{oid} {text}");
        }
    }

    #[test]
    fn what_is_cut_is_counted() {
        let column = |name: &str, oid, type_name: &str| SqlColumn {
            name: name.to_owned(),
            oid,
            modifier: -1,
            type_name: type_name.to_owned(),
        };
        let cut = |text: &str, bytes| Some(SqlCell { text: text.to_owned(), bytes });
        let rows = SqlRows {
            columns: vec![column("a", 25, "text"), column("b", 17, "bytea"), column("c", 20, "bigint")],
            rows: vec![
                vec![cut("ab", 9), cut("\\x00ff", 1_002), cut("12", 3)],
                vec![Some(cell("x")), None, Some(cell("1"))],
            ],
            truncated: true,
        };
        let output = found(rows);
        assert_eq!(
            output.result,
            json!({
                "columns": [{ "name": "a", "type": "text" }, { "name": "b", "type": "bytea" }, { "name": "c", "type": "bigint" }],
                "rows": [["ab", { "bytes": 500, "hex": "00ff" }, "12"], ["x", null, 1]],
                "row_count": 2, "truncated": true, "cells_shortened": 3,
            })
        );
        assert_eq!(output.quality, Some(0.5));
    }

    #[test]
    fn an_error_quotes_no_data() {
        let of = |sqlstate: &str, position| {
            let message = "something about \"canary\"".to_owned();
            refused(&SqlRefusal { sqlstate: sqlstate.to_owned(), message, position })
        };
        for (sqlstate, code) in [
            ("22P02", Code::ParamsInvalid),
            ("42601", Code::ParamsInvalid),
            ("25006", Code::ParamsInvalid),
            ("23505", Code::ToolFailed),
            ("P0001", Code::ToolFailed),
            ("XX000", Code::ToolFailed),
            ("", Code::ToolFailed),
        ] {
            let failure = of(sqlstate, Some(7));
            assert_eq!(failure.code, code, "{sqlstate}");
            assert!(
                !failure.message.contains("canary") && failure.message.contains("character 7"),
                "{failure:?}"
            );
        }
        let named = of("42P01", None);
        assert!(named.message.contains("canary") && named.message.contains("42P01"), "{named:?}");
        assert_eq!((of("57014", None).code, of("53300", None).code), (Code::TimedOut, Code::ToolBusy));
    }
}
