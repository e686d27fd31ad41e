//! The registry changes while the real pipeline runs: an action keeps the tool that it was validated with, and nothing keeps an
//! old registry.

use std::sync::Arc;

use effectd::contracts::{Code, Outcome, Receipt};
use effectd::internal::Runtime;
use effectd_actors::{Answer, Definition, Registry, RegistryError};

use crate::harness::{Place, Running, note};

const TOOL: &str = "files.write_text";

fn definition(registry: &Registry) -> Definition {
    registry.get(&TOOL.parse().unwrap()).unwrap().definition().clone()
}

/// The registry with another definition of the tool, or without it.
fn with(base: &Registry, definition: Option<Definition>) -> Registry {
    let (next, refused) = base.replace(|tool| tool.spec().tool_id.as_str() == TOOL, definition.as_slice());
    assert!(refused.is_empty(), "{refused:?}");
    next
}

async fn receipt(runtime: &Runtime, action: &str) -> Receipt {
    match runtime.exec(note(action, &format!("workspace/{action}"), "x")).await {
        Answer::Done(done) => (*done.receipt).clone(),
        other @ (Answer::Held(_) | Answer::Refused(_)) => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_action_keeps_the_tool_that_it_was_validated_with() {
    let place = Place::seeded();
    let runtime = place.runtime().await;
    let services = runtime.pipeline().services();
    let base = services.registry();
    let mut leaving = definition(&base);
    leaving.spec.version = "9.9.9".to_owned();
    // The tool leaves the registry while its parameters are checked.
    let weak = Arc::downgrade(services);
    leaving.rule = Arc::new(move |_| {
        let services = weak.upgrade().unwrap();
        let base = services.registry();
        services.set_registry(&base, with(&base, None)).unwrap();
        Ok(())
    });
    services.set_registry(&base, with(&base, Some(leaving))).unwrap();
    let kept = receipt(&runtime, "k-1").await;
    assert_eq!((kept.outcome, kept.tool_version.as_deref()), (Outcome::Executed, Some("9.9.9")));
    assert!(place.note("k-1").exists());
    let late = receipt(&runtime, "k-2").await;
    assert_eq!(late.error.map(|error| error.code), Some(Code::UnknownTool));
    assert!(runtime.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_registry_is_swapped_while_actions_run() {
    let place = Place::seeded();
    let runtime = place.runtime().await;
    let services = runtime.pipeline().services();
    let old = Arc::downgrade(&services.registry());
    let first = definition(&services.registry());
    let names: Vec<String> = (0..20).map(|number| format!("s-{number}")).collect();
    for (number, name) in names.iter().enumerate() {
        runtime.submit(note(name, &format!("workspace/{name}"), "s")).await.unwrap();
        let base = services.registry();
        let mut next = first.clone();
        next.spec.version = format!("9.0.{number}");
        services.set_registry(&base, with(&base, Some(next))).unwrap();
    }
    for name in &names {
        let Ok(Answer::Done(done)) = runtime.pipeline().wait(&name.parse().unwrap()).await else {
            panic!("{name} has no end")
        };
        assert_eq!(done.receipt.outcome, Outcome::Executed);
        let version = done.receipt.tool_version.as_deref().unwrap();
        assert!(version == first.spec.version || version.starts_with("9.0."), "{version}");
    }
    assert_eq!(receipt(&runtime, "s-last").await.tool_version.as_deref(), Some("9.0.19"));
    assert!(old.upgrade().is_none(), "something keeps the first registry");
    assert!(runtime.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_swaps_at_once_one_is_refused_and_series_follow() {
    let place = Place::seeded();
    let runtime = place.runtime().await;
    let services = runtime.pipeline().services();
    let is_shown = || {
        let page = prometheus::TextEncoder::new().encode_to_string(&runtime.metrics().gather()).unwrap();
        page.contains("effectd_breaker_state{tool_id=\"files.write_text\"} 2")
    };
    services.control.breakers.trip(TOOL, None).await.unwrap();
    assert!(is_shown());
    let base = services.registry();
    let (one, other) = (with(&base, None), with(&base, None));
    services.set_registry(&base, one).unwrap();
    assert!(!is_shown(), "the tool is gone, and its breaker with it");
    let refused = services.set_registry(&base, other).unwrap_err();
    assert!(matches!(refused, RegistryError::Superseded), "{refused}");
    let current = services.registry();
    services.set_registry(&current, with(&current, Some(definition(&base)))).unwrap();
    assert!(is_shown(), "a tool that comes back is as it was left");
    assert!(runtime.stop().await);
}
