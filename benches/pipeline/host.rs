//! Steal time: how much of the processors the host of a virtual machine gave to others.

/// Processor time since the machine was started.
pub(crate) struct Processors {
    all: u64,
    stolen: u64,
}

impl Processors {
    /// So far. `None` where the kernel does not say.
    pub(crate) fn now() -> Option<Self> {
        let text = std::fs::read_to_string("/proc/stat").ok()?;
        let of_all = text.lines().next()?.strip_prefix("cpu ")?;
        // user, nice, system, idle, iowait, irq, softirq, steal; what guests of this machine had is in the first two.
        let times: Vec<u64> = of_all.split_whitespace().take(8).map_while(|time| time.parse().ok()).collect();
        Some(Self { all: times.iter().sum(), stolen: *times.get(7)? })
    }

    /// The share that the host gave to others, in percent.
    pub(crate) fn stolen_since(&self, before: &Self) -> f64 {
        let all = self.all.saturating_sub(before.all).max(1);
        self.stolen.saturating_sub(before.stolen) as f64 / all as f64 * 100.0
    }
}
