//! A child that lies on its channel gains nothing: garbage, gigabytes, silence, an early end.

use std::time::{Duration, Instant};

use effectd_sandbox::Call;
use serde_json::{Value, json};

use crate::ground::{Attack, DEFAULT, Ground, Promise, Scene, killed, replied};

pub(crate) const ATTACKS: &[(&str, Attack)] = &[("lie", lie)];

const CHANNEL: i32 = 3;

pub(crate) fn say(bytes: &[u8]) -> bool {
    // SAFETY: the buffer is valid for its length.
    unsafe { libc::write(CHANNEL, bytes.as_ptr().cast(), bytes.len()) == bytes.len() as isize }
}

pub(crate) fn head(kind: u32, length: u32) -> Vec<u8> {
    [0x6566_6378u32, kind, length].into_iter().flat_map(u32::to_le_bytes).collect()
}

fn stop() -> ! {
    // SAFETY: ends the process.
    unsafe { libc::_exit(0) }
}

fn lie(_: &Ground<'_>, with: &Value) -> Value {
    match with.as_str().unwrap() {
        "the truth" => _ = say(&[head(4, 7), vec![2, 0, 0, 0], b"[]1".to_vec()].concat()),
        "garbage" => _ = say(&[0xAA; 64]),
        "half a head" => _ = say(&head(4, 10)[..7]),
        "a request" => _ = say(&head(3, 0)),
        "an unknown kind" => _ = say(&head(77, 0)),
        "gigabytes announced" => _ = say(&head(4, u32::MAX)),
        "gigabytes sent" => {
            say(&head(4, 4 << 20));
            while say(&[0x20; 65_536]) {}
        }
        "a length that lies" => _ = say(&[head(4, 8), vec![255; 8]].concat()),
        "notes that are none" => _ = say(&[head(4, 6), vec![2, 0, 0, 0, b'?', b'?']].concat()),
        "less than announced" => _ = say(&[head(4, 100), vec![0; 50]].concat()),
        "ready again" => _ = say(&head(1, 0)),
        "an early end" => {}
        "silence" => loop {
            // SAFETY: waits for a signal.
            unsafe { libc::pause() };
        },
        "a panic" => panic!("on purpose"),
        "a crash" => {
            // SAFETY: none; it is meant to crash.
            unsafe { std::ptr::null_mut::<u8>().write_volatile(1) };
        }
        "an abort" => std::process::abort(),
        other => panic!("{other}"),
    }
    stop()
}

pub(crate) fn promises() -> Vec<Promise> {
    vec![Promise { name: "a_child_that_lies_gains_nothing", keep: lies }]
}

fn lies(scene: &Scene) {
    let lies = [
        ("garbage", "sandbox_failed"),
        ("half a head", "sandbox_failed"),
        ("a request", "sandbox_failed"),
        ("an unknown kind", "sandbox_failed"),
        ("gigabytes announced", "output_limit"),
        ("gigabytes sent", "sandbox_failed"),
        ("a length that lies", "sandbox_failed"),
        ("notes that are none", "sandbox_failed"),
        ("less than announced", "sandbox_failed"),
        ("ready again", "sandbox_failed"),
        ("an early end", "sandbox_failed"),
        ("silence", "timed_out"),
        ("a panic", "sandbox_failed"),
        ("a crash", "sandbox_failed"),
        ("an abort", "sandbox_failed"),
    ];
    for (what, code) in lies {
        // Only a silent child is ended by its deadline; the others are detected long before theirs.
        let timeout = match what {
            "silence" => Duration::from_millis(500),
            _ => Duration::from_secs(60),
        };
        let begun = Instant::now();
        let answer = scene.run(Call { timeout, ..scene.call(DEFAULT, "lie", json!(what)) });
        assert_eq!(killed(&answer).as_str(), code, "{what}: {answer:?}");
        assert!(begun.elapsed() < Duration::from_secs(30), "{what} took too long");
    }
    // The control: honest frames are accepted.
    assert_eq!(replied(&scene.attack(DEFAULT, "lie", json!("the truth"))), json!(1), "the control");
}
