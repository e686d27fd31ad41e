//! A host that cannot confine is refused, and nothing runs.

use std::fs;

use effectd_sandbox::doctor::Verdict;
use effectd_sandbox::testing::{Missing, without};
use effectd_sandbox::{Sandbox, SandboxConfig};
use serde_json::{Value, json};

use crate::ground::{DEFAULT, Promise, Scene};

/// A runtime that makes one call which leaves a trace: `__one <workspace>`. Prints the code.
pub(crate) fn one_main(workspace: &str) {
    let started = Sandbox::start(SandboxConfig::this_program());
    let sandbox = match started {
        Err(error) => return println!("{}", json!({ "code": error.code(), "text": error.to_string() })),
        Ok(sandbox) => sandbox,
    };
    let mut scene = Scene::bare(sandbox);
    scene.workspace = workspace.into();
    match scene.try_run(scene.call(DEFAULT, "create", json!("trace"))) {
        Err(error) => println!("{}", json!({ "code": error.code(), "text": error.to_string() })),
        Ok(answer) => println!("{}", json!({ "code": "ok", "text": format!("{answer:?}") })),
    }
}

/// What the doctor says: `__doctor <scratch>`.
pub(crate) fn doctor_main(scratch: &str) {
    let config = SandboxConfig::new(std::env::current_exe().unwrap());
    println!("{}", effectd_sandbox::doctor::examine(&config, scratch.as_ref()));
}

fn one(scene: &Scene, missing: Option<Missing>) -> Value {
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    command.arg("__one").arg(&scene.workspace);
    if let Some(missing) = missing {
        without(missing, &mut command);
    }
    let output = command.output().unwrap();
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

pub(crate) fn promises() -> Vec<Promise> {
    vec![
        Promise {
            name: "doctor_proves_what_this_host_can_enforce",
            keep: |scene| {
                let config = SandboxConfig::new(std::env::current_exe().unwrap());
                let report = effectd_sandbox::doctor::examine(&config, scene.base.path());
                assert!(report.may_serve(), "{report}");
                let weak: Vec<_> =
                    report.findings.iter().filter(|finding| finding.verdict != Verdict::Enforced).collect();
                assert_eq!(weak.len(), usize::from(scene.sandbox.tree_memory().is_none()), "{report}");
                assert!(report.findings.len() >= 11, "{report}");
                assert_eq!(fs::read_dir(scene.base.path()).unwrap().count(), 2, "it cleans up after itself");
                for missing in [Missing::Landlock, Missing::UserNamespaces] {
                    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
                    let output =
                        without(missing, command.arg("__doctor").arg(&scene.outside)).output().unwrap();
                    let text = String::from_utf8(output.stdout).unwrap();
                    assert!(text.contains("MISSING") && text.contains("to fix:"), "{text}");
                    assert!(text.contains("must not serve"), "{text}");
                }
            },
        },
        Promise {
            name: "a_host_that_cannot_confine_is_refused",
            keep: |scene| {
                for (missing, word) in
                    [(Missing::Landlock, "Landlock"), (Missing::UserNamespaces, "namespaces")]
                {
                    let said = one(scene, Some(missing));
                    assert_eq!(said["code"], "sandbox_unavailable", "{said}");
                    assert!(
                        said["text"].as_str().unwrap().contains(word),
                        "it names what is missing: {said}"
                    );
                    assert!(!scene.workspace.join("made").exists(), "something ran");
                    assert_eq!(fs::read_to_string(scene.workspace.join("inside")).unwrap(), "inside");
                }
                assert_eq!(one(scene, None)["code"], "ok", "the control");
                assert!(scene.workspace.join("made/deep/file").exists(), "the control");
            },
        },
    ]
}
