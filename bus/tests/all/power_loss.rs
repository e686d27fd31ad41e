//! Power loss, as far as a machine that stays on can show it.
//!
//! The store is on an ext4 file system on a loop device. While a child works on it, the child is stopped, and the
//! file behind the device is copied: the copy holds exactly what had reached the device, and nothing that was still in
//! the page cache of the file system. The copy is mounted, its journal recovered, and everything that had been answered
//! by then must be in it. The same with the `fdatasync` taken out must fail, or the test would prove nothing.

use std::path::Path;

use effectd_bus::embedded::JournalKind;

use crate::child::{BOTH, Order, Worker};
use crate::mounts::{Mount, copy_image, is_root, make_ext4};
use crate::witness::Witness;

const ROUNDS: u32 = 50;
const CUTS_PER_DISK: u32 = 10;

/// Works on a fresh disk, cuts the power several times, and returns how many of the cuts lost something.
fn cuts(scratch: &Path, cuts: u32, lines_between: u32, order: Order) -> u32 {
    let image = scratch.join("disk.img");
    make_ext4(&image, 192);
    let disk = Mount::image(&image, scratch.join("disk"));
    let mut worker = Worker::start(&disk.path().join("state"), &Order { stops: true, ..order.clone() });
    let mut witness = Witness::of(order.retains);
    let mut lost = 0;
    for cut in 0..cuts {
        for _ in 0..lines_between + 13 * cut {
            witness.hear(&worker.line().expect("the child is alive"));
        }
        worker.stop();
        worker.said().iter().for_each(|line| witness.hear(line));
        // A file of its own: where the last copy is still mounted for who is slow to close its files, the kernel would show that one.
        let copy = scratch.join(format!("copy-{cut}.img"));
        copy_image(&image, &copy);
        worker.go_on();
        let after = Mount::image(&copy, scratch.join("after"));
        let state = after.path().join("state");
        let outcome = std::panic::catch_unwind(|| witness.clone().check(&state));
        match outcome {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                lost += 1;
                eprintln!("cut {cut}: {error}");
            }
            Err(_) => lost += 1,
        }
        std::fs::remove_file(&copy).unwrap();
    }
    drop(worker.kill());
    lost
}

fn scratch() -> tempfile::TempDir {
    // In memory, where it is quick; what matters is the loop device between the file system and the file.
    tempfile::Builder::new().prefix("effectd-power").tempdir_in("/dev/shm").unwrap()
}

#[test]
fn nothing_answered_is_lost_when_the_power_fails() {
    if !is_root("power_loss::nothing_answered_is_lost_when_the_power_fails") {
        return;
    }
    // The last two disks have their journal in sled.
    let disks = ROUNDS / CUTS_PER_DISK + 2;
    for disk in 0..disks {
        let scratch = scratch();
        assert_eq!(
            cuts(
                scratch.path(),
                CUTS_PER_DISK,
                3 + 17 * disk,
                Order {
                    journal: if disk + 2 >= disks { JournalKind::Sled } else { JournalKind::default() },
                    retains: disk % 2 == 1,
                    ..Order::default()
                }
            ),
            0,
            "disk {disk}"
        );
    }
}

#[test]
fn without_the_sync_a_power_failure_loses_what_was_answered() {
    if !is_root("power_loss::without_the_sync_a_power_failure_loses_what_was_answered") {
        return;
    }
    for journal in BOTH {
        let scratch = scratch();
        let no_sync = Order { no_sync: true, journal, ..Order::default() };
        assert!(
            cuts(scratch.path(), 3, 40, no_sync) > 0,
            "{journal:?}: the simulation does not show what it is meant to show"
        );
    }
}
