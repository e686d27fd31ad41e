//! The side channel delivers its pieces whole and in order, in bounded memory, and only where it is open.

use std::time::Duration;

use effectd_sandbox::{Answer, Call, Outward, Piece, SideChannel};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::ground::{Attack, DEFAULT, Ground, Promise, Scene, killed, replied};
use crate::liars::{head, say};

pub(crate) const ATTACKS: &[(&str, Attack)] = &[("say back", say_back), ("say much", say_much)];

/// Echoes each content that it receives, in its own stream, until there is no more.
fn say_back(ground: &Ground<'_>, with: &Value) -> Value {
    let Some(side_channel) = ground.side_channel else {
        return json!(null);
    };
    let contents = with.as_u64().unwrap() as u8;
    for stream in 0..contents {
        loop {
            let Ok(piece) = side_channel.receive_piece() else {
                return json!({ "ended_in": stream });
            };
            if piece.is_empty() {
                break;
            }
            side_channel.send_piece(stream, &piece).unwrap();
        }
    }
    json!({ "contents": contents })
}

/// Says pieces by hand.
fn say_much(_: &Ground<'_>, with: &Value) -> Value {
    let piece = |length: usize| [head(6, length as u32), vec![1; length]].concat();
    match with.as_str().unwrap() {
        "one" => _ = say(&piece(9)),
        "without end" => while say(&piece(1_001)) {},
        "of nothing" => while say(&piece(1)) {},
        "too large" => _ = say(&head(6, 65_538)),
        "without a stream" => _ = say(&head(6, 0)),
        "half" => _ = say(&piece(9)[..15]),
        other => panic!("{other}"),
    }
    json!(true)
}

/// Makes a call with a side channel; the receiver is gone after so many pieces.
fn make(
    scene: &Scene,
    call: Call,
    contents: &[Vec<u8>],
    bytes_max: u64,
    takes: usize,
) -> (Answer, Vec<Piece>) {
    scene.runtime.block_on(async {
        let (to_child, inward) = mpsc::channel(1);
        let (to, mut pieces) = mpsc::channel(1);
        let side_channel = SideChannel { inward: Some(inward), outward: Some(Outward { to, bytes_max }) };
        let sending = async {
            for content in contents {
                for piece in content.chunks(50_000) {
                    let _gone = to_child.send(piece.to_vec()).await;
                }
                let _gone = to_child.send(Vec::new()).await;
            }
            drop(to_child);
        };
        let taking = async {
            let mut taken = Vec::new();
            while taken.len() < takes
                && let Some(piece) = pieces.recv().await
            {
                taken.push(piece);
            }
            drop(pieces);
            taken
        };
        let calling = async { scene.sandbox.ask_with(call, side_channel).await.unwrap().reap().await };
        let (answer, taken, ()) = tokio::join!(calling, taking, sending);
        (answer, taken)
    })
}

fn whole_and_in_order(scene: &Scene) {
    let content = |length: usize| -> Vec<u8> { (0..length).map(|number| (number % 251) as u8).collect() };
    let contents = [content(3_000_001), Vec::new(), content(70_000)];
    for profile in scene.profiles() {
        let call = scene.call(profile, "say back", json!(3));
        let (answer, taken) = make(scene, call, &contents, 10 << 20, usize::MAX);
        assert_eq!(replied(&answer), json!({ "contents": 3 }), "{profile}");
        for (stream, content) in contents.iter().enumerate() {
            let said = taken.iter().filter(|piece| usize::from(piece.stream) == stream);
            let said: Vec<u8> = said.flat_map(|piece| piece.bytes.clone()).collect();
            assert!(&said == content, "{profile}, stream {stream}: {} bytes", said.len());
        }
    }
    // A receiver that expects more pieces sees the end, and does not wait forever.
    let call = scene.call(DEFAULT, "say back", json!(4));
    let (answer, _) = make(scene, call, &contents, 10 << 20, usize::MAX);
    assert_eq!(replied(&answer), json!({ "ended_in": 3 }));
    // A sender whose receiver is gone continues undisturbed.
    let call = scene.call(DEFAULT, "say back", json!(3));
    let (answer, taken) = make(scene, call, &contents, 10 << 20, 2);
    assert_eq!((replied(&answer), taken.len()), (json!({ "contents": 3 }), 2));
}

fn bounded(scene: &Scene) {
    let cases = [
        ("without end", "output_limit"),
        ("of nothing", "output_limit"),
        ("too large", "sandbox_failed"),
        ("without a stream", "sandbox_failed"),
        ("half", "sandbox_failed"),
    ];
    for (what, code) in cases {
        let call = scene.call(DEFAULT, "say much", json!(what));
        let (answer, taken) = make(scene, call, &[], 100_000, usize::MAX);
        assert_eq!(killed(&answer).as_str(), code, "{what}: {answer:?}");
        let bytes: usize = taken.iter().map(|piece| piece.bytes.len()).sum();
        assert!(bytes <= 100_000, "{what}: {bytes}");
    }
    let call = scene.call(DEFAULT, "say much", json!("one"));
    let (answer, taken) = make(scene, call, &[], 100_000, usize::MAX);
    assert_eq!((replied(&answer), taken.len()), (json!(true), 1), "the control");
    let unasked = scene.attack(DEFAULT, "say much", json!("one"));
    assert_eq!(killed(&unasked).as_str(), "sandbox_failed", "nobody asked for pieces");
}

/// Nobody reads the pieces: the child waits, and its deadline ends it.
fn not_taken(scene: &Scene) {
    let call =
        Call { timeout: Duration::from_millis(700), ..scene.call(DEFAULT, "say much", json!("without end")) };
    let (to, pieces) = mpsc::channel(1);
    let side_channel = SideChannel { inward: None, outward: Some(Outward { to, bytes_max: u64::MAX }) };
    let answer = scene
        .runtime
        .block_on(async { scene.sandbox.ask_with(call, side_channel).await.unwrap().reap().await });
    assert_eq!(killed(&answer).as_str(), "timed_out", "{answer:?}");
    drop(pieces);
}

pub(crate) fn promises() -> Vec<Promise> {
    vec![
        Promise { name: "what_goes_beside_a_call_comes_whole_and_in_order", keep: whole_and_in_order },
        Promise { name: "pieces_are_bounded_and_only_taken_where_asked_for", keep: bounded },
        Promise { name: "a_child_whose_pieces_nobody_takes_waits_until_its_deadline", keep: not_taken },
    ]
}
