//! The topic of a stream's batches. A subscription brings every topic that begins alike, and an address may be a proxy's
//! with several publishers behind it, so each batch's topic is compared as a whole.
//!
//! Engines have one topic and count their own batches: numbers under another topic are another publisher's. A publisher
//! that sends under several topics and counts all of them in one row is told by its numbers, which follow each other
//! over the topics, or by a replay that has both. Its numbers under other topics are then batches without events, or
//! each of them would look like a gap.

use std::collections::VecDeque;

use kvatlas_stream::zmtp::Head;

use super::frames::{live_batch, reply};
use super::transport::TransportEvent;

/// A batch without events, as an engine would send it: a time, events, no rank.
const NO_EVENTS: [u8; 12] = [0x93, 0xcb, 0, 0, 0, 0, 0, 0, 0, 0, 0x90, 0xc0];
/// Numbers in a row under other topics that are remembered.
const MOST: u64 = 1 << 16;

/// Consecutive numbers under other topics: the first, and how many.
#[derive(Default)]
struct NumberRun {
    first: u64,
    count: u64,
}

impl NumberRun {
    /// Adds a number: to those before it, if it follows them.
    fn add(&mut self, seq: u64) {
        if self.count > 0 && self.count < MOST && self.first.checked_add(self.count) == Some(seq) {
            self.count += 1;
        } else {
            (self.first, self.count) = (seq, 1);
        }
    }

    fn take(&mut self) -> impl Iterator<Item = u64> + use<> {
        let Self { first, count } = std::mem::take(self);
        first..first.saturating_add(count)
    }
}

/// Tells a stream's batches on one live connection from those of other topics.
#[derive(Default)]
pub(super) struct LiveTopics {
    /// The topic of the first batch, of a stream that takes any.
    first: Option<Box<[u8]>>,
    /// True if it was told that there are several.
    is_mixed: bool,
    /// The number of the last batch, whatever its topic.
    last: Option<u64>,
    /// True if a number did not follow the one before it: then topics have numbers of their own.
    counts_apart: bool,
    skipped: NumberRun,
    queue: VecDeque<TransportEvent<Vec<u8>>>,
}

impl LiveTopics {
    /// Returns an event that is still to be told.
    pub(super) fn next(&mut self) -> Option<TransportEvent<Vec<u8>>> {
        self.queue.pop_front()
    }

    /// Returns the event that a message is. `topic`: the stream's, empty if it takes any.
    pub(super) fn read(&mut self, topic: &str, head: &Head, payload: Vec<u8>) -> TransportEvent<Vec<u8>> {
        let its = head.back(1).unwrap_or_default();
        let event = live_batch(head, payload);
        let TransportEvent::Live { seq, .. } = event else { return event };
        if topic.is_empty() {
            return self.of_any(its, event);
        }
        let follows = self.last.replace(seq).is_none_or(|last| last.checked_add(1) == Some(seq));
        self.counts_apart |= !follows;
        if its != topic.as_bytes() {
            self.skipped.add(seq);
            return TransportEvent::OtherTopic(its.into());
        }
        let skipped = self.skipped.take();
        if self.counts_apart {
            return event;
        }
        let mut empty = skipped.map(|seq| TransportEvent::Live { seq, payload: NO_EVENTS.into() });
        let Some(first) = empty.next() else { return event };
        self.queue.extend(empty);
        self.queue.push_back(event);
        first
    }

    fn of_any(&mut self, its: &[u8], event: TransportEvent<Vec<u8>>) -> TransportEvent<Vec<u8>> {
        let first = self.first.get_or_insert_with(|| its.into());
        if self.is_mixed || **first == *its {
            return event;
        }
        self.is_mixed = true;
        self.queue.push_back(event);
        TransportEvent::SeveralTopics(first.clone(), its.into())
    }
}

/// Tells a stream's batches on one replay connection from those of other topics.
#[derive(Default)]
pub(super) struct ReplayTopics {
    /// True if the stream's topic came: what else comes is of the same publisher.
    is_ours: bool,
    skipped: NumberRun,
    queue: VecDeque<TransportEvent<Vec<u8>>>,
}

impl ReplayTopics {
    /// Returns an event that is still to be told.
    pub(super) fn next(&mut self) -> Option<TransportEvent<Vec<u8>>> {
        self.queue.pop_front()
    }

    /// Returns the event that an answer is. Answers of older engines have no topic.
    pub(super) fn read(&mut self, topic: &str, head: &Head, payload: Vec<u8>) -> TransportEvent<Vec<u8>> {
        let event = reply(head, payload);
        let TransportEvent::Reply { seq, .. } = event else {
            self.skipped = NumberRun::default();
            return event;
        };
        if topic.is_empty() || head.frames() != Some(3) {
            return event;
        }
        let its = head.back(1).unwrap_or_default();
        let empty = |seq| TransportEvent::Reply { seq, payload: NO_EVENTS.into() };
        if its != topic.as_bytes() {
            if self.is_ours {
                self.queue.push_back(empty(seq));
            } else {
                self.skipped.add(seq);
            }
            return TransportEvent::OtherTopic(its.into());
        }
        self.is_ours = true;
        let mut skipped = self.skipped.take().map(empty);
        let Some(first) = skipped.next() else { return event };
        self.queue.extend(skipped);
        self.queue.push_back(event);
        first
    }
}

#[cfg(test)]
mod tests {
    use super::NO_EVENTS;

    #[test]
    fn a_batch_without_events_can_be_read() {
        let mut decoder = kvatlas_wire::Decoder::default();
        let batch = decoder.decode(&NO_EVENTS).expect("a batch");
        assert_eq!((batch.events.len(), batch.refused.len(), batch.rank), (0, 0, None));
    }
}
