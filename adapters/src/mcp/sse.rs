//! Reads the events of an answer that is a stream of them, as HTML defines it.

/// Most events of one answer: a server that reports its progress needs far fewer.
const EVENTS_MAX: usize = 10_000;

/// The data of each whole event, in order. Events without data, and whatever follows the last empty line, are none.
pub(super) fn events(body: &[u8]) -> Vec<Vec<u8>> {
    let body = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body);
    let (mut events, mut data, mut has_data) = (Vec::new(), Vec::new(), false);
    for line in lines(body) {
        if line.is_empty() {
            if has_data {
                events.push(std::mem::take(&mut data));
                has_data = false;
            }
            if events.len() == EVENTS_MAX {
                break;
            }
            continue;
        }
        let colon = line.iter().position(|byte| *byte == b':');
        let (field, value) = colon.map_or((line, &b""[..]), |at| (&line[..at], &line[at + 1..]));
        if field == b"data" {
            if has_data {
                data.push(b'\n');
            }
            has_data = true;
            data.extend_from_slice(value.strip_prefix(b" ").unwrap_or(value));
        }
    }
    events
}

/// The lines that are whole: each ends with a line feed, a carriage return, or both.
fn lines(mut rest: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let end = rest.iter().position(|byte| matches!(byte, b'\n' | b'\r'))?;
        let line = &rest[..end];
        let both = rest[end..].starts_with(b"\r\n");
        rest = &rest[end + if both { 2 } else { 1 }..];
        Some(line)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn texts(body: &str) -> Vec<String> {
        events(body.as_bytes()).into_iter().map(|data| String::from_utf8_lossy(&data).into_owned()).collect()
    }

    #[test]
    fn events_are_read_as_browsers_do() {
        assert_eq!(texts("data: a\n\ndata:b\r\n\r\ndata: c\r\r"), ["a", "b", "c"]);
        assert_eq!(texts("\u{feff}: hello\nid: 7\nevent: message\ndata: {\ndata:  1\ndata\n\n"), ["{\n 1\n"]);
        assert_eq!(
            texts("retry: 5\n\n\n\ndata: a\n"),
            Vec::<String>::new(),
            "an event ends with an empty line"
        );
        assert_eq!(texts("datax: a\n data: b\nDATA: c\n\n"), Vec::<String>::new());
        assert_eq!(texts(&"data: a\n\n".repeat(EVENTS_MAX + 5)).len(), EVENTS_MAX);
    }

    proptest! {
        #[test]
        fn no_bytes_make_more_than_there_are(body in proptest::collection::vec(any::<u8>(), 0..2_000)) {
            let read: usize = events(&body).iter().map(Vec::len).sum();
            prop_assert!(read <= body.len());
        }

        #[test]
        fn what_is_written_is_read(parts in proptest::collection::vec("[a-z:{} ]{1,20}", 1..20)) {
            let body: String = parts.iter().map(|part| format!("event: message\r\ndata: {part}\r\n\r\n")).collect();
            prop_assert_eq!(texts(&body), parts);
        }
    }
}
