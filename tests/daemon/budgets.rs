//! What is left of the budgets in force, for those who may look.

use serde_json::json;

use crate::harness::{Daemon, Place, Serving, until, write_note};
use crate::tcp::{ask_by, listening};

const PEOPLE: &str = r#"
[orgs.office]

[principals."account://home/mia"]
subjects = []
roles = ["look"]

[principals."account://home/guest"]
subjects = []

[principals."account://office/eve"]
subjects = []
roles = ["look"]
"#;

#[test]
fn a_budget_says_what_is_left_also_after_a_restart() {
    let place = Place::seeded();
    let file = place.state().join("policy/policy.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.split("[example_tools").next().unwrap().to_owned() + PEOPLE).unwrap();
    let none = json!({ "window_ms": 86_400_000, "subjects": [], "total": 0 });
    assert_eq!(place.effectd(&["budgets", "-o", "json"], None).json(0), none);
    let bare = place.effectd(&["budgets"], None);
    assert!(bare.stderr().contains("no budget is in force"), "{}", bare.stderr());

    let settings = ["--set", "control.budget_calls_max=3", "--set", "control.budget_cost_micros_max=1000000"];
    let (daemon, address) = listening(&place, &settings);
    let list = |daemon: &Daemon| daemon.get("/v1/budgets").json(200);
    let whole = list(&daemon);
    assert_eq!((&whole["calls_max"], &whole["total"]), (&json!(3), &json!(0)), "{whole}");
    for name in ["b-1", "b-2"] {
        daemon.post("/v1/actions?wait", &write_note(name, name, "x")).json(200);
    }
    let used = list(&daemon);
    let mut only = used["subjects"][0].clone();
    let until_then = only.as_object_mut().unwrap().remove("until").unwrap();
    let left =
        json!({ "subject_id": "agent://planner@deviceA", "calls_left": 1, "cost_micros_left": 1_000_000 });
    assert_eq!((&only, &used["total"]), (&left, &json!(1)), "{used}");

    let by = |name: &str, org: &str| {
        let token = daemon.post("/v1/tokens", &json!({ "kind": "user", "org": org, "name": name })).json(200);
        ask_by(&address, token["token"].as_str().unwrap(), "GET", "/v1/budgets", "")
    };
    assert_eq!(by("mia", "home").json(200), used);
    // The subject sees no space of this organisation.
    assert_eq!(by("eve", "office").json(200)["subjects"], json!([]));
    by("guest", "home").problem(403, "operators_only");

    drop(daemon);
    let daemon = place.serve(&settings);
    let later = list(&daemon);
    assert_eq!(
        (&later["subjects"][0]["calls_left"], &later["subjects"][0]["until"]),
        (&json!(1), &until_then)
    );
    let table = place.effectd(&["budgets"], None);
    assert!(
        table.stdout().contains("1 call, a cost of 1 ") && table.stderr().contains("3 calls"),
        "{}",
        table.stdout()
    );
    daemon.post("/v1/actions?wait", &write_note("b-3", "b-3", "x")).json(200);
    until("the third call counts", || list(&daemon)["subjects"][0]["calls_left"] == 0);
    daemon.post("/v1/actions?wait", &write_note("b-4", "b-4", "x")).problem(429, "rate_limited");
}
