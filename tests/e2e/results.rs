//! How results of tools end: after seven days, beyond the quota, and if a power failure cut off their write.

use std::sync::Arc;
use std::time::Duration;

use effectd::contracts::{Code, ManualClock, Origin, Timestamp};
use effectd::internal::Runtime;
use effectd_actors::effects::results;
use effectd_actors::{Answer, Incoming};
use serde_json::json;

use crate::harness::{Place, Running, write_note};

const NAMES: [&str; 3] = ["a", "b", "c"];

/// [`text_for`] a principal that is alone.
async fn text(runtime: &Runtime, name: &str) -> Result<String, Code> {
    text_for(runtime, "user://alone", name).await
}

/// Reads a file, now or before, and returns its text or why the result is missing.
async fn text_for(runtime: &Runtime, principal: &str, name: &str) -> Result<String, Code> {
    let mut request = write_note(name, "", "");
    request["tool_id"] = "files.read_text".into();
    request["params"] = json!({ "path": format!("workspace/{name}"), "space_id": "shared:household" });
    let incoming = Incoming {
        request: Arc::new(serde_json::from_value(request).unwrap()),
        principal: principal.parse().unwrap(),
        origin: Origin::Arbiter,
        contract: None,
        interactive: false,
    };
    let Answer::Done(done) = runtime.pipeline().exec(incoming).await else { panic!("{name} is not done") };
    let done = results::fill(runtime.pipeline().services(), done).await;
    let result = done.result.map_err(|failure| failure.code)?;
    Ok(result.unwrap()["text"].as_str().unwrap().to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_ends_with_its_days_or_its_quota() {
    let place = Place::seeded();
    std::fs::create_dir_all(place.path("workspace")).unwrap();
    for name in NAMES {
        std::fs::write(place.note(name), name.repeat(60_000)).unwrap();
    }
    let clock = Arc::new(ManualClock::at(Timestamp::now()));
    let mut config = place.config();
    config.clock = clock.clone();
    // Room for two of the three.
    config.store.blob_quota_bytes = 150_000;
    let runtime = Runtime::start(config).await.unwrap();
    for _run_and_repeat in 0..2 {
        for name in &NAMES[..2] {
            assert_eq!(text(&runtime, name).await, Ok(name.repeat(60_000)));
        }
    }
    assert_eq!(text(&runtime, "c").await, Ok("c".repeat(60_000)));
    assert_eq!(text(&runtime, "a").await, Err(Code::ResultGone), "the oldest made room");
    assert_eq!(text(&runtime, "b").await, Ok("b".repeat(60_000)));
    // A power failure leaves the name and a part of the content.
    let blobs = place.state_bytes().into_iter();
    let blobs: Vec<_> =
        blobs.filter(|(path, _)| path.starts_with(place.state().join("blobs/results"))).collect();
    assert_eq!(blobs.len(), 2);
    let untouched = text(&runtime, "c").await;
    for (path, bytes) in &blobs {
        std::fs::write(path, &bytes[..bytes.len() - 1]).unwrap();
    }
    for name in NAMES {
        assert_eq!(text(&runtime, name).await, Err(Code::ResultGone));
    }
    for (path, bytes) in &blobs {
        std::fs::write(path, bytes).unwrap();
    }
    clock.advance(Duration::from_secs(7 * 86_400 - 60));
    assert_eq!(text(&runtime, "c").await, untouched);
    clock.advance(Duration::from_secs(60));
    assert_eq!(text(&runtime, "c").await, Err(Code::ResultGone), "seven days are over");
    assert!(runtime.stop().await);
}

/// Both principals claim the same subject.
#[tokio::test(flavor = "multi_thread")]
async fn a_noisy_principal_evicts_only_its_own_results() {
    let place = Place::seeded();
    std::fs::create_dir_all(place.path("workspace")).unwrap();
    let mut config = place.config();
    // Room for three of the four.
    config.store.blob_quota_bytes = 210_000;
    let runtime = Runtime::start(config).await.unwrap();
    let reads = [("user://quiet", "q"), ("user://noisy", "a"), ("user://noisy", "b"), ("user://noisy", "c")];
    let kept = |name: &str| Ok::<_, Code>(name.repeat(60_000));
    for (principal, name) in reads {
        std::fs::write(place.note(name), name.repeat(60_000)).unwrap();
        assert_eq!(text_for(&runtime, principal, name).await, kept(name));
    }
    for (principal, name) in reads {
        let expected = if name == "a" { Err(Code::ResultGone) } else { kept(name) };
        assert_eq!(text_for(&runtime, principal, name).await, expected, "{name}");
    }
    assert!(runtime.stop().await);
}
