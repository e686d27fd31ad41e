#![allow(clippy::unwrap_used)]
use std::sync::mpsc::channel;
use std::time::Duration;

use super::*;

/// A base that keeps nothing: only how layers are handed over is looked at.
struct Keeper;

impl Base for Keeper {
    fn get(&self, _: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(None)
    }

    fn next(&self, _: &[u8], _: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(None)
    }

    fn previous(&self, _: &[u8], _: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(None)
    }

    fn write(&self, _: &Layer, _: &Vouch) -> Result<(), StoreError> {
        Ok(())
    }

    fn tidy(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn vouched(&self) -> Option<Arc<Vouch>> {
        None
    }

    fn compact(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn is_spoiled(&self) -> bool {
        false
    }
}

/// A layer that is handed over just when the one before it is done must be moved, too: if its amount were lost, the mover
/// would sleep and the writer wait for ever.
#[test]
fn no_layer_is_handed_over_and_forgotten() {
    let table = Arc::new(Table::new(
        Some(Arc::new(Keeper)),
        Log::in_memory(crate::log::Kept::default()),
        1,
    ));
    let (done, ended) = channel();
    let (mover, writer) = (table.clone(), table);
    std::thread::spawn(move || mover.move_layers());
    std::thread::spawn(move || {
        for n in 0..50_000_u64 {
            let mut layer = Layer::default();
            layer.put(n.to_be_bytes().to_vec(), Vec::new());
            writer.show(layer, 1);
            // As soon as ever it can be: this is the moment that matters. Where there is one processor the mover needs it.
            while !writer.is_ripe() {
                std::thread::yield_now();
            }
            let vouch = Vouch {
                checkpoint: Checkpoint { seq: n, checksum: 0 },
                snapshot: Vec::new(),
            };
            writer.freeze((vouch, 0));
        }
        writer.stop();
        done.send(()).unwrap();
    });
    let ended = ended.recv_timeout(Duration::from_secs(300));
    assert_eq!(ended, Ok(()), "the writer waits for a mover that sleeps");
}

/// Else every block would be moved alone from then on.
#[test]
fn nobody_hurries_once_it_is_moved() {
    let log = Log::in_memory(crate::log::Kept::default());
    let table = Arc::new(Table::new(Some(Arc::new(Keeper)), log, 100));
    let show = |n: u8| {
        let mut layer = Layer::default();
        layer.put(vec![n], Vec::new());
        table.show(layer, 1);
    };
    show(1);
    assert!(!table.is_ripe(), "it is little");
    let layers = table.gathering().unwrap();
    let waits = table.clone();
    let waiter = std::thread::spawn(move || (0..20_000).any(|_| waits.hurry(layers).unwrap()));
    let end = std::time::Instant::now() + Duration::from_secs(60);
    while !table.is_ripe() {
        assert!(std::time::Instant::now() < end, "nobody hurries");
        std::thread::yield_now();
    }
    let vouch = Vouch {
        checkpoint: Checkpoint { seq: 1, checksum: 0 },
        snapshot: Vec::new(),
    };
    table.freeze((vouch, 0));
    table.move_layer().unwrap();
    assert!(waiter.join().unwrap(), "it is moved");
    show(2);
    assert!(!table.is_ripe(), "nobody waits for this one");
}
