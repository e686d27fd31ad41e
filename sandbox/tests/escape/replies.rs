//! A reply comes only when nothing of its call can run any more, also if the call answered and continued.

use std::fs;
use std::os::unix::fs::FileExt;

use effectd_contracts::BaseProfile;
use serde_json::{Value, json};

use crate::ground::{Attack, Ground, Promise, Scene, replied};
use crate::liars::{head, say};
use crate::survivors::{end_strays, eventually};

pub(crate) const ATTACKS: &[(&str, Attack)] = &[("go on", go_on)];

const COUNTERS: [&str; 2] = ["counter", "counter of another"];

/// Answers by hand and continues: it, and a second process where one is allowed, count in a file as long as they run.
fn go_on(_: &Ground<'_>, with: &Value) -> Value {
    // SAFETY: both copies of this single-threaded program go on in the loop below and never leave it.
    let second = with == "with another" && unsafe { libc::fork() } == 0;
    let file = fs::File::create(COUNTERS[usize::from(second)]).unwrap();
    let mut count = 0u64;
    loop {
        count += 1;
        file.write_all_at(&count.to_le_bytes(), 0).unwrap();
        if count == 10 && !second {
            while with == "with another" && read_count(COUNTERS[1].as_ref()) == 0 {
                std::thread::yield_now();
            }
            let payload = [&2u32.to_le_bytes()[..], b"[]true"].concat();
            say(&[head(4, payload.len() as u32), payload].concat());
        }
    }
}

fn read_count(path: &std::path::Path) -> u64 {
    let bytes = fs::read(path).unwrap_or_default();
    bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

fn counts(scene: &Scene) -> [u64; 2] {
    COUNTERS.map(|name| read_count(&scene.workspace.join(name)))
}

pub(crate) fn promises() -> Vec<Promise> {
    vec![Promise {
        name: "a_reply_comes_when_nothing_can_run_any_more",
        keep: |scene| {
            for profile in scene.profiles() {
                let with = match profile.base {
                    BaseProfile::Default => "alone",
                    BaseProfile::Exec => "with another",
                };
                for _ in 0..20 {
                    let ask = scene.sandbox.ask(scene.call(profile, "go on", json!(with)));
                    let reply = scene.runtime.block_on(ask).unwrap();
                    let then = counts(scene);
                    assert_eq!(reply.bytes(), Some(&b"true"[..]), "{profile}");
                    assert!(then[0] >= 10, "it has not run at all: {then:?}");
                    let answer = scene.runtime.block_on(reply.reap());
                    assert_eq!(counts(scene), then, "{profile} went on after its reply");
                    assert_eq!(replied(&answer), json!(true), "{answer:?}");
                }
            }
            let mut control = scene.control_command("go on", &json!("with another"));
            let mut control = control.stdout(std::process::Stdio::null()).spawn().unwrap();
            eventually("the control's answer", || counts(scene)[0] > 10);
            let then = counts(scene);
            eventually("the control going on", || counts(scene)[1] > then[1]);
            control.kill().unwrap();
            control.wait().unwrap();
            end_strays(scene);
        },
    }]
}
