//! Spaces: their directories, bands and visibility.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Component, Path};

use effectd_contracts::{Band, SpaceId};

use super::check_list;
use super::roles::Holder;
use crate::document::{Document, SpaceRule};
use crate::error::{Faults, PolicyError};
use crate::glob::Glob;
use crate::source::Lines;

#[derive(Debug, Clone)]
pub(crate) struct Space {
    pub(crate) root: String,
    pub(crate) band: Band,
    pub(crate) org: Option<String>,
    pub(crate) line: u32,
    visible_to: Vec<Audience>,
    pub(crate) protected: Vec<String>,
    pub(crate) contents_may_leave: bool,
}

#[derive(Debug, Clone)]
enum Audience {
    Subjects(Glob),
    Role(String),
}

impl Space {
    /// The protected paths that a change of one of these paths beneath the root would change.
    pub(crate) fn protected_among(&self, changed: &[String]) -> Vec<String> {
        let is_met = |protected: &&String| changed.iter().any(|path| meets(protected, path));
        self.protected.iter().filter(is_met).cloned().collect()
    }

    pub(crate) fn visible(&self, subject: &str, holder: &Holder) -> bool {
        self.visible_to.iter().any(|audience| match audience {
            Audience::Subjects(glob) => glob.matches(subject),
            Audience::Role(role) => holder.has_role(role),
        })
    }
}

/// Whether a path leads into a protected one, or is a folder above it, in any folder of the space. Some file systems ignore the
/// case of letters.
fn meets(protected: &str, path: &str) -> bool {
    let (protected, path): (Vec<_>, Vec<_>) = (protected.split('/').collect(), path.split('/').collect());
    let begins = |from: usize| path[from..].iter().zip(&protected).all(|(a, b)| a.eq_ignore_ascii_case(b));
    (0..path.len()).any(begins)
}

/// Whether a path (`workspace/…`) that exists is protected or lies in a protected folder.
pub(crate) fn lies_in(protected: &str, path: &str) -> bool {
    let (protected, path): (Vec<_>, Vec<_>) = (protected.split('/').collect(), path.split('/').collect());
    let same = |part: &[&str]| part.iter().zip(&protected).all(|(a, b)| a.eq_ignore_ascii_case(b));
    path[1..].windows(protected.len()).any(same)
}

pub(crate) fn compile(
    document: &Document,
    lines: &Lines<'_>,
    faults: &mut Faults,
) -> BTreeMap<SpaceId, Space> {
    let compile_one = |name: &String, rule: &SpaceRule| {
        let invalid = |field, message| lines.invalid(&["spaces", name, field], message);
        let id = SpaceId::new(name).map_err(|error| invalid("band", error.to_string()))?;
        if let Some(org) = rule.org.as_deref().filter(|org| !document.orgs.contains_key(*org)) {
            return Err(invalid("org", format!("unknown organisation {org:?}")));
        }
        let mut visible_to = Vec::new();
        for audience in &rule.visible_to {
            match audience.strip_prefix("role:") {
                Some(role) if !document.roles.contains_key(role) => {
                    return Err(invalid("visible_to", format!("unknown role {role:?}")));
                }
                Some(role) => visible_to.push(Audience::Role(role.to_owned())),
                None => visible_to.push(Audience::Subjects(Glob::new(audience))),
            }
        }
        check_list(&rule.protected, lines, &["spaces", name, "protected"])?;
        let is_odd = |path: &&String| path.split('/').any(|part| matches!(part, "" | "." | ".."));
        if let Some(path) = rule.protected.iter().find(is_odd) {
            let message = format!("{path:?} is no path beneath the space: write `.git` or `.git/hooks`");
            return Err(invalid("protected", message));
        }
        let root = rule.root.clone().unwrap_or_else(|| default_root(&id));
        if root.is_empty() || root.contains('\0') || components(&root).contains(&Component::ParentDir) {
            return Err(invalid(
                "root",
                format!("{root:?} is not a valid root; write a path without \"..\""),
            ));
        }
        let space = Space {
            root,
            band: rule.band,
            org: rule.org.clone(),
            line: lines.line(&["spaces", name]),
            visible_to,
            protected: rule.protected.clone(),
            contents_may_leave: rule.contents_may_leave,
        };
        Ok((id, space))
    };
    let rules = document.spaces.iter();
    let spaces = rules.filter_map(|(name, rule)| faults.keep(compile_one(name, rule))).collect();
    faults.keep(refuse_overlap(&spaces, lines));
    spaces
}

/// `workspaces/<percent-encoded id>`.
fn default_root(id: &SpaceId) -> String {
    let mut root = "workspaces/".to_owned();
    for byte in id.as_str().bytes() {
        if byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_' {
            root.push(char::from(byte));
        } else {
            // Writing to a String always succeeds.
            let _ = write!(root, "%{byte:02X}");
        }
    }
    root
}

fn components(root: &str) -> Vec<Component<'_>> {
    Path::new(root).components().filter(|part| *part != Component::CurDir).collect()
}

/// Refuses a space inside another one, which would be a way around every rule about spaces.
fn refuse_overlap(spaces: &BTreeMap<SpaceId, Space>, lines: &Lines<'_>) -> Result<(), PolicyError> {
    let mut roots: Vec<_> = spaces.iter().map(|(id, space)| (components(&space.root), id)).collect();
    roots.sort();
    for pair in roots.windows(2) {
        let ((outer, outer_id), (inner, inner_id)) = (&pair[0], &pair[1]);
        if inner.starts_with(outer) {
            let path = ["spaces", inner_id.as_str(), "root"];
            let message = format!("the space {inner_id} is inside the space {outer_id}");
            return Err(lines.invalid(&path, message));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_protected_path_is_met_inside_above_and_in_every_folder() {
        for path in [".git", ".git/hooks", ".git/hooks/pre-commit", "deep/in/.git/HOOKS/x", "deep/.Git"] {
            assert!(meets(".git/hooks", path), "{path}");
        }
        for path in [".git/index", ".gitignore", "hooks/x", "a.git/hooks", "git/hooks"] {
            assert!(!meets(".git/hooks", path), "{path}");
        }
        // Of what exists, every path beneath is listed, so a folder above is none.
        for path in ["workspace/.git/hooks", "workspace/deep/.GIT/hooks/x"] {
            assert!(lies_in(".git/hooks", path), "{path}");
        }
        for path in ["workspace", "workspace/.git", "workspace/.git/index", ".git/hooks"] {
            assert!(!lies_in(".git/hooks", path), "{path}");
        }
    }

    #[test]
    fn default_roots_cannot_climb() {
        assert_eq!(default_root(&SpaceId::new("private:alice").unwrap()), "workspaces/private%3Aalice");
        assert_eq!(default_root(&SpaceId::new("../../etc").unwrap()), "workspaces/%2E%2E%2F%2E%2E%2Fetc");
    }
}
