//! The limits of a connection, and the counts of connections.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// Streams of HTTP/2 that a connection may have open at once before it has shown a key.
pub(crate) const STRANGER_STREAMS: usize = 16;

/// Streams of HTTP/2 on a connection of a client that has shown a key.
pub(crate) const KEYED_STREAMS: u32 = 1000;

/// Streams of HTTP/2 on a connection where there is no key to show.
pub(crate) const KEYLESS_STREAMS: u32 = 250;

/// The time within which a stranger must take an answer, or the next piece of it.
pub(crate) const STRANGER_WRITE: Duration = Duration::from_secs(2);

/// Bytes that are read at once from a stranger.
pub(crate) const STRANGER_READ: usize = 4 << 10;

/// Bytes that strangers may have together at the main listener, and at the one for administrators, as they are counted. The
/// process has at most 128 MiB more resident memory for them, with what the allocator keeps.
pub(crate) const STRANGERS: usize = 80 << 20;
pub(crate) const ADMIN_STRANGERS: usize = 8 << 20;

/// Bytes that a stranger counts for beside its connection: a stream of HTTP/2, an answer that it does not take, HTTP/2
/// itself, a TLS handshake, and TLS after that.
pub(crate) const STREAM: usize = 8 << 10;
pub(crate) const UNREAD: usize = 64 << 10;
pub(crate) const HTTP2: usize = 8 << 10;
pub(crate) const HANDSHAKE: usize = 64 << 10;
pub(crate) const TLS: usize = 24 << 10;

/// The time limits of a connection's phases, and the size limits of a head.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) idle: Duration,
    pub(crate) request: Duration,
    pub(crate) write: Duration,
    pub(crate) first_byte: Duration,
    pub(crate) max_head: usize,
    pub(crate) max_headers: usize,
    /// Streams of HTTP/2 at once.
    pub(crate) streams: u32,
    /// True if a client that ends what it sends still gets its answer.
    pub(crate) half_close: bool,
}

/// Counts of connections.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) begun: AtomicU64,
    pub(crate) ended: AtomicU64,
    pub(crate) stalled_streams: AtomicU64,
    /// Connections without a key that were closed because they opened too many streams, and because they did not take an
    /// answer.
    pub(crate) stranger_streams: AtomicU64,
    pub(crate) unread_answers: AtomicU64,
}
