//! Log lines on standard error, as text or JSON, each with the trace of its action.

use tracing_subscriber::fmt::format::FmtSpan;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Registry, reload};

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

/// Starts logging; works once in a process. The environment overrides `level`.
pub fn start(level: &str, form: LogForm, colours: bool) -> LogDial {
    let filter = EnvFilter::try_from_env(LOG_VARIABLE).unwrap_or_else(|_| EnvFilter::new(level));
    let (filter, handle) = reload::Layer::new(filter);
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_span_events(FmtSpan::NONE)
        .with_target(false);
    // If the program has its own logging already, this fails and that logging stays.
    let registry = tracing_subscriber::registry().with(filter);
    let _ = match form {
        LogForm::Text => registry.with(lines.with_ansi(colours).without_time().compact()).try_init(),
        LogForm::Json => registry.with(lines.json().flatten_event(true).with_span_list(false)).try_init(),
    };
    LogDial(handle)
}
