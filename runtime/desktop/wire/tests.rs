#![allow(clippy::unwrap_used)]
use super::*;

fn hello() -> Message {
    Message::call(
        1,
        [
            "org.freedesktop.DBus",
            "/org/freedesktop/DBus",
            "org.freedesktop.DBus",
            "Hello",
        ],
    )
}

/// A message as the specification has it, byte for byte.
#[test]
fn a_call_has_the_bytes_of_the_specification() {
    let mut expected: Vec<u8> = Vec::new();
    // Order, a call, no flags, version 1; no body; number 1; 109 bytes of fields.
    expected.extend(b"l\x01\x00\x01\0\0\0\0\x01\0\0\0\x6d\0\0\0");
    expected.extend(b"\x01\x01o\0\x15\0\0\0/org/freedesktop/DBus\0\0\0");
    expected.extend(b"\x02\x01s\0\x14\0\0\0org.freedesktop.DBus\0\0\0\0");
    expected.extend(b"\x03\x01s\0\x05\0\0\0Hello\0\0\0");
    expected.extend(b"\x06\x01s\0\x14\0\0\0org.freedesktop.DBus\0");
    expected.extend(b"\0\0\0");
    assert_eq!(hello().encode(), expected);
}

#[test]
fn what_is_written_is_read_again() {
    let mut body = Writer::default();
    body.text("größe").byte(7).number(9);
    body.array(4, |list| {
        list.text("a").text("");
    });
    body.array(8, |entries| {
        entries.structure().text("urgency").signature("y").byte(2);
    });
    let mut message = hello().with("sy", body);
    message.reply_to = Some(77);
    message.error = Some("x.y".to_owned());
    let read = Message::decode(&message.encode()).unwrap();
    assert_eq!(read, message);
    let mut values = Reader::new(&read.body, read.order);
    assert_eq!(values.text(), Ok("größe"));
    assert_eq!(values.byte(), Ok(7));
    assert_eq!(values.number(), Ok(9));
    let mut list = values.array(4).unwrap();
    assert_eq!(
        (list.text(), list.text(), list.is_at_end()),
        (Ok("a"), Ok(""), true)
    );
    let mut entries = values.array(8).unwrap();
    entries.structure().unwrap();
    assert_eq!(entries.text(), Ok("urgency"));
    assert_eq!((entries.signature(), entries.byte()), (Ok("y"), Ok(2)));
    assert!(entries.is_at_end() && values.is_at_end());
}

/// An answer in the other order of bytes, as a foreign service may write it.
#[test]
fn the_other_order_is_read_too() {
    let bytes =
        b"B\x02\0\x01\0\0\0\x04\0\0\0\x09\0\0\0\x0f\x05\x01u\0\0\0\0\x03\x08\x01g\0\x01u\0\0\0\0\0\x2a";
    let read = Message::decode(bytes).unwrap();
    assert_eq!(
        (read.kind, read.serial, read.reply_to),
        (Kind::Return, 9, Some(3))
    );
    assert_eq!(read.signature, "u");
    assert_eq!(Reader::new(&read.body, read.order).number(), Ok(42));
}

#[test]
fn no_bytes_are_believed_and_none_break_it() {
    let mut body = Writer::default();
    body.text("text").number(3);
    let whole = hello().with("su", body).encode();
    for length in 0..whole.len() {
        assert!(Message::decode(&whole[..length]).is_err(), "{length}");
    }
    // Every byte, in every place where it could matter: an error or a message, and no panic.
    for at in 0..whole.len() {
        for value in [0, 1, 0x7f, 0x80, 0xff] {
            let mut bent = whole.clone();
            bent[at] = value;
            if let Ok(message) = Message::decode(&bent) {
                let mut values = Reader::new(&message.body, message.order);
                let _ = (values.text(), values.array(8).is_ok(), values.number());
            }
        }
    }
    let mut endless = *whole.first_chunk::<HEAD_BYTES>().unwrap();
    endless[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
    endless[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(Message::length(&endless, 65_536).is_err());
    assert!(Message::length(&endless, usize::MAX).is_ok());
}

#[test]
fn a_text_ends_at_its_first_nul() {
    let mut body = Writer::default();
    body.text("a\0b");
    assert_eq!(Reader::new(&body.into_bytes(), Order::Little).text(), Ok("a"));
}

/// Messages that were bent in several places at random, the same ones in every run.
#[test]
fn whatever_comes_is_an_error_or_a_message() {
    let mut body = Writer::default();
    body.text("text").array(8, |list| {
        list.structure().text("a").number(1);
    });
    let whole = hello().with("sa(su)", body).encode();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state >> 33).unwrap()
    };
    let mut read = 0;
    for _ in 0..50_000 {
        let mut bent = whole.clone();
        for _ in 0..=random() % 3 {
            let at = random() % bent.len();
            bent[at] = u8::try_from(random() % 256).unwrap();
        }
        if let Ok(message) = Message::decode(&bent) {
            read += 1;
            let mut values = Reader::new(&message.body, message.order);
            let _ = values.text();
            if let Ok(mut list) = values.array(8) {
                while !list.is_at_end() && list.structure().is_ok() && list.text().is_ok() {}
            }
            assert!(message.encode().len() <= 2 * bent.len());
        }
    }
    assert!(read > 1_000, "{read}");
}
