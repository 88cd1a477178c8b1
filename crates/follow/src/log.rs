//! Log lines on the standard error output: one for each registration, change of a stream's state, and error.

use std::any::Any;
use std::sync::OnceLock;

use serde::Deserialize;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Registry, reload};

/// Handle for changing the minimum severity of logged lines; set once logging has started.
static FILTER: OnceLock<reload::Handle<LevelFilter, Registry>> = OnceLock::new();

/// Settings of the process's log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogConfig {
    /// Format of log lines: text or JSON.
    pub format: Format,
    /// Minimum severity of lines that are logged.
    pub level: Level,
}

/// Format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// Lines of human-readable text.
    Text,
    /// Lines of one JSON object each, for programs.
    Json,
}

/// Severity of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// No lines are logged.
    Off,
    /// Errors that should not occur in normal operation.
    Error,
    /// Problems that do not prevent the service from working.
    Warning,
    /// Changes of state, such as that a stream is connected or trusted.
    Info,
    /// Details for developers.
    Debug,
}

/// Returns the message of a panic, given the panic's payload.
#[must_use]
pub fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

impl Level {
    fn filter(self) -> LevelFilter {
        match self {
            Self::Off => LevelFilter::OFF,
            Self::Error => LevelFilter::ERROR,
            Self::Warning => LevelFilter::WARN,
            Self::Info => LevelFilter::INFO,
            Self::Debug => LevelFilter::DEBUG,
        }
    }
}

/// Starts to write log lines to the standard error output, unless another service in the process has started this
/// before.
pub fn start(config: LogConfig) {
    if config.level == Level::Off {
        return;
    }
    let (filter, handle) = reload::Layer::new(config.level.filter());
    let lines = tracing_subscriber::fmt::layer().with_target(false).with_writer(std::io::stderr);
    let filtered = tracing_subscriber::registry().with(filter);
    let started = match config.format {
        Format::Text => filtered.with(lines.with_ansi(false)).try_init(),
        Format::Json => filtered.with(lines.json().flatten_event(true)).try_init(),
    };
    if started.is_ok() {
        let _ = FILTER.set(handle);
    }
}

/// Changes the minimum severity of logged lines, if logging has started.
pub fn change(level: Level) {
    if let Some(filter) = FILTER.get() {
        // Fails only if the subscriber is gone, and it is never dropped.
        let _ = filter.reload(level.filter());
    }
}
