//! Processes beside the engines: an index, the service above sites, other routers.

pub(crate) mod cache_reports;
pub(crate) mod external_index;
pub(crate) mod index;
pub(crate) mod peer_requests;
pub(crate) mod peers;
pub(crate) mod service;
pub(crate) mod sites;
