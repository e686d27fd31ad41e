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
            // As soon as ever it can be: this is the moment that matters.
            while !writer.is_ripe() {
                std::hint::spin_loop();
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
    let ended = ended.recv_timeout(Duration::from_secs(60));
    assert_eq!(ended, Ok(()), "the writer waits for a mover that sleeps");
}
