//! `-- --journal=sled` measures stores whose journal is in sled.

use effectd_bus::embedded::JournalKind;

pub(crate) fn journal() -> JournalKind {
    let flag = std::env::args().find_map(|flag| flag.strip_prefix("--journal=").map(str::to_owned));
    flag.map_or_else(JournalKind::default, |name| {
        JournalKind::named(&name).expect("--journal=files or --journal=sled")
    })
}
