//! Memory limit for the bodies of all requests, from the first stored byte of a body until the body is no longer
//! needed, for example by an engine.
//!
//! A body for which there is no memory is not read further until memory is free. A body that has received no data for a
//! while, or arrives very slowly, is dropped (evicted) if others wait for memory; a body that has waited too long is
//! refused. A part of the memory is reserved for short bodies, so that stalled long ones do not delay them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use crate::activity::millis;
use crate::body::BodyFault;

/// Maximum size of a short body, in bytes. Short bodies may use the whole memory; longer ones leave a quarter of it
/// free.
const SHORT: usize = 64 << 10;

/// Longest time that a body waits for memory before it is refused.
const PATIENCE: Duration = Duration::from_secs(5);

/// Interval at which a request that waits for memory for its body checks whether another request's body can be evicted.
const LOOK: Duration = Duration::from_millis(250);

/// Minimum time, in milliseconds, after which a body may be evicted for others: the time without a byte, or the time
/// since the body's beginning if it arrives more slowly than [`SLOW`].
const GRACE: u64 = 2000;

/// Rate below which a body arrives too slowly, in bytes per second.
const SLOW: u64 = 64 << 10;

/// Memory limit for the bodies of all requests of a server.
#[derive(Debug)]
pub struct Memory {
    limit: usize,
    used: AtomicUsize,
    freed: Notify,
    /// Incomplete bodies, by a number that increases in the order in which the bodies began.
    coming: Mutex<BTreeMap<u64, Arc<Progress>>>,
    number: AtomicU64,
    refused: AtomicU64,
    gave_way: AtomicU64,
}

/// Progress of a body that has not arrived completely.
#[derive(Debug)]
struct Progress {
    since: u64,
    last: AtomicU64,
    bytes: AtomicUsize,
    /// True if the body waits for memory, or has already been evicted.
    waits: AtomicBool,
    leave: Notify,
}

/// Error of a body for which there is no memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NoRoomError;

/// Memory reserved for the body of a request, and freed when this value is dropped.
#[derive(Debug)]
pub(crate) struct Lease {
    memory: Arc<Memory>,
    bytes: usize,
}

/// Memory reserved for values derived from the body of a request, and freed when this value is dropped.
#[derive(Debug)]
pub struct Reservation {
    lease: Lease,
}

/// Memory reserved for a body that does not arrive over the server's own connections, and freed when this value is
/// dropped.
pub struct BodyLease {
    turn: Option<BodyTurn>,
    lease: Lease,
}

/// Registration of an incomplete body in the list of incomplete bodies, removed when dropped.
pub(crate) struct BodyTurn {
    memory: Arc<Memory>,
    number: u64,
    coming: Arc<Progress>,
}

impl Memory {
    /// Makes a memory limit of `limit` bytes for the bodies of requests.
    #[must_use]
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self {
            limit,
            used: AtomicUsize::new(0),
            freed: Notify::new(),
            coming: Mutex::default(),
            number: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            gave_way: AtomicU64::new(0),
        })
    }

    /// Number of bytes that are reserved now.
    #[must_use]
    pub fn used(&self) -> usize {
        self.used.load(Relaxed)
    }

    /// Number of refused bodies by reason: no memory was free, or the body was evicted for others.
    #[must_use]
    pub fn refused(&self) -> [(&'static str, u64); 2] {
        [("no_room", self.refused.load(Relaxed)), ("gave_way", self.gave_way.load(Relaxed))]
    }

    /// Reserves `bytes` bytes for values derived from a body, in addition to the memory for the body itself, but at
    /// most half of the limit. Returns None if the memory is not free by `until`.
    pub async fn reserve(self: &Arc<Self>, bytes: usize, until: std::time::Instant) -> Option<Reservation> {
        let bytes = bytes.min(self.limit / 2);
        loop {
            let freed = self.freed.notified();
            if self.try_take(bytes, bytes) {
                return Some(Reservation { lease: Lease { memory: self.clone(), bytes } });
            }
            timeout_at(until.into(), freed).await.ok()?;
        }
    }

    /// Makes an empty reservation, whose size can be changed.
    #[must_use]
    pub fn reserved(self: &Arc<Self>) -> Reservation {
        Reservation { lease: Lease::new(self) }
    }

    /// Makes an empty reservation for a body that begins to arrive.
    #[must_use]
    pub fn lease(self: &Arc<Self>) -> BodyLease {
        BodyLease { turn: Some(BodyTurn::new(self)), lease: Lease::new(self) }
    }

    fn try_take(&self, more: usize, whole: usize) -> bool {
        let most = if whole <= SHORT { self.limit } else { self.limit - self.limit / 4 };
        let taken = |used: usize| used.checked_add(more).filter(|sum| *sum <= most);
        self.used.fetch_update(Relaxed, Relaxed, taken).is_ok()
    }

    fn give_back(&self, bytes: usize) {
        if bytes > 0 {
            self.used.fetch_sub(bytes, Relaxed);
            self.freed.notify_waiters();
        }
    }

    /// Evicts one body, if one may be evicted: the body that has received no byte for the longest time, else the one
    /// that arrives slowest.
    fn make_room(&self) {
        let now = millis();
        let rate = |it: &Progress| it.bytes.load(Relaxed) as u64 * 1000 / now.saturating_sub(it.since).max(1);
        let silent = |it: &Progress| now.saturating_sub(it.last.load(Relaxed));
        let coming = self.coming.lock();
        let others = || coming.values().filter(|it| !it.waits.load(Relaxed) && now.saturating_sub(it.since) >= GRACE);
        let longest = others().filter(|it| silent(it) >= GRACE).max_by_key(|it| silent(it));
        let victim = longest.or_else(|| others().filter(|it| rate(it) < SLOW).min_by_key(|it| rate(it)));
        if let Some(victim) = victim {
            // One at a time, until it has gone.
            victim.waits.store(true, Relaxed);
            victim.leave.notify_one();
            self.gave_way.fetch_add(1, Relaxed);
        }
    }
}

impl Reservation {
    /// Changes the size of the reservation to `bytes`. Returns false if the memory is not free now.
    #[must_use]
    pub fn try_resize(&mut self, bytes: usize) -> bool {
        let lease = &mut self.lease;
        let more = bytes.saturating_sub(lease.bytes);
        if more > 0 && !lease.memory.try_take(more, bytes) {
            return false;
        }
        lease.bytes += more;
        lease.shrink(bytes);
        true
    }
}

impl BodyLease {
    /// Grows the reservation to `bytes`, the number of bytes of the body that have arrived; waits a while if the memory
    /// is not free.
    ///
    /// # Errors
    /// [`BodyFault::NoRoom`] if the memory is still not free.
    pub async fn grow(&mut self, bytes: usize) -> Result<(), BodyFault> {
        let Some(turn) = &self.turn else { return Ok(()) };
        turn.came(bytes.saturating_sub(self.lease.bytes));
        turn.grow(&mut self.lease, bytes).await.map_err(|NoRoomError| BodyFault::NoRoom)
    }

    /// Waits until the body is evicted for others because it does not arrive in time; never returns for a complete
    /// body.
    pub async fn must_leave(&self) {
        match &self.turn {
            Some(turn) => turn.must_leave().await,
            None => std::future::pending().await,
        }
    }

    /// Records that the body has arrived completely, so that it is never evicted.
    pub fn complete(&mut self) {
        self.turn = None;
    }
}

impl BodyTurn {
    pub(crate) fn new(memory: &Arc<Memory>) -> Self {
        let number = memory.number.fetch_add(1, Relaxed);
        let coming = Arc::new(Progress {
            since: millis(),
            last: AtomicU64::new(millis()),
            bytes: AtomicUsize::new(0),
            waits: AtomicBool::new(false),
            leave: Notify::new(),
        });
        memory.coming.lock().insert(number, coming.clone());
        Self { memory: memory.clone(), number, coming }
    }

    /// Records that `bytes` more bytes of the body have arrived.
    pub(crate) fn came(&self, bytes: usize) {
        self.coming.bytes.fetch_add(bytes, Relaxed);
        self.coming.last.store(millis(), Relaxed);
    }

    /// Waits until the body is evicted for others that need its memory.
    pub(crate) async fn must_leave(&self) {
        self.coming.leave.notified().await;
    }

    /// Grows a reservation to `bytes` bytes; waits a while if the memory is not free.
    pub(crate) async fn grow(&self, lease: &mut Lease, bytes: usize) -> Result<(), NoRoomError> {
        let more = bytes.saturating_sub(lease.bytes);
        let memory = &self.memory;
        if !memory.try_take(more, bytes) {
            self.coming.waits.store(true, Relaxed);
            let until = Instant::now() + PATIENCE;
            loop {
                let freed = memory.freed.notified();
                if memory.try_take(more, bytes) {
                    break;
                }
                if until <= Instant::now() {
                    memory.refused.fetch_add(1, Relaxed);
                    return Err(NoRoomError);
                }
                if timeout_at(until.min(Instant::now() + LOOK), freed).await.is_err() {
                    memory.make_room();
                }
            }
            self.coming.waits.store(false, Relaxed);
            self.came(0);
        }
        lease.bytes += more;
        Ok(())
    }
}

impl Drop for BodyTurn {
    fn drop(&mut self) {
        self.memory.coming.lock().remove(&self.number);
    }
}

impl Lease {
    pub(crate) fn new(memory: &Arc<Memory>) -> Self {
        Self { memory: memory.clone(), bytes: 0 }
    }

    /// Shrinks the reservation to `bytes`.
    pub(crate) fn shrink(&mut self, bytes: usize) {
        let less = self.bytes.saturating_sub(bytes);
        self.bytes -= less;
        self.memory.give_back(less);
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.memory.give_back(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[tokio::test]
    async fn short_bodies_find_room_beside_long_ones() {
        let memory = Memory::new(4 * MIB);
        let (long, mut held) = (BodyTurn::new(&memory), Lease::new(&memory));
        assert_eq!(long.grow(&mut held, 3 * MIB).await, Ok(()));
        let (short, mut lease) = (BodyTurn::new(&memory), Lease::new(&memory));
        assert_eq!(short.grow(&mut lease, SHORT).await, Ok(()));
        drop(lease);
        held.shrink(MIB);
        assert_eq!(memory.used(), MIB);
        drop(held);
        assert_eq!(memory.used(), 0);
    }

    #[tokio::test]
    async fn what_is_made_of_bodies_is_of_the_same_memory() {
        let memory = Memory::new(4 * MIB);
        let soon = || std::time::Instant::now() + Duration::from_millis(1);
        let one = memory.reserve(100 * MIB, soon()).await.expect("half of it");
        assert_eq!(memory.used(), 2 * MIB);
        assert!(memory.reserve(MIB + 1, soon()).await.is_none());
        let mut grown = memory.reserved();
        assert!(grown.try_resize(MIB) && !grown.try_resize(MIB + 1) && grown.try_resize(MIB / 2));
        assert_eq!(memory.used(), 2 * MIB + MIB / 2);
        drop(grown);
        let until = std::time::Instant::now() + Duration::from_secs(60);
        let (next, ()) = tokio::join!(memory.reserve(2 * MIB, until), async { drop(one) });
        assert!(next.is_some());
        drop(next);
        assert_eq!(memory.used(), 0);
    }

    #[tokio::test]
    async fn a_complete_body_keeps_its_room_and_one_that_has_stopped_gives_it() {
        let memory = Memory::new(4 * MIB);
        let (mut whole, mut stopped) = (memory.lease(), memory.lease());
        assert_eq!(whole.grow(MIB).await, Ok(()));
        whole.complete();
        assert_eq!(stopped.grow(2 * MIB).await, Ok(()));
        let leaves = async move {
            stopped.must_leave().await;
            drop(stopped);
        };
        let mut next = memory.lease();
        let (grown, ()) = tokio::join!(next.grow(2 * MIB), leaves);
        assert_eq!((grown, memory.used()), (Ok(()), 3 * MIB));
        tokio::time::pause();
        assert_eq!(next.grow(4 * MIB).await, Err(BodyFault::NoRoom), "the complete one stays");
        drop((whole, next));
        assert_eq!(memory.used(), 0);
    }

    #[tokio::test]
    async fn one_that_has_stopped_gives_way() {
        let memory = Memory::new(4 * MIB);
        let (stopped, mut held) = (BodyTurn::new(&memory), Lease::new(&memory));
        assert_eq!(stopped.grow(&mut held, 3 * MIB).await, Ok(()));
        let leaves = async move {
            stopped.must_leave().await;
            drop(held);
        };
        let (next, mut lease) = (BodyTurn::new(&memory), Lease::new(&memory));
        let (grown, ()) = tokio::join!(next.grow(&mut lease, 2 * MIB), leaves);
        assert_eq!((grown, memory.refused()), (Ok(()), [("no_room", 0), ("gave_way", 1)]));
    }
}
