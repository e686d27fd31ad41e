//! Power loss, as far as a machine that stays on can show it.
//!
//! The store is on an ext4 file system on a loop device. While a child works on it, the file system is shut down the hard
//! way: from that moment the kernel writes nothing more to the device, so the device holds what had reached it, and nothing
//! that was still in the page cache. It is mounted again, its journal recovered, and everything that had been answered by
//! then must be in it. The same with the `fdatasync` taken out must fail, or the test would prove nothing.

use std::fs::File;
use std::path::Path;
use std::time::{Duration, SystemTime};

use effectd_bus::embedded::JournalKind;
use effectd_bus::{BlobKind, Blobs};
use effectd_contracts::{SpaceId, Timestamp};
use zeroize::Zeroizing;

use crate::child::{BOTH, Order, Worker};
use crate::mounts::{Mount, is_root, make_ext4};
use crate::witness::Witness;

const ROUNDS: u32 = 50;
const CUTS_PER_DISK: u32 = 10;

/// Works on a fresh disk and cuts the power several times. Returns the first of the cuts that lost something.
fn first_loss(scratch: &Path, cuts: u32, lines_between: u32, order: &Order) -> Option<u32> {
    let image = scratch.join("disk.img");
    make_ext4(&image, 192);
    let mount = || Mount::image(&image, scratch.join("disk"));
    let state = scratch.join("disk/state");
    let mut witness = Witness::of(order.retains);
    (0..cuts).find(|&cut| {
        let disk = mount();
        let worker = Worker::start(&state, &Order { round: cut, ..order.clone() });
        for _ in 0..lines_between + 13 * cut {
            witness.hear(&worker.line().expect("the child is alive"));
        }
        disk.cut_power();
        // Whatever it still says, it was answered: from the cut on no write and no sync succeeds.
        worker.kill().0.iter().for_each(|line| witness.hear(line));
        disk.unmount();
        let disk = mount();
        let outcome = std::panic::catch_unwind(|| witness.check(&state));
        if let Ok(Err(error)) = &outcome {
            eprintln!("cut {cut}: {error}");
        }
        let is_whole = matches!(outcome, Ok(Ok(())));
        if is_whole {
            disk.unmount();
        }
        !is_whole
    })
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
            first_loss(
                scratch.path(),
                CUTS_PER_DISK,
                3 + 17 * disk,
                &Order {
                    journal: if disk + 2 >= disks { JournalKind::Sled } else { JournalKind::default() },
                    retains: disk % 2 == 1,
                    ..Order::default()
                }
            ),
            None,
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
            // Once is enough; several, since something else on the machine may sync all disks in the moment before a cut.
            first_loss(scratch.path(), 25, 40, &no_sync).is_some(),
            "{journal:?}: the simulation does not show what it is meant to show"
        );
    }
}

#[test]
fn a_power_failure_makes_no_renewed_blob_old_again() {
    if !is_root("power_loss::a_power_failure_makes_no_renewed_blob_old_again") {
        return;
    }
    let scratch = scratch();
    let (image, root) = (scratch.path().join("disk.img"), scratch.path().join("disk/blobs"));
    make_ext4(&image, 64);
    let mount = || Mount::image(&image, scratch.path().join("disk"));
    let blobs = || Blobs::new(root.clone(), &Zeroizing::new([7; 32]), 1 << 20);
    let (kind, space, name) = (BlobKind::Preimages, SpaceId::new("shared:h").unwrap(), "0".repeat(64));
    let disk = mount();
    blobs().put(kind, &space, &name, b"before").unwrap();
    // It was stored in 2020, for a receipt that is no longer kept.
    let folder = std::fs::read_dir(root.join("preimages")).unwrap().next().unwrap().unwrap().path();
    let file = File::options().write(true).open(folder.join(&name)).unwrap();
    file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1_600_000_000)).unwrap();
    file.sync_all().unwrap();
    drop(file);
    // A new action has the same pre-image.
    blobs().put(kind, &space, &name, b"before").unwrap();
    disk.cut_power();
    disk.unmount();
    let disk = mount();
    assert_eq!(blobs().expire(&BlobKind::ALL, Timestamp::from_second(1_700_000_000).unwrap()), Ok(0));
    assert_eq!(blobs().get(kind, &space, &name).unwrap(), b"before");
    disk.unmount();
}
