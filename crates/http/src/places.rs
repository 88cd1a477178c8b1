//! Room for connections. Where there is a key, those that have not shown it give way to new ones: whoever only connects
//! cannot keep the others out.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep_until};

use crate::lock;

/// Everybody has this long to show a key.
const GRACE: Duration = Duration::from_millis(500);

/// The places of one listener.
pub(crate) struct Places {
    permits: Arc<Semaphore>,
    /// Connections that have shown no key, in the order of their coming.
    strangers: Mutex<BTreeMap<u64, Stranger>>,
    number: AtomicU64,
    /// Connections that had to give way.
    pub(crate) evicted: AtomicU64,
}

struct Stranger {
    since: Instant,
    leave: Arc<Notify>,
}

/// A connection's place.
pub struct Place {
    places: Arc<Places>,
    number: u64,
    known: AtomicBool,
    leave: Arc<Notify>,
    _permit: Option<OwnedSemaphorePermit>,
}

impl Places {
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self {
            permits: Arc::new(Semaphore::new(most.min(Semaphore::MAX_PERMITS))),
            strangers: Mutex::default(),
            number: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
        })
    }

    /// Returns a place, as soon as there is one. `give_way`: true if those without a key have to leave if there is
    /// none.
    pub(crate) async fn take(self: &Arc<Self>, give_way: bool) -> Option<Arc<Place>> {
        let permit = match self.permits.clone().try_acquire_owned() {
            Ok(permit) => permit,
            Err(_) if give_way => self.make_room().await?,
            Err(_) => self.permits.clone().acquire_owned().await.ok()?,
        };
        Some(self.place(Some(permit), !give_way))
    }

    /// A place besides all others, for whoever has connected when none is given any more.
    pub(crate) fn beyond(self: &Arc<Self>) -> Arc<Place> {
        self.place(None, true)
    }

    /// Makes a place. `known`: true if it need never give way.
    fn place(self: &Arc<Self>, permit: Option<OwnedSemaphorePermit>, known: bool) -> Arc<Place> {
        let number = self.number.fetch_add(1, Relaxed);
        let leave = Arc::new(Notify::new());
        if !known {
            lock(&self.strangers).insert(number, Stranger { since: Instant::now(), leave: leave.clone() });
        }
        Arc::new(Place { places: self.clone(), number, known: AtomicBool::new(known), leave, _permit: permit })
    }

    async fn make_room(&self) -> Option<OwnedSemaphorePermit> {
        let free = self.permits.clone().acquire_owned();
        tokio::pin!(free);
        loop {
            let until = lock(&self.strangers).first_key_value().map(|(_, stranger)| stranger.since + GRACE);
            // Without a stranger there may be one later: a connection that becomes known makes no room.
            let until = until.unwrap_or_else(|| Instant::now() + GRACE);
            tokio::select! {
                biased;
                permit = &mut free => return permit.ok(),
                () = sleep_until(until) => {}
            }
            let mut strangers = lock(&self.strangers);
            let due = strangers.first_entry().filter(|first| first.get().since + GRACE <= Instant::now());
            if let Some(first) = due {
                first.remove().leave.notify_one();
                self.evicted.fetch_add(1, Relaxed);
            }
        }
    }
}

impl Place {
    /// The connection has shown a key: it keeps its place.
    pub fn is_known(&self) {
        // Of most requests it is known already: the word is then not written.
        if !self.known.load(Relaxed) && !self.known.swap(true, Relaxed) {
            lock(&self.places.strangers).remove(&self.number);
        }
    }

    /// Waits until the connection has to give way. For one that is known this costs no lock each time that it is looked at.
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
            lock(&self.places.strangers).remove(&self.number);
        }
    }
}
