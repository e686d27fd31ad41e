//! `sqlite.query`: queries a database file of the space, and never changes it.
//!
//! The file is read whole, like any other file of the space, and SQLite works on these bytes in memory: it opens no path,
//! takes no lock and replays no journal. A query is one read-only statement; its functions, its time and its memory are
//! bounded here, and by the sandbox again.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use effectd_contracts::json::INTEGER_MAX;
use nix::errno::Errno;
use rusqlite::config::DbConfig;
use rusqlite::fallible_iterator::FallibleIterator;
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use rusqlite::limits::Limit;
use rusqlite::types::{Value as Bound, ValueRef};
use rusqlite::{Batch, Connection, ErrorCode, MAIN_DB};

use crate::limits::{
    SQLITE_ARGS_MAX, SQLITE_CELL_BYTES_MAX, SQLITE_FILE_BYTES_MAX, SQLITE_HEAP_BYTES_MAX,
    SQLITE_RESULT_BYTES_MAX, SQLITE_ROWS_MAX, SQLITE_SQL_BYTES_MAX, SQLITE_TIME_MAX,
};
use crate::prelude::*;
use crate::workspace::Stat;

const MAGIC: &[u8; 16] = b"SQLite format 3\0";
const HEADER_BYTES: usize = 100;
/// The first bytes of a rollback journal with an unfinished change.
const JOURNAL_MAGIC: [u8; 8] = [0xd9, 0xd5, 0x05, 0xf9, 0x20, 0xa1, 0x63, 0xd7];
/// The header's versions for writing and reading the file: 2 with a write-ahead log, 1 without.
const FORMAT_BYTES: std::ops::Range<usize> = 18..20;
/// Steps of SQLite's virtual machine between two checks of the clock.
const STEPS_PER_LOOK: i32 = 1_000;
const NO_TEXT: &str = "the names of tables or columns in this database are not UTF-8";
/// The pragmas that a statement may read.
const PRAGMAS: &str =
    "data_version foreign_key_list index_info index_list table_info table_list table_xinfo user_version";

#[derive(Debug, Clone, Copy)]
pub struct Query;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Params {
    path: SpacePath,
    /// One statement that only reads, with ? for each value.
    #[schemars(length(min = 1, max = SQLITE_SQL_BYTES_MAX), extend("x-resource" = true))]
    sql: String,
    /// The values, in the order of the ?.
    #[serde(default)]
    #[schemars(
        length(max = SQLITE_ARGS_MAX),
        extend("items" = { "type": ["null", "boolean", "number", "string"] }, "x-resource" = true)
    )]
    args: Vec<Value>,
    /// Rows to return at most. Default: the largest number.
    #[schemars(range(min = 1, max = SQLITE_ROWS_MAX), extend("x-public" = true))]
    max_rows: Option<usize>,
}

impl TypedTool for Query {
    const ID: &'static str = "sqlite.query";
    const DESCRIPTION: &'static str = "Queries an SQLite database file of the space with one read-only statement \
        and returns at most 100 rows. Pass values in args, one for each ? of the statement. Use it to look into a \
        database.";
    type Params = Params;

    fn spec(&self) -> ToolSpec {
        let result = json!({
            "columns": { "type": "array", "items": { "type": "string" } },
            "rows": { "type": "array", "items": { "type": "array", "items": {} } }, "row_count": count(),
            "complete": flag(), "cells_shortened": count(),
        });
        params::reads::<Self>(&["columns", "rows", "row_count", "complete", "cells_shortened"], result)
    }

    fn example(&self) -> Value {
        json!({
            "path": "workspace/shop.db", "sql": "SELECT name FROM sqlite_schema WHERE type = ?", "args": ["table"]
        })
    }

    fn check(&self, params: &Params) -> Result<(), Failure> {
        if params.sql.contains('\0') {
            return Err(params::invalid("sql", "a statement must not contain a NUL byte"));
        }
        Ok(())
    }

    /// Quality is 1 if all rows are returned, and 0.5 otherwise.
    fn run(&self, workspace: &Workspace<'_>, call: &Call<'_, Params>) -> Result<ToolOutput, Failure> {
        let (connection, denied) = open(workspace, &call.params.path)?;
        // Names in a database that are not UTF-8 make rusqlite panic.
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
    FileProblem::check_size(stat.bytes, SQLITE_FILE_BYTES_MAX)?;
    let mut header = [0; HEADER_BYTES];
    let is_database = (&file).read_exact(&mut header).is_ok() && header.starts_with(MAGIC);
    if !is_database {
        return Err(failed(Code::ToolFailed, "the file is not an SQLite database"));
    }
    let before = moment(&file)?;
    all_in_one_file(workspace, path)?;
    // The copy in memory has no write-ahead log, and `all_in_one_file` refuses a log that adds to the file.
    header[FORMAT_BYTES].fill(1);
    let length = usize::try_from(stat.bytes).unwrap_or(usize::MAX);
    let mut connection = Connection::open_in_memory().map_err(problem)?;
    bound(&connection, stat.bytes).map_err(problem)?;
    let taken = connection.deserialize_read_exact(MAIN_DB, header.as_slice().chain(&file), length, true);
    taken.map_err(problem)?;
    // Nothing stops a writer during the read; the bytes may then be a mix of two states.
    if moment(&file)? != before {
        return Err(FileProblem::Changed.into());
    }
    all_in_one_file(workspace, path)?;
    let denied = watch(&mut connection).map_err(problem)?;
    Ok((connection, denied))
}

/// Values that change with every write to the file: its size and times, and SQLite's own change counter.
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

/// Refuses a database with changes outside of its file: in a write-ahead log, or in the journal of an unfinished change.
/// The journal of a finished change, kept for reuse, has no magic bytes.
fn all_in_one_file(workspace: &Workspace<'_>, path: &SpacePath) -> Result<(), Failure> {
    let sibling = |suffix: &str| -> Result<_, Failure> {
        let Ok(path) = SpacePath::parse(&format!("{path}{suffix}")) else {
            return Ok(None);
        };
        Ok(workspace.stat(&path)?.map(|stat| (path, stat)))
    };
    let is_there = |stat: &Stat| stat.kind != FileKind::File || stat.bytes > 0;
    let wal = sibling("-wal")?.is_some_and(|(_, stat)| is_there(&stat));
    let journal = match sibling("-journal")? {
        Some((path, stat)) if stat.kind == FileKind::File => {
            match workspace.read_piece(&path, 0, JOURNAL_MAGIC.len() as u64) {
                Ok(begins) => begins.bytes == JOURNAL_MAGIC,
                // The writer finished the change and removed its journal meanwhile.
                Err(problem) if problem.errno() == Some(Errno::ENOENT) => false,
                Err(problem) => return Err(problem.into()),
            }
        }
        Some((_, stat)) => is_there(&stat),
        None => false,
    };
    if wal || journal {
        let words =
            "the database has changes that are not in its file yet; close it or run a checkpoint first";
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
    limits.into_iter().try_for_each(|(limit, value)| connection.set_limit(limit, value).map(drop))
}

/// Allows only reading, for a limited time. The flag says whether anything was denied.
#[expect(clippy::disallowed_methods, reason = "it runs in the child, which has only the kernel's clock")]
fn watch(connection: &mut Connection) -> rusqlite::Result<Arc<AtomicBool>> {
    let until = Instant::now() + SQLITE_TIME_MAX;
    connection.progress_handler(STEPS_PER_LOOK, Some(move || Instant::now() >= until))?;
    let denied = Arc::new(AtomicBool::new(false));
    let flag = denied.clone();
    connection.authorizer(Some(move |context: AuthContext<'_>| {
        if may(context) {
            return Authorization::Allow;
        }
        flag.store(true, Ordering::Relaxed);
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
        AuthAction::Pragma { pragma_name, .. } => {
            PRAGMAS.split(' ').any(|known| pragma_name.eq_ignore_ascii_case(known))
        }
        _ => false,
    }
}

#[derive(Default)]
struct Found {
    columns: Vec<String>,
    rows: Vec<Vec<Value>>,
    complete: bool,
    /// The number of cells that are cut.
    shortened: u64,
}

fn ask(connection: &Connection, denied: &AtomicBool, given: &Params) -> Result<Found, Failure> {
    let mut statements = Batch::new(connection, &given.sql);
    let first = statements.next().map_err(|error| {
        // Denied, but not by the authorizer: SQLite could not call it with a name that is not UTF-8.
        let is_denied = error.sqlite_error_code() == Some(ErrorCode::AuthorizationForStatementDenied);
        if is_denied && !denied.load(Ordering::Relaxed) {
            return failed(Code::ToolFailed, NO_TEXT);
        }
        problem(error)
    })?;
    let mut statement = first.ok_or_else(|| params::invalid("sql", "it contains no statement"))?;
    if !matches!(statements.next(), Ok(None)) {
        return Err(params::invalid("sql", "give only one statement"));
    }
    // A statement without columns returns nothing, so it is not a query.
    if !statement.readonly() || statement.column_count() == 0 {
        return Err(params::invalid("sql", "only statements that read are allowed"));
    }
    let args: Vec<Bound> = given.args.iter().map(bound_value).collect();
    if args.len() != statement.parameter_count() {
        let wanted = statement.parameter_count();
        return Err(params::invalid("args", format!("the statement has {wanted} parameters")));
    }
    let rows_max = given.max_rows.unwrap_or(usize::MAX).min(SQLITE_ROWS_MAX);
    let mut found = Found {
        columns: statement.column_names().map(str::to_owned).collect(),
        complete: true,
        ..Found::default()
    };
    let width = found.columns.len();
    let mut bytes = found.columns.iter().map(String::len).sum::<usize>();
    let mut rows = statement.query(rusqlite::params_from_iter(args)).map_err(problem)?;
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
        Value::Number(value) => {
            value.as_i64().map_or_else(|| value.as_f64().map_or(Bound::Null, Bound::Real), Bound::Integer)
        }
        Value::String(value) => Bound::Text(value.clone()),
        // The schema lets no list or object pass.
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
        json!(&text[..text.floor_char_boundary(most)])
    }

    fn blob(&mut self, bytes: &[u8]) -> Value {
        let shown = bytes.len().min(SQLITE_CELL_BYTES_MAX / 2);
        self.shortened += u64::from(shown < bytes.len());
        json!({ "bytes": bytes.len(), "hex": effectd_contracts::digest::hex(&bytes[..shown]) })
    }
}

/// The approximate length of a cell in the answer.
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

/// An error of SQLite, without quoting the statement or the data.
#[expect(clippy::wildcard_enum_match_arm, reason = "SQLite has more errors than a tool has words")]
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
        let kind = kind.unwrap_or("a syntax error or an unsupported feature");
        let words = format!("{kind}{at}; SELECT sql FROM sqlite_schema shows the tables");
        return params::invalid("sql", words);
    }
    let (code, words) = match error.sqlite_error_code() {
        Some(ErrorCode::OperationInterrupted) => {
            (Code::TimedOut, "the statement took too long and was stopped; select less, or use an index")
        }
        Some(ErrorCode::OutOfMemory) => {
            (Code::MemoryLimit, "the statement needs more memory than it may have; sort or join less at once")
        }
        Some(ErrorCode::TooBig) => (Code::OutputLimit, "a value is larger than this tool handles"),
        Some(ErrorCode::AuthorizationForStatementDenied | ErrorCode::ReadOnly) => {
            return params::invalid("sql", "only statements that read this one database are allowed");
        }
        Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => {
            (Code::ToolFailed, "the database is damaged or encrypted, or is not an SQLite database")
        }
        _ => (Code::ToolFailed, "SQLite could not carry out the statement"),
    };
    failed(code, words)
}

#[cfg(test)]
mod tests;
