//! Statements for PostgreSQL that only read, and their answers.
//!
//! [`check`] is the third lock of three. The first is the role, to which an operator gave no rights to write; the second is the server's
//! `READ ONLY` transaction, which is always rolled back. This one refuses before anything leaves what no transaction takes back, and it
//! fails closed: a statement that two versions of PostgreSQL could read differently is none.

use serde::{Deserialize, Serialize};

use crate::exchange::Method;
use crate::limits::SQL_BYTES_MAX;

/// Why a statement is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SqlInvalid {
    /// It is no statement that can be sent, or can be read in two ways.
    #[error("{0}")]
    Text(&'static str),
    /// A verb that may change something.
    #[error("{0} is not allowed; if it is the name of a column, write it in double quotes")]
    Verb(&'static str),
    /// A function whose effect no rollback takes back.
    #[error("functions whose names begin with {0} are not allowed: they act beyond a transaction")]
    Function(&'static str),
}

const NOT_A_READ: SqlInvalid =
    SqlInvalid::Text("a statement begins with SELECT, VALUES, TABLE, WITH, SHOW or EXPLAIN of one of these");
const SEVERAL: SqlInvalid = SqlInvalid::Text("give only one statement");
const UNFINISHED: SqlInvalid = SqlInvalid::Text("a string, a quoted name or a comment does not end");

/// Words that no part of a query is. `update` is also that of `FOR UPDATE`, and `into` that of `SELECT INTO`.
const VERBS: [&str; 5] = ["insert", "update", "delete", "merge", "into"];

/// How functions begin that act beyond a transaction, run SQL that they are given as text, or only wait. A net and no proof: the rights
/// of the role are that.
const FUNCTIONS: [&str; 43] = [
    "connectby",
    "crosstab",
    "cursor_to_xml",
    "dblink",
    "lo_",
    "loread",
    "lowrite",
    "nextval",
    "pg_advisory_",
    "pg_backup_",
    "pg_cancel_",
    "pg_copy_",
    "pg_create_",
    "pg_drop_",
    "pg_execute_",
    "pg_export_",
    "pg_file_",
    "pg_import_",
    "pg_log_",
    "pg_logical_",
    "pg_ls_",
    "pg_notify",
    "pg_prewarm",
    "pg_promote",
    "pg_read_",
    "pg_reload_",
    "pg_replication_",
    "pg_rotate_",
    "pg_sleep",
    "pg_start_",
    "pg_stat_reset",
    "pg_stat_statements_reset",
    "pg_stop_",
    "pg_switch_",
    "pg_sync_",
    "pg_terminate_",
    "pg_try_advisory_",
    "pg_wal_replay_",
    "query_to_xml",
    "set_config",
    "setval",
    "ts_rewrite",
    "ts_stat",
];

/// A part of a statement. Comments and spaces are none.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Token<'a> {
    /// A keyword or a name that is not quoted.
    Word(&'a str),
    /// A quoted name.
    Name(String),
    /// A parenthesis, a semicolon, a dot, or a part of an operator.
    Mark(u8),
    /// A string or a number.
    Literal,
}

impl Token<'_> {
    fn is(&self, words: &[&str]) -> bool {
        matches!(self, Self::Word(word) if words.iter().any(|known| word.eq_ignore_ascii_case(known)))
    }
}

/// Refuses all but one statement that reads. Returns its kind.
pub fn check(sql: &str) -> Result<Method, SqlInvalid> {
    if sql.len() > SQL_BYTES_MAX {
        return Err(SqlInvalid::Text("the statement is longer than allowed"));
    }
    let mut tokens = tokens(sql)?;
    tokens.pop_if(|last| *last == Token::Mark(b';'));
    if tokens.contains(&Token::Mark(b';')) {
        return Err(SEVERAL);
    }
    let kind = kind(&tokens)?;
    for (at, token) in tokens.iter().enumerate() {
        let (before, next) = (at.checked_sub(1).map(|at| &tokens[at]), tokens.get(at + 1));
        if before != Some(&Token::Mark(b'.'))
            && let Some(verb) = VERBS.into_iter().find(|verb| token.is(&[verb]))
        {
            return Err(SqlInvalid::Verb(verb));
        }
        if token.is(&["share"]) && before.is_some_and(|before| before.is(&["for", "key"])) {
            return Err(SqlInvalid::Text("FOR SHARE takes locks; leave it out"));
        }
        let called = match token {
            Token::Word(name) => name.to_ascii_lowercase(),
            Token::Name(name) => name.clone(),
            Token::Mark(_) | Token::Literal => continue,
        };
        if next == Some(&Token::Mark(b'('))
            && let Some(known) = FUNCTIONS.into_iter().find(|known| called.starts_with(known))
        {
            return Err(SqlInvalid::Function(known));
        }
    }
    Ok(kind)
}

/// The kind of a statement by how it begins.
fn kind(tokens: &[Token<'_>]) -> Result<Method, SqlInvalid> {
    let is_open = |token: &&Token<'_>| **token == Token::Mark(b'(');
    let queries = |tokens: &[Token<'_>]| {
        let first = tokens.iter().find(|token| !is_open(token));
        first.is_some_and(|first| first.is(&["select", "values", "table", "with"]))
    };
    match tokens.split_first() {
        Some((first, _)) if first.is(&["show"]) => Ok(Method::Show),
        Some((first, mut rest)) if first.is(&["explain"]) => {
            if !queries(rest) && rest.first() == Some(&Token::Mark(b'(')) {
                // Options have no parentheses of their own.
                let end = rest.iter().position(|token| *token == Token::Mark(b')')).ok_or(NOT_A_READ)?;
                rest = &rest[end + 1..];
            }
            let options =
                rest.iter().take_while(|token| token.is(&["analyze", "analyse", "verbose"])).count();
            if queries(&rest[options..]) { Ok(Method::Explain) } else { Err(NOT_A_READ) }
        }
        Some(_) if queries(tokens) => Ok(Method::Select),
        Some(_) | None => Err(NOT_A_READ),
    }
}

const fn begins_word(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || byte == b'_' || !byte.is_ascii()
}

/// Reads a statement as PostgreSQL's scanner does, with `standard_conforming_strings` on, which effectd sets.
fn tokens(sql: &str) -> Result<Vec<Token<'_>>, SqlInvalid> {
    let bytes = sql.as_bytes();
    let (mut tokens, mut at) = (Vec::new(), 0);
    // A string that goes on after a line break is read as it began.
    let mut is_after_escapes = false;
    while let Some(&byte) = bytes.get(at) {
        let rest = &bytes[at..];
        let length = |of: &dyn Fn(u8) -> bool| rest.iter().take_while(|byte| of(**byte)).count();
        match rest {
            [b' ' | b'\t' | b'\n' | b'\r' | 0x0c, ..] => {
                at += 1;
                continue;
            }
            [b'-', b'-', ..] => {
                at += length(&|byte| byte != b'\n' && byte != b'\r');
                continue;
            }
            [b'/', b'*', ..] => {
                at += comment(rest)?;
                continue;
            }
            _ => {}
        }
        if is_after_escapes && byte == b'\'' {
            return Err(SqlInvalid::Text("write a string with escapes in one piece"));
        }
        is_after_escapes = false;
        at += match byte {
            b'\'' => {
                tokens.push(Token::Literal);
                quoted(rest, b'\'', false)?
            }
            b'"' => {
                if matches!(bytes[..at], [.., b'u' | b'U', b'&']) {
                    return Err(SqlInvalid::Text("U&\"…\" is not allowed: write the name itself"));
                }
                let length = quoted(rest, b'"', false)?;
                tokens.push(Token::Name(sql[at + 1..at + length - 1].replace("\"\"", "\"")));
                length
            }
            b'$' => {
                tokens.push(Token::Literal);
                dollars(sql.get(at..).unwrap_or_default())?
            }
            b'0'..=b'9' => {
                tokens.push(Token::Literal);
                number(rest)?
            }
            b'.' if rest.get(1).is_some_and(u8::is_ascii_digit) => {
                tokens.push(Token::Literal);
                number(rest)?
            }
            _ if begins_word(byte) => {
                let is_part = |byte: u8| begins_word(byte) || byte.is_ascii_digit() || byte == b'$';
                let length = length(&is_part);
                let word = &sql[at..at + length];
                if word.eq_ignore_ascii_case("e") && rest.get(1) == Some(&b'\'') {
                    is_after_escapes = true;
                    tokens.push(Token::Literal);
                    1 + quoted(&rest[1..], b'\'', true)?
                } else {
                    tokens.push(Token::Word(word));
                    length
                }
            }
            _ if byte.is_ascii_graphic() => {
                tokens.push(Token::Mark(byte));
                1
            }
            _ => return Err(SqlInvalid::Text("the statement has a control character")),
        };
    }
    Ok(tokens)
}

/// The length of a comment. They nest.
fn comment(bytes: &[u8]) -> Result<usize, SqlInvalid> {
    let (mut depth, mut at) = (0_usize, 0);
    loop {
        match bytes.get(at..at + 2).ok_or(UNFINISHED)? {
            b"/*" => (depth, at) = (depth + 1, at + 2),
            b"*/" => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            return Ok(at);
        }
    }
}

/// The length of what is quoted, in which a quote stands twice or, with escapes, behind a backslash.
fn quoted(bytes: &[u8], quote: u8, has_escapes: bool) -> Result<usize, SqlInvalid> {
    let mut at = 1;
    loop {
        match &bytes.get(at..).ok_or(UNFINISHED)? {
            [] => return Err(UNFINISHED),
            [0, ..] => return Err(SqlInvalid::Text("the statement has a control character")),
            [b'\\', ..] if has_escapes => at += 2,
            [first, second, ..] if *first == quote && *second == quote => at += 2,
            [first, ..] if *first == quote => return Ok(at + 1),
            [..] => at += 1,
        }
    }
}

/// The length of a string between `$tag$` and `$tag$`.
fn dollars(text: &str) -> Result<usize, SqlInvalid> {
    let none = SqlInvalid::Text("the statement has a parameter such as $1; write the value itself");
    let tag = text[1..].find('$').map(|end| &text[..end + 2]).ok_or(none.clone())?;
    let name = &tag.as_bytes()[1..tag.len() - 1];
    let is_tag = name.first().is_none_or(|first| begins_word(*first))
        && name.iter().all(|byte| begins_word(*byte) || byte.is_ascii_digit());
    if !is_tag {
        return Err(none);
    }
    let inner = &text[tag.len()..];
    let length = inner.find(tag).ok_or(UNFINISHED)?;
    if inner[..length].contains('\0') {
        return Err(SqlInvalid::Text("the statement has a control character"));
    }
    Ok(length + 2 * tag.len())
}

/// The length of a number. Older servers read a word that follows at once as another token, newer ones refuse it.
fn number(bytes: &[u8]) -> Result<usize, SqlInvalid> {
    let digits =
        |bytes: &[u8]| bytes.iter().take_while(|byte| byte.is_ascii_digit() || b"._".contains(byte)).count();
    let mut length = digits(bytes);
    length += match &bytes[length..] {
        [b'e' | b'E', b'+' | b'-', rest @ ..] if rest.first().is_some_and(u8::is_ascii_digit) => {
            2 + digits(rest)
        }
        [b'e' | b'E', rest @ ..] if rest.first().is_some_and(u8::is_ascii_digit) => 1 + digits(rest),
        _ => 0,
    };
    match bytes.get(length) {
        Some(next) if begins_word(*next) => Err(SqlInvalid::Text("put a space behind each number")),
        Some(_) | None => Ok(length),
    }
}

/// What a database answered to a statement: the body of an answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum SqlAnswer {
    /// Rows.
    Rows(SqlRows),
    /// The server's error.
    Refused(SqlRefusal),
}

/// Rows, as the server writes their values.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SqlRows {
    /// The columns.
    pub columns: Vec<SqlColumn>,
    /// The values of each row, in the order of the columns. `None` is `NULL`.
    pub rows: Vec<Vec<Option<SqlCell>>>,
    /// Whether there are more rows.
    pub truncated: bool,
}

/// A column of an answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SqlColumn {
    /// Its name.
    pub name: String,
    /// The id of its type: those of the built-in types are the same everywhere.
    pub oid: u32,
    /// The modifier of its type, such as the length of a `varchar`; -1 without one.
    pub modifier: i32,
    /// Its type as the server names it: `numeric(10,2)`.
    #[serde(rename = "type")]
    pub type_name: String,
}

/// A value in the server's own words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SqlCell {
    /// The text, or its beginning. Bytes that are no UTF-8 are replaced.
    pub text: String,
    /// The length of the whole text in bytes.
    pub bytes: usize,
}

/// An error of the server. It may quote data.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SqlRefusal {
    /// The code by the standard, five letters and digits.
    pub sqlstate: String,
    /// The first line of the message, or its beginning.
    pub message: String,
    /// Where in the statement, in characters from 1 on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub position: Option<u32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_reads_is_a_statement() {
        for (sql, kind) in [
            ("SELECT 1", Method::Select),
            ("  -- a comment\n/* and /* another */ */ select * from \"update\" ; -- done\n", Method::Select),
            ("(SELECT 1) UNION (SELECT 2)", Method::Select),
            ("VALUES (1), (2)", Method::Select),
            ("TABLE orders", Method::Select),
            ("WITH x AS (SELECT 1) SELECT * FROM x", Method::Select),
            (
                "SELECT o.update, o.\"delete\", 'DELETE; INTO', $$x; INSERT$$, $a$ $$ $a$ FROM o",
                Method::Select,
            ),
            (
                "SELECT E'it\\'s; ', 'a''b', U&'d\\0061t', B'1', X'1f', 1.5e-3, .5, 1e10, a$b, größe FROM t",
                Method::Select,
            ),
            ("SELECT 'back\\', 'DELETE'", Method::Select),
            (
                "SELECT share, key FROM holders WHERE a @> b AND c->>'x' = 'y' AND d &\"e\" > 0",
                Method::Select,
            ),
            ("SELECT updated_at, deleted, nextval, max(setval_at) FROM t", Method::Select),
            ("SHOW server_version", Method::Show),
            ("EXPLAIN SELECT 1", Method::Explain),
            ("explain analyze verbose with x as (select 1) table x", Method::Explain),
            ("EXPLAIN (ANALYZE, FORMAT JSON) SELECT 1", Method::Explain),
            ("EXPLAIN (SELECT 1)", Method::Explain),
            ("EXPLAIN (COSTS off) (SELECT 1)", Method::Explain),
        ] {
            assert_eq!(check(sql), Ok(kind), "{sql}");
        }
    }

    #[test]
    fn what_may_change_something_is_refused() {
        for sql in [
            "",
            " ; ",
            "-- SELECT 1",
            "DELETE FROM t",
            "INSERT INTO t VALUES (1)",
            "UPDATE t SET a = 1",
            "MERGE INTO t USING s ON true WHEN MATCHED THEN DELETE",
            "TRUNCATE t",
            "CREATE TABLE t (a int)",
            "DROP TABLE t",
            "ALTER ROLE r SUPERUSER",
            "GRANT ALL ON t TO r",
            "WITH x AS (DELETE FROM t RETURNING *) SELECT * FROM x",
            "WITH x AS (SELECT 1), y AS MATERIALIZED (/**/UPDATE/**/ t SET a = 1 RETURNING a) TABLE y",
            "WITH x AS (SELECT 1) INSERT INTO t SELECT * FROM x",
            "EXPLAIN ANALYZE DELETE FROM t",
            "EXPLAIN (ANALYZE) DELETE FROM t",
            "EXPLAIN (ANALYZE, COSTS off) UPDATE t SET a = 1",
            "EXPLAIN ANALYZE EXECUTE p",
            "EXPLAIN ANALYZE CREATE TABLE u AS SELECT 1",
            "EXPLAIN ANALYZE DECLARE c CURSOR FOR SELECT 1",
            "EXPLAIN (ANALYZE",
            "EXPLAIN SHOW x",
            "COPY t TO PROGRAM 'cat'",
            "COPY (SELECT 1) TO PROGRAM 'cat'",
            "DO $$ BEGIN DELETE FROM t; END $$",
            "CALL p()",
            "SET TRANSACTION READ WRITE",
            "SET default_transaction_read_only = off",
            "RESET ALL",
            "BEGIN",
            "COMMIT",
            "ROLLBACK",
            "START TRANSACTION READ WRITE",
            "SAVEPOINT a",
            "LISTEN a",
            "NOTIFY a",
            "PREPARE p AS DELETE FROM t",
            "EXECUTE p",
            "DEALLOCATE ALL",
            "DECLARE c CURSOR FOR SELECT 1",
            "FETCH ALL FROM c",
            "VACUUM",
            "ANALYZE t",
            "LOCK t",
            "REFRESH MATERIALIZED VIEW v",
            "DISCARD ALL",
            "SECURITY LABEL ON TABLE t IS 'x'",
            "SELECT * INTO u FROM t",
            "SELECT 1 INTO TEMP u",
            "SELECT * FROM t FOR UPDATE",
            "SELECT * FROM t FOR NO KEY UPDATE SKIP LOCKED",
            "SELECT * FROM t FOR SHARE",
            "SELECT * FROM t FOR /**/ KEY -- x\n SHARE",
        ] {
            assert!(check(sql).is_err(), "{sql}");
        }
    }

    #[test]
    fn functions_beyond_a_transaction_are_refused() {
        for call in [
            "dblink_exec('host=x', 'DELETE FROM t')",
            "dblink('host=x', 'SELECT 1')",
            "nextval('s')",
            "NextVal ('s')",
            "setval('s', 1)",
            "pg_catalog.setval('s', 1)",
            "pg_read_file('/etc/passwd')",
            "pg_read_binary_file('/etc/passwd')",
            "pg_ls_dir('.')",
            "lo_import('/etc/passwd')",
            "lo_export(1, '/tmp/x')",
            "lo_from_bytea(0, 'x')",
            "pg_sleep(1000)",
            "pg_sleep_for('1 day')",
            "pg_catalog . \"pg_sleep\" /* */ (9)",
            "pg_terminate_backend(1)",
            "pg_cancel_backend(1)",
            "pg_notify('a', 'b')",
            "pg_advisory_lock(1)",
            "pg_try_advisory_xact_lock(1)",
            "set_config('transaction_read_only', 'off', false)",
            "query_to_xml('DELETE FROM t', true, true, '')",
            "pg_reload_conf()",
            "pg_logical_emit_message(false, 'a', 'b')",
            "pg_create_physical_replication_slot('a')",
        ] {
            let refused = check(&format!("SELECT * FROM (SELECT {call}) AS x"));
            assert!(matches!(refused, Err(SqlInvalid::Function(_))), "{call}: {refused:?}");
        }
        assert!(check("SELECT U&\"pg\\005fsleep\"(9)").is_err());
    }

    /// Each hides a second statement or a verb behind what some scanners take for a string or a comment.
    #[test]
    fn nothing_hides_a_second_statement() {
        for sql in [
            "SELECT 1; DELETE FROM t",
            "SELECT 1; SET TRANSACTION READ WRITE",
            "SELECT 1;;",
            "SELECT 1; -- x\n;",
            "SELECT 'a\\'; DELETE FROM t --'",
            "SELECT E'a\\\\'; DELETE FROM t --'",
            "SELECT E'a'\n'\\'; DELETE FROM t --'",
            "SELECT E'a' -- x\n '\\'; DELETE FROM t --'",
            "SELECT $$a$$; DELETE FROM t --$$",
            "SELECT $a$x$a$; DELETE FROM t --$a$",
            "SELECT a$a$; DELETE FROM t --$a$",
            "SELECT 1 /* /* */ ; */ ; DELETE FROM t",
            "SELECT 1 -- x\r; DELETE FROM t",
            "SELECT 1 -*/**/- 1; DELETE FROM t",
            "SELECT '/*'; DELETE FROM t --*/'",
            "SELECT \"a\"\"\"; DELETE FROM t --\"",
            "SELECT 1into u FROM t",
            "SELECT 1 AS a, 0x1F",
            "SELECT $1",
            "SELECT $1a$; DELETE FROM t --$1a$",
            "SELECT $",
            "SELECT 'open",
            "SELECT E'open\\'",
            "SELECT \"open",
            "SELECT $a$open$A$",
            "SELECT 1 /* open",
            "SELECT 1 /*/",
            "SELECT 1\0",
            "SELECT '\0'",
            "SELECT $$\0$$",
            "SELECT 1 \u{1}",
            "SELECT\u{b}1",
        ] {
            assert!(check(sql).is_err(), "{sql:?}");
        }
        assert!(check(&format!("SELECT '{}'", "a".repeat(SQL_BYTES_MAX))).is_err());
    }

    /// Strangers write these bytes: nothing may panic, and no piece of a refused statement may come back.
    #[test]
    fn no_text_makes_the_check_panic() {
        let parts = [
            "'", "\"", "$$", "$é$", "E'", "\\", "/*", "*/", "--", "\n", ";", "(", "é", "1e", ".", "SELECT ",
            "&", "\0", "EXPLAIN ",
        ];
        let mut state = 7_u64;
        for length in 0..20_000 {
            let text: String = (0..length % 12)
                .map(|_| {
                    state =
                        state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    parts[(state >> 33) as usize % parts.len()]
                })
                .collect();
            if let Err(why) = check(&format!("SELECT canary {text}")) {
                assert!(!why.to_string().contains("canary"));
            }
            let _whatever = check(&text);
        }
    }
}
