//! The log of a relay without NATS: its last messages, in memory.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::watch;

/// Bytes that a message takes besides its own.
const OVERHEAD: usize = 128;

/// The last messages of all streams.
#[derive(Debug)]
pub(crate) struct Ring {
    state: Mutex<State>,
    /// The place behind the last one.
    end: watch::Sender<u64>,
    most: usize,
    longest: Duration,
}

#[derive(Debug)]
struct State {
    entries: VecDeque<(Instant, Entry)>,
    /// The place of the first of them.
    first: u64,
    bytes: usize,
}

/// A message that is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) sequence: u64,
    pub(crate) subject: Arc<str>,
    pub(crate) payload: Bytes,
}

impl State {
    fn end(&self) -> u64 {
        self.first + self.entries.len() as u64
    }
}

impl Ring {
    /// Keeps so many bytes, for so long.
    pub(crate) fn new(most: usize, longest: Duration) -> Arc<Self> {
        // Places of one process are not those of another: they begin with the time, and are used up more slowly than it passes.
        let first = (SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)) << 20;
        let state = Mutex::new(State { entries: VecDeque::new(), first, bytes: 0 });
        Arc::new(Self { state, end: watch::Sender::new(first), most, longest })
    }

    pub(crate) fn push(&self, subject: &Arc<str>, payload: Bytes) {
        let mut state = self.state.lock();
        let now = Instant::now();
        state.bytes += payload.len() + OVERHEAD;
        let kept = Entry { sequence: state.end(), subject: subject.clone(), payload };
        state.entries.push_back((now, kept));
        // The last one is always there.
        while state.entries.len() > 1
            && let Some((at, kept)) = state.entries.front()
            && (state.bytes > self.most || now.duration_since(*at) > self.longest)
        {
            state.bytes -= kept.payload.len() + OVERHEAD;
            state.first += 1;
            state.entries.pop_front();
        }
        let end = state.end();
        drop(state);
        self.end.send_replace(end);
    }

    /// The place of the first message that is kept, and the one behind the last.
    pub(crate) fn range(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.first, state.end())
    }

    pub(crate) fn watch(&self) -> watch::Receiver<u64> {
        self.end.subscribe()
    }

    /// Messages from a place on, or from the first on that is kept: about so many bytes.
    pub(crate) fn after(&self, from: u64, most: usize) -> Vec<Entry> {
        let state = self.state.lock();
        let skipped = from.saturating_sub(state.first).min(state.entries.len() as u64) as usize;
        let mut bytes = 0;
        let is_within = |kept: &&(Instant, Entry)| {
            let before = bytes;
            bytes += kept.1.payload.len();
            before < most
        };
        state.entries.range(skipped..).take_while(is_within).map(|(_, kept)| kept.clone()).collect()
    }

    /// The message at a place, if it is kept.
    pub(crate) fn at(&self, place: u64) -> Option<Entry> {
        let state = self.state.lock();
        let at = usize::try_from(place.checked_sub(state.first)?).ok()?;
        state.entries.get(at).map(|(_, kept)| kept.clone())
    }

    /// The last message of each stream, in order.
    pub(crate) fn latest(&self) -> Vec<Entry> {
        let state = self.state.lock();
        let latest: HashMap<&str, &Entry> = state.entries.iter().map(|(_, kept)| (&*kept.subject, kept)).collect();
        let mut latest: Vec<Entry> = latest.into_values().cloned().collect();
        latest.sort_by_key(|kept| kept.sequence);
        latest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(kept: &[Entry], first: u64) -> Vec<u64> {
        kept.iter().map(|kept| kept.sequence - first).collect()
    }

    #[test]
    fn the_last_messages_are_kept_by_their_places() {
        let ring = Ring::new(4 * (OVERHEAD + 100), Duration::from_secs(600));
        let (first, end) = ring.range();
        assert_eq!((first, ring.after(first, 1000), ring.latest()), (end, Vec::new(), Vec::new()));
        let subjects: [Arc<str>; 2] = ["a".into(), "b".into()];
        for at in 0..6 {
            ring.push(&subjects[usize::from(at > 2)], Bytes::from(vec![at; 100]));
        }
        assert_eq!(ring.range(), (first + 2, first + 6));
        assert_eq!(places(&ring.after(first, 1000), first), [2, 3, 4, 5], "two are gone");
        assert_eq!(places(&ring.after(first + 4, 1000), first), [4, 5]);
        assert_eq!(places(&ring.after(first + 2, 150), first), [2, 3], "so many bytes are begun");
        assert!(ring.after(first + 6, 1000).is_empty() && ring.after(u64::MAX, 1000).is_empty());
        assert_eq!(places(&ring.latest(), first), [2, 5]);
        assert_eq!(*ring.watch().borrow(), first + 6);
        let at = |place: u64| ring.at(first + place).map(|kept| kept.sequence - first);
        assert_eq!([1, 2, 5, 6].map(at), [None, Some(2), Some(5), None]);
        ring.push(&subjects[0], Bytes::from(vec![0; 10_000]));
        assert_eq!(places(&ring.after(first, 1000), first), [6], "the last one is kept, however long");
    }

    #[test]
    fn what_is_old_is_kept_no_longer() {
        let ring = Ring::new(1 << 20, Duration::ZERO);
        for _ in 0..3 {
            ring.push(&"a".into(), Bytes::from_static(b"x"));
            std::thread::sleep(Duration::from_millis(1));
        }
        let (first, end) = ring.range();
        assert_eq!(end - first, 1);
    }
}
