//! Servers that lie, and one that does not; a real one is asked by `tests/postgres`.

#![allow(clippy::unwrap_used)]

use tokio::io::{DuplexStream, duplex};

use super::*;

/// What a server says next.
fn said(kind: u8, body: &[u8]) -> Vec<u8> {
    message(kind, &[body])
}

fn ready() -> Vec<u8> {
    said(b'Z', b"T")
}

/// A description of columns of these types, all named `a`.
fn described(oids: &[u32]) -> Vec<u8> {
    let mut body = u16::try_from(oids.len()).unwrap().to_be_bytes().to_vec();
    for oid in oids {
        body.extend_from_slice(b"a\0\0\0\0\0\0\0");
        body.extend_from_slice(&oid.to_be_bytes());
        body.extend_from_slice(&[0, 4, 255, 255, 255, 255, 0, 0]);
    }
    said(b'T', &body)
}

fn row(cells: &[Option<&[u8]>]) -> Vec<u8> {
    let mut body = u16::try_from(cells.len()).unwrap().to_be_bytes().to_vec();
    for cell in cells {
        let length = cell.map_or(-1, |cell| i32::try_from(cell.len()).unwrap());
        body.extend_from_slice(&length.to_be_bytes());
        body.extend_from_slice(cell.unwrap_or_default());
    }
    said(b'D', &body)
}

/// The answer that a server which says this gives to one statement.
async fn answered(says: &[Vec<u8>]) -> Result<SqlAnswer, Fault> {
    let (ours, mut theirs) = duplex(64 << 20);
    theirs.write_all(&says.concat()).await.unwrap();
    drop(theirs);
    Server { stream: BufReader::new(ours), status: 0 }.answer().await
}

async fn rows(says: &[Vec<u8>]) -> SqlRows {
    match answered(says).await.unwrap() {
        SqlAnswer::Rows(rows) => rows,
        SqlAnswer::Refused(refused) => panic!("{refused:?}"),
    }
}

#[tokio::test]
async fn values_are_the_texts_of_the_server() {
    let found = rows(&[
        said(b'1', b""),
        described(&[25, 701, 23]),
        said(b'N', b"Mnotice\0\0"),
        row(&[Some("é".as_bytes()), Some(b"NaN"), None]),
        row(&[Some(b""), Some(b"a\xffb"), Some(b"7")]),
        said(b'C', b"SELECT 2\0"),
        ready(),
    ])
    .await;
    assert!(!found.truncated);
    let texts: Vec<_> = found
        .rows
        .iter()
        .map(|row| {
            row.iter()
                .map(|cell| cell.as_ref().map(|cell| (cell.text.as_str(), cell.bytes)))
                .collect::<Vec<_>>()
        })
        .collect();
    assert_eq!(
        texts,
        [
            vec![Some(("é", 2)), Some(("NaN", 3)), None],
            vec![Some(("", 0)), Some(("a\u{fffd}b", 3)), Some(("7", 1))],
        ]
    );
    assert_eq!(found.columns.iter().map(|column| column.oid).collect::<Vec<_>>(), [25, 701, 23]);
}

#[tokio::test]
async fn what_is_beyond_a_bound_is_not_kept() {
    let long = ["é".repeat(SQL_CELL_BYTES_MAX).into_bytes(), b"x".to_vec()].concat();
    let odd = [b"x".to_vec(), "é".repeat(SQL_CELL_BYTES_MAX).into_bytes()].concat();
    let found = rows(&[described(&[25, 25]), row(&[Some(&long), Some(&odd)]), ready()]).await;
    let cells: Vec<_> = found.rows[0].iter().flatten().collect();
    assert_eq!((cells[0].text.len(), cells[0].bytes), (SQL_CELL_BYTES_MAX, 2 * SQL_CELL_BYTES_MAX + 1));
    // Never half of a character.
    assert_eq!((cells[1].text.len(), cells[1].text.contains('\u{fffd}')), (SQL_CELL_BYTES_MAX - 1, false));
    let many: Vec<_> =
        std::iter::once(described(&[23])).chain((0..101).map(|_| row(&[Some(b"1")]))).collect();
    let found = rows(&[many.concat(), said(b's', b""), ready()]).await;
    assert_eq!((found.rows.len(), found.truncated), (SQL_ROWS_MAX, true));
    let large: Vec<_> =
        std::iter::once(described(&[25])).chain((0..50).map(|_| row(&[Some(&long)]))).collect();
    let found = rows(&[large.concat(), said(b'C', b"SELECT 50\0"), ready()]).await;
    assert!(found.truncated && found.rows.len() < 9, "{}", found.rows.len());
}

#[tokio::test]
async fn an_error_is_told_by_its_code_and_in_bounds() {
    let long = format!("SERROR\0C42P01\0M{}\nmore\0Dcanary\0P7\0\0", "x".repeat(1_000));
    let SqlAnswer::Refused(refused) =
        answered(&[said(b'E', long.as_bytes()), said(b'E', b"C00000\0\0"), ready()]).await.unwrap()
    else {
        panic!()
    };
    assert_eq!(
        (&*refused.sqlstate, refused.message.len(), refused.position),
        ("42P01", MESSAGE_CHARS_MAX, Some(7))
    );
}

/// A server chooses these bytes.
#[tokio::test]
async fn an_answer_that_lies_is_broken() {
    let whole =
        [described(&[25, 23]), row(&[Some(b"abc"), None]), said(b'C', b"SELECT 1\0"), ready()].concat();
    for cut in 0..whole.len() {
        assert_eq!(
            answered(&[whole[..cut].to_vec()]).await.unwrap_err().fault,
            ExchangeFault::Broken,
            "{cut}"
        );
    }
    for says in [
        // A length shorter than itself, and longer than anything.
        vec![b'C', 0, 0, 0, 3],
        vec![b'C', 255, 255, 255, 255],
        vec![b'T', 127, 255, 255, 255],
        vec![b'E', 127, 255, 255, 255],
        [described(&[25]), row(&[None, None])].concat(),
        row(&[Some(b"a row without columns")]),
        // A value that is longer than its row, and a row that is longer than its values.
        [described(&[25]), said(b'D', &[0, 1, 0, 0, 0, 9, 1])].concat(),
        [described(&[25]), said(b'D', &[0, 1, 0, 0, 0, 0, 1])].concat(),
        [described(&[25]), said(b'D', &[0])].concat(),
        said(b'T', &[255, 255]),
        said(b'T', b"\0\x01name without an end"),
        said(b'E', b"C42P01"),
        // A copy, and a second login.
        said(b'G', &[0, 0, 0]),
        said(b'H', &[0, 0, 0]),
        said(b'R', &[0, 0, 0, 3]),
    ] {
        assert_eq!(
            answered(&[says.clone(), ready()]).await.unwrap_err().fault,
            ExchangeFault::Broken,
            "{says:?}"
        );
    }
}

fn login() -> Login {
    Login {
        name: "shop".to_owned(),
        user: "reader".to_owned(),
        password: "the canary sings".to_owned().into(),
    }
}

/// What a login comes to with a server that says this, and what that server got.
async fn logged_in(says: &[Vec<u8>]) -> (Result<(), Fault>, Vec<u8>) {
    let (ours, mut theirs) = duplex(1 << 20);
    theirs.write_all(&says.concat()).await.unwrap();
    theirs.shutdown().await.unwrap();
    let outcome = Server::<DuplexStream>::log_in(ours, &login()).await.map(drop);
    let mut got = Vec::new();
    theirs.read_to_end(&mut got).await.unwrap();
    (outcome, got)
}

#[tokio::test]
async fn a_password_goes_to_nobody_who_does_not_know_it() {
    for says in [
        // In clear, by MD5, by nothing, by GSS, by another mechanism, or proven without a proof.
        said(b'R', &[0, 0, 0, 3]),
        said(b'R', &[0, 0, 0, 5, 1, 2, 3, 4]),
        said(b'R', &[0, 0, 0, 0]),
        said(b'R', &[0, 0, 0, 7]),
        said(b'R', b"\0\0\0\x0aSCRAM-SHA-256-PLUS\0\0"),
        said(b'R', b"\0\0\0\x0cv=AAAA"),
        said(b'R', b"\0\0\0\x0br=x,s=AAAA,i=4096"),
        [said(b'R', b"\0\0\0\x0aSCRAM-SHA-256\0\0"), said(b'R', b"\0\0\0\x0br=x,s=AAAA,i=4096")].concat(),
        [said(b'R', b"\0\0\0\x0aSCRAM-SHA-256\0\0"), said(b'R', &[0, 0, 0, 0])].concat(),
    ] {
        let (outcome, got) = logged_in(std::slice::from_ref(&says)).await;
        assert_eq!(outcome.unwrap_err().fault, ExchangeFault::Untrusted, "{says:?}");
        assert!(!got.windows(6).any(|part| part == b"canary"));
    }
    for says in [ready(), said(b'S', b"a\0b\0"), said(b'D', &[0, 0]), vec![b'R', 255, 255, 255, 255]] {
        assert_eq!(
            logged_in(std::slice::from_ref(&says)).await.0.unwrap_err().fault,
            ExchangeFault::Broken,
            "{says:?}"
        );
    }
    let (outcome, got) =
        logged_in(&[said(b'E', b"C28P01\0Mpassword authentication failed for canary\0\0")]).await;
    let fault = outcome.unwrap_err();
    assert_eq!(fault.fault, ExchangeFault::Unreachable);
    assert!(fault.message.contains("28P01") && !fault.message.contains("canary"), "{}", fault.message);
    assert!(got.starts_with(&[0, 0, 0]) && got.windows(11).any(|part| part == b"user\0reader"));
}
