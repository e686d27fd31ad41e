//! A call that is handed over early is carried out when it is told to, and never otherwise.

use std::fs;
use std::time::Duration;

use effectd_sandbox::{Beside, Call, Poised};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::ground::{Attack, DEFAULT, Ground, Promise, Scene, killed, replied};
use crate::survivors::eventually;

pub(crate) const ATTACKS: &[(&str, Attack)] = &[("wait", wait), ("do not wait", do_not_wait), ("hear", hear)];

/// Says that it is there, and does what it is to do when it may. As long as it lives it holds a lock on `here`.
fn wait(ground: &Ground<'_>, with: &Value) -> Value {
    let here = fs::File::create("here").unwrap();
    here.lock().unwrap();
    fs::write("locked", "").unwrap();
    if with == "and die" {
        // SAFETY: ends this process.
        unsafe { libc::_exit(3) };
    }
    if let Some(context) = ground.beside {
        context.wait_for_go();
        context.wait_for_go();
    }
    fs::write("done", "").unwrap();
    if with == "and stay" {
        loop {
            // SAFETY: waits for a signal.
            unsafe { libc::pause() };
        }
    }
    json!(true)
}

/// Has nothing to do, and answers at once.
fn do_not_wait(_: &Ground<'_>, _: &Value) -> Value {
    fs::write("locked", "").unwrap();
    json!("at once")
}

/// Hears what is sent along, which comes after the word.
fn hear(ground: &Ground<'_>, _: &Value) -> Value {
    let heard = ground.beside.unwrap().hear().unwrap();
    json!(String::from_utf8(heard).unwrap())
}

/// Hands a call to a child that is ready, and waits until the child has got as far as it may.
fn poise(scene: &Scene, call: &Call) -> Poised {
    let warm = scene.sandbox.warm(call.profile, &call.space_root);
    scene.runtime.block_on(warm).unwrap();
    let poised = scene.sandbox.poise(call).unwrap();
    eventually("the child", || scene.workspace.join("locked").exists());
    poised
}

fn is_done(scene: &Scene) -> bool {
    scene.workspace.join("done").exists()
}

fn start_again(scene: &Scene) {
    for name in ["locked", "done", "here"] {
        let _ = fs::remove_file(scene.workspace.join(name));
    }
}

fn carried_out_when_told(scene: &Scene) {
    for profile in scene.profiles() {
        start_again(scene);
        let call = scene.call(profile, "wait", json!(null));
        let poised = poise(scene, &call);
        assert!(!is_done(scene), "{profile}");
        let answer = scene.runtime.block_on(async {
            let reply = poised.go(call.timeout, Beside::default()).await.unwrap();
            reply.settle().await
        });
        assert_eq!(replied(&answer), json!(true), "{profile}");
        assert!(is_done(scene), "{profile}");
    }
    // What is sent along comes after the word.
    let call = scene.call(DEFAULT, "hear", json!(null));
    let poised = scene.sandbox.poise(&call).or_else(|| {
        let warm = scene.sandbox.warm(DEFAULT, &call.space_root);
        scene.runtime.block_on(warm).unwrap();
        scene.sandbox.poise(&call)
    });
    let answer = scene.runtime.block_on(async {
        let (to_child, inward) = mpsc::channel(1);
        to_child.send(b"along".to_vec()).await.unwrap();
        let beside = Beside {
            inward: Some(inward),
            outward: None,
        };
        let reply = poised.unwrap().go(call.timeout, beside).await.unwrap();
        reply.settle().await
    });
    assert_eq!(replied(&answer), json!("along"));
}

fn withdrawn(scene: &Scene) {
    for attack in ["wait", "do not wait"] {
        for profile in scene.profiles() {
            start_again(scene);
            let poised = poise(scene, &scene.call(profile, attack, json!(null)));
            drop(poised);
            // The lock goes with the child.
            if attack == "wait" {
                let here = fs::File::open(scene.workspace.join("here")).unwrap();
                here.lock().unwrap();
            }
            assert!(!is_done(scene), "{profile}");
        }
    }
    // The next call is served as if nothing had been.
    start_again(scene);
    let answer = scene.attack(DEFAULT, "wait", json!(null));
    assert_eq!(replied(&answer), json!(true));
}

fn answered_when_told(scene: &Scene) {
    let call = scene.call(DEFAULT, "do not wait", json!(null));
    let poised = poise(scene, &call);
    let answer = scene.runtime.block_on(async {
        let reply = poised.go(call.timeout, Beside::default()).await.unwrap();
        reply.settle().await
    });
    assert_eq!(replied(&answer), json!("at once"));
    // One that has died while it waited has ended like any other.
    start_again(scene);
    let call = scene.call(DEFAULT, "wait", json!("and die"));
    let poised = poise(scene, &call);
    let answer = scene.runtime.block_on(async {
        let reply = poised.go(call.timeout, Beside::default()).await.unwrap();
        reply.settle().await
    });
    assert_eq!(killed(&answer).as_str(), "sandbox_failed");
    assert!(!is_done(scene));
}

fn bounded(scene: &Scene) {
    let call = scene.call(DEFAULT, "wait", json!("and stay"));
    assert!(scene.sandbox.poise(&call).is_none(), "no child can be ready yet");
    let zero = Call {
        timeout: Duration::ZERO,
        ..call.clone()
    };
    let poised = poise(scene, &call);
    assert!(scene.sandbox.poise(&zero).is_none());
    // Its time is the one that is given with the word.
    let time = Duration::from_millis(500);
    let answer = scene.runtime.block_on(async {
        let reply = poised.go(time, Beside::default()).await.unwrap();
        reply.settle().await
    });
    assert_eq!(killed(&answer).as_str(), "timed_out");
    let is_over = answer.usage.wall >= time;
    assert!(is_done(scene) && is_over, "{answer:?}");
}

pub(crate) fn promises() -> Vec<Promise> {
    vec![
        Promise {
            name: "a_call_that_is_handed_over_early_is_carried_out_when_told",
            keep: carried_out_when_told,
        },
        Promise {
            name: "a_call_that_is_withdrawn_was_never_made",
            keep: withdrawn,
        },
        Promise {
            name: "a_call_that_is_handed_over_early_is_answered_when_told",
            keep: answered_when_told,
        },
        Promise {
            name: "a_call_that_is_handed_over_early_has_its_bounds",
            keep: bounded,
        },
    ]
}
