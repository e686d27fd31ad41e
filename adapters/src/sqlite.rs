//! `sqlite.query`: asks a database file of the space, and never changes it.
//!
//! The file is read whole, through the space like any other file, and SQLite works on these bytes in memory alone: it opens
//! no path, takes no lock and replays no journal. One statement that only reads is taken; what it may call, how long it may
//! take and what it may use is bounded, beside the sandbox that bounds all of it again.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use effectd_contracts::json::INTEGER_MAX;
use effectd_contracts::{Code, Failure, Phase, ToolOutput, ToolSpec};
use nix::errno::Errno;
use rusqlite::config::DbConfig;
use rusqlite::fallible_iterator::FallibleIterator;
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use rusqlite::limits::Limit;
use rusqlite::types::{Value as Bound, ValueRef};
use rusqlite::{Batch, Connection, ErrorCode, MAIN_DB};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::limits::{
    SQLITE_ARGS_MAX, SQLITE_CELL_BYTES_MAX, SQLITE_FILE_BYTES_MAX, SQLITE_HEAP_BYTES_MAX,
    SQLITE_RESULT_BYTES_MAX, SQLITE_ROWS_MAX, SQLITE_SQL_BYTES_MAX, SQLITE_TIME_MAX,
};
use crate::params;
use crate::spacepath::SpacePath;
use crate::typed::{Call, TypedTool};
use crate::workspace::{FileKind, FileProblem, Stat, Workspace};

const MAGIC: &[u8; 16] = b"SQLite format 3\0";
const HEADER_BYTES: usize = 100;
/// What the journal of a change that is not over begins with.
const JOURNAL_MAGIC: [u8; 8] = [0xd9, 0xd5, 0x05, 0xf9, 0x20, 0xa1, 0x63, 0xd7];
/// Where the header says how the file is to be written and read: 2 for with a write-ahead log, 1 for without.
const FORMAT_BYTES: std::ops::Range<usize> = 18..20;
/// Steps of SQLite's machine between two looks at the clock.
const STEPS_PER_LOOK: i32 = 1_000;
const NO_TEXT: &str = "names of tables or columns in this database are no text in UTF-8";
/// What a statement may ask about the database itself.
const PRAGMAS: [&str; 8] = [
    "data_version",
    "foreign_key_list",
    "index_info",
    "index_list",
    "table_info",
    "table_list",
    "table_xinfo",
    "user_version",
];

/// Asks a database.
#[derive(Debug, Clone, Copy)]
pub struct Query;

/// The parameters of [`Query`].
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Params {
    path: SpacePath,
    #[schemars(length(min = 1, max = SQLITE_SQL_BYTES_MAX))]
    sql: String,
    #[serde(default)]
    #[schemars(
        length(max = SQLITE_ARGS_MAX),
        extend("items" = { "type": ["null", "boolean", "number", "string"] })
    )]
    args: Vec<Value>,
    #[schemars(range(min = 1, max = SQLITE_ROWS_MAX), extend("x-public" = true))]
    max_rows: Option<usize>,
}

impl TypedTool for Query {
    const ID: &'static str = "sqlite.query";
    type Params = Params;

    fn spec(&self) -> ToolSpec {
        let result = json!({
            "columns": { "type": "array", "items": { "type": "string" } },
            "rows": { "type": "array", "items": { "type": "array" } },
            "row_count": { "type": "integer", "minimum": 0, "x-public": true },
            "complete": { "type": "boolean", "x-public": true },
            "cells_shortened": { "type": "integer", "minimum": 0, "x-public": true },
        });
        params::reads::<Self>(
            "Asks an SQLite database file of the space with one statement that only reads, and hands out at most 100 \
                rows. Values go in with args, one for each ? of the statement.",
            params::object(
                &["columns", "rows", "row_count", "complete", "cells_shortened"],
                result,
            ),
        )
    }

    fn example(&self) -> Value {
        json!({
            "path": "workspace/shop.db", "sql": "SELECT name FROM sqlite_schema WHERE type = ?", "args": ["table"],
            "space_id": "shared:household",
        })
    }

    fn check(&self, params: &Params) -> Result<(), Failure> {
        if params.sql.contains('\0') {
            return Err(params::invalid("sql", "a statement has no NUL in it"));
        }
        Ok(())
    }

    /// Quality is 1 if all rows were handed out, half of it otherwise.
    fn run(&self, workspace: &Workspace<'_>, call: &Call<'_, Params>) -> Result<ToolOutput, Failure> {
        let (connection, denied) = open(workspace, &call.params.path)?;
        // Names in a database may be no text, which the crate between us and SQLite answers with a panic.
        let asked = catch_unwind(AssertUnwindSafe(|| ask(&connection, &denied, &call.params)));
        let found = asked.unwrap_or_else(|_| Err(failed(Code::ToolFailed, NO_TEXT)))?;
        let quality = if found.complete { 1.0 } else { 0.5 };
        let result = json!({
            "columns": found.columns, "row_count": found.rows.len(), "rows": found.rows,
            "complete": found.complete, "cells_shortened": found.shortened,
        });
        Ok(ToolOutput::new(result, Some(quality)))
    }
}

/// The database in memory, bounded and read-only.
fn open(workspace: &Workspace<'_>, path: &SpacePath) -> Result<(Connection, Arc<AtomicBool>), Failure> {
    let (file, stat) = workspace.open_file(path)?;
    let bytes_max = SQLITE_FILE_BYTES_MAX;
    if stat.bytes > bytes_max {
        return Err(FileProblem::TooLarge { bytes_max }.into());
    }
    let mut header = [0; HEADER_BYTES];
    let is_database = (&file).read_exact(&mut header).is_ok() && header.starts_with(MAGIC);
    if !is_database {
        return Err(failed(Code::ToolFailed, "the file is not an SQLite database"));
    }
    let before = moment(&file)?;
    all_in_one_file(workspace, path)?;
    // In memory there is no write-ahead log; with an empty one the file alone says the same.
    header[FORMAT_BYTES].fill(1);
    let length = usize::try_from(stat.bytes).unwrap_or(usize::MAX);
    let mut connection = Connection::open_in_memory().map_err(problem)?;
    bound(&connection, stat.bytes).map_err(problem)?;
    let taken = connection.deserialize_read_exact(MAIN_DB, header.as_slice().chain(&file), length, true);
    taken.map_err(problem)?;
    // Nobody is kept from writing meanwhile; what was read then may be half of one state and half of another.
    if moment(&file)? != before {
        return Err(FileProblem::Changed.into());
    }
    all_in_one_file(workspace, path)?;
    let denied = watch(&mut connection).map_err(problem)?;
    Ok((connection, denied))
}

/// What changes with whatever is written to a file: its size and times, and SQLite's own count of changes.
fn moment(file: &File) -> Result<impl PartialEq + use<>, Failure> {
    let read = || -> std::io::Result<_> {
        let mut header = [0; HEADER_BYTES];
        file.read_exact_at(&mut header, 0)?;
        let stat = file.metadata()?;
        let times = [stat.mtime(), stat.mtime_nsec(), stat.ctime(), stat.ctime_nsec()];
        Ok((header, stat.size(), times))
    };
    read().map_err(|error| FileProblem::io("read the file")(error).into())
}

/// Refuses a database of which a part lies beside its file: in a write-ahead log, or in the journal of a change that is not
/// over. A journal that is over and kept for the next has lost its mark.
fn all_in_one_file(workspace: &Workspace<'_>, path: &SpacePath) -> Result<(), Failure> {
    let beside = |suffix: &str| -> Result<_, Failure> {
        let Ok(path) = SpacePath::parse(&format!("{path}{suffix}")) else {
            return Ok(None);
        };
        Ok(workspace.stat(&path)?.map(|stat| (path, stat)))
    };
    let is_there = |stat: &Stat| stat.kind != FileKind::File || stat.bytes > 0;
    let wal = beside("-wal")?.is_some_and(|(_, stat)| is_there(&stat));
    let journal = match beside("-journal")? {
        Some((path, stat)) if stat.kind == FileKind::File => {
            match workspace.read_piece(&path, 0, JOURNAL_MAGIC.len() as u64) {
                Ok(begins) => begins.bytes == JOURNAL_MAGIC,
                // It was over in that very moment.
                Err(problem) if problem.errno() == Some(Errno::ENOENT) => false,
                Err(problem) => return Err(problem.into()),
            }
        }
        Some((_, stat)) => is_there(&stat),
        None => false,
    };
    if wal || journal {
        let words =
            "the database has changes that are not in its file yet: close it, or have it checkpointed, first";
        return Err(failed(Code::StateChanged, words));
    }
    Ok(())
}

fn bound(connection: &Connection, file_bytes: u64) -> rusqlite::Result<()> {
    let heap = file_bytes + SQLITE_HEAP_BYTES_MAX;
    connection.pragma_update_and_check(None, "hard_heap_limit", heap as i64, |_| Ok(()))?;
    connection.pragma_update(None, "temp_store", "memory")?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
    let limits = [
        (Limit::SQLITE_LIMIT_LENGTH, 4 << 20),
        (Limit::SQLITE_LIMIT_SQL_LENGTH, 1 << 20),
        (Limit::SQLITE_LIMIT_COLUMN, 1_000),
        (Limit::SQLITE_LIMIT_EXPR_DEPTH, 100),
        (Limit::SQLITE_LIMIT_COMPOUND_SELECT, 50),
        (Limit::SQLITE_LIMIT_VDBE_OP, 250_000),
        (Limit::SQLITE_LIMIT_FUNCTION_ARG, 32),
        (Limit::SQLITE_LIMIT_ATTACHED, 0),
        (Limit::SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 256),
        (Limit::SQLITE_LIMIT_TRIGGER_DEPTH, 1),
        (Limit::SQLITE_LIMIT_WORKER_THREADS, 0),
    ];
    limits
        .into_iter()
        .try_for_each(|(limit, value)| connection.set_limit(limit, value).map(drop))
}

/// From now on only what reads is taken, and not for long. Tells whether anything was denied.
fn watch(connection: &mut Connection) -> rusqlite::Result<Arc<AtomicBool>> {
    let until = Instant::now() + SQLITE_TIME_MAX;
    connection.progress_handler(STEPS_PER_LOOK, Some(move || Instant::now() >= until))?;
    let denied = Arc::new(AtomicBool::new(false));
    let told = denied.clone();
    connection.authorizer(Some(move |context: AuthContext<'_>| {
        if may(context) {
            return Authorization::Allow;
        }
        told.store(true, Ordering::Relaxed);
        Authorization::Deny
    }))?;
    Ok(denied)
}

#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "whatever else SQLite can do, now or later, is not reading"
)]
fn may(context: AuthContext<'_>) -> bool {
    match context.action {
        AuthAction::Select | AuthAction::Recursive | AuthAction::Read { .. } => true,
        AuthAction::Function { function_name } => !function_name.eq_ignore_ascii_case("load_extension"),
        AuthAction::Pragma { pragma_name, .. } => PRAGMAS
            .iter()
            .any(|known| pragma_name.eq_ignore_ascii_case(known)),
        _ => false,
    }
}

#[derive(Default)]
struct Found {
    columns: Vec<String>,
    rows: Vec<Vec<Value>>,
    complete: bool,
    /// Cells of which only the beginning is handed out.
    shortened: u64,
}

fn ask(connection: &Connection, denied: &AtomicBool, given: &Params) -> Result<Found, Failure> {
    let mut statements = Batch::new(connection, &given.sql);
    let first = statements.next().map_err(|error| {
        // Denied, and not by us: asking us was what met a name that is no text.
        let is_denied = error.sqlite_error_code() == Some(ErrorCode::AuthorizationForStatementDenied);
        if is_denied && !denied.load(Ordering::Relaxed) {
            return failed(Code::ToolFailed, NO_TEXT);
        }
        problem(error)
    })?;
    let mut statement = first.ok_or_else(|| params::invalid("sql", "there is no statement in it"))?;
    if !matches!(statements.next(), Ok(None)) {
        return Err(params::invalid("sql", "one statement at a time"));
    }
    // What has no columns has nothing to hand out, and does something else.
    if !statement.readonly() || statement.column_count() == 0 {
        return Err(params::invalid("sql", "only statements that read are taken"));
    }
    let args: Vec<Bound> = given.args.iter().map(bound_value).collect();
    if args.len() != statement.parameter_count() {
        let wanted = statement.parameter_count();
        return Err(params::invalid(
            "args",
            format!("the statement has {wanted} places for values"),
        ));
    }
    let rows_max = given.max_rows.unwrap_or(usize::MAX).min(SQLITE_ROWS_MAX);
    let mut found = Found {
        columns: statement.column_names().map(str::to_owned).collect(),
        complete: true,
        ..Found::default()
    };
    let width = found.columns.len();
    let mut bytes = found.columns.iter().map(String::len).sum::<usize>();
    let mut rows = statement
        .query(rusqlite::params_from_iter(args))
        .map_err(problem)?;
    while let Some(row) = rows.next().map_err(problem)? {
        let shortened = found.shortened;
        let mut cells = Vec::with_capacity(width);
        for nth in 0..width {
            let cell = found.cell(row.get_ref(nth).map_err(problem)?);
            bytes += cell_bytes(&cell);
            cells.push(cell);
        }
        if found.rows.len() == rows_max || bytes > SQLITE_RESULT_BYTES_MAX {
            (found.complete, found.shortened) = (false, shortened);
            break;
        }
        found.rows.push(cells);
    }
    Ok(found)
}

fn bound_value(given: &Value) -> Bound {
    match given {
        Value::Bool(value) => Bound::Integer(i64::from(*value)),
        Value::Number(value) => value
            .as_i64()
            .map_or_else(|| value.as_f64().map_or(Bound::Null, Bound::Real), Bound::Integer),
        Value::String(value) => Bound::Text(value.clone()),
        // The schema lets no list or object through.
        Value::Null | Value::Array(_) | Value::Object(_) => Bound::Null,
    }
}

impl Found {
    fn cell(&mut self, value: ValueRef<'_>) -> Value {
        match value {
            ValueRef::Null => Value::Null,
            ValueRef::Integer(value) if (-INTEGER_MAX..=INTEGER_MAX).contains(&value) => json!(value),
            ValueRef::Integer(value) => json!(value.to_string()),
            ValueRef::Real(value) if value.is_finite() => json!(value),
            ValueRef::Real(value) => json!(if value > 0.0 { "Infinity" } else { "-Infinity" }),
            ValueRef::Text(bytes) => match std::str::from_utf8(bytes) {
                Ok(text) => self.text(text),
                Err(_) => self.blob(bytes),
            },
            ValueRef::Blob(bytes) => self.blob(bytes),
        }
    }

    fn text(&mut self, text: &str) -> Value {
        let most = SQLITE_CELL_BYTES_MAX;
        if text.len() <= most {
            return json!(text);
        }
        self.shortened += 1;
        let end = (0..=most).rev().find(|at| text.is_char_boundary(*at));
        json!(&text[..end.unwrap_or(0)])
    }

    fn blob(&mut self, bytes: &[u8]) -> Value {
        let shown = bytes.len().min(SQLITE_CELL_BYTES_MAX / 2);
        self.shortened += u64::from(shown < bytes.len());
        json!({ "bytes": bytes.len(), "hex": effectd_contracts::digest::hex(&bytes[..shown]) })
    }
}

/// About what a cell takes in the answer.
fn cell_bytes(cell: &Value) -> usize {
    match cell {
        Value::String(text) => text.len() + 3,
        Value::Object(blob) => blob.get("hex").and_then(Value::as_str).map_or(0, str::len) + 32,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) => 16,
    }
}

fn failed(code: Code, words: &str) -> Failure {
    Failure::new(code, Phase::Dispatch, words)
}

/// What SQLite says, in words that quote nothing of the statement and nothing of the data.
#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "SQLite has more errors than a tool has words"
)]
fn problem(error: rusqlite::Error) -> Failure {
    let (said, at) = match &error {
        rusqlite::Error::SqlInputError { msg, offset, .. } => (Some(msg), format!(", at byte {offset}")),
        rusqlite::Error::SqliteFailure(failure, said)
            if failure.extended_code == rusqlite::ffi::SQLITE_ERROR =>
        {
            (said.as_ref(), String::new())
        }
        _ => (None, String::new()),
    };
    if let Some(said) = said {
        let kinds = ["no such table", "no such column", "no such function"];
        let kind = kinds.into_iter().find(|kind| said.starts_with(kind));
        let kind = kind.unwrap_or("not something that SQLite understands or can do");
        let words = format!("{kind}{at}; SELECT sql FROM sqlite_schema tells what is there");
        return params::invalid("sql", words);
    }
    let (code, words) = match error.sqlite_error_code() {
        Some(ErrorCode::OperationInterrupted) => (
            Code::TimedOut,
            "the statement took too long and was stopped; ask for less, or by an index",
        ),
        Some(ErrorCode::OutOfMemory) => (
            Code::MemoryLimit,
            "the statement needs more memory than it may have; sort or join less at once",
        ),
        Some(ErrorCode::TooBig) => (Code::OutputLimit, "a value is larger than this tool handles"),
        Some(ErrorCode::AuthorizationForStatementDenied | ErrorCode::ReadOnly) => {
            return params::invalid("sql", "only statements that read this one database are taken");
        }
        Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => {
            (Code::ToolFailed, "the database is damaged, encrypted or not one")
        }
        _ => (Code::ToolFailed, "SQLite could not carry out the statement"),
    };
    failed(code, words)
}

#[cfg(test)]
mod tests;
