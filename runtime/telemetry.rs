//! Log lines on standard error, as text or JSON, each with the trace of its action.

mod fields;
#[cfg(feature = "otlp")]
mod otlp;
mod stderr;

use std::fmt;
use std::net::SocketAddr;
use std::sync::Mutex;

use serde_json::{Map, Value};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::{JsonFields, Writer};
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, FormattedFields};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, reload};

use fields::Fields;
#[cfg(feature = "otlp")]
pub(crate) use otlp::Exporter;
use stderr::Lines;

/// The environment variable with the log level: `info`, `effectd_actors=debug` …
const LOG_VARIABLE: &str = "EFFECTD_LOG";

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum LogForm {
    /// For people.
    Text,
    /// For programs: one JSON object a line.
    Json,
}

impl LogForm {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            LogForm::Text => "text",
            LogForm::Json => "json",
        }
    }
}

/// Changes the log level while the process runs.
#[derive(Debug)]
pub struct LogDial(reload::Handle<EnvFilter, Registry>);

impl LogDial {
    pub(crate) fn turn(&self, level: &str) -> Result<(), String> {
        let filter = EnvFilter::try_new(level).map_err(|error| error.to_string())?;
        self.0.reload(filter).map_err(|error| error.to_string())
    }
}

/// A further receiver of spans.
pub(crate) type SpanLayer = Box<dyn Layer<Registry> + Send + Sync>;

type Exporting = (Option<SpanLayer>, Option<Exporter>);

/// What sends spans to a collector, if `log.otlp` names one: a layer for [`start_with`], and a task. Fails if this program was built
/// without it.
#[cfg(feature = "otlp")]
pub(crate) fn exporter(to: Option<SocketAddr>) -> Result<Exporting, &'static str> {
    Ok(to.map(otlp::open).unzip())
}

#[cfg(not(feature = "otlp"))]
pub(crate) fn exporter(to: Option<SocketAddr>) -> Result<Exporting, &'static str> {
    match to {
        None => Ok((None, None)),
        Some(_) => Err(
            "log.otlp is set, and this effectd cannot export spans: leave the setting empty, or build effectd with \
            `cargo build --release --features otlp`",
        ),
    }
}

/// Nothing can be exported without the feature `otlp`.
#[cfg(not(feature = "otlp"))]
pub(crate) enum Exporter {}

#[cfg(not(feature = "otlp"))]
impl Exporter {
    pub(crate) async fn run(self, _: tokio::sync::oneshot::Receiver<()>) {
        match self {}
    }
}

/// Starts logging; works once in a process. The environment overrides `level`.
pub fn start(level: &str, form: LogForm, colours: bool) -> LogDial {
    start_with(level, form, colours, None)
}

/// The same, with a receiver of spans that has a filter of its own.
pub(crate) fn start_with(level: &str, form: LogForm, colours: bool, spans: Option<SpanLayer>) -> LogDial {
    let filter = EnvFilter::try_from_env(LOG_VARIABLE).unwrap_or_else(|_| EnvFilter::new(level));
    let (filter, handle) = reload::Layer::new(filter);
    let lines = tracing_subscriber::fmt::layer().with_writer(Mutex::new(Lines::new(std::io::stderr(), form)));
    let lines: SpanLayer = match form {
        LogForm::Text => {
            let text = lines.with_target(false).with_ansi(colours).without_time().compact();
            text.with_filter(filter).boxed()
        }
        LogForm::Json => {
            lines.fmt_fields(JsonFields::new()).event_format(JsonLine).with_filter(filter).boxed()
        }
    };
    // If the program has its own logging already, this fails and that logging stays.
    let layers: Vec<SpanLayer> = std::iter::once(lines).chain(spans).collect();
    let _ = tracing_subscriber::registry().with(layers).try_init();
    LogDial(handle)
}

/// One flat JSON object: time, level, target, the fields of the event, then those of its spans. So a line has its action's
/// `trace_id` whoever writes it.
struct JsonLine;

impl<S, N> FormatEvent<S, N> for JsonLine
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut to: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut time = String::new();
        SystemTime.format_time(&mut Writer::new(&mut time))?;
        let mut line = Fields::default();
        line.set("timestamp", time.into());
        line.set("level", event.metadata().level().as_str().into());
        line.set("target", event.metadata().target().into());
        event.record(&mut line);
        for span in context.event_scope().into_iter().flatten() {
            let extensions = span.extensions();
            let Some(of_span) = extensions.get::<FormattedFields<N>>() else { continue };
            let of_span: Map<String, Value> = serde_json::from_str(&of_span.fields).unwrap_or_default();
            // OpenTelemetry's names for tool calls repeat our own.
            for (name, value) in of_span.into_iter().filter(|(name, _)| !name.starts_with("gen_ai.")) {
                line.set_default(&name, value);
            }
        }
        writeln!(to, "{line}")
    }
}
