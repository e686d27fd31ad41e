//! The whole language of templates: what it has, what it refuses, and where it stops.
#![allow(clippy::unwrap_used)]
use serde_json::json;

use super::*;

fn context() -> Map<String, Value> {
    json!({
        "run": { "id": "r-1", "started_at": "2026-05-26T09:00:00Z", "trigger_id": null },
        "inputs": {
            "name": "Ada", "count": 3, "share": 0.5, "done": true, "none": null,
            "tags": ["b", "a"], "who": { "name": "Bob", "_secret": "canary" }, "long": vec!["x"; 300],
        },
    })
    .as_object()
    .unwrap()
    .clone()
}

fn one(config: Value, when: Option<&str>) -> RenderedStep {
    let config = config.as_object().unwrap().clone();
    let step = StepTemplates { when: when.map(str::to_owned), config };
    let request = RenderRequest { context: context(), steps: vec![step] };
    here(&request).remove(0)
}

/// The value of a text in a configuration.
fn value(source: &str) -> Result<Value, String> {
    match one(json!({ "value": source }), None) {
        RenderedStep::Config(mut config) => Ok(config.remove("value").unwrap()),
        RenderedStep::Failed { pointer, message } => {
            assert_eq!(pointer, "/config/value");
            Err(message)
        }
        RenderedStep::Skipped => panic!("skipped"),
    }
}

#[test]
fn every_filter_and_test_is_one_of_the_list() {
    let cases = [
        ("date", "{{ run.started_at | date('%d.%m.%Y') }}", json!("26.05.2026")),
        ("default", "{{ inputs.nope | default('x') }}", json!("x")),
        ("first", "{{ inputs.tags | first }}", json!("b")),
        ("join", "{{ inputs.tags | join(', ') }}", json!("b, a")),
        ("last", "{{ inputs.tags | last }}", json!("a")),
        ("length", "{{ inputs.tags | length }}", json!(2)),
        ("lower", "{{ inputs.name | lower }}", json!("ada")),
        ("replace", "{{ inputs.name | replace('A', 'E') }}", json!("Eda")),
        ("reverse", "{{ inputs.tags | reverse }}", json!(["a", "b"])),
        ("slugify", "{{ 'Ünder the  Sea!' | slugify }}", json!("ünder-the-sea")),
        ("sort", "{{ inputs.tags | sort }}", json!(["a", "b"])),
        ("tojson", "{{ inputs.who | tojson }}", json!("{\"name\":\"Bob\"}")),
        ("trim", "{{ ' a ' | trim }}", json!("a")),
        ("truncate", "{{ 'abcdef' | truncate(3) }}", json!("abc…")),
        ("upper", "{{ inputs.name | upper }}", json!("ADA")),
    ];
    for (filter, source, expected) in &cases {
        check(source).unwrap();
        assert_eq!(value(source).as_ref(), Ok(expected), "{filter}");
    }
    assert_eq!(cases.map(|(name, ..)| name), FILTERS);
    for test in TESTS {
        check(&format!("{{{{ inputs.name is {test} }}}}")).unwrap();
        check(&format!("{{{{ inputs.name is not {test} }}}}")).unwrap();
        assert!(value(&format!("{{{{ inputs.name is {test} }}}}")).unwrap().is_boolean());
    }
    for name in ["map", "attr", "format", "safe", "escape", "e", "indent", "tojson2", "items"] {
        assert!(check(&format!("{{{{ inputs | {name} }}}}")).is_err(), "{name}");
        assert!(value(&format!("{{{{ inputs | {name} }}}}")).is_err(), "{name}");
    }
    for name in ["odd", "iterable", "undefined", "safe", "escaped", "filter"] {
        assert!(check(&format!("{{{{ inputs is {name} }}}}")).is_err(), "{name}");
        assert!(check(&format!("{{{{ inputs is not {name} }}}}")).is_err(), "{name}");
    }
}

#[test]
fn values_keep_their_type_alone_and_are_json_in_a_text() {
    for (source, expected) in [
        ("{{ inputs.count }}", json!(3)),
        ("{{- inputs.count + 1 -}}", json!(4)),
        ("{{ inputs.tags }}", json!(["b", "a"])),
        ("{{ inputs.none }}", json!(null)),
        ("{{ inputs.done }}", json!(true)),
        ("is {{ inputs.count }}", json!("is 3")),
        ("{{ inputs.tags }} {{ inputs.who }}", json!("[\"b\",\"a\"] {\"name\":\"Bob\"}")),
        ("{{ inputs.share }}/{{ inputs.done }}/{{ inputs.none }}.", json!("0.5/true/.")),
        ("{% for t in inputs.tags %}{{ loop.index }}{{ t }}{% endfor %}\n", json!("1b2a\n")),
        ("{% set x = 1 %}{% if x == 1 %}yes{% else %}no{% endif %}", json!("yes")),
        ("plain", json!("plain")),
    ] {
        if is_template(source) {
            check(source).unwrap();
        }
        assert_eq!(value(source), Ok(expected), "{source}");
    }
    let texts = json!({ "message_template": "{{ inputs.count }}", "list": ["{{ inputs.name }}", 7], "prompt": "{{ inputs.tags }}" });
    let RenderedStep::Config(config) = one(texts, None) else { panic!() };
    assert_eq!(
        Value::Object(config),
        json!({ "message_template": "3", "list": ["Ada", 7], "prompt": "[\"b\",\"a\"]" })
    );
}

#[test]
fn a_condition_decides_whether_the_step_runs() {
    for (when, runs) in [
        ("{{ inputs.count > 2 }}", true),
        ("inputs.count > 3", false),
        ("{{ inputs.nope is defined }}", false),
        ("{{ inputs.tags }}", true),
        ("{{ inputs.none }}", false),
    ] {
        check_condition(when).unwrap();
        assert_eq!(one(json!({}), Some(when)) == RenderedStep::Config(Map::new()), runs, "{when}");
    }
    for wrong in ["{% if true %}x{% endif %}", "{{ a }}{{ b }}", "", "inputs.count >", "x{{ 1 }}"] {
        assert!(check_condition(wrong).is_err(), "{wrong}");
    }
    let failed = one(json!({}), Some("inputs.nope"));
    assert!(matches!(&failed, RenderedStep::Failed { pointer, .. } if pointer == "/when"), "{failed:?}");
}

#[test]
fn no_name_with_an_underscore_is_read_by_any_path() {
    for source in [
        "{{ inputs.__class__ }}",
        "{{ _x }}",
        "{{ inputs['__class__'] }}",
        "{{ inputs.who[\"_secret\"] }}",
        "{% set _x = 1 %}",
        "{{ inputs | attr('__class__') }}",
    ] {
        assert!(check(source).is_err(), "{source}");
    }
    // What no look at the text can find is not there when it is rendered.
    for source in [
        "{{ inputs.who['' ~ '_secret'] }}",
        "{% set k = '_secret' %}{{ inputs.who[k] }}",
        "a{{ inputs.who[['', '_secret'] | join('')] }}",
    ] {
        check(source).unwrap();
        assert!(value(source).is_err(), "{source}");
    }
    assert_eq!(value("{{ inputs.who }}"), Ok(json!({ "name": "Bob" })));
}

#[test]
fn what_is_not_listed_is_refused() {
    for source in [
        "{% include 'x' %}",
        "{% import 'x' as y %}",
        "{% extends 'x' %}",
        "{% macro x() %}{% endmacro %}",
        "{% block x %}{% endblock %}",
        "{% with x = 1 %}{% endwith %}",
        "{% filter upper %}x{% endfilter %}",
        "{% autoescape true %}{% endautoescape %}",
        "{% do x() %}",
        "{% for x in inputs.tags recursive %}{% endfor %}",
        "{{ 1",
        "{% if x %}",
    ] {
        assert!(check(source).is_err(), "{source}");
    }
    for source in [
        "{{ range(3) }}",
        "{{ 'x'.format(1) }}",
        "{{ dict(a=1) }}",
        "{{ inputs.name.upper() }}",
        "{{ debug() }}",
    ] {
        assert!(value(source).is_err(), "{source}");
    }
}

#[test]
fn a_missing_value_is_an_error_that_names_it() {
    for source in
        ["{{ inputs.nope }}", "a {{ inputs.nope }}", "{{ inputs.nope.deeper }}", "{{ inputs.nope | upper }}"]
    {
        assert!(value(source).is_err(), "{source}");
    }
    for source in ["{{ inputs.nope }}", "a {{ inputs.nope }}"] {
        assert!(value(source).unwrap_err().contains("inputs.nope"), "{source}: {:?}", value(source));
    }
    assert_eq!(
        check("{{ summary.x }}{% for b in inputs.tags %}{{ b }}{% endfor %}"),
        Ok(["inputs", "summary"].map(str::to_owned).into())
    );
}

#[test]
fn a_template_has_bounds() {
    let long = |bytes: usize| format!("{{{{ 1 }}}}{}", "x".repeat(bytes - 7));
    check(&long(TEMPLATE_BYTES_MAX)).unwrap();
    assert!(check(&long(TEMPLATE_BYTES_MAX + 1)).is_err());
    // However it is nested, it is not deep.
    for (open, inner, close) in [
        ("", "1", " + 1"),
        ("", "run", ".a"),
        ("", "run", " | trim"),
        ("(", "1", ")"),
        ("-", "1", ""),
        ("", "1", "~1"),
    ] {
        let deep = |times: usize| format!("{{{{ {}{inner}{} }}}}", open.repeat(times), close.repeat(times));
        check(&deep(50)).unwrap();
        assert!(check(&deep(1_000)).is_err(), "{open}{inner}{close}");
    }
    let nested = |times: usize| format!("{}x{}", "{% if 1 %}".repeat(times), "{% endif %}".repeat(times));
    check(&nested(20)).unwrap();
    assert!(check(&nested(380)).is_err());
    // What a text may be, and not a byte more.
    let doubled = |times: usize| {
        let line = "{% set a = a ~ a %}".repeat(times);
        format!("{{% set a = 'xxxxxxxxxxxxxxxx' %}}{line}{{{{ a }}}}{{{{ a }}}}")
    };
    assert_eq!(value(&doubled(15)).unwrap().as_str().unwrap().len(), RENDERED_BYTES_MAX);
    assert!(value(&doubled(16)).unwrap_err().contains("1048576 bytes"));
    let loops = "{% for a in inputs.long %}{% for b in inputs.long %}{% for c in inputs.long %}{{ c }}{% endfor %}{% endfor %}{% endfor %}";
    assert!(value(loops).unwrap_err().contains("more than a template may"), "{:?}", value(loops));
}
