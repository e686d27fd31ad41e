//! The bounds of all parts, as the configuration and the sandbox's processes know them.

use effectd_contracts::bound::Tunable;

/// Every bound of every part that an operator may set.
pub fn bounds() -> impl Iterator<Item = &'static dyn Tunable> {
    [
        effectd_policy::limits::BOUNDS,
        effectd_bus::limits::BOUNDS,
        effectd_sandbox::limits::BOUNDS,
        effectd_adapters::limits::BOUNDS,
        effectd_actors::limits::BOUNDS,
        effectd_gateway::limits::BOUNDS,
    ]
    .into_iter()
    .flatten()
    .copied()
}

/// What the sandbox's processes must be told, since they are programs of their own: each bound that is not at its default.
pub(crate) fn told() -> Vec<String> {
    bounds()
        .filter(|bound| bound.value() != bound.default())
        .map(|bound| format!("{}={}", bound.key(), bound.value()))
        .collect()
}

/// Takes over what [`told`] said. Anything else on the command line is not for us.
pub(crate) fn hear(words: impl Iterator<Item = String>) {
    for word in words {
        let Some((key, value)) = word.split_once('=') else {
            continue;
        };
        let bound = bounds().find(|bound| bound.key() == key);
        if let (Some(bound), Ok(value)) = (bound, value.parse()) {
            // It comes from a process of this very program, which had it checked.
            let _ = bound.set(value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_process_tells_another_takes_over() {
        let bound = &effectd_adapters::limits::DIAGNOSE_BYTES_MAX;
        hear(
            ["tools.diagnose_bytes_max=4096", "no.such_key=1", "--flag"]
                .map(str::to_owned)
                .into_iter(),
        );
        assert_eq!(bound.get(), 4_096);
        assert_eq!(told(), ["tools.diagnose_bytes_max=4096"]);
        hear([format!("tools.diagnose_bytes_max={}", bound.default())].into_iter());
        assert!(told().is_empty());
    }
}
