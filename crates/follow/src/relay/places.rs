//! So many places, of which the one whose holder was not heard for longest is given to the next who comes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::oneshot;

/// Places for so many.
#[derive(Debug)]
pub(super) struct Places {
    most: usize,
    /// Whoever was heard within this time keeps its place.
    kept: Duration,
    taken: Mutex<Occupants>,
}

#[derive(Debug, Default)]
struct Occupants {
    next: u64,
    /// When each was last heard, and what ends when it is to go.
    all: BTreeMap<u64, (Instant, oneshot::Sender<()>)>,
}

/// One of them; it is free when this is dropped.
#[derive(Debug)]
pub(super) struct Place {
    places: Arc<Places>,
    number: u64,
    /// Ends when the place is another's.
    pub(super) lost: oneshot::Receiver<()>,
}

impl Places {
    pub(super) fn new(most: usize, kept: Duration) -> Arc<Self> {
        Arc::new(Self { most, kept, taken: Mutex::default() })
    }

    /// A place, if there is one.
    pub(super) fn take(self: &Arc<Self>) -> Option<Place> {
        let now = Instant::now();
        let mut taken = self.taken.lock();
        if taken.all.len() >= self.most {
            let (silent, heard) =
                taken.all.iter().map(|(number, (heard, _))| (*number, *heard)).min_by_key(|(_, heard)| *heard)?;
            if now.duration_since(heard) < self.kept {
                return None;
            }
            taken.all.remove(&silent);
        }
        let (stay, lost) = oneshot::channel();
        let number = taken.next;
        taken.next += 1;
        taken.all.insert(number, (now, stay));
        Some(Place { places: self.clone(), number, lost })
    }
}

impl Place {
    /// Notes that the place's holder was heard.
    pub(super) fn hear(&self) {
        if let Some((heard, _)) = self.places.taken.lock().all.get_mut(&self.number) {
            *heard = Instant::now();
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.taken.lock().all.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_was_silent_for_longest_gives_way() {
        let places = Places::new(2, Duration::ZERO);
        let mut all: Vec<Place> = (0..2).filter_map(|_| places.take()).collect();
        all[0].hear();
        let third = places.take().expect("one gives way");
        assert!(all[1].lost.try_recv().is_err_and(|error| error == oneshot::error::TryRecvError::Closed));
        assert!(all[0].lost.try_recv().is_err_and(|error| error == oneshot::error::TryRecvError::Empty));
        drop(all);
        assert_eq!(places.taken.lock().all.len(), 1);
        drop(third);
        assert!(places.taken.lock().all.is_empty());
    }

    #[test]
    fn who_was_just_heard_does_not() {
        let places = Places::new(1, Duration::from_secs(60));
        let one = places.take().expect("there is room");
        assert!(places.take().is_none());
        drop(one);
        assert!(places.take().is_some());
    }
}
