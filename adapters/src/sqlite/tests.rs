//! `sqlite.query`: which statements are answered, and which are refused.
#![allow(clippy::unwrap_used)]
use std::sync::{Mutex, PoisonError};

use super::*;
use crate::tests::space::TestSpace;

/// SQLite bounds the memory of a whole process. Each call has its own process, but these tests share one.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> impl Drop {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn shop(place: &TestSpace, name: &str) {
    std::fs::create_dir_all(place.path("")).unwrap();
    let connection = Connection::open(place.path(name)).unwrap();
    connection
        .execute_batch(
            "CREATE TABLE goods(name TEXT, price REAL, count INTEGER, picture BLOB);
             INSERT INTO goods VALUES ('apple', 0.5, 3, x'ff00'), ('pear', NULL, 9007199254740993, NULL);
             CREATE TABLE many AS WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n LIMIT 500) SELECT x FROM n;
             CREATE VIEW dear AS SELECT name FROM goods WHERE price > 0.1;",
        )
        .unwrap();
}

fn ask(place: &TestSpace, sql: &str) -> Result<Value, Failure> {
    let params = json!({ "path": "workspace/shop.db", "sql": sql });
    place.run(&Query, params).map(|output| output.result)
}

#[test]
fn rows_come_with_their_columns_and_values_of_every_kind() {
    let _alone = alone();
    let place = TestSpace::new();
    shop(&place, "shop.db");
    let before = place.get("shop.db");
    let all = ask(&place, "SELECT * FROM goods ORDER BY name;").unwrap();
    assert_eq!(all["columns"], json!(["name", "price", "count", "picture"]));
    assert_eq!(
        all["rows"],
        json!([
            ["apple", 0.5, 3, { "bytes": 2, "hex": "ff00" }],
            ["pear", null, "9007199254740993", null]
        ])
    );
    assert_eq!((&all["row_count"], &all["complete"]), (&json!(2), &json!(true)));
    let params = json!({
        "path": "workspace/shop.db", "sql": "SELECT name FROM dear WHERE name = ? OR ?", "args": ["apple", false],
    });
    let one = place.run(&Query, params).unwrap().result;
    assert_eq!(one["rows"], json!([["apple"]]));
    assert_eq!(ask(&place, "SELECT name FROM pragma_table_info('goods')").unwrap()["row_count"], 4);
    assert_eq!(place.get("shop.db"), before);
    assert_eq!(place.names(), vec!["shop.db"]);
}

#[test]
fn at_most_a_hundred_rows_and_long_cells_are_cut_and_counted() {
    let _alone = alone();
    let place = TestSpace::new();
    shop(&place, "shop.db");
    let many = ask(&place, "SELECT x FROM many").unwrap();
    assert_eq!((&many["row_count"], &many["complete"]), (&json!(100), &json!(false)));
    let exactly = ask(&place, "SELECT x FROM many LIMIT 100").unwrap();
    assert_eq!((&exactly["row_count"], &exactly["complete"]), (&json!(100), &json!(true)));
    let long = ask(&place, "SELECT printf('%.*c', 100000, 'ä'), zeroblob(100000)").unwrap();
    assert_eq!((&long["cells_shortened"], &long["row_count"]), (&json!(2), &json!(1)));
    let wide = ask(&place, "SELECT printf('%.*c', 16000, 'x') FROM many").unwrap();
    assert!(wide["row_count"].as_u64().unwrap() < 100, "all of it is bounded");
    assert_eq!(wide["complete"], false);
    assert!(serde_json::to_vec(&wide).unwrap().len() < 2 * SQLITE_RESULT_BYTES_MAX);
}

#[test]
fn whatever_does_not_only_read_is_refused_and_the_file_stays() {
    let _alone = alone();
    let place = TestSpace::new();
    shop(&place, "shop.db");
    let before = place.get("shop.db");
    for sql in [
        "INSERT INTO goods(name) VALUES ('x')",
        "UPDATE goods SET name = 'x'",
        "DELETE FROM goods",
        "DROP TABLE goods",
        "CREATE TABLE t(x)",
        "CREATE TEMP TABLE t(x)",
        "ATTACH '/etc/passwd' AS other",
        "ATTACH ':memory:' AS other",
        "DETACH main",
        "VACUUM INTO '/tmp/copy'",
        "VACUUM",
        "REINDEX",
        "ANALYZE",
        "PRAGMA journal_mode = wal",
        "PRAGMA hard_heap_limit = 0",
        "PRAGMA temp_store_directory = '/'",
        "BEGIN",
        "SELECT load_extension('/lib/x.so')",
        "SELECT 1; SELECT 2",
        "SELECT 1; DROP TABLE goods",
        "SELECT nothing FROM goods",
        "SELECT * FROM nowhere",
        "SELECT mystery(1)",
        "SELECT ?",
        "nonsense",
        "  -- nothing",
    ] {
        let Err(refused) = ask(&place, sql) else {
            panic!("{sql} is answered");
        };
        assert_eq!(refused.code, Code::ParamsInvalid, "{sql}: {}", refused.message);
        let quoted = ["nowhere", "nothing FROM", "mystery", "passwd"];
        assert!(quoted.iter().all(|word| !refused.message.contains(word)), "{}", refused.message);
    }
    assert_eq!(place.get("shop.db"), before);
    assert_eq!(place.names(), vec!["shop.db"]);
}

#[test]
fn time_and_memory_are_bounded() {
    let _alone = alone();
    let place = TestSpace::new();
    shop(&place, "shop.db");
    let endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n";
    assert_eq!(ask(&place, endless).unwrap_err().code, Code::TimedOut);
    let long = ask(&place, "SELECT hex(zeroblob(3000000))").unwrap_err();
    assert_eq!(long.code, Code::OutputLimit);
    let sorted = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n LIMIT 200) \
        SELECT x FROM n ORDER BY randomblob(500000)";
    assert_eq!(ask(&place, sorted).unwrap_err().code, Code::MemoryLimit);
}

#[test]
fn what_is_no_database_or_not_all_of_it_is_said() {
    let _alone = alone();
    let place = TestSpace::new();
    let code = |place: &TestSpace| ask(place, "SELECT * FROM goods").unwrap_err().code;
    assert_eq!(code(&place), Code::FileNotFound);
    place.put("shop.db", b"not a database, however long it may be");
    assert_eq!(code(&place), Code::ToolFailed);
    place.put("shop.db", b"");
    assert_eq!(code(&place), Code::ToolFailed);
    std::fs::remove_file(place.path("shop.db")).unwrap();
    shop(&place, "shop.db");
    let whole = place.get("shop.db").unwrap();
    place.put("shop.db", &whole[..whole.len() / 2]);
    assert_eq!(code(&place), Code::ToolFailed);
    let mut changed = whole.clone();
    changed[200..4_000].fill(0xa5);
    place.put("shop.db", &changed);
    assert_eq!(code(&place), Code::ToolFailed);
    place.put("shop.db", &whole);
    place.put("shop.db-wal", b"something");
    assert_eq!(code(&place), Code::StateChanged);
    std::fs::remove_file(place.path("shop.db-wal")).unwrap();
    assert!(ask(&place, "SELECT * FROM goods").is_ok());
}

#[test]
fn a_database_with_an_empty_write_ahead_log_is_read() {
    let _alone = alone();
    let place = TestSpace::new();
    shop(&place, "shop.db");
    let connection = Connection::open(place.path("shop.db")).unwrap();
    connection.pragma_update(None, "journal_mode", "wal").unwrap();
    connection.execute("INSERT INTO goods(name) VALUES ('plum')", []).unwrap();
    assert_eq!(ask(&place, "SELECT * FROM goods").unwrap_err().code, Code::StateChanged);
    // The last connection to close writes the log into the file.
    connection.close().unwrap();
    assert_eq!(ask(&place, "SELECT * FROM goods").unwrap()["row_count"], 3);
}

#[test]
fn too_large_a_file_is_refused_before_it_is_read() {
    let _alone = alone();
    let place = TestSpace::new();
    place.put("shop.db", MAGIC);
    let file = std::fs::OpenOptions::new().write(true).open(place.path("shop.db")).unwrap();
    file.set_len(SQLITE_FILE_BYTES_MAX + 1).unwrap();
    assert_eq!(ask(&place, "SELECT 1").unwrap_err().code, Code::FileLimit);
}

#[test]
fn names_that_are_no_text_are_told_as_such() {
    let _alone = alone();
    let place = TestSpace::new();
    let connection = Connection::open(place.path("shop.db")).unwrap();
    connection.execute_batch("CREATE TABLE t(namenamename)").unwrap();
    connection.close().unwrap();
    let mut bytes = place.get("shop.db").unwrap();
    let at = bytes.windows(12).position(|piece| piece == b"namenamename").unwrap();
    bytes[at..at + 12].fill(0xfc);
    place.put("shop.db", &bytes);
    for sql in ["SELECT * FROM t", "SELECT count(*) FROM t", "SELECT 1"] {
        match ask(&place, sql) {
            Ok(found) => assert_eq!(found["row_count"], 1, "{sql}"),
            Err(failure) => {
                assert_eq!((failure.code, failure.message.as_str()), (Code::ToolFailed, NO_TEXT), "{sql}")
            }
        }
    }
    assert!(ask(&place, "SELECT * FROM t").is_err());
}

#[test]
fn a_finished_journal_is_ignored_a_hot_or_linked_one_refused() {
    let _alone = alone();
    let place = TestSpace::new();
    shop(&place, "shop.db");
    place.put("shop.db-journal", &[0; 512]);
    assert!(ask(&place, "SELECT * FROM goods").is_ok());
    place.put("shop.db-journal", &JOURNAL_MAGIC);
    assert_eq!(ask(&place, "SELECT * FROM goods").unwrap_err().code, Code::StateChanged);
    std::fs::remove_file(place.path("shop.db-journal")).unwrap();
    std::os::unix::fs::symlink("elsewhere", place.path("shop.db-wal")).unwrap();
    assert_eq!(ask(&place, "SELECT * FROM goods").unwrap_err().code, Code::StateChanged);
}

/// Writers set many pages to one value at a time, so an answer with two values would mix two states.
#[test]
fn beside_a_writer_every_answer_is_of_one_moment() {
    let _alone = alone();
    let place = TestSpace::new();
    let mut writer = Connection::open(place.path("shop.db")).unwrap();
    writer
        .execute_batch(
            "PRAGMA synchronous = off;
             CREATE TABLE t(x INTEGER, filler TEXT);
             WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 2000)
             INSERT INTO t SELECT 0, printf('%.*c', 500, 'x') FROM n;",
        )
        .unwrap();
    let (mut answered, mut refused) = (0, 0);
    std::thread::scope(|threads| {
        let writing = threads.spawn(move || {
            for round in 1..60 {
                let change = writer.transaction().unwrap();
                change.execute("UPDATE t SET x = ?", [round]).unwrap();
                change.commit().unwrap();
            }
        });
        while !writing.is_finished() {
            match ask(&place, "SELECT count(DISTINCT x), count(*) FROM t") {
                Ok(found) => {
                    assert_eq!(found["rows"], json!([[1, 2000]]));
                    answered += 1;
                }
                Err(failure) => {
                    assert_eq!(failure.code, Code::StateChanged, "{failure}");
                    refused += 1;
                }
            }
        }
    });
    assert!(refused > 0, "nobody wrote while {answered} were answered");
    assert!(ask(&place, "SELECT 1").is_ok());
}
