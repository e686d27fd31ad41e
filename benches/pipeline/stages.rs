//! The time between stages, measured by the traces of actions.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// The stages that actions reached: trace, stage, time.
static SEEN: Mutex<Vec<(String, String, Instant)>> = Mutex::new(Vec::new());

/// Starts to record, for the rest of the process.
pub(crate) fn watch() {
    tracing::subscriber::set_global_default(Watch).expect("no other subscriber");
}

/// Prints the median time between each two stages.
pub(crate) fn report() {
    let seen = std::mem::take(&mut *SEEN.lock().expect("no thread panicked"));
    let mut last: HashMap<String, (String, Instant)> = HashMap::new();
    let mut ways: Vec<((String, String), Vec<Duration>)> = Vec::new();
    for (trace, to, now) in seen {
        let Some((from, before)) = last.insert(trace, (to.clone(), now)) else {
            continue;
        };
        let (way, took) = ((from, to), now.duration_since(before));
        match ways.iter_mut().find(|(known, _)| *known == way) {
            Some((_, times)) => times.push(took),
            None => ways.push((way, vec![took])),
        }
    }
    for ((from, to), mut took) in ways {
        took.sort();
        let (median, late) = (took[took.len() / 2], took[took.len() * 99 / 100]);
        let micros = |time: Duration| time.as_secs_f64() * 1e6;
        println!(
            "{from:>14} -> {to:<14} {:>7} times, p50 {:>7.0} µs, p99 {:>7.0} µs",
            took.len(),
            micros(median),
            micros(late)
        );
    }
}

/// Notes each event that names a stage, and the receipt.
struct Watch;

impl Subscriber for Watch {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("effectd_actors")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Id::from_u64(1 + LAST.fetch_add(1, Ordering::Relaxed))
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut mark = Mark::default();
        event.record(&mut mark);
        if let (Some(trace), Some(place)) = (mark.trace, mark.place) {
            let mut seen = SEEN.lock().expect("no thread panicked");
            seen.push((trace, place, Instant::now()));
        }
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[derive(Default)]
struct Mark {
    trace: Option<String>,
    place: Option<String>,
}

impl Visit for Mark {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "stage" {
            self.place = Some(value.to_owned());
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        match field.name() {
            "trace_id" => self.trace = Some(format!("{value:?}")),
            "receipt_id" => self.place = Some("receipt".to_owned()),
            _ => {}
        }
    }
}
