//! Both engines pass the suite that any later engine runs too.

use std::sync::Arc;

use effectd_bus::conformance::{self, Fixture};
use effectd_bus::memory::MemoryDisk;
use effectd_bus::{EmbeddedConfig, Store, embedded, memory};
use effectd_contracts::ManualClock;

impl Fixture for Memory {
    fn open(&self, clock: Arc<ManualClock>) -> Arc<dyn Store> {
        Arc::new(memory::open_on(&self.0, clock).unwrap())
    }
}

struct Memory(MemoryDisk);

impl Fixture for Embedded {
    fn open(&self, clock: Arc<ManualClock>) -> Arc<dyn Store> {
        Arc::new(embedded::open(EmbeddedConfig::new(self.0.path()), clock).unwrap())
    }
}

struct Embedded(tempfile::TempDir);

#[test]
fn the_memory_engine_conforms() {
    conformance::run(|| Box::new(Memory(MemoryDisk::default())));
}

#[test]
fn the_embedded_engine_conforms() {
    conformance::run(|| Box::new(Embedded(tempfile::tempdir().unwrap())));
}
