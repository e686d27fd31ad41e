//! A call goes in and its answer comes out, in every profile.

use serde_json::{Value, json};

use crate::ground::{Attack, DEFAULT, EXEC, EXEC_HIGH, Ground, HIGH, Promise, replied};

pub(crate) const ATTACKS: &[(&str, Attack)] = &[("echo", echo), ("taken_of_the_c_library", taken)];

fn echo(_: &Ground<'_>, with: &Value) -> Value {
    json!({ "echo": with, "pid": std::process::id() })
}

/// How many bytes the C library has handed out more after so many small pieces were asked for.
fn taken(_: &Ground<'_>, with: &Value) -> Value {
    let before = handed_out();
    let pieces: Vec<_> = (0..with.as_u64().unwrap())
        .map(|_| Box::new([0_u8; 96]))
        .collect();
    let more = handed_out() - before;
    drop(std::hint::black_box(pieces));
    json!(more)
}

fn handed_out() -> usize {
    // SAFETY: a question without arguments.
    unsafe { libc::mallinfo2() }.uordblks
}

const MEMORY: Promise = Promise {
    name: "a_child_has_its_memory_of_the_c_library_and_the_program_has_not",
    keep: |scene| {
        const PIECES: u64 = 1_000;
        let answer = scene.attack(DEFAULT, "taken_of_the_c_library", json!(PIECES));
        let taken = replied(&answer).as_u64().unwrap();
        assert!(taken >= PIECES * 96, "{taken}");
        // Others may ask the C library itself meanwhile, for a thread or two.
        let before = handed_out();
        let pieces: Vec<_> = (0..100 * PIECES).map(|_| Box::new([0_u8; 96])).collect();
        let more = handed_out().saturating_sub(before);
        drop(std::hint::black_box(pieces));
        assert!((more as u64) < PIECES * 96, "{more}");
    },
};

pub(crate) fn promises() -> Vec<Promise> {
    vec![
        MEMORY,
        Promise {
            name: "a_call_is_answered_in_every_profile",
            keep: |scene| {
                for profile in [DEFAULT, HIGH, EXEC, EXEC_HIGH] {
                    if profile == EXEC_HIGH && scene.sandbox.tree_memory().is_none() {
                        assert!(scene.try_run(scene.call(profile, "echo", json!(1))).is_err());
                        continue;
                    }
                    let answer = scene.attack(profile, "echo", json!("hello"));
                    assert_eq!(
                        replied(&answer),
                        json!({ "echo": "hello", "pid": 1 }),
                        "{answer:?}"
                    );
                }
            },
        },
    ]
}
