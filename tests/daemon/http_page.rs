//! `docs/http.md`: its commands are run as written, in order, against a real daemon.

use crate::commands::copy;
use crate::contexts::Listening;
use crate::harness::{Place, program, root};
use crate::runbook::blocks;
use crate::unit::not_run;

const PAGE: &str = "docs/http.md";

/// Adds the page's account to the policy.
fn with_account() -> Place {
    let place = Place::seeded();
    let page = std::fs::read_to_string(root().join(PAGE)).unwrap();
    let account = page.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    assert!(account.contains("account://home/ada"), "{account}");
    let file = place.state().join("policy/policy.toml");
    let policy = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, format!("{policy}\n{account}")).unwrap();
    place
}

#[test]
fn every_example_of_the_http_page_works() {
    let missing = |program: &&str| std::process::Command::new(program).arg("--version").output().is_err();
    if ["curl", "jq"].iter().any(missing) {
        not_run("needs curl and jq", "every_example_of_the_http_page_works");
        return;
    }
    let place = with_account();
    std::fs::create_dir(place.path("bin")).unwrap();
    std::os::unix::fs::symlink(program(), place.path("bin/effectd")).unwrap();
    copy(&root().join("examples"), &place.path("examples"));
    let daemon = Listening::start(&place);
    let blocks: Vec<String> = blocks(PAGE).into_iter().map(|(_, block)| block).collect();
    let (serve, rest): (Vec<_>, Vec<_>) = blocks.iter().partition(|block| block.contains("effectd serve"));
    assert_eq!((serve.len(), rest.len() >= 14), (1, true), "{}", rest.len());
    // In one shell, which the reader has, too.
    let script: String =
        rest.into_iter().map(|block| block.replace("http://127.0.0.1:7070", &daemon.url)).collect();
    let ran = std::process::Command::new("sh")
        .args(["-e", "-x", "-c", &script])
        .current_dir(place.path(""))
        .env_clear()
        .env("PATH", format!("{}:/usr/bin:/bin", place.path("bin").display()))
        .env("HOME", place.path(""))
        .stdin(std::process::Stdio::null())
        .output()
        .unwrap();
    let (told, words) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success(), "{words}\n{told}");
    for said in ["account://home/ada", "\"completed\"", "\"pending\"", "\"denied\"", "write_text", "true"] {
        assert!(told.contains(said), "{said}: {told}");
    }
    assert_eq!(std::fs::read_to_string(place.note("week.txt")).unwrap(), "Monday: \"plan\"\n");
    for (name, is_there) in [("copy.txt", true), ("second.txt", true), ("third.txt", false)] {
        assert_eq!(place.note(name).exists(), is_there, "{name}");
    }
}
