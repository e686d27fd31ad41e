//! The terms of a plan: what must hold for its action to count as done, and which files it may change.

use std::sync::Arc;

use effectd_contracts::text::{is_unprintable, without_case};
use effectd_contracts::{
    Check, Code, Failure, Phase, PlanStep, Scope, Touch, Transition, plan::Tried, plan::Verified, quoted,
};
use effectd_policy::NamedCommand;

/// What the gate admitted: the plan of an action, and the package of its tool.
#[derive(Debug, Default)]
pub struct PlanTerms {
    /// Whether the action succeeds only if the checks pass.
    pub(crate) required: bool,
    pub(crate) checks: Vec<PlannedCheck>,
    /// The files that a tool may change which does not declare its paths itself.
    pub(crate) area: Option<Area>,
}

/// A command that verifies, as the policy confines it.
#[derive(Debug)]
pub(crate) struct PlannedCheck {
    /// As the plan writes it.
    pub(crate) name: String,
    pub(crate) argv: Vec<String>,
    pub(crate) command: Arc<NamedCommand>,
}

/// What a plan came to, step by step.
#[derive(Debug, Clone, Default)]
pub struct PlanRun {
    pub(crate) transitions: Vec<Transition>,
    pub(crate) verified: Verified,
    pub(crate) repair: Tried,
    pub(crate) rollback: Tried,
    pub(crate) not_restored: Vec<String>,
}

impl PlanRun {
    pub(crate) fn note(&mut self, step: PlanStep, ok: bool) {
        self.transitions.push(Transition { step, ok });
    }

    /// The checks that did not pass.
    pub(crate) fn failed(&self) -> Vec<Check> {
        self.verified.checks.iter().filter(|check| !check.ok).cloned().collect()
    }
}

/// The files of a scope, as requests write them: `workspace/…`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Area {
    pub(crate) files: Vec<String>,
    pub(crate) dirs: Vec<String>,
    pub(crate) forbidden: Vec<String>,
}

impl Area {
    pub(crate) fn of(scope: &Scope) -> Result<Self, Failure> {
        let all = |paths: &[String], is_folder: bool| -> Result<Vec<String>, Failure> {
            paths.iter().map(|path| place(path, is_folder)).collect()
        };
        Ok(Self {
            files: all(&scope.allowed_files, false)?,
            dirs: all(&scope.allowed_dirs, true)?,
            forbidden: all(&scope.forbidden_files, false)?,
        })
    }

    /// Whether a path lies in one of the folders.
    pub(crate) fn is_in_dir(&self, path: &str) -> bool {
        self.dirs.iter().any(|dir| path.strip_prefix(dir.as_str()).is_some_and(|rest| rest.starts_with('/')))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.files.is_empty() && self.dirs.is_empty()
    }

    /// Refuses a call that could change a path outside of the area, or a forbidden one.
    pub(crate) fn check(&self, touched: &[Touch], ignores_case: bool) -> Result<(), Failure> {
        let compared = |path: &str| if ignores_case { without_case(path) } else { path.to_owned() };
        let same = |one: &str, other: &str| compared(one) == compared(other);
        let beneath = |path: &str, folder: &str| {
            let (path, folder) = (compared(path), compared(folder));
            path.strip_prefix(&folder).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        for touch in touched {
            for path in [Some(&touch.path), touch.goes_to.as_ref()].into_iter().flatten() {
                if path.split('/').next() != Some("workspace") {
                    continue;
                }
                // A folder that is moved, removed or filled takes along what lies in it.
                if let Some(forbidden) = self.forbidden.iter().find(|forbidden| beneath(forbidden, path)) {
                    return Err(denied(format!("the plan forbids a change of {}", quoted(forbidden))));
                }
                let is_allowed = self.files.iter().any(|file| same(path, file))
                    || self.dirs.iter().any(|dir| beneath(path, dir));
                if !is_allowed {
                    let why = format!("{} lies outside of the plan's scope", quoted(path));
                    return Err(denied(why).unless("add it to allowedFiles or its folder to allowedDirs"));
                }
            }
        }
        Ok(())
    }
}

pub(crate) fn denied(why: impl Into<String>) -> Failure {
    Failure::new(Code::ScopeDenied, Phase::Gate, why)
}

/// A path of a scope as requests write it. `src/./a` and `workspace/src/a` are the same.
fn place(path: &str, is_folder: bool) -> Result<String, Failure> {
    let mut parts = path.split('/').filter(|part| !part.is_empty() && *part != ".").peekable();
    parts.next_if_eq(&"workspace");
    let parts: Vec<&str> = parts.collect();
    let escapes = path.starts_with('/') || parts.contains(&"..");
    if escapes || path.chars().any(is_unprintable) || (parts.is_empty() && !is_folder) {
        let why = format!("{} is no path beneath the space", quoted(path));
        return Err(denied(why).unless("name files and folders of the scope like `src/a.txt`"));
    }
    Ok(["workspace"].into_iter().chain(parts).collect::<Vec<_>>().join("/"))
}

/// The words of a verification command: no shell and no quoting, so a word is what stands between two spaces.
pub(crate) fn words(command: &str) -> Option<Vec<String>> {
    let words: Vec<String> = command.split(' ').map(str::to_owned).collect();
    let is_plain = |word: &String| !word.is_empty() && !word.chars().any(char::is_control);
    words.iter().all(is_plain).then_some(words)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn area(files: &[&str], dirs: &[&str], forbidden: &[&str]) -> Result<Area, Failure> {
        let owned = |paths: &[&str]| paths.iter().map(|path| (*path).to_owned()).collect();
        Area::of(&Scope {
            allowed_files: owned(files),
            allowed_dirs: owned(dirs),
            forbidden_files: owned(forbidden),
        })
    }

    #[test]
    fn forbidden_wins_and_an_empty_scope_allows_no_write() {
        let some = area(&["a.txt"], &["workspace/src"], &["src/./key", "src/deep/key"]).unwrap();
        let ok = |touch: Touch| some.check(&[touch], false).is_ok();
        for path in ["workspace/a.txt", "workspace/src", "workspace/src/b", "tmp/scratch"] {
            let is_above_a_key = path == "workspace/src";
            assert_eq!(ok(Touch::replaced(path)), !is_above_a_key, "{path}");
        }
        for path in
            ["workspace/b.txt", "workspace/srcs/b", "workspace/src/key", "workspace/src/deep", "workspace"]
        {
            assert!(!ok(Touch::replaced(path)), "{path}");
        }
        assert!(!ok(Touch::moved("workspace/src/b", "workspace/c")));
        assert!(ok(Touch::moved("workspace/src/b", "workspace/a.txt")));
        assert!(some.check(&[Touch::replaced("workspace/SRC/b")], true).is_ok());
        assert!(some.check(&[Touch::replaced("workspace/src/KEY")], true).is_err());
        let none = area(&[], &[], &[]).unwrap();
        assert!(none.check(&[Touch::replaced("workspace/a")], false).is_err());
        assert!(none.check(&[], false).is_ok());
    }

    #[test]
    fn a_scope_stays_beneath_its_space() {
        for path in ["/etc/passwd", "../x", "a/../../x", "", "workspace", "a\nb"] {
            assert!(area(&[path], &[], &[]).is_err(), "{path:?}");
        }
        assert_eq!(area(&[], &["."], &[]).unwrap().dirs, ["workspace"]);
    }

    #[test]
    fn a_command_is_words_and_never_a_script() {
        assert_eq!(words("node --check src/a.js").unwrap(), ["node", "--check", "src/a.js"]);
        assert_eq!(words("true; rm").unwrap(), ["true;", "rm"]);
        for command in ["", "a  b", " a", "a\tb", "a\nb"] {
            assert_eq!(words(command), None, "{command:?}");
        }
    }
}
