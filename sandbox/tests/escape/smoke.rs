//! A call gets its answer, in every profile.

use serde_json::{Value, json};

use crate::ground::{Attack, DEFAULT, EXEC, EXEC_HIGH, Ground, HIGH, Promise, replied};

pub(crate) const ATTACKS: &[(&str, Attack)] = &[("echo", echo)];

fn echo(_: &Ground<'_>, with: &Value) -> Value {
    json!({ "echo": with, "pid": std::process::id() })
}

pub(crate) fn promises() -> Vec<Promise> {
    vec![Promise {
        name: "a_call_is_answered_in_every_profile",
        keep: |scene| {
            for profile in [DEFAULT, HIGH, EXEC, EXEC_HIGH] {
                if profile == EXEC_HIGH && scene.sandbox.tree_memory().is_none() {
                    assert!(scene.try_run(scene.call(profile, "echo", json!(1))).is_err());
                    continue;
                }
                let answer = scene.attack(profile, "echo", json!("hello"));
                assert_eq!(replied(&answer), json!({ "echo": "hello", "pid": 1 }), "{answer:?}");
            }
            // Longer than a socket takes at once.
            let long = "x".repeat(100_000);
            let answer = scene.attack(DEFAULT, "echo", json!(long));
            assert_eq!(replied(&answer)["echo"], json!(long));
        },
    }]
}
