//! A fleet described in JSON, in the same words for services, routers and Python.

mod engines;
mod ids;
mod storage;
mod workers;

pub use self::engines::{engines, not_ready, waiting};
pub use self::ids::{id_value, is_number};
pub use self::storage::{log, snapshots};
pub use self::workers::list as workers;

/// The version of kvatlas.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
