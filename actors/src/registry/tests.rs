//! Which tools the registry accepts and refuses, and that automations, agents and plugins see the same tool.
#![allow(clippy::unwrap_used)]

use super::*;
use effectd_contracts::Code;
use effectd_contracts::plugin::Manifest;
use serde_json::json;

fn spec(change: impl FnOnce(&mut Value)) -> ToolSpec {
    let mut value = json!({
        "tool_id": "t.x", "version": "1.0.0", "caps_required": [], "side_effects": ["filesystem_write"],
        "safety_class": "LOW", "risk_level": "write",
        "params_schema": {
            "type": "object", "required": ["path", "when"], "additionalProperties": false,
            "properties": { "path": { "type": "string" }, "when": { "type": "string", "format": "date-time" } },
        },
        "result_schema": { "type": "object" },
    });
    change(&mut value);
    serde_json::from_value(value).unwrap()
}

fn entry() -> Arc<RegisteredTool> {
    let mut registry = Registry::default();
    registry.register(tool(Source::Core, spec(|_| ()))).unwrap();
    registry.get(&"t.x".parse().unwrap()).unwrap().clone()
}

#[test]
fn every_violation_is_named_by_its_place_and_no_value_is_told() {
    let params = json!({ "path": 7, "when": "s3cret", "extra": 1 }).as_object().unwrap().clone();
    let failure = entry().check_params(&params).unwrap_err();
    assert_eq!(failure.code, Code::ParamsInvalid);
    for place in ["/path: ", "/when: ", "/: 1 unknown names; the schema has: path, when"] {
        assert!(failure.message.contains(place), "{}", failure.message);
    }
    assert!(!failure.message.contains("s3cret"), "{}", failure.message);
}

#[test]
fn names_that_the_schema_does_not_know_are_counted_only() {
    let schema = json!({
        "type": "object", "additionalProperties": false,
        "properties": {
            "map": { "type": "object", "additionalProperties": { "type": "object", "properties": { "n": { "type": "integer" } } } },
            "words": { "type": "object", "propertyNames": { "maxLength": 3 } },
            "rest": { "type": "object", "properties": { "a": {} }, "unevaluatedProperties": false },
        },
    });
    let entry = RegisteredTool::new(tool(Source::Core, spec(|v| v["params_schema"] = schema))).unwrap();
    let params = json!({
        "s3cret": 1, "4711": 2, "map": { "s3cret": { "n": "x" }, "4711": { "n": "x" } }, "words": { "s3cret": 1 },
        "rest": { "s3cret": 1 },
    });
    let message = entry.check_params(params.as_object().unwrap()).unwrap_err().message;
    for told in [
        "/: 2 unknown names; the schema has: map, rest, words",
        "/map/*/n: ",
        "/words: a name is not allowed",
        "/rest: 1 unknown names; the schema has: a",
    ] {
        assert!(message.contains(told), "{told}: {message}");
    }
    assert!(!message.contains("s3cret") && !message.contains("4711"), "{message}");
}

#[test]
fn formats_are_asserted() {
    let params = |when: &str| json!({ "path": "x", "when": when }).as_object().unwrap().clone();
    assert!(entry().check_params(&params("2026-01-01T00:00:00Z")).is_ok());
    assert!(entry().check_params(&params("yesterday")).is_err());
}

#[test]
fn doubles_and_unusable_schemas_are_refused() {
    let mut registry = Registry::default();
    registry.register(tool(Source::Core, spec(|_| ()))).unwrap();
    let twice = registry.register(tool(Source::Core, spec(|_| ()))).unwrap_err();
    assert!(matches!(twice, RegistryError::Duplicate { .. }));
    let own = spec(|v| v["tool_id"] = json!("effectd.grant"));
    let own = registry.register(tool(Source::Core, own)).unwrap_err();
    assert!(matches!(own, RegistryError::Reserved { .. }), "{own}");
    let bad = [
        json!({ "type": "object", "minimum": "x" }),
        json!({ "type": "object", "$ref": "https://example.org/s" }),
    ];
    for schema in bad {
        let spec = spec(|v| {
            v["tool_id"] = json!("t.y");
            v["result_schema"] = schema;
        });
        // Those of built-in tools are compiled when they are used; the program's tests compile all of them.
        assert!(Registry::default().register(tool(Source::Core, spec.clone())).is_ok());
        let error = registry.register(tool(Source::Provider, spec)).unwrap_err();
        assert!(matches!(error, RegistryError::Schema { which: "result_schema", .. }), "{error}");
    }
}

/// A tool with one parameter of this schema, and these definitions.
fn with_param(param: Value, defs: Value) -> Result<RegisteredTool, RegistryError> {
    let schema = json!({
        "type": "object", "additionalProperties": false,
        "properties": { "p": param, "q": { "type": "string" } }, "$defs": defs,
    });
    RegisteredTool::new(tool(Source::Provider, spec(|v| v["params_schema"] = schema)))
}

/// Each level refers to the next in every way; the innermost value is wrong.
#[test]
fn a_schema_that_refers_to_itself_lists_its_violations_at_once() {
    let step = |name: &str| json!({ "properties": { name: { "$ref": "#/$defs/node" } } });
    for several in ["anyOf", "oneOf", "allOf"] {
        let node = json!({ several: [step("a"), step("a"), step("a")], "type": ["object", "string"] });
        let entry = with_param(json!({ "$ref": "#/$defs/node" }), json!({ "node": node })).unwrap();
        let document = |end: Value| (0..28).fold(end, |inner, _| json!({ "a": inner }));
        let params = |end: Value| json!({ "p": document(end), "q": 7 }).as_object().unwrap().clone();
        let message = entry.check_params(&params(json!(7))).unwrap_err().message;
        // With `anyOf` or `oneOf` the intended alternative is not known, so the failure names the place of the whole value.
        let told = if several == "allOf" { "/p/a: it violates #/$defs/node" } else { "/p: " };
        assert!(message.contains(told), "{several}: {message}");
        assert!(message.contains("/q: "), "{several}: {message}");
        let unfit: Vec<_> = entry.unfit_params(&params(json!(7))).into_iter().collect();
        assert_eq!(unfit, ["p", "q"], "{several}");
        let fits = entry.unfit_params(&json!({ "p": "x" }).as_object().unwrap().clone());
        assert!(several == "oneOf" || fits.is_empty());
    }
}

#[test]
fn what_would_take_long_to_list_is_only_decided() {
    // Each definition refers twice to the next: a walk visits half a million schemas.
    let twice = |n: usize| json!({ "allOf": [{ "$ref": format!("#/$defs/{n}") }, { "$ref": format!("#/$defs/{n}") }] });
    let mut defs: Map<String, Value> = (0..18).map(|n| (n.to_string(), twice(n + 1))).collect();
    defs.insert("18".to_owned(), json!({ "type": "string" }));
    let entry = with_param(json!({ "$ref": "#/$defs/0" }), json!(defs)).unwrap();
    let params = json!({ "p": 7, "q": "x" }).as_object().unwrap().clone();
    let message = entry.check_params(&params).unwrap_err().message;
    assert_eq!(message, "/: it violates the schema, and is too large to say where");
    let unfit: Vec<_> = entry.unfit_params(&params).into_iter().collect();
    assert_eq!(unfit, ["p", "q"], "it is not known which, so none is shown");
    // A plain schema and a document with very many values.
    let entry = with_param(json!({ "items": { "type": "integer" } }), json!({})).unwrap();
    let params = json!({ "p": vec!["x"; 100_000] }).as_object().unwrap().clone();
    let message = entry.check_params(&params).unwrap_err().message;
    assert!(message.contains("too large to say where"), "{message}");
    let params = json!({ "p": vec!["x"; 1_000] }).as_object().unwrap().clone();
    let message = entry.check_params(&params).unwrap_err().message;
    assert!(message.starts_with("/p/0: ") && message.ends_with("and 16 more"), "{message}");
}

#[test]
fn schemas_are_bounded_and_misspelt_words_are_told() {
    let refused = |param: Value| with_param(param, json!({})).unwrap_err().to_string();
    let deep = (0..40).fold(json!({}), |inner, _| json!({ "items": inner }));
    let wide: Vec<Value> = vec![json!({}); 1_000];
    for (param, why) in [
        (
            json!({ "requierd": ["a"] }),
            "/properties/p: `requierd` is not a known keyword; did you mean `required`?",
        ),
        (json!({ "maxlength": 3 }), "did you mean `maxLength`?"),
        (
            json!({ "items": { "x-publik": true } }),
            "/properties/p/items: `x-publik` is not a known keyword; did you mean `x-public`?",
        ),
        (json!({ "$dynamicRef": "#a" }), "`$dynamicRef` is not a known keyword"),
        (json!({ "format": "datetime" }), "the format `datetime` is unknown; did you mean `date-time`?"),
        (json!({ "format": "zip" }), "the format `zip` is unknown"),
        (json!({ "$ref": "other.json" }), "must refer to the same schema"),
        (json!({ "$ref": "#/$defs/none" }), "`$ref` leads to `#/$defs/none`, where there is no schema"),
        (deep, "nested deeper than 32 levels"),
        (json!({ "anyOf": wide }), "more than 1000 schemas"),
    ] {
        let told = refused(param);
        assert!(told.contains(why), "{why}: {told}");
        assert!(told.contains("params_schema"), "{told}");
    }
    // Names of parameters and values are not keywords, and foreign extensions are not checked.
    let fine = json!({
        "properties": { "requierd": { "format": "uint64" } }, "enum": [{ "requierd": 1 }], "default": { "formt": 1 },
        "x-vendor": { "requierd": 1 },
    });
    assert!(with_param(fine, json!({})).is_ok());
}

fn tool(source: Source, spec: ToolSpec) -> Definition {
    Definition::new(source, spec, Arc::new(|_| Ok(())))
}

fn id(text: &str) -> ToolId {
    text.parse().unwrap()
}

#[test]
fn the_more_trusted_source_keeps_the_name_in_any_order() {
    use Source::{Connector, Core, Db, Plugin, Provider};
    let sources = [Core, Provider, Plugin, Connector, Db];
    for first in sources {
        for second in sources {
            let both = vec![tool(first, spec(|_| ())), tool(second, spec(|_| ()))];
            let (registry, refused) = Registry::assemble(both);
            assert_eq!(registry.find(&id("t.x")).unwrap().source(), first.min(second));
            let [RegistryError::Duplicate { held_by, refused, .. }] = &refused[..] else {
                panic!("{refused:?}");
            };
            assert_eq!((*held_by, *refused), (first.min(second), first.max(second)));
        }
    }
}

#[test]
fn aliases_lead_to_the_one_tool_and_cannot_take_a_name() {
    let mut registry = Registry::default();
    let mut named = tool(Source::Core, spec(|_| ()));
    named.aliases = vec![id("x")];
    registry.register(named).unwrap();
    assert_eq!(registry.find(&id("x")).unwrap().spec().tool_id, id("t.x"));
    assert!(registry.find_by_id(&id("t.x")).is_ok());
    let alias = registry.find_by_id(&id("x")).unwrap_err().to_string();
    assert_eq!(alias, "there is no tool x; did you mean t.x?");
    assert_eq!(registry.iter().count(), 1);
    for (name, alias) in [("t.y", "t.x"), ("t.y", "x"), ("x", "z")] {
        let mut thief = tool(Source::Plugin, spec(|v| v["tool_id"] = json!(name)));
        thief.aliases = vec![id(alias)];
        let error = registry.register(thief).unwrap_err();
        assert!(matches!(error, RegistryError::Duplicate { .. }), "{error}");
    }
}

#[test]
fn an_unknown_name_is_a_typed_error_that_names_the_nearest() {
    let mut registry = Registry::default();
    let write = |v: &mut Value| v["tool_id"] = json!("files.write_text");
    registry.register(tool(Source::Core, spec(write))).unwrap();
    let text = |name: &str| registry.find(&id(name)).unwrap_err().to_string();
    assert_eq!(text("files.wirte_text"), "there is no tool files.wirte_text; did you mean files.write_text?");
    assert_eq!(text("mail.send"), "there is no tool mail.send; `effectd tools list` shows all tools");
}

#[test]
fn impossible_promises_are_refused_and_doubts_are_reported() {
    let mut registry = Registry::default();
    let undoable = tool(Source::Core, spec(|v| v["reversible"] = json!(true)));
    let error = registry.register(undoable).unwrap_err();
    assert!(matches!(error, RegistryError::Promise { .. }), "{error}");
    let mut reader = tool(
        Source::Core,
        spec(|v| {
            v["side_effects"] = json!(["read_only"]);
            v["risk_level"] = json!("read");
        }),
    );
    reader.touches = Some(Arc::new(|_| Vec::new()));
    let error = registry.register(reader).unwrap_err();
    assert!(matches!(error, RegistryError::Promise { .. }), "{error}");
    let doubtful = tool(
        Source::Core,
        spec(|v| {
            v["safety_class"] = json!("HIGH");
            v["params_schema"]["additionalProperties"] = json!(true);
        }),
    );
    registry.register(doubtful).unwrap();
    let entry = registry.find(&id("t.x")).unwrap();
    let wanted = [Lint::ProfileRaised, Lint::NoDescription, Lint::OpenParams, Lint::NoResource];
    assert_eq!(entry.lints(), wanted);
    assert!(entry.spec().effective_profile().high_isolation);
    for (field, value) in [("safety_class", "EXTREME"), ("sandbox_profile", "foo")] {
        let mut value_of = serde_json::to_value(spec(|_| ())).unwrap();
        value_of[field] = json!(value);
        assert!(serde_json::from_value::<ToolSpec>(value_of).is_err(), "{field}");
    }
}

#[test]
fn one_registration_is_seen_alike_in_all_views() {
    let mut registry = Registry::default();
    let described = |v: &mut Value| v["description"] = json!("Does it.");
    let manifest = json!({
        "name": "x", "riskTier": "R2", "inputSchema": { "type": "object" }, "outputSchema": { "type": "object" },
        "permissions": { "commands": [], "filesystem": "workspace" },
        "verification": { "required": true, "commands": [] }, "rollback": { "required": true },
    });
    let manifest = Manifest::parse(manifest.to_string().as_bytes()).unwrap();
    let pinned = Pinned { manifest: manifest.clone(), files: BTreeMap::new() };
    let plugin = Some(Arc::new(pinned));
    registry.register(Definition { plugin, ..tool(Source::Plugin, spec(described)) }).unwrap();
    let entry = registry.find(&id("t.x")).unwrap();
    let capability = serde_json::to_value(entry.capability()).unwrap();
    let mut fields: Vec<_> = capability.as_object().unwrap().keys().collect();
    fields.sort();
    assert_eq!(fields, ["description", "id", "input_schema", "output_schema"]);
    let definition = entry.action_definition();
    assert_eq!(entry.package(), Some(&manifest));
    assert_eq!(definition.id, entry.spec().tool_id);
    assert_eq!(definition.params, entry.spec().params_schema);
    let core = RegisteredTool::new(tool(Source::Core, spec(described))).unwrap();
    assert!(core.package().is_none());
    assert_ne!(core.definition_hash(), entry.definition_hash(), "the files of the package count");
    let other = RegisteredTool::new(tool(Source::Core, spec(|v| v["version"] = json!("1.0.1")))).unwrap();
    assert_ne!(other.definition_hash(), entry.definition_hash());
}

const UUID: &str = "0199f6a2-5a4e-7c10-8d53-3f2b5f0c9a50";

#[test]
fn every_source_is_seen_through_the_one_registry() {
    let rows = [
        (Source::Core, "files.set_status".to_owned(), "files"),
        (Source::Provider, "sentry.set_status".to_owned(), "sentry"),
        (Source::Plugin, "acme.issues.set_status".to_owned(), "acme.issues"),
        (Source::Connector, format!("connector:{UUID}.issues.setStatus-now"), &format!("connector:{UUID}")),
        (Source::Db, format!("db:{UUID}.set_status"), &format!("db:{UUID}")),
    ];
    let definitions = rows.iter().map(|(source, name, _)| {
        let described = |v: &mut Value| {
            v["tool_id"] = json!(name);
            v["params_schema"]["properties"]["path"] = json!({ "enum": ["open", "done"] });
        };
        tool(*source, spec(described))
    });
    let (registry, refused) = Registry::assemble(definitions.collect());
    assert!(refused.is_empty(), "{refused:?}");
    assert_eq!(registry.iter().count(), rows.len());
    for (source, name, of) in rows {
        let entry = registry.find(&id(&name)).unwrap();
        assert_eq!((entry.source(), entry.spec().tool_id.source()), (source, of));
        assert_eq!((entry.action_definition().id, entry.capability().id), (id(&name), id(&name)));
        let check = |path: &str| {
            let params = json!({ "path": path, "when": "2026-01-01T00:00:00Z" });
            entry.check_params(params.as_object().unwrap()).map_err(|failure| failure.code)
        };
        assert_eq!((check("done"), check("bogus")), (Ok(()), Err(Code::ParamsInvalid)), "{name}");
    }
}

#[test]
fn only_a_connector_has_the_id_of_a_connector() {
    for kind in ["connector", "db"] {
        let name = format!("{kind}:{UUID}.get");
        for source in [Source::Core, Source::Provider, Source::Plugin, Source::Connector, Source::Db] {
            let mut by_alias = tool(source, spec(|_| ()));
            by_alias.aliases = vec![id(&name)];
            for definition in [tool(source, spec(|v| v["tool_id"] = json!(name))), by_alias] {
                let registered = Registry::default().register(definition);
                assert_eq!(registered.is_ok(), source.as_str() == kind, "{name} of {source}: {registered:?}");
            }
        }
    }
    // A harvested name with a colon.
    let colon = spec(|v| v["tool_id"] = json!(format!("connector:{UUID}.ns:get")));
    let refused = Registry::default().register(tool(Source::Connector, colon)).unwrap_err();
    assert!(matches!(refused, RegistryError::Spec { .. }), "{refused}");
}

#[test]
fn only_what_changed_is_registered_anew() {
    let (rule, other): (ParamRule, ParamRule) = (Arc::new(|_| Ok(())), Arc::new(|_| Ok(())));
    let of = |name: &str, rule: &ParamRule| {
        Definition::new(Source::Plugin, spec(|v| v["tool_id"] = json!(name)), rule.clone())
    };
    let names = ["t.same", "t.version", "t.drifted", "t.hosts", "t.rule", "t.gone"];
    let (base, refused) = Registry::assemble(names.iter().map(|name| of(name, &rule)).collect());
    assert!(refused.is_empty(), "{refused:?}");
    let mut next: Vec<_> = names[..5].iter().map(|name| of(name, &rule)).collect();
    next[1].spec.version = "1.0.1".to_owned();
    next[2].drifted = true;
    next[3].hosts = vec!["api.example.org".to_owned()];
    next[4] = of("t.rule", &other);
    let (next, refused) = base.replace(|_| true, &next);
    assert!(refused.is_empty(), "{refused:?}");
    for name in names {
        let (before, after) = (base.get(&id(name)).unwrap(), next.get(&id(name)));
        let is_same = after.map(|after| Arc::ptr_eq(before, after));
        let wanted = (name != "t.gone").then_some(name == "t.same");
        assert_eq!(is_same, wanted, "{name}");
    }
    assert!(next.get(&id("t.drifted")).unwrap().drifted());
    assert_eq!(next.get(&id("t.hosts")).unwrap().hosts(), ["api.example.org"]);
    // A newcomer that is trusted more takes the name of a tool that stays.
    let core = tool(Source::Core, spec(|v| v["tool_id"] = json!("t.same")));
    let (next, refused) = base.replace(|_| false, &[core]);
    assert_eq!(next.get(&id("t.same")).unwrap().source(), Source::Core);
    assert!(matches!(refused[..], [RegistryError::Duplicate { refused: Source::Plugin, .. }]), "{refused:?}");
}

#[test]
fn changes_at_once_all_take_effect() {
    let current = CurrentRegistry::default();
    std::thread::scope(|scope| {
        for number in 0..8 {
            let current = &current;
            scope.spawn(move || {
                loop {
                    let base = current.get();
                    let added = spec(|v| v["tool_id"] = json!(format!("t.x{number}")));
                    let (next, refused) = base.replace(|_| false, &[tool(Source::Plugin, added)]);
                    assert!(refused.is_empty(), "{refused:?}");
                    match current.swap(&base, Arc::new(next)) {
                        Ok(()) => return,
                        Err(RegistryError::Superseded) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
    });
    assert_eq!(current.get().iter().count(), 8);
}
