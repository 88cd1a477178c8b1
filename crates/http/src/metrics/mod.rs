//! Answers to `GET /metrics`: the formats in which Prometheus reads them, and the part that is about this process.

mod format;
mod process;
mod shared;

use prometheus_client::encoding::text::encode_registry;
use prometheus_client::registry::Registry;

use self::process::Process;
pub use self::shared::Exposition;

/// Appends what the system says of this process, without the line that ends a text.
///
/// # Errors
/// If `out` takes no more.
pub fn write_process(out: &mut String) -> std::fmt::Result {
    let mut system = Registry::default();
    system.register_collector(Box::new(Process));
    encode_registry(out, &system)
}
