//! The data of a page: a fleet's streams and rates, gathered once for all who watch. The router has a page of its own
//! and shows the same of its index.
//!
//! * `observer`: a row for each stream, and rates.
//! * `page`: who watches, and how often there is something new for them.

mod observer;
mod page;

pub use observer::{FleetObserver, Rates};
pub use page::{ENGINE_POINTS, POINTS, Page, PageSource, tenth};
