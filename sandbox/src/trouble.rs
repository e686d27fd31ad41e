//! What a refused step of confinement means, and what a person can do about it.

use crate::error::SandboxError;
use crate::wire::{Boot, SetupFailure, Step};

const USER_NAMESPACES: &str = "allow unprivileged user namespaces: `sysctl -w kernel.unprivileged_userns_clone=1 \
    user.max_user_namespaces=15000`; on Ubuntu also `sysctl -w kernel.apparmor_restrict_unprivileged_userns=0` or an \
    AppArmor profile for effectd that grants `userns`; in a container, a seccomp profile that permits unshare, mount and \
    pivot_root";

/// Turns a failed step into an error that names the remedy.
pub(crate) fn explain(failure: &SetupFailure, boot: &Boot) -> SandboxError {
    let said = &failure.detail;
    let (what, fix) = match failure.step {
        Step::Workspace => {
            return workspace(
                boot,
                format!("it cannot be mounted ({said})"),
                "check that it exists, is a folder and can be entered".to_owned(),
            );
        }
        Step::OwnerMapping => {
            let id = boot.identity.uid;
            let fix = format!("`chown -R {id}:{id}` it, or give it to the user whose files these are");
            return workspace(
                boot,
                format!("root owns it and its filesystem cannot translate owners ({said})"),
                fix,
            );
        }
        Step::Start => (
            format!("the zygote could not start ({said})"),
            "check that /dev/null and /proc are there".to_owned(),
        ),
        Step::Identity => (
            format!("the zygote could not become uid {} ({said})", boot.identity.uid),
            "run effectd as an ordinary user, or with CAP_SETUID and CAP_SETGID".to_owned(),
        ),
        Step::Namespaces | Step::UserMapping | Step::ChildUserMapping | Step::ChildStart => (
            format!("namespaces are refused ({said})"),
            USER_NAMESPACES.to_owned(),
        ),
        Step::Tree | Step::ChildMounts => (
            format!("a root of its own is refused ({said})"),
            USER_NAMESPACES.to_owned(),
        ),
        Step::Proc => (
            format!("a /proc of its own is refused ({said})"),
            "in a container, run it with an unmasked /proc (`--security-opt systempaths=unconfined`)"
                .to_owned(),
        ),
        Step::Capabilities => (
            format!("capabilities cannot be dropped ({said})"),
            "check the host's security modules".to_owned(),
        ),
        Step::BaseFilter | Step::NarrowFilter => (
            format!("a system-call filter is refused ({said})"),
            "a kernel with CONFIG_SECCOMP_FILTER and user notification (5.0 or later) is needed".to_owned(),
        ),
        Step::ChildLimits => (
            format!("a resource limit is refused ({said})"),
            "raise the hard limits of the effectd process".to_owned(),
        ),
        Step::Landlock | Step::Narrowing => (said.clone(), landlock_fix()),
    };
    SandboxError::Unavailable { what, fix }
}

fn workspace(boot: &Boot, what: String, fix: String) -> SandboxError {
    SandboxError::Workspace {
        path: boot.space_root.clone(),
        what,
        fix,
    }
}

pub(crate) fn landlock_fix() -> String {
    "a kernel of 6.12 or later with Landlock switched on is needed (`lsm=landlock,…` on the kernel's command line)".to_owned()
}
