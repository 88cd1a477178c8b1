//! Answers to `GET /metrics`: the formats in which Prometheus reads them, and the part that is about this process.

mod format;
mod process;

use prometheus_client::encoding::text::encode_registry;
use prometheus_client::registry::Registry;

pub use self::format::negotiated;
use self::process::Process;

/// Appends what the system says of this process, without the line that ends a text.
///
/// # Errors
/// If `out` takes no more.
pub fn write_process(out: &mut String) -> std::fmt::Result {
    let mut system = Registry::default();
    system.register_collector(Box::new(Process));
    encode_registry(out, &system)
}
