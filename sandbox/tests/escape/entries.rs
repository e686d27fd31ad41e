//! The other entries to the kernel are closed: 32-bit, x32, io_uring, unknown numbers.

use serde_json::{Value, json};

use crate::ground::{Attack, DEFAULT, EXEC, Ground, Promise, killed, replied};

pub(crate) const ATTACKS: &[(&str, Attack)] = &[("int80", int80)];

/// Asks for the process id by the 32-bit entry.
fn int80(_: &Ground<'_>, _: &Value) -> Value {
    const GETPID_32: i64 = 20;
    let mut result = GETPID_32;
    // SAFETY: a call without arguments; the entry clobbers only what is declared.
    unsafe {
        std::arch::asm!("int 0x80", inout("rax") result, out("r8") _, out("r9") _, out("r10") _, out("r11") _);
    }
    json!(result > 0)
}

const X32: i64 = 0x4000_0000;

pub(crate) fn promises() -> Vec<Promise> {
    vec![Promise {
        name: "other_entries_to_the_kernel_are_shut",
        keep: |scene| {
            for profile in scene.profiles() {
                let answer = scene.attack(profile, "int80", json!(null));
                assert_eq!(killed(&answer).as_str(), "syscall_denied", "int 0x80 in {profile}");
                let answer = scene.attack(profile, "raw", json!([[X32 | libc::SYS_getpid]]));
                assert_eq!(killed(&answer).as_str(), "syscall_denied", "x32 in {profile}");
            }
            let uring = json!([[libc::SYS_io_uring_setup, 8, { "zeroes": 256 }]]);
            assert_eq!(killed(&scene.attack(DEFAULT, "raw", uring.clone())).as_str(), "syscall_denied");
            assert_eq!(replied(&scene.attack(EXEC, "raw", uring.clone())), json!([libc::EPERM]));
            assert_eq!(killed(&scene.attack(DEFAULT, "raw", json!([[999]]))).as_str(), "syscall_denied");
            assert_eq!(replied(&scene.attack(EXEC, "raw", json!([[999]]))), json!([libc::ENOSYS]));

            assert_eq!(scene.control("int80", json!(null)), json!(true), "the control");
            assert_eq!(scene.control("raw", uring), json!([0]), "the control");
            // A kernel that was built without it has that entry shut already, and says so instead of killing.
            let x32 = scene.control("raw", json!([[X32 | libc::SYS_getpid], [999]]));
            assert!(x32 == json!([0, libc::ENOSYS]) || x32 == json!([libc::ENOSYS, libc::ENOSYS]), "{x32}");
        },
    }]
}
