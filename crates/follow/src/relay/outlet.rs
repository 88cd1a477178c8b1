//! Queue of one stream's changes that have not been published to the NATS log yet.
//!
//! The stream's task adds to the queue and never waits. If the queues of all streams together exceed their limit, the
//! queue to which a change is being added is dropped: one message number is skipped, and no changes are added until a
//! full state of the stream follows. Readers notice the gap in the numbers, and receive the full state.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use kvatlas_wire::compact::{Frame, MOST_BLOCKS, MessageWriter, Status, weight};
use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit, mpsc};

use super::Relay;

/// Size of a message, in bytes, above which no further frame is added. NATS accepts messages of up to 1 MiB by default,
/// and a frame cannot be split.
const MESSAGE: usize = 128 << 10;
/// Assumed memory overhead of a queued frame, in bytes, in addition to its contents.
const OVERHEAD: usize = 64;
/// Time in the queue to the NATS log after which a message is marked as late when it is sent.
const LATE: Duration = Duration::from_secs(2);

/// Queue of one stream's changes that wait to be published to the NATS log.
#[derive(Debug)]
pub(crate) struct Outlet {
    pub(super) relay: Arc<Relay>,
    pub(crate) subject: String,
    /// Hash of the stream's subject, used in message identifiers, which must be unique in the whole log.
    pub(super) named: u64,
    pub(super) writer: MessageWriter,
    queue: Mutex<Queue>,
    pub(super) added: Notify,
    asked: mpsc::Sender<()>,
    asks: Mutex<mpsc::Receiver<()>>,
    closed: AtomicBool,
}

#[derive(Debug, Default)]
struct Queue {
    items: VecDeque<Item>,
    bytes: usize,
    /// True while changes are dropped, until the stream's full state (all held blocks) is next published.
    broken: bool,
    /// Status of the stream as of the last change that was queued for the NATS log.
    told: Status,
    /// Status of the stream as of the last message that was sent to the NATS log.
    sent: Status,
    next_id: u64,
}

#[derive(Debug)]
struct Item {
    bytes: Vec<u8>,
    /// Number of blocks in the queued changes of the stream.
    blocks: u64,
    status: Option<Status>,
    timestamp: f64,
    at: Instant,
    /// Permit to copy the stream's held blocks, released when the queued frame with the copy has been sent.
    permit: Option<OwnedSemaphorePermit>,
}

/// Message that is being sent to the NATS log.
#[derive(Debug)]
pub(super) struct Envelope {
    pub(super) id: u64,
    pub(super) payload: bytes::Bytes,
    /// Memory that the message occupied in the queue, in bytes.
    pub(super) size: usize,
    status: Status,
    /// Time at which the first change in the message was queued.
    since: Instant,
}

impl Envelope {
    /// Marks a message that is to be sent again as late, if too much time has passed since it was queued.
    pub(super) fn note_late(&mut self) {
        if self.since.elapsed() > LATE && !std::mem::replace(&mut self.status.late, true) {
            let mut payload = Vec::from(std::mem::take(&mut self.payload));
            // Of two the last counts.
            MessageWriter::put(&mut payload, Frame::Status(self.status));
            self.payload = payload.into();
        }
    }
}

impl Outlet {
    pub(super) fn new(relay: Arc<Relay>, subject: String, writer: MessageWriter) -> Self {
        let (asked, asks) = mpsc::channel(1);
        Self {
            relay,
            named: xxhash_rust::xxh3::xxh3_64(subject.as_bytes()),
            subject,
            writer,
            queue: Mutex::default(),
            added: Notify::new(),
            asked,
            asks: Mutex::new(asks),
            closed: AtomicBool::new(false),
        }
    }

    /// Publishes that no rank of the stream holds any block, when the stream's task begins and after a clear. This is a
    /// complete state of the stream for readers.
    pub(crate) fn forget_all(&self) {
        self.frame(Frame::Forgotten, 0.0);
    }

    /// Publishes the changes that a batch makes to the blocks held by a rank. `timestamp` is the engine's time of the
    /// batch, in seconds since 1970.
    pub(crate) fn batch(&self, rank: u32, changes: &[u8], timestamp: f64) {
        let frame = Frame::Batch { rank, changes };
        if blocks_of(frame) > MOST_BLOCKS {
            tracing::warn!(subject = self.subject, "a batch is of more blocks than a message may be: all is told anew");
            return self.break_off();
        }
        self.frame(frame, timestamp);
    }

    /// Publishes one frame of the stream's full state (all held blocks), which begins with [`Frame::StateBegin`].
    /// `permit` is the permit to copy the stream, released once the frame is sent.
    pub(crate) fn state(&self, frame: Frame<'_>, permit: Option<OwnedSemaphorePermit>) {
        if frame == Frame::StateBegin {
            self.relay.counts.states.fetch_add(1, Relaxed);
            let mut queue = self.queue.lock();
            if std::mem::take(&mut queue.broken) {
                // What was to tell it was dropped too.
                queue.sent = queue.told;
            }
        }
        let mut bytes = Vec::new();
        MessageWriter::put(&mut bytes, frame);
        self.push(
            Item { bytes, blocks: blocks_of(frame), status: None, timestamp: 0.0, at: Instant::now(), permit },
            true,
        );
    }

    /// Publishes the stream's status, if it has changed.
    pub(crate) fn status(&self, status: Status) {
        if std::mem::replace(&mut self.queue.lock().told, status) != status {
            let mut bytes = Vec::new();
            MessageWriter::put(&mut bytes, Frame::Status(status));
            let item =
                Item { bytes, blocks: 0, status: Some(status), timestamp: 0.0, at: Instant::now(), permit: None };
            self.push(item, false);
        }
    }

    /// Drops the queued changes, so that readers miss them, and requests that the stream's task publish all held blocks
    /// for the readers.
    pub(crate) fn break_off(&self) {
        self.break_queue(&mut self.queue.lock());
        self.ask();
    }

    /// Returns a sender of requests for the stream's full state, which has the effect of [`ask`](Self::ask).
    pub(super) fn asker(&self) -> mpsc::Sender<()> {
        self.asked.clone()
    }

    /// Requests that the stream's task publish the full state (all held blocks).
    pub(crate) fn ask(&self) {
        // One pending request serves all readers.
        let _ = self.asked.try_send(());
    }

    /// Polls for a request to publish the stream's full state (all held blocks).
    pub(crate) fn poll_asked(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.asks.lock().poll_recv(cx).map(drop)
    }

    /// Returns a permit to copy the stream's held blocks for the NATS log. `None` if another stream is being copied,
    /// the log is not connected, or the queues are too full.
    pub(crate) fn may_copy(&self) -> Option<OwnedSemaphorePermit> {
        let relay = &self.relay;
        let room = relay.buffered.load(Relaxed) < relay.config.buffer_bytes / 2;
        if room && relay.is_connected() { relay.copying.clone().try_acquire_owned().ok() } else { None }
    }

    /// Returns the description of the current problem with the NATS log; `None` if the log works.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.relay.link.trouble()
    }

    /// Publishes that the stream has ended. Changes of the stream after this call are ignored.
    pub(crate) fn close(&self) {
        self.frame(Frame::Gone, 0.0);
        self.closed.store(true, Relaxed);
        self.added.notify_one();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Relaxed)
    }

    fn frame(&self, frame: Frame<'_>, timestamp: f64) {
        let mut bytes = Vec::new();
        MessageWriter::put(&mut bytes, frame);
        let blocks = blocks_of(frame);
        self.push(Item { bytes, blocks, status: None, timestamp, at: Instant::now(), permit: None }, false);
    }

    fn push(&self, item: Item, always: bool) {
        let size = item.bytes.len() + OVERHEAD;
        let mut queue = self.queue.lock();
        let relay = &self.relay;
        if !queue.broken && !always && relay.buffered.load(Relaxed) + size > relay.config.buffer_bytes {
            self.break_queue(&mut queue);
            tracing::warn!(subject = self.subject, "the queue to the log is full: what waited in it is dropped");
            self.ask();
        }
        if queue.broken {
            relay.counts.dropped.fetch_add(1, Relaxed);
            return;
        }
        relay.buffered.fetch_add(size, Relaxed);
        queue.bytes += size;
        queue.items.push_back(item);
        drop(queue);
        self.added.notify_one();
    }

    fn break_queue(&self, queue: &mut Queue) {
        self.relay.counts.dropped.fetch_add(queue.items.len() as u64, Relaxed);
        self.relay.buffered.fetch_sub(queue.bytes, Relaxed);
        queue.items.clear();
        (queue.bytes, queue.broken) = (0, true);
        queue.next_id += 1;
    }

    /// Makes the next message for the NATS log from queued changes. If no changes are queued, returns a heartbeat if
    /// `beats` is true, else `None`.
    pub(super) fn pack(&self, beats: bool) -> Option<Envelope> {
        let mut queue = self.queue.lock();
        if queue.items.is_empty() && !beats {
            return None;
        }
        let oldest = queue.items.front().map(|item| item.at);
        let id = queue.next_id;
        queue.next_id += 1;
        let mut timestamp = 0.0;
        let (mut frames, mut size, mut blocks) = (Vec::new(), 0, 0);
        while let Some(item) = queue.items.front() {
            blocks += item.blocks;
            if !frames.is_empty() && (frames.len() + item.bytes.len() > MESSAGE || blocks > MOST_BLOCKS) {
                break;
            }
            let Some(item) = queue.items.pop_front() else { break };
            frames.extend(&item.bytes);
            size += item.bytes.len() + OVERHEAD;
            if item.timestamp > 0.0 {
                timestamp = item.timestamp;
            }
            queue.sent = item.status.unwrap_or(queue.sent);
            // With it goes the permit.
            drop(item.permit);
        }
        queue.bytes -= size;
        let since = oldest.unwrap_or_else(Instant::now);
        let late = since.elapsed() > LATE;
        let mut status = Status { late, ..queue.sent };
        if queue.broken {
            status.trusted = false;
        }
        MessageWriter::put(&mut frames, Frame::Status(status));
        drop(queue);
        let mut payload = self.writer.begin(id, timestamp, frames.len());
        payload.extend(&frames);
        Some(Envelope { id, payload: payload.into(), size, status, since })
    }

    /// Subtracts the memory of a message that NATS has acknowledged, or that was given up, from the memory of all
    /// queues.
    pub(super) fn note_arrival(&self, packed: &Envelope) {
        self.relay.buffered.fetch_sub(packed.size, Relaxed);
    }
}

/// Counts the blocks in a frame (a part of a message with changes of one rank's blocks).
fn blocks_of(frame: Frame<'_>) -> u64 {
    let (Frame::Batch { changes, .. } | Frame::State { changes, .. }) = frame else { return 0 };
    // They are our own.
    weight(changes).unwrap_or(0)
}

impl Drop for Outlet {
    fn drop(&mut self) {
        self.relay.buffered.fetch_sub(self.queue.lock().bytes, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use kvatlas_wire::compact::Message;

    use super::*;

    const TRUSTED: Status =
        Status { trusted: true, partial: false, upper_bound: false, no_salts: false, late: false, unverified: false };

    fn outlet() -> Outlet {
        let writer = MessageWriter { life: 1, block_size: 16, key: 0 };
        Outlet::new(Arc::default(), "kvatlas.g.m.w.0".to_owned(), writer)
    }

    /// Returns the last status of the stream in a message, which is the valid one for the message's readers.
    fn status(packed: &Envelope) -> Option<Status> {
        let status = |frame| if let Ok(Frame::Status(status)) = frame { Some(status) } else { None };
        Message::read(&packed.payload).expect("a message").frames().filter_map(status).last()
    }

    #[test]
    fn a_status_that_was_dropped_with_the_queue_is_told_with_the_state() {
        for lost in [true, false] {
            let outlet = outlet();
            outlet.status(TRUSTED);
            assert_eq!(outlet.pack(false).as_ref().and_then(status), Some(TRUSTED));
            if lost {
                outlet.status(Status::default());
                outlet.break_off();
            } else {
                outlet.break_off();
                outlet.status(Status::default());
            }
            outlet.state(Frame::StateBegin, None);
            outlet.state(Frame::StateEnd, None);
            let told = outlet.pack(false).as_ref().and_then(status);
            assert_eq!(told, Some(Status::default()), "the engine is not trusted any more");
        }
    }

    #[test]
    fn what_is_sent_again_much_later_says_so() {
        let outlet = outlet();
        outlet.status(TRUSTED);
        let mut packed = outlet.pack(false).expect("a message");
        packed.note_late();
        assert_eq!(status(&packed), Some(TRUSTED));
        packed.since -= LATE + Duration::from_millis(1);
        packed.note_late();
        let late = packed.payload.clone();
        packed.note_late();
        assert_eq!((status(&packed), &packed.payload), (Some(Status { late: true, ..TRUSTED }), &late));
    }
}
