//! Figures as lines of JSON, for the plots and for `benches/peers`: `$EFFECTD_BENCH_JSONL` names the file that they are
//! appended to. Without it nothing is written.

use std::fs::OpenOptions;
use std::io::Write;
use std::time::Duration;

use serde_json::{Map, Value, json};

/// Points of the distribution of latencies that are kept.
const POINTS: [f64; 10] = [1.0, 5.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.9];

/// Appends one line; the points of the distribution are added if there are latencies, in order.
pub(crate) fn note(mut line: Value, sorted: &[Duration]) {
    let Some(path) = std::env::var_os("EFFECTD_BENCH_JSONL") else {
        return;
    };
    if let (false, Some(fields)) = (sorted.is_empty(), line.as_object_mut()) {
        let at = |percent: f64| {
            let place = (sorted.len() as f64 * percent / 100.0) as usize;
            let micros = sorted[place.min(sorted.len() - 1)].as_secs_f64() * 1e6;
            (micros * 10.0).round() / 10.0
        };
        fields.insert("p50_us".to_owned(), json!(at(50.0)));
        fields.insert("p99_us".to_owned(), json!(at(99.0)));
        let points = POINTS.map(|point| (point.to_string(), json!(at(point))));
        fields.insert("quantiles_us".to_owned(), Map::from_iter(points).into());
    }
    let mut text = line.to_string();
    text.push('\n');
    OpenOptions::new()
        .create(true)
        .append(true)
        .open(&path)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}
