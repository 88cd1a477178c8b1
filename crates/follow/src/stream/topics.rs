//! Conversion of an engine's messages to batches of a stream, by their frames and topic. A ZeroMQ subscription receives
//! every topic that begins with the given text, and several publishers may be behind one address (a proxy's), so each
//! message's topic is compared as a whole.
//!
//! An engine publishes under one topic and numbers its own batches; sequence numbers under another topic are another
//! publisher's. A publisher that uses several topics with one sequence of numbers is recognized because its numbers are
//! consecutive over all topics, or because a replay has several topics. Its batches under other topics then count as
//! batches without events, as each would otherwise look like a gap.

use std::collections::VecDeque;

use kvatlas_stream::zmtp::Head;

use super::transport::TransportEvent;

/// Payload of a batch without events, in the form that engines send: a timestamp, no events, no rank.
const NO_EVENTS: [u8; 12] = [0x93, 0xcb, 0, 0, 0, 0, 0, 0, 0, 0, 0x90, 0xc0];
/// Maximum number of consecutive sequence numbers under other topics that are remembered.
const MOST: u64 = 1 << 16;

/// Range of consecutive sequence numbers that were received under other topics than the stream's.
#[derive(Default)]
struct NumberRun {
    first: u64,
    count: u64,
}

impl NumberRun {
    /// Extends the range by a number if it is the next one, else begins a new range with it.
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

/// Filter for the messages of one live connection, which passes batches with the stream's topic.
#[derive(Default)]
pub(super) struct LiveTopics {
    /// Topic of the first batch, for a stream that accepts any topic; `None` before the first.
    first: Option<Box<[u8]>>,
    /// True if it has been reported that several topics are received.
    is_mixed: bool,
    /// Sequence number of the last batch under any topic; `None` before the first.
    last: Option<u64>,
    /// True if batches are numbered separately for each topic, as shown by numbers that are not consecutive over all
    /// topics.
    counts_apart: bool,
    skipped: NumberRun,
    queue: VecDeque<TransportEvent<Vec<u8>>>,
}

impl LiveTopics {
    /// Removes and returns the next queued event; `None` if the queue is empty.
    pub(super) fn next(&mut self) -> Option<TransportEvent<Vec<u8>>> {
        self.queue.pop_front()
    }

    /// Converts a message of the live connection to an event. `topic` is the stream's topic; empty if it accepts any.
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

/// Filter for the messages of one replay connection, which passes batches with the stream's topic.
#[derive(Default)]
pub(super) struct ReplayTopics {
    /// True if a batch with the stream's topic was received over the connection, so that batches under other topics
    /// come from the same publisher.
    is_ours: bool,
    skipped: NumberRun,
    queue: VecDeque<TransportEvent<Vec<u8>>>,
}

impl ReplayTopics {
    /// Removes and returns the next queued event; `None` if the queue is empty.
    pub(super) fn next(&mut self) -> Option<TransportEvent<Vec<u8>>> {
        self.queue.pop_front()
    }

    /// Converts an answer of the replay socket to an event. Answers of older engines have no topic.
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

/// Converts a live message of three frames to an event. The frames are topic, sequence number and payload.
pub(super) fn live_batch(head: &Head, payload: Vec<u8>) -> TransportEvent<Vec<u8>> {
    match (head.frames(), number(head)) {
        (Some(2), Some(seq)) if seq != u64::MAX => TransportEvent::Live { seq, payload },
        _ => TransportEvent::BadFrames,
    }
}

/// Converts an answer of the replay socket to an event. The frames are an empty one, the topic (missing in older
/// engines), the sequence number and the payload. The sequence number -1 marks the end of the answer.
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
