//! Limit on the number of connections, and memory limit for connections without a key.
//!
//! If a key is configured, connections that have not sent it are called strangers. Strangers are closed (evicted) for
//! new connections, so that idle ones cannot keep others out. All strangers together have one limit of bytes for their
//! connections, heads, streams and unread answers. When the limit is exceeded, the stranger with the most bytes is
//! evicted, the oldest among equals.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, TryAcquireError};
use tokio::time::{Instant, sleep_until};

/// Minimum time that a new connection has to send a key before it can be evicted for other connections.
const GRACE: Duration = Duration::from_millis(500);

/// Number of bytes counted in the memory limit for each open connection: its tasks, and the buffers of a short head.
pub(crate) const CONNECTION: usize = 32 << 10;

/// Limit on the open connections of one listener, each of which occupies a place.
pub(crate) struct Places {
    permits: Arc<Semaphore>,
    /// Memory limit for all connections without a key together, in bytes.
    budget: usize,
    strangers: Mutex<Strangers>,
    /// Signal that a connection has closed, or has sent a key so that its memory no longer counts.
    freed: Notify,
    number: AtomicU64,
    /// Number of connections that were closed because others needed their place or memory.
    pub(crate) evicted: AtomicU64,
}

/// Connections that have sent no key yet, with their counted memory.
#[derive(Default)]
struct Strangers {
    /// Connections without a key in the order of their arrival.
    all: BTreeMap<u64, Stranger>,
    /// Number of bytes counted for all connections without a key together.
    bytes: usize,
    /// Number of bytes counted for evicted connections that have not closed yet.
    leaving: usize,
}

struct Stranger {
    since: Instant,
    bytes: usize,
    leave: Arc<Notify>,
    is_told: bool,
}

/// Place of a connection within the limit on connections, freed when dropped.
pub(crate) struct Place {
    places: Arc<Places>,
    number: u64,
    known: AtomicBool,
    leave: Arc<Notify>,
    permit: Option<OwnedSemaphorePermit>,
}

impl Strangers {
    fn tell(&mut self, number: u64) {
        if let Some(stranger) = self.all.get_mut(&number) {
            stranger.is_told = true;
            self.leaving += stranger.bytes;
            stranger.leave.notify_one();
        }
    }

    fn remove(&mut self, number: u64) {
        if let Some(stranger) = self.all.remove(&number) {
            self.bytes -= stranger.bytes;
            self.leaving -= if stranger.is_told { stranger.bytes } else { 0 };
        }
    }

    /// Returns the connection without a key for which the most bytes are counted, the oldest among equals, except
    /// evicted ones; None if there is none.
    fn largest(&self) -> Option<(u64, &Stranger)> {
        let staying = self.all.iter().filter(|(_, stranger)| !stranger.is_told);
        staying.max_by_key(|(number, stranger)| (stranger.bytes, Reverse(**number))).map(|(number, it)| (*number, it))
    }
}

impl Places {
    pub(crate) fn new(most: usize, budget: usize) -> Arc<Self> {
        Arc::new(Self {
            permits: Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS))),
            budget,
            strangers: Mutex::default(),
            freed: Notify::new(),
            number: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
        })
    }

    /// Number of bytes counted for connections without a key now.
    pub(crate) fn bytes(&self) -> usize {
        self.strangers.lock().bytes
    }

    /// Waits for a free place for a new connection and occupies the place; None if the listener has closed. `known`:
    /// true for a connection that is never evicted. If no place is free for a connection without a key, another one
    /// without a key is evicted.
    pub(crate) async fn take(self: &Arc<Self>, known: bool) -> Option<Arc<Place>> {
        loop {
            let lacks_bytes = !known && self.strangers.lock().bytes + CONNECTION > self.budget;
            if !lacks_bytes {
                match self.permits.clone().try_acquire_owned() {
                    Ok(permit) => return Some(self.place(Some(permit), known)),
                    Err(TryAcquireError::Closed) => return None,
                    Err(TryAcquireError::NoPermits) => {}
                }
            }
            if known {
                self.freed.notified().await;
                continue;
            }
            let until = self.make_room(lacks_bytes);
            tokio::select! {
                biased;
                () = self.freed.notified() => {}
                () = sleep_until(until) => {}
            }
        }
    }

    /// Makes a place for a connection that is accepted while the server shuts down. The place does not count in the
    /// limit on connections.
    pub(crate) fn beyond(self: &Arc<Self>) -> Arc<Place> {
        self.place(None, true)
    }

    fn place(self: &Arc<Self>, permit: Option<OwnedSemaphorePermit>, known: bool) -> Arc<Place> {
        let number = self.number.fetch_add(1, Relaxed);
        let leave = Arc::new(Notify::new());
        if !known {
            let stranger = Stranger { since: Instant::now(), bytes: CONNECTION, leave: leave.clone(), is_told: false };
            let mut strangers = self.strangers.lock();
            strangers.all.insert(number, stranger);
            strangers.bytes += CONNECTION;
        }
        Arc::new(Place { places: self.clone(), number, known: AtomicBool::new(known), leave, permit })
    }

    /// Evicts a connection without a key if one may be evicted: the one with the most bytes if memory is short, or the
    /// oldest one after [`GRACE`]. Returns the time at which the caller should try again.
    fn make_room(&self, lacks_bytes: bool) -> Instant {
        let now = Instant::now();
        let mut strangers = self.strangers.lock();
        // A stranger told to leave makes room soon.
        if strangers.leaving > 0 {
            return now + Duration::from_millis(10);
        }
        let grown = strangers.largest().filter(|(_, stranger)| lacks_bytes && stranger.bytes > CONNECTION);
        let oldest = strangers.all.first_key_value().map(|(number, stranger)| (*number, stranger));
        let (due, until) = match (grown, oldest) {
            (Some((number, _)), _) => (Some(number), now),
            (None, Some((number, oldest))) if oldest.since + GRACE <= now => (Some(number), now),
            (None, Some((_, oldest))) => (None, oldest.since + GRACE),
            // One may be due later.
            (None, None) => (None, now + GRACE),
        };
        let Some(number) = due else { return until };
        strangers.tell(number);
        self.evicted.fetch_add(1, Relaxed);
        now + Duration::from_millis(10)
    }
}

impl Place {
    /// Marks the connection as one that has sent a key, so that it cannot be evicted and its bytes no longer count.
    pub(crate) fn make_known(&self) {
        // Most requests come on a connection that is already known: nothing is written then.
        if !self.known.load(Relaxed) && !self.known.swap(true, Relaxed) {
            self.places.strangers.lock().remove(self.number);
            self.places.freed.notify_one();
        }
    }

    pub(crate) fn is_stranger(&self) -> bool {
        !self.known.load(Relaxed)
    }

    /// Counts `bytes` more bytes for the connection if it has sent no key. If all connections without a key together
    /// exceed the memory limit, those with the most bytes are evicted.
    pub(crate) fn hold(&self, bytes: usize) {
        if !self.is_stranger() {
            return;
        }
        let places = &self.places;
        let mut strangers = places.strangers.lock();
        let Some(stranger) = strangers.all.get_mut(&self.number) else { return };
        stranger.bytes += bytes;
        let is_told = stranger.is_told;
        strangers.bytes += bytes;
        strangers.leaving += if is_told { bytes } else { 0 };
        while strangers.bytes - strangers.leaving > places.budget {
            let Some((number, _)) = strangers.largest() else { return };
            strangers.tell(number);
            places.evicted.fetch_add(1, Relaxed);
        }
    }

    /// Subtracts `bytes` bytes, which the connection no longer needs, from the bytes counted for the connection.
    pub(crate) fn release(&self, bytes: usize) {
        if !self.is_stranger() {
            return;
        }
        let mut strangers = self.places.strangers.lock();
        let Some(stranger) = strangers.all.get_mut(&self.number) else { return };
        let bytes = bytes.min(stranger.bytes);
        stranger.bytes -= bytes;
        let is_told = stranger.is_told;
        strangers.bytes -= bytes;
        strangers.leaving -= if is_told { bytes } else { 0 };
    }

    /// Waits until the connection is evicted. For a connection with a key, polling this future does not lock.
    pub(crate) async fn must_leave(&self) {
        let mut told = pin!(self.leave.notified());
        let look = |context: &mut Context<'_>| match self.known.load(Relaxed) {
            true => Poll::Pending,
            false => told.as_mut().poll(context),
        };
        std::future::poll_fn(look).await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if !*self.known.get_mut() {
            self.places.strangers.lock().remove(self.number);
        }
        drop(self.permit.take());
        self.places.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn is_told(place: &Place) -> bool {
        tokio::time::timeout(Duration::ZERO, place.must_leave()).await.is_ok()
    }

    #[tokio::test]
    async fn the_largest_stranger_gives_way_and_the_oldest_of_equals() {
        let places = Places::new(10, 5 * CONNECTION);
        let [first, second, known] = [places.place(None, false), places.place(None, false), places.place(None, false)];
        known.hold(2 * CONNECTION);
        known.make_known();
        assert_eq!(places.bytes(), 2 * CONNECTION);
        known.hold(100 * CONNECTION);
        first.hold(CONNECTION);
        second.hold(CONNECTION);
        assert!(!is_told(&first).await && !is_told(&second).await);
        second.hold(CONNECTION);
        second.release(CONNECTION);
        let third = places.place(None, false);
        third.hold(CONNECTION);
        assert!(is_told(&first).await && !is_told(&second).await && !is_told(&third).await && !is_told(&known).await);
        drop(first);
        assert_eq!((places.bytes(), places.evicted.load(Relaxed)), (4 * CONNECTION, 1));
        third.hold(5 * CONNECTION);
        assert!(is_told(&third).await && !is_told(&second).await);
    }

    #[tokio::test]
    async fn a_stranger_that_is_short_of_room_waits_until_others_have_had_their_time() {
        let places = Places::new(10, 2 * CONNECTION);
        let [first, second] = [places.take(false).await.expect("room"), places.take(false).await.expect("room")];
        let start = Instant::now();
        let leaves = async move {
            first.must_leave().await;
            drop(first);
        };
        let (third, ()) = tokio::join!(places.take(false), leaves);
        assert!(third.is_some() && start.elapsed() >= GRACE / 2 && second.is_stranger());
    }
}
