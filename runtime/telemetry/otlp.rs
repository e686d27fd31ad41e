//! Sends the spans of actions to an OpenTelemetry collector on this machine: OTLP as JSON, over HTTP.
//!
//! An action never waits for this: its span goes into a bounded queue, and what the queue or the collector does not take is counted
//! and lost.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use effectd_contracts::{Clock, SystemClock};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::sync::{mpsc, oneshot};
use tracing::Subscriber;
use tracing::span::{Attributes, Id, Record};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, filter_fn};
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

use super::SpanLayer;
use super::fields::Fields;

/// Spans that wait for the collector: some seconds of a busy daemon, and a few megabytes.
const QUEUED_MAX: usize = 4_096;
/// Spans in one request.
const BATCH_MAX: usize = 512;
/// How long spans gather, so that a busy daemon sends few requests.
const GATHER: Duration = Duration::from_millis(100);
/// How long one request may take.
const SEND_MAX: Duration = Duration::from_secs(5);
/// How much of an answer's first line is read.
const ANSWER_BYTES_MAX: u64 = 1_024;
const SPAN: &str = "action.exec";

/// The layer that takes spans, and the exporter that sends them.
pub(crate) fn open(to: SocketAddr) -> (SpanLayer, Exporter) {
    let (queue, queued) = mpsc::channel(QUEUED_MAX);
    let lost = Arc::new(AtomicU64::new(0));
    let is_ours = filter_fn(|metadata| metadata.is_span() && metadata.name() == SPAN);
    let spans = Spans { queue, lost: lost.clone() };
    let layer = spans.with_filter(is_ours.with_max_level_hint(LevelFilter::ERROR));
    (layer.boxed(), Exporter { to, queued, lost, lost_seen: 0, lost_told: 0 })
}

struct Spans {
    queue: mpsc::Sender<Value>,
    lost: Arc<AtomicU64>,
}

/// A span that has not ended, and its begin in nanoseconds.
struct Open(i128, Fields);

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Spans {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        if let Some(span) = context.span(id) {
            span.extensions_mut().insert(Open(SystemClock.now().as_nanosecond(), fields));
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        if let Some(span) = context.span(id)
            && let Some(Open(_, fields)) = span.extensions_mut().get_mut()
        {
            values.record(fields);
        }
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let ended = context.span(&id).and_then(|span| span.extensions_mut().remove::<Open>());
        let Some(span) = ended.and_then(|open| json_of(open, SystemClock.now().as_nanosecond())) else {
            return;
        };
        if self.queue.try_send(span).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// A span as OTLP's JSON has it. `None` if its trace id does not fit W3C Trace Context, so that it has no span id, or if it has no
/// outcome: an action that was put off or held gets a span with the same id when it is tried again.
fn json_of(Open(begun, Fields(fields)): Open, ended: i128) -> Option<Value> {
    let text = |name: &str| {
        let found = fields.iter().find(|(known, _)| known == name);
        found.and_then(|(_, value)| value.as_str())
    };
    text("outcome")?;
    let ids = ["trace_id", "span_id", "parent_span_id"];
    let attributes = fields.iter().filter(|(name, _)| !ids.contains(&name.as_str())).map(|(name, value)| {
        let value = match value {
            Value::Number(number) if number.is_f64() => json!({ "doubleValue": number }),
            // A whole number is a text in OTLP's JSON.
            Value::Number(number) => json!({ "intValue": number.to_string() }),
            Value::String(text) => json!({ "stringValue": text }),
            Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => json!({}),
        };
        json!({ "key": name, "value": value })
    });
    // 1: internal. 2: error.
    Some(json!({
        "traceId": text("trace_id")?, "spanId": text("span_id")?, "parentSpanId": text("parent_span_id").unwrap_or_default(),
        "name": SPAN, "kind": 1, "startTimeUnixNano": begun.to_string(), "endTimeUnixNano": ended.to_string(),
        "attributes": attributes.collect::<Vec<_>>(),
        "status": text("error.type").map_or_else(|| json!({}), |code| json!({ "code": 2, "message": code })),
    }))
}

pub(crate) struct Exporter {
    to: SocketAddr,
    queued: mpsc::Receiver<Value>,
    /// Spans that were lost in all.
    lost: Arc<AtomicU64>,
    /// How many of them there were after the last request.
    lost_seen: u64,
    /// How many of them the log has told.
    lost_told: u64,
}

impl Exporter {
    /// Sends spans until `stop` ends; then sends those that are queued, once.
    pub(crate) async fn run(mut self, mut stop: oneshot::Receiver<()>) {
        let mut spans = Vec::new();
        loop {
            let gathering = async {
                if self.queued.len() < BATCH_MAX {
                    tokio::time::sleep(GATHER).await;
                }
                self.queued.recv_many(&mut spans, BATCH_MAX).await
            };
            let stopping = tokio::select! {
                received = gathering => received == 0,
                _ = &mut stop => true,
            };
            if stopping {
                while let Ok(span) = self.queued.try_recv() {
                    spans.push(span);
                }
            }
            self.send(std::mem::take(&mut spans)).await;
            if stopping {
                self.tell_loss("spans of actions were lost");
                return;
            }
        }
    }

    /// Sends a batch. The log tells once that spans are lost, and once that no more are.
    async fn send(&mut self, spans: Vec<Value>) {
        let count = spans.len() as u64;
        if count == 0 {
            return;
        }
        let sent = match tokio::time::timeout(SEND_MAX, post(self.to, &body(spans))).await {
            Ok(sent) => sent.map_err(|error| error.to_string()),
            Err(_) => Err(format!("no answer within {} s", SEND_MAX.as_secs())),
        };
        if sent.is_err() {
            self.lost.fetch_add(count, Ordering::Relaxed);
        }
        // Those that the queue did not take are lost, too.
        let lost = self.lost.load(Ordering::Relaxed);
        let was_failing = self.lost_seen > self.lost_told;
        let is_failing = lost > std::mem::replace(&mut self.lost_seen, lost);
        if is_failing && !was_failing {
            let error = sent.err().unwrap_or_else(|| "it is too slow".to_owned());
            tracing::warn!(to = %self.to, error, "the collector does not take all spans; the others are lost");
        } else if was_failing && !is_failing {
            self.tell_loss("the collector takes all spans again");
        }
    }

    fn tell_loss(&mut self, what: &str) {
        let all = self.lost.load(Ordering::Relaxed);
        let lost = all - std::mem::replace(&mut self.lost_told, all);
        if lost > 0 {
            tracing::warn!(to = %self.to, lost, "{what}");
        }
    }
}

fn body(spans: Vec<Value>) -> Vec<u8> {
    let attribute = |key: &str, value: &str| json!({ "key": key, "value": { "stringValue": value } });
    let version = env!("CARGO_PKG_VERSION");
    let resource = [attribute("service.name", "effectd"), attribute("service.version", version)];
    let body = json!({ "resourceSpans": [{
        "resource": { "attributes": resource },
        "scopeSpans": [{ "scope": { "name": "effectd", "version": version }, "spans": spans }],
    }]});
    body.to_string().into_bytes()
}

/// Sends one request on a connection of its own. Any answer but 2xx is an error.
#[expect(
    clippy::disallowed_types,
    reason = "the setting takes loopback addresses only, and spans have no contents"
)]
async fn post(to: SocketAddr, body: &[u8]) -> std::io::Result<()> {
    let mut stream = tokio::net::TcpStream::connect(to).await?;
    let head = format!(
        "POST /v1/traces HTTP/1.1\r\nhost: {to}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body).await?;
    let mut first = String::new();
    BufReader::new(stream.take(ANSWER_BYTES_MAX)).read_line(&mut first).await?;
    let status = first.strip_prefix("HTTP/1.").and_then(|rest| rest.get(2..3));
    if status == Some("2") {
        return Ok(());
    }
    Err(std::io::Error::other(format!("its answer begins with `{}`", first.trim_end())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_action_that_ended_has_a_span_to_send() {
        let fields = [("trace_id", "0af7651916cd43dd8448eb211c80319c"), ("span_id", "b7ad6b7169203331")];
        let open = |more: &[(&str, &str)]| {
            let all = fields.iter().chain(more);
            Open(1, Fields(all.map(|(name, value)| ((*name).to_owned(), (*value).into())).collect()))
        };
        assert_eq!(json_of(open(&[]), 2), None);
        assert!(json_of(open(&[("outcome", "executed")]), 2).is_some());
    }
}
