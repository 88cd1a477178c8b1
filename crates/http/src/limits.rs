//! The limits of a connection, and the counts of connections.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// Most HTTP/2 streams of a connection that has sent no key yet.
pub(crate) const STRANGER_STREAMS: usize = 16;

/// Most HTTP/2 streams of a connection that has sent a key.
pub(crate) const KEYED_STREAMS: u32 = 1000;

/// Most HTTP/2 streams of a connection if no key is configured.
pub(crate) const KEYLESS_STREAMS: u32 = 250;

/// The time limit for a stranger to take an answer, or the next piece of it.
pub(crate) const STRANGER_WRITE: Duration = Duration::from_secs(2);

/// Most bytes read at once from a stranger.
pub(crate) const STRANGER_READ: usize = 4 << 10;

/// Memory budget of all strangers at the main listener, and at the one for administrators, in counted bytes. The
/// process needs at most 128 MiB more resident memory for them, including the allocator's overhead.
pub(crate) const STRANGERS: usize = 80 << 20;
pub(crate) const ADMIN_STRANGERS: usize = 8 << 20;

/// Bytes counted for a stranger besides its connection: for an HTTP/2 stream, an answer it does not take, HTTP/2
/// itself, a TLS handshake, and TLS after that.
pub(crate) const STREAM: usize = 8 << 10;
pub(crate) const UNREAD: usize = 64 << 10;
pub(crate) const HTTP2: usize = 8 << 10;
pub(crate) const HANDSHAKE: usize = 64 << 10;
pub(crate) const TLS: usize = 24 << 10;

/// Time limits of a connection's phases, and size limits of a head.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) idle: Duration,
    pub(crate) request: Duration,
    pub(crate) write: Duration,
    pub(crate) first_byte: Duration,
    pub(crate) max_head: usize,
    pub(crate) max_headers: usize,
    /// Most HTTP/2 streams at once.
    pub(crate) streams: u32,
    /// True if a client that closes its sending side still gets its answer.
    pub(crate) half_close: bool,
}

/// Counts of connections and of reset streams.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) begun: AtomicU64,
    pub(crate) ended: AtomicU64,
    pub(crate) stalled_streams: AtomicU64,
    /// Numbers of connections without a key closed because they opened too many streams, and because they did not take
    /// an answer.
    pub(crate) stranger_streams: AtomicU64,
    pub(crate) unread_answers: AtomicU64,
}
