//! Other processes than engines: an index, the service above sites, other routers.
//!
//! | file | what |
//! |---|---|
//! | `service.rs` | connections to such a process |
//! | `external_index.rs` | the index in another process: `index.rs`, or the service above `sites` |
//! | `cache_reports.rs` | reports of cached tokens to the index |
//! | `peers.rs`, `peer_requests.rs` | other routers, and the exchange of requests with them |

pub(crate) mod cache_reports;
pub(crate) mod external_index;
pub(crate) mod index;
pub(crate) mod peer_requests;
pub(crate) mod peers;
pub(crate) mod service;
pub(crate) mod sites;
