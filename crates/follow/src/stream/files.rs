//! Limit of how many files the process may have open.

use std::sync::Once;

/// A stream has two sockets, so that the usual limit of 1,024 would be reached with a few hundred streams.
pub(super) fn allow_many() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| match rlimit::increase_nofile_limit(1 << 20) {
        Ok(limit) => tracing::debug!(limit, "open files"),
        Err(error) => tracing::warn!(%error, "the limit of open files cannot be raised"),
    });
}
