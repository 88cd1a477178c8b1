//! Logs on stderr: a line for each registration, change of a stream's state, and error.

use std::any::Any;

use serde::Deserialize;
use tracing_subscriber::filter::LevelFilter;

/// What is logged, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LogConfig {
    /// For whom.
    pub format: Format,
    /// The least that is logged.
    pub level: Level,
}

/// For whom a line is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// For people.
    Text,
    /// For programs: an object a line.
    #[default]
    Json,
}

/// How much a line matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Nothing is logged.
    Off,
    /// What should not happen.
    Error,
    /// What the service can go on without.
    Warning,
    /// What changes.
    #[default]
    Info,
    /// What a developer asks for.
    Debug,
}

/// What a panic says.
pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> &str {
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
