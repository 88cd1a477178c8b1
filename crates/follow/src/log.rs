//! Log lines on stderr: one for each registration, change of a stream's state, and error.

use std::any::Any;

use serde::Deserialize;
use tracing_subscriber::filter::LevelFilter;

/// Settings of the log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogConfig {
    /// Format of the lines.
    pub format: Format,
    /// Least severity that is logged.
    pub level: Level,
}

/// Format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// Lines of text, for people.
    Text,
    /// Lines of JSON objects, for programs.
    Json,
}

/// Severity of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Nothing is logged.
    Off,
    /// Errors that should not happen.
    Error,
    /// Problems that the service can go on with.
    Warning,
    /// Changes of state.
    Info,
    /// Details for developers.
    Debug,
}

/// Message of a panic.
#[must_use]
pub fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

/// Starts logging, unless an earlier service of the process has.
pub fn start(config: LogConfig) {
    let level = match config.level {
        Level::Off => return,
        Level::Error => LevelFilter::ERROR,
        Level::Warning => LevelFilter::WARN,
        Level::Info => LevelFilter::INFO,
        Level::Debug => LevelFilter::DEBUG,
    };
    let lines = tracing_subscriber::fmt().with_target(false).with_max_level(level).with_writer(std::io::stderr);
    let _ = match config.format {
        Format::Text => lines.with_ansi(false).try_init(),
        Format::Json => lines.json().flatten_event(true).try_init(),
    };
}
