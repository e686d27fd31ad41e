//! An invalid policy is refused with file and line, and no part of it takes effect.

use effectd_contracts::ToolSpec;
use effectd_policy::limits::FAULTS_MAX;
use effectd_policy::{Overlay, Policy, PolicyError, Source};

use crate::harness::*;

#[track_caller]
fn refused(toml: &str, cedar: &str) -> String {
    compile(toml, cedar).unwrap_err().to_string()
}

#[track_caller]
fn edit(from: &str, to: &str) -> String {
    assert!(TOML.contains(from), "{from}");
    refused(&TOML.replacen(from, to, 1), CEDAR)
}

fn line_of(text: &str, part: &str) -> usize {
    text[..text.find(part).unwrap()].matches('\n').count() + 1
}

#[test]
fn each_mistake_in_the_tables_is_told_where_it_is() {
    let cases = [
        ("version = 1", "version = 2", "version 2 is unknown"),
        ("version = 1", "version = 1\nversion = 1", "duplicate key"),
        ("version = 1", "version = ", "policy.toml:1: "),
        ("[orgs.home]", "[orgs.home]\nmode = 1", "unknown field `mode`"),
        (
            "inherits = [\"reader\"]",
            "inherits = [\"raeder\"]",
            "role \"writer\" inherits the unknown role \"raeder\"",
        ),
        (
            "roles = [\"writer\"]",
            "roles = [\"wirter\"]",
            "\"agent://planner\" has the unknown role \"wirter\"",
        ),
        ("[subjects.\"agent://guest\"]", "[subjects.\"agent://*\"]", "patterns are not allowed here"),
        (
            "subjects = [\"agent://*\", \"automation://*\"]",
            "subjects = [\"agent://nobody\"]",
            "unknown subject \"agent://nobody\"",
        ),
        ("actors = [\"alice\", \"bob\"]", "actors = [\"carol\"]", "unknown actor \"carol\""),
        (
            "actors = [\"alice\", \"bob\"]",
            "actors = [\"alice\", \"bob\"]\norgs = { work = \"admin\" }",
            "unknown organisation \"work\"",
        ),
        (
            "[roles.reader]",
            "[claims.people]\nroles = [\"planner\"]\n[roles.reader]",
            "no claim gives the role \"planner\"",
        ),
        (
            "[roles.reader]",
            "[claims.people]\norgs = { work = \"owner\" }\n[roles.reader]",
            "unknown organisation \"work\"",
        ),
        ("visible_to = [\"role:reader\"", "visible_to = [\"role:raeder\"", "unknown role \"raeder\""),
        ("org = \"home\"", "org = \"work\"", "unknown organisation \"work\""),
        ("band = \"GREEN\"", "band = \"PINK\"", "unknown variant `PINK`"),
        ("band = \"GREEN\"", "band = \"GREEN\"\nroot = \"../x\"", "is not a valid root"),
        ("purpose = \"tool:files.*\"", "purpose = \"files.*\"", "is not a purpose"),
        ("space = \"shared:household\"", "space = \"shared:houshold\"", "unknown space \"shared:houshold\""),
        (
            "subject = \"agent://planner\"",
            "subject = \"agent://plannr\"",
            "unknown subject \"agent://plannr\"",
        ),
        ("zone = \"utc\"", "zone = \"Europe/Berlin\"", "is not a time zone"),
        ("zone = \"utc\"", "zone = \"utc\"\nnight_from = \"25:00\"", "is not a time of day"),
        ("zone = \"utc\"", "zone = \"utc\"\nskew_s_max = 90000", "at most 86400 are allowed"),
        ("words = [\"falcon\"]", "words = [\"\"]", "an empty word"),
        (
            "words = [\"falcon\"]",
            "words = []\n[[redaction.rules]]\nspace = \"shared:none\"\nthen = \"pass\"",
            "unknown space \"shared:none\"",
        ),
        (
            "words = [\"falcon\"]",
            "words = []\n[[redaction.rules]]\nfield = \"text\"\nthen = \"pass\"",
            "write a JSON pointer such as /text",
        ),
        ("words = [\"falcon\"]", "patterns = [\"ok\", \"(a{999}){999}\"]", "the pattern is refused"),
        ("words = [\"falcon\"]", "patterns = [\"(\"]", "unclosed group"),
        ("[safety]", "[timeouts]\nmedium_ms = 4000\n[safety]", "must be less than low_ms"),
        (
            "[orgs.home]",
            "[orgs.home]\nmodes = { \"command.run cargo-fnt\" = \"deny\" }",
            "\"command.run cargo-fnt\" is no named command",
        ),
        (
            "[orgs.home]",
            "[commands.one]\nargv = [\"true\"]\n[orgs.home]\nmodes = { \"command.run  one\" = \"deny\" }",
            "is no named command",
        ),
        (
            "[orgs.home]",
            "[commands.one]\nargv = [\"true\"]\n[orgs.home]\nmodes = { \"files.copy one\" = \"deny\" }",
            "is no named command",
        ),
    ];
    for (from, to, expected) in cases {
        let error = edit(from, to);
        assert!(error.contains(expected), "{expected}: {error}");
        let after = TOML.replacen(from, to, 1);
        let line: usize = error
            .strip_prefix("policy.toml:")
            .and_then(|rest| rest.split(':').next())
            .unwrap()
            .parse()
            .unwrap();
        let here = line_of(&after, to.lines().next().unwrap());
        assert!(
            (here.saturating_sub(1)..=here + to.lines().count()).contains(&line),
            "line {line}, not about {here}: {error}"
        );
    }
}

#[test]
fn every_fault_of_one_kind_is_told_at_once() {
    let faults = |toml: &str, cedar: &str| {
        let error = compile(toml, cedar).unwrap_err();
        let PolicyError::Many(faults) = error else { panic!("one fault: {error}") };
        faults.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    // Of form: a wrong word in two spaces, an unknown field, and a rule that does not parse.
    let toml =
        TOML.replace("band = \"GREEN\"", "band = \"GREN\"").replace("[orgs.home]", "[orgs.home]\nmode = 1");
    let told = faults(&toml, "permit (principal, action, resource) when { true &&& false };");
    assert_eq!(told.len(), 5, "{told:#?}");
    assert_eq!(told.iter().filter(|fault| fault.contains("unknown variant `GREN`")).count(), 3, "{told:#?}");
    let line = line_of(&toml, "mode = 1");
    assert!(told.iter().any(|fault| fault.starts_with(&format!("policy.toml:{line}: unknown field `mode`"))));
    assert!(told[4].starts_with("rules.cedar:1: "), "{told:#?}");
    // Of meaning: in three tables and two rules. A faulty entry is not unknown to others.
    let toml = TOML
        .replacen("roles = [\"writer\"]", "roles = [\"wirter\"]", 1)
        .replacen("band = \"GREEN\"", "band = \"GREEN\"\nroot = \"../x\"", 1)
        .replacen("zone = \"utc\"", "zone = \"Mars\"", 1);
    let told = faults(&toml, CEDAR);
    assert_eq!(told.len(), 3, "{told:#?}");
    for (fault, part) in told.iter().zip(["wirter", "is not a valid root", "is not a time zone"]) {
        assert!(fault.contains(part), "{told:#?}");
    }
    let rules = "permit (principal in Role::\"a\", action, resource);\n\
                 permit (principal in Role::\"b\", action, resource);";
    assert_eq!(faults(TOML, rules).len(), 2);
    // Each faulty role once, also if another inherits it. Beyond the limit, the number of the rest.
    let roles = |count: usize| {
        let bad = (0..count).map(|n| format!("[roles.b{n}]\ninherits = [\"nobody{n}\"]\n"));
        format!("{TOML}\n[roles.a]\ninherits = [\"b1\"]\n{}", bad.collect::<String>())
    };
    let told = faults(&roles(3), CEDAR);
    assert_eq!(told.len(), 3, "{told:#?}");
    for n in 0..3 {
        let unknown = format!("role \"b{n}\" inherits the unknown role \"nobody{n}\"");
        assert_eq!(told.iter().filter(|fault| fault.contains(&unknown)).count(), 1, "{told:#?}");
    }
    let told = refused(&roles(FAULTS_MAX + 8), CEDAR);
    assert_eq!((told.lines().count(), told.lines().last()), (FAULTS_MAX + 1, Some("and 8 more")), "{told}");
}

#[test]
fn an_example_is_judged_with_the_real_tool_and_its_schema() {
    let example = "[[examples]]\nname = \"a write\"\nexpect = \"permit\"\nprincipal = \"user://alice\"\n\
                   subject = \"agent://planner\"\nspace = \"shared:household\"\ntool = \"files.write_text\"\n\
                   params = { path = \"a.txt\" }\n";
    let source = source(&format!("{TOML}\n{example}"), CEDAR);
    let unknown = Policy::compile(&source, &Overlay::default()).unwrap_err().to_string();
    assert!(unknown.contains("no tool files.write_text is registered"), "{unknown}");
    let with = |real: effectd_policy::RealTool<'_>| {
        Policy::compile_with(&source, &Overlay::default(), real).map(drop).map_err(|error| error.to_string())
    };
    let refused = with(&|_, _| Some(Err("the path is wrong".to_owned()))).unwrap_err();
    assert!(refused.contains("example \"a write\": the path is wrong"), "{refused}");
    with(&|_, _| Some(Ok(spec()))).unwrap();
    // What the real tool requires counts, and not a description in the policy.
    let strict = || ToolSpec { caps_required: vec!["nobody.has_this".parse().unwrap()], ..spec() };
    let refused = with(&|_, _| Some(Ok(strict()))).unwrap_err();
    assert!(refused.contains("but the policy says \"deny by rbac\""), "{refused}");
    // Files that were in force before load again, whatever became of their tools.
    let again = Policy::compile_unchecked(&source, &Overlay::default()).unwrap();
    assert_eq!((again.examples(), again.source()), (1, &source));
}

#[test]
fn a_space_inside_another_is_refused() {
    let error = edit("band = \"GREEN\"", "band = \"GREEN\"\nroot = \"./workspaces\"");
    assert!(error.contains("the space private:alice is inside the space shared:household"), "{error}");
    let same = TOML.replace("band = \"GREEN\"", "band = \"GREEN\"\nroot = \"x\"");
    assert!(refused(&same, CEDAR).contains("is inside the space"));
}

#[test]
fn roles_in_a_circle_are_refused() {
    let error = edit("[roles.reader]", "[roles.reader]\ninherits = [\"writer\"]");
    assert!(error.contains("roles inherit in a circle: reader -> writer -> reader"), "{error}");
    let error = edit("[roles.reader]", "[roles.reader]\ninherits = [\"reader\"]");
    assert!(error.contains("roles inherit in a circle: reader -> reader"), "{error}");
    let chain: String = (0..20).map(|n| format!("[roles.r{n}]\ninherits = [\"r{}\"]\n", n + 1)).collect();
    let error = refused(&format!("{TOML}\n{chain}[roles.r20]\n"), CEDAR);
    assert!(error.contains("more than 16 levels deep"), "{error}");
}

#[test]
fn each_mistake_in_the_rules_is_told_where_it_is() {
    let permit = "permit (principal, action, resource)";
    let cases = [
        (format!("\n\n{permit} when {{ context.devise.class == \"x\" }};"), "rules.cedar:3: ", "devise"),
        (format!("\n{permit} when {{\n  true &&& false }};"), "rules.cedar:3: ", "token"),
        (format!("{permit};\n{permit}"), "rules.cedar:2: ", "has no end"),
        (format!("\n{permit} when {{ context.clock.hour == \"noon\" }};"), "rules.cedar:2: ", ""),
        // A private parameter, and a public one that may be absent.
        (format!("\n{permit} when {{ context.params.text == \"x\" }};"), "rules.cedar:2: ", "text"),
        (format!("\n{permit} when {{ context.params has text }};"), "rules.cedar:2: ", ""),
        (format!("\n{permit} when {{ context.params.path == \"x\" }};"), "rules.cedar:2: ", "path"),
        (
            format!("\n{permit} when {{ context.clock.night && !context.clock.night && false }};"),
            "rules.cedar:2: ",
            "false",
        ),
        (
            "permit (principal in Role::\"wirter\", action, resource);".to_owned(),
            "rules.cedar:1: ",
            "does not define",
        ),
        (
            "permit (principal, action == Action::\"wreite\", resource);".to_owned(),
            "rules.cedar:1: ",
            "wreite",
        ),
        (
            "permit (principal, action, resource in SpaceClass::\"publik\");".to_owned(),
            "rules.cedar:1: ",
            "does not define",
        ),
        ("permit (principal == ?principal, action, resource);".to_owned(), "rules.cedar:1: ", "template"),
        (
            format!("@id(\"a\") {permit};\n@id(\"a\") {permit};"),
            "rules.cedar:2: ",
            "is already defined at rules.cedar:1",
        ),
        (format!("@id(\"\") {permit};"), "rules.cedar:1: ", "@id"),
    ];
    for (cedar, place, expected) in cases {
        let error = refused(TOML, &cedar);
        assert!(error.starts_with(place) && error.contains(expected), "{expected}: {error}");
    }
}

#[test]
fn rules_that_would_overflow_the_parser_are_refused_before_it() {
    let permit = "permit (principal, action, resource) when ";
    let chain = |n: usize| format!("{permit}{{ true{} }};", " && true".repeat(n));
    let cases = [
        (
            format!("{permit}{{ {}true{} }};", "(".repeat(100_000), ")".repeat(100_000)),
            "nest brackets at most 24",
        ),
        (chain(60_000), "at most 256 operator characters"),
        (format!("{permit}{{ {} }};", "if true then true else ".repeat(25)), "at most 24 `if`s"),
        (format!("{permit}{{ true }}{};", "unless{false}".repeat(24)), "at most 24 conditions"),
        (format!("{permit}{{ [{}].contains(1) }};", "1, ".repeat(10_000)), "at most 8192 bytes"),
        (format!("{permit}{{ {}true }};", "!".repeat(100_000)), "at most 256 operator characters"),
        (format!("{permit}{{ context{} }};", ".a".repeat(100_000)), "at most 256 operator characters"),
    ];
    for (cedar, expected) in cases {
        let error = refused(TOML, &cedar);
        assert!(error.contains(expected), "{expected}: {error}");
    }
    // What is just inside the bounds is read, validated and evaluated on half of a worker thread's stack.
    let deep = format!("{permit}{{ {}true{} }};", "(".repeat(20), ")".repeat(20));
    let nested = format!("{permit}{{ {}true }};", "if context.dry_run then false else ".repeat(24));
    let negated = format!("{permit}{{ {}true{} }};", "!(".repeat(20), ")".repeat(20));
    let mixed = format!(
        "{permit}{{ {}true{}{} }};",
        "if context.dry_run then false else (".repeat(20),
        " && true".repeat(110),
        ")".repeat(20)
    );
    let conditions = format!("{permit}{{ true }}{};", "unless{false}".repeat(23));
    let inside = format!("{}\n{deep}\n{nested}\n{negated}\n{mixed}\n{conditions}\n", chain(110));
    let check = move || {
        let policy = compile(TOML, &inside).unwrap();
        assert_permitted(&decide(&policy, |_| ()));
    };
    std::thread::Builder::new().stack_size(1024 * 1024).spawn(check).unwrap().join().unwrap();
}

#[test]
fn a_megabyte_of_policy_is_refused() {
    let comment = format!("# {}\n", "x".repeat(1_048_576));
    let error =
        Policy::compile(&Source::new(format!("{comment}{TOML}"), []), &Overlay::default()).unwrap_err();
    assert!(matches!(error, PolicyError::TooLarge { max: 524_288, .. }), "{error}");
    let many: String = (0..11_000).map(|n| format!("[devices.d{n}]\nclass = \"x\"\n")).collect();
    let error = refused(&format!("{TOML}\n{many}"), CEDAR);
    assert!(error.contains("devices has 11002 entries; at most 10000 are allowed"), "{error}");
    let rules = "permit (principal, action, resource);\n".repeat(2_001);
    assert!(refused(TOML, &rules).contains("rules.cedar:2001: more than 2000 rules"));
    let nested = format!("version = 1\nx = {}{}", "[".repeat(100_000), "]".repeat(100_000));
    assert!(refused(&nested, "").starts_with("policy.toml:"));
}

#[test]
fn a_policy_that_fails_its_own_example_is_refused() {
    let example = |expect: &str| {
        format!(
            "{TOML}\n[example_tools.\"files.write_text\"]\nsafety_class = \"LOW\"\nrisk_level = \"write\"\n\
             side_effects = [\"filesystem_write\"]\nreversible = true\n[[examples]]\nname = \"guests write\"\n\
             expect = \"{expect}\"\nprincipal = \"user://alice\"\nsubject = \"agent://guest\"\n\
             space = \"shared:garden\"\ntool = \"files.write_text\"\n"
        )
    };
    let error = refused(&example("permit"), CEDAR);
    assert!(error.contains("example \"guests write\" expects \"permit\", but the policy says \"deny by abac\": the space shared:garden is not visible to agent://guest"), "{error}");
    let line = line_of(&example("permit"), "[[examples]]");
    assert!(error.starts_with(&format!("policy.toml:{line}: ")), "{line}: {error}");
    assert!(refused(&example("deny by consent"), CEDAR).contains("but the policy says \"deny by abac\""));
    let nobody = example("permit").replace("principal = \"user://alice\"", "principal = \"user://anyone\"");
    let error = refused(&nobody, CEDAR);
    assert!(error.contains("name one of [principals] as the example's `principal`"), "{error}");
    assert!(refused(&example("forbid"), CEDAR).contains("is no verdict"));
    assert!(refused(&example("deny by magic"), CEDAR).contains("is no verdict"));
    compile(&example("deny by abac"), CEDAR).unwrap();
    compile(&example("deny"), CEDAR).unwrap();
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(300))]
    #[test]
    fn garbage_is_refused_and_never_panics(toml in "\\PC{0,200}", cedar in "[a-z(){};\"@=.,:/\\\\ \n]{0,200}") {
        let _ = compile(&toml, "");
        let _ = compile(TOML, &cedar);
    }

    #[test]
    fn a_damaged_policy_never_panics(at in 0..TOML.len(), byte in proptest::char::range(' ', '~')) {
        let mut damaged = TOML.to_owned();
        damaged.replace_range(at..=at, &byte.to_string());
        let _ = compile(&damaged, CEDAR);
    }
}
