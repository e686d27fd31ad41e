//! Overlays take effect at once, and never weaken what the files forbid.

use std::collections::BTreeSet;

use effectd_contracts::{Band, Gate, Mode, PolicyList, SideEffect};
use effectd_policy::{Change, Overlay, Policy, SetMode, evaluate};
use serde_json::json;

use crate::harness::*;

fn after(policy: &Policy, changes: &[Change]) -> Policy {
    let mut overlay = policy.overlay().clone();
    changes.iter().cloned().for_each(|change| overlay.apply(change).unwrap());
    policy.with_overlay(&overlay).unwrap()
}

fn grant(purpose: &str) -> Change {
    Change::GrantConsent {
        subject: subject("agent://planner"),
        space: space("shared:household"),
        purpose: purpose.into(),
    }
}

fn revoke(purpose: &str) -> Change {
    Change::RevokeConsent {
        subject: subject("agent://planner"),
        space: space("shared:household"),
        purpose: purpose.into(),
    }
}

const WRITE: &str = "tool:files.write_text";

#[test]
fn consent_is_granted_and_revoked_from_one_call_to_the_next() {
    let bare = world_with("purpose = \"tool:files.*\"", "purpose = \"tool:mail.*\"");
    assert_denied(&decide(&bare, |_| ()), Gate::Consent, "consent_missing");
    let granted = after(&bare, &[grant(WRITE)]);
    assert_permitted(&decide(&granted, |_| ()));
    let revoked = after(&granted, &[revoke(WRITE)]);
    let decision = decide(&revoked, |_| ());
    assert_denied(&decision, Gate::Consent, "consent_revoked");
    assert_eq!(decision.rule, "overlay");
    assert!(decision.verdict.reasons()[0].change.contains("grant-consent"), "{:?}", decision.verdict);
    assert_permitted(&decide(&after(&revoked, &[grant(WRITE)]), |_| ()));
}

#[test]
fn a_revocation_in_files_outranks_a_grant_by_command() {
    let consent = "[[consents]]\nsubject = \"agent://planner\"\nspace = \"*\"\npurpose = \"tool:files.write_text\"\nrevoked = true";
    let decision = decide(&after(&world_plus(consent), &[grant(WRITE)]), |_| ());
    assert_denied(&decision, Gate::Consent, "consent_revoked");
    let expected = format!("remove the revocation in {}: no consent by command overrides it", decision.rule);
    assert_eq!(decision.verdict.reasons()[0].change, expected);
    assert!(decision.rule.starts_with("policy.toml:"), "{}", decision.rule);
}

#[test]
fn bands_only_become_stricter() {
    let set = |band| Change::SetBand { space: space("shared:household"), band };
    let world = world();
    assert_eq!(decide(&after(&world, &[set(Some(Band::Amber))]), |_| ()).verdict.as_str(), "needs_approval");
    assert_denied(&decide(&after(&world, &[set(Some(Band::Black))]), |_| ()), Gate::Space, "space_closed");
    let red = world_with("band = \"GREEN\"", "band = \"RED\"");
    assert_eq!(decide(&after(&red, &[set(Some(Band::Green))]), |_| ()).verdict.as_str(), "needs_approval");
}

#[test]
fn modes_are_set_and_unset() {
    let set = |mode| Change::SetOrgMode { org: "home".into(), tool: "files:write_text".into(), mode };
    let denied = after(&world(), &[set(Some(SetMode::Lasting(Mode::Deny)))]);
    assert_eq!(decide(&denied, |_| ()).verdict.to_string(), "deny by mode");
    let ending = |mode| set(Some(SetMode::Ending { mode, until: noon(), then: None }));
    let morning = |policy: &Policy| decide(policy, |f| f.now = "2026-01-07T11:59:59Z".parse().unwrap());
    let ended = after(&world(), &[ending(Mode::Deny)]);
    assert_eq!(morning(&ended).verdict.as_str(), "deny");
    assert_permitted(&decide(&ended, |_| ()));
    // It lies over a mode without an end, which returns, however often the end is changed.
    let opened = after(&denied, &[ending(Mode::Deny), ending(Mode::Allow)]);
    assert_permitted(&morning(&opened));
    assert_eq!(decide(&opened, |_| ()).verdict.as_str(), "deny");
    let lines = |policy: &Policy, now: &str| policy.overlay().lines(now.parse().unwrap());
    let mode = "mode of files:write_text in org home: ";
    for (now, says) in [
        ("2026-01-07T11:59:59Z", "allow until 2026-01-07T12:00:00Z, then deny"),
        ("2026-01-07T12:00:00Z", "allow ended at 2026-01-07T12:00:00Z, now deny"),
    ] {
        assert_eq!(lines(&opened, now), [format!("{mode}{says}")]);
    }
    let over = "deny ended at 2026-01-07T12:00:00Z, now as in the files";
    assert_eq!(lines(&ended, "2026-01-08T00:00:00Z"), [format!("{mode}{over}")]);
    assert!(lines(&after(&ended, &[Change::Clear {}]), "2026-01-08T00:00:00Z").is_empty());
    assert_permitted(&decide(&after(&denied, &[set(None)]), |_| ()));
}

#[test]
fn a_mode_of_an_unknown_command_is_refused_or_warned_about() {
    let set = |tool: &str, mode: Option<Mode>| {
        let mode = mode.map(SetMode::Lasting);
        Change::SetOrgMode { org: "home".into(), tool: tool.into(), mode }
    };
    let named = world_plus("[commands.one]\nargv = [\"true\"]");
    let one = set("command.run one", Some(Mode::Deny));
    named.check_change(&one).unwrap();
    named.check_change(&set("files.copy", Some(Mode::Deny))).unwrap();
    for bad in ["command.run two", "command.run  one", "files.copy one"] {
        let error = named.check_change(&set(bad, Some(Mode::Deny))).unwrap_err().to_string();
        assert!(error.contains("is no named command"), "{bad}: {error}");
        named.check_change(&set(bad, None)).unwrap();
    }
    let of = |org: &str| Change::SetOrgMode {
        org: org.into(),
        tool: "files.copy".into(),
        mode: Some(SetMode::Lasting(Mode::Deny)),
    };
    let band = |band| Change::SetBand { space: "shared:gone".parse().unwrap(), band };
    for (bad, says) in
        [(of("hom"), "no organisation \"hom\""), (band(Some(Band::Red)), "no space shared:gone")]
    {
        let error = named.check_change(&bad).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
    named.check_change(&band(None)).unwrap();
    let changed = after(&named, &[one]);
    assert!(changed.warnings().is_empty());
    let removed = world().with_overlay(changed.overlay()).unwrap();
    assert_eq!(removed.warnings(), ["the overlay has a mode of the unknown command \"command.run one\""]);
}

#[test]
fn entries_of_lists_are_added_and_struck_out() {
    let set = |list, entry: &str, allowed| {
        let of = (list == PolicyList::Roles).then(|| subject("agent://planner"));
        Change::SetEntry { list, subject: of, entry: entry.into(), allowed }
    };
    let guards = "forbid (principal in Role::\"guard\", action, resource);";
    let policy = compile(&format!("{TOML}\n[roles.guard]"), &format!("{CEDAR}{guards}")).unwrap();
    assert_permitted(&decide(&policy, |_| ()));
    // Cedar's rules see a role by command.
    let guard = after(&policy, &[set(PolicyList::Roles, "guard", Some(true))]);
    assert_denied(&decide(&guard, |_| ()), Gate::Abac, "rule_forbids");
    assert_eq!(guard.overlay().lines(noon()), ["guard in roles of agent://planner: added"]);
    // A role goes with those that include it, whatever else is given.
    let added = [set(PolicyList::Roles, "reader", Some(false)), set(PolicyList::Roles, "writer", Some(true))];
    let none = after(&policy, &added);
    let decision = decide(&none, |_| ());
    assert_denied(&decision, Gate::Rbac, "cap_missing");
    assert_eq!(decision.rule, "overlay");
    let restored = ["reader", "writer"].map(|role| set(PolicyList::Roles, role, None));
    assert_eq!(after(&none, &restored).digest(), policy.digest());

    let network = tool(|spec| {
        spec.tool_id = "net.post".parse().unwrap();
        spec.side_effects = BTreeSet::from([SideEffect::NetworkCall]);
        spec.params_schema = json!({ "type": "object", "properties": { "url": { "x-host": true } } });
    });
    let run = tool(|spec| {
        spec.params_schema = json!({ "type": "object", "properties": { "program": { "x-command": true } } });
    });
    for (list, tool, field, listed, other) in [
        (PolicyList::Hosts, &network, "url", "api.example.org", "Evil.example"),
        (PolicyList::Commands, &run, "program", "git", "bash"),
    ] {
        let denied = |policy: &Policy, name: &str| {
            let decision = evaluate(&facts_of(policy, tool, json!({ field: name })), policy);
            (decision.verdict.to_string() == "deny by reach").then_some(decision.rule)
        };
        assert!(denied(&policy, listed).is_none() && denied(&policy, other).is_some(), "{field}");
        let changed = after(&policy, &[set(list, listed, Some(false)), set(list, other, Some(true))]);
        assert_eq!(denied(&changed, listed).as_deref(), Some("overlay"), "{field}");
        assert_eq!(denied(&changed, other), None, "{field}");
    }
    let denied = |policy: &Policy, id: &str| {
        let params = json!({ "path": "workspace/a", "text": "", "space_id": "shared:garden" });
        let tool = tool(|spec| spec.tool_id = id.parse().unwrap());
        let decision = evaluate(&facts_of(policy, &tool, params), policy);
        (decision.verdict.to_string() == "deny by space").then_some(decision.rule)
    };
    let (listed, other) = ("files.copy", "files.write_text");
    assert!(denied(&policy, listed).is_none() && denied(&policy, other).is_some());
    let across = |tool, allowed| set(PolicyList::CrossSpace, tool, Some(allowed));
    let changed = after(&policy, &[across(listed, false), across(other, true)]);
    assert_eq!(denied(&changed, listed).as_deref(), Some("overlay"));
    assert_eq!(denied(&changed, other), None);
    // Letters of either size are one host.
    let twice = ["A.example", "a.example"].map(|host| set(PolicyList::Hosts, host, Some(false)));
    assert_eq!(after(&policy, &twice).overlay().lines(noon()), ["a.example in hosts: struck out"]);

    // A misspelt stop would stop nothing.
    let gard = |allowed| set(PolicyList::Roles, "gard", allowed);
    assert!(policy.check_change(&gard(Some(false))).unwrap_err().to_string().contains("no role \"gard\""));
    policy.check_change(&gard(None)).unwrap();
    let odd =
        ["https://example.org/", "example.org:443", "example.org."].map(|host| (PolicyList::Hosts, host));
    for (list, entry) in odd.into_iter().chain([(PolicyList::Commands, "git push")]) {
        assert!(policy.check_change(&set(list, entry, Some(false))).is_err(), "{entry}");
    }
    for host in ["A.example", "::1"] {
        policy.check_change(&set(PolicyList::Hosts, host, Some(false))).unwrap();
    }
    let warning = "the overlay has a role that changes nothing: the policy has no role \"guard\"";
    assert_eq!(world().with_overlay(guard.overlay()).unwrap().warnings(), [warning]);
    let planner = Some(subject("agent://planner"));
    let of_subject = Change::SetEntry {
        list: PolicyList::Hosts,
        subject: planner,
        entry: "a".into(),
        allowed: Some(true),
    };
    for (bad, says) in [
        (of_subject, "roles have a subject"),
        (set(PolicyList::Hosts, "*.example.org", Some(true)), "patterns are not allowed"),
    ] {
        let error = Overlay::default().apply(bad).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
}

#[test]
fn the_digest_names_files_and_changes_and_not_their_order() {
    let world = world();
    let one = after(&world, &[grant("tool:a.b"), grant("tool:c.d")]);
    let other = after(&world, &[grant("tool:c.d"), grant("tool:a.b")]);
    assert_eq!(one.digest(), other.digest());
    assert_ne!(one.digest(), world.digest());
    assert_ne!(world.digest(), compile(&format!("{TOML}\n# a remark"), CEDAR).unwrap().digest());
    assert_eq!(world.digest(), compile(TOML, CEDAR).unwrap().digest());
}

#[test]
fn examples_test_the_files_so_commands_never_block_a_load() {
    let example = r#"
[example_tools."files.write_text"]
safety_class = "LOW"
risk_level = "write"
side_effects = ["filesystem_write"]
reversible = true
[[examples]]
name = "works"
expect = "permit"
principal = "user://alice"
subject = "agent://planner"
space = "shared:household"
tool = "files.write_text"
"#;
    let mut overlay = Overlay::default();
    overlay.apply(revoke(WRITE)).unwrap();
    let policy = Policy::compile(&source(&format!("{TOML}{example}"), CEDAR), &overlay).unwrap();
    assert_denied(&decide(&policy, |_| ()), Gate::Consent, "consent_revoked");
}

#[test]
fn patterns_are_no_names_and_unknown_spaces_are_only_a_warning() {
    let mut overlay = Overlay::default();
    let everything = Change::GrantConsent {
        subject: subject("agent://planner"),
        space: space("*"),
        purpose: WRITE.into(),
    };
    assert!(overlay.apply(everything).unwrap_err().to_string().contains("patterns are not allowed"));
    let bad =
        Change::GrantConsent { subject: subject("a"), space: space("b"), purpose: "files.write_text".into() };
    assert!(overlay.apply(bad).unwrap_err().to_string().contains("is not a purpose"));
    overlay.apply(Change::SetBand { space: space("shared:gone"), band: Some(Band::Red) }).unwrap();
    let policy = world().with_overlay(&overlay).unwrap();
    assert_eq!(policy.warnings(), ["the overlay names the unknown space shared:gone"]);
    let text = serde_json::to_string(&overlay).unwrap();
    assert_eq!(serde_json::from_str::<Overlay>(&text).unwrap(), overlay);
}
