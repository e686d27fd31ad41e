//! Where spaces lie on the disk.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, Weak};

use effectd_actors::{Parts, SpaceRoots};
use effectd_contracts::{Code, Failure, Phase, SpaceId};
use effectd_policy::Policy;

/// The root of a space: what the policy says, or a folder of its own under `workspaces`.
pub fn root_of(policy: &Policy, space: &SpaceId, base: &Path) -> PathBuf {
    let named = policy
        .space_root(space)
        .filter(|root| !root.as_os_str().is_empty());
    let relative = named.unwrap_or_else(|| Path::new("workspaces").join(percent_encoded(space.as_str())));
    let joined = base.join(relative);
    // `./workspace` reads better without its dot, and comparisons of paths want it gone.
    joined
        .components()
        .filter(|part| !matches!(part, std::path::Component::CurDir))
        .collect()
}

/// The roots as the pipeline asks for them, by the policy in force. A root that is not there yet is made. The parts own
/// this function, so it must not own them.
pub(crate) fn roots(base: PathBuf, parts: Arc<OnceLock<Weak<Parts>>>) -> SpaceRoots {
    Arc::new(move |space: &SpaceId| {
        let failed = |why: String| Failure::new(Code::SandboxUnavailable, Phase::Sandbox, why);
        let parts = parts
            .get()
            .and_then(Weak::upgrade)
            .ok_or_else(|| failed("the runtime is not up".to_owned()))?;
        let root = root_of(&parts.policy(), space, &base);
        fs::create_dir_all(&root)
            .map_err(|error| failed(format!("the root of {space} cannot be made: {error}")))?;
        Ok(root)
    })
}

/// A name that is one path component, whatever the space is called.
fn percent_encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    text.bytes()
        .map(|byte| {
            if plain(byte) {
                char::from(byte).to_string()
            } else {
                format!("%{byte:02X}")
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_space_is_one_folder() {
        assert_eq!(percent_encoded("private:bob"), "private%3Abob");
        assert_eq!(percent_encoded("../x"), "%2E%2E%2Fx");
        assert_eq!(percent_encoded("ü"), "%C3%BC");
    }
}
