//! Logs on stderr: a line for each registration, change of a stream's state, and error.

use std::any::Any;

use serde::Deserialize;
use tracing_subscriber::filter::LevelFilter;

/// Settings of the log: what is logged, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogConfig {
    /// The reader for whom lines are written.
    pub format: Format,
    /// The least that is logged.
    pub level: Level,
}

/// The reader for whom a line is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// Lines are for people.
    Text,
    /// Lines are for programs: an object a line.
    Json,
}

/// The severity of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Nothing is logged.
    Off,
    /// Something that should not happen.
    Error,
    /// Something that is wrong, but that the service can go on without.
    Warning,
    /// Something that changes.
    Info,
    /// Details that a developer asks for.
    Debug,
}

/// The text of a panic.
#[must_use]
pub fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

/// Starts to log, unless the process logs already: its first service decides.
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
