//! Messages of an engine as batches of a stream: their frames, and their topic. A subscription brings every topic with
//! the same beginning, and an address may be a proxy's with several publishers behind it, so each topic is compared as
//! a whole.
//!
//! Engines have one topic and count their own batches: sequence numbers under another topic are another publisher's. A
//! publisher that sends under several topics with one count is recognized by its numbers, which are consecutive over
//! all topics, or by a replay that has both. Its numbers under other topics then count as batches without events, as
//! each would otherwise look like a gap.

use std::collections::VecDeque;

use kvatlas_stream::zmtp::Head;

use super::transport::TransportEvent;

/// Payload of a batch without events, as an engine would send it: a time, no events, no rank.
const NO_EVENTS: [u8; 12] = [0x93, 0xcb, 0, 0, 0, 0, 0, 0, 0, 0, 0x90, 0xc0];
/// Maximum number of consecutive sequence numbers under other topics that are remembered.
const MOST: u64 = 1 << 16;

/// Run of consecutive sequence numbers under other topics than the stream's.
#[derive(Default)]
struct NumberRun {
    first: u64,
    count: u64,
}

impl NumberRun {
    /// Appends a number if it is the next one, else begins a new run with it.
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

/// Filter of one live connection, which passes batches of the stream's topic.
#[derive(Default)]
pub(super) struct LiveTopics {
    /// Topic of the first batch, for a stream that takes any topic.
    first: Option<Box<[u8]>>,
    /// True if it was reported that several topics were received.
    is_mixed: bool,
    /// Sequence number of the last batch under any topic.
    last: Option<u64>,
    /// True if each topic has its own count, as numbers are not consecutive over all topics.
    counts_apart: bool,
    skipped: NumberRun,
    queue: VecDeque<TransportEvent<Vec<u8>>>,
}

impl LiveTopics {
    /// Takes the next queued event; `None` if the queue is empty.
    pub(super) fn next(&mut self) -> Option<TransportEvent<Vec<u8>>> {
        self.queue.pop_front()
    }

    /// Event for a message of the live connection. `topic`: the stream's, empty if it takes any.
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

/// Filter of one replay connection, which passes batches of the stream's topic.
#[derive(Default)]
pub(super) struct ReplayTopics {
    /// True if a batch of the stream's topic came, so that batches under other topics are from the same publisher.
    is_ours: bool,
    skipped: NumberRun,
    queue: VecDeque<TransportEvent<Vec<u8>>>,
}

impl ReplayTopics {
    /// Takes the next queued event; `None` if the queue is empty.
    pub(super) fn next(&mut self) -> Option<TransportEvent<Vec<u8>>> {
        self.queue.pop_front()
    }

    /// Event for an answer of the replay socket. Answers of older engines have no topic.
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

/// Event for a live message of three frames: topic, sequence number, payload.
pub(super) fn live_batch(head: &Head, payload: Vec<u8>) -> TransportEvent<Vec<u8>> {
    match (head.frames(), number(head)) {
        (Some(2), Some(seq)) if seq != u64::MAX => TransportEvent::Live { seq, payload },
        _ => TransportEvent::BadFrames,
    }
}

/// Event for an answer of the replay socket: an empty frame, topic (not from older engines), sequence number, payload.
/// Number -1 marks the end.
fn reply(head: &Head, payload: Vec<u8>) -> TransportEvent<Vec<u8>> {
    match (head.frames(), number(head)) {
        (Some(2 | 3), Some(u64::MAX)) => TransportEvent::ReplyEnd,
        (Some(2 | 3), Some(seq)) => TransportEvent::Reply { seq, payload },
        _ => TransportEvent::BadFrames,
    }
}

fn number(head: &Head) -> Option<u64> {
    Some(u64::from_be_bytes(head.back(0)?.try_into().ok()?))
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
