//! Errors of a confinement that the kernel refused, each with its fix.

use crate::error::SandboxError;
use crate::wire::{Boot, SetupFailure, Step};

const USER_NAMESPACES: &str = "allow unprivileged user namespaces: `sysctl -w kernel.unprivileged_userns_clone=1 \
    user.max_user_namespaces=15000`; on Ubuntu also `sysctl -w kernel.apparmor_restrict_unprivileged_userns=0` or an \
    AppArmor profile for effectd that grants `userns`; in a container, a seccomp profile that permits unshare, mount and \
    pivot_root";

/// Turns a failed step into an error that names the fix.
pub(crate) fn explain(failure: &SetupFailure, boot: &Boot) -> SandboxError {
    let (detail, uid) = (&failure.detail, boot.identity.uid);
    let (what, fix) = match failure.step {
        Step::Workspace => (
            format!("it cannot be mounted ({detail})"),
            "check that it exists, is a folder and can be entered".to_owned(),
        ),
        Step::View => (
            format!("a path that the policy names for the command cannot be mounted ({detail})"),
            "ask again; if it stays, check `writes`, `caches` and `programs` of the command".to_owned(),
        ),
        Step::OwnerMapping => (
            format!("root owns it and its filesystem cannot translate owners ({detail})"),
            format!("`chown -R {uid}:{uid}` it, or give it to the user whose files these are"),
        ),
        Step::Start => (
            format!("the zygote could not start ({detail})"),
            "check that /dev/null and /proc exist".to_owned(),
        ),
        Step::Identity => (
            format!("the zygote could not become uid {uid} ({detail})"),
            "run effectd as an ordinary user, or with CAP_SETUID and CAP_SETGID".to_owned(),
        ),
        Step::Namespaces | Step::UserMapping | Step::ChildUserMapping | Step::ChildStart => {
            (format!("namespaces are refused ({detail})"), USER_NAMESPACES.to_owned())
        }
        Step::Tree | Step::ChildMounts => {
            (format!("a separate root is refused ({detail})"), USER_NAMESPACES.to_owned())
        }
        Step::Proc => (
            format!("a separate /proc is refused ({detail})"),
            "in a container, run it with an unmasked /proc (`--security-opt systempaths=unconfined`)"
                .to_owned(),
        ),
        Step::Capabilities => (
            format!("capabilities cannot be dropped ({detail})"),
            "check the host's security modules".to_owned(),
        ),
        Step::BaseFilter | Step::NarrowFilter => (
            format!("a system-call filter is refused ({detail})"),
            "a kernel with CONFIG_SECCOMP_FILTER and user notification (5.0 or later) is needed".to_owned(),
        ),
        Step::ChildLimits => (
            format!("a resource limit is refused ({detail})"),
            "raise the hard limits of the effectd process".to_owned(),
        ),
        Step::Landlock | Step::Narrowing => (detail.clone(), landlock_fix()),
    };
    if matches!(failure.step, Step::Workspace | Step::View | Step::OwnerMapping) {
        let path = boot.space_root.clone();
        return SandboxError::Workspace { path, what, fix };
    }
    SandboxError::Unavailable { what, fix }
}

pub(crate) fn landlock_fix() -> String {
    "a kernel of 6.12 or later with Landlock switched on is needed (`lsm=landlock,…` on the kernel's command line)".to_owned()
}
