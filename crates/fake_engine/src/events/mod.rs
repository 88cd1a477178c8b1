//! Event sockets of an engine, live and replay, over real ZeroMQ: one chain of blocks, one batch per block, with faults
//! on demand.

mod sockets;

use std::io::{ErrorKind, Read as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use kvatlas_wire::{Cleared, Event};
use serde_json::json;

use self::sockets::{Interruption, Order, Sockets};
use crate::chain::{BLOCK_SIZE, payload};
use crate::net::Listener;

/// An engine's event sockets, controlled by a test. Each method returns when its work is done, unless it says
/// otherwise.
pub struct Publisher {
    /// The address of the live socket.
    pub events: String,
    /// The address of the replay socket.
    pub replay: String,
    orders: Option<Sender<Order>>,
    thread: Option<JoinHandle<()>>,
}

impl Publisher {
    /// Binds the sockets. `keeps`: number of batches for the replay socket.
    #[must_use]
    pub fn start(keeps: usize) -> Self {
        Self::start_at(keeps, 1, 0, "tcp://127.0.0.1:*", "tcp://127.0.0.1:*")
    }

    /// Binds the sockets at these addresses, with the blocks of life `life`; `blocks` of them are published before.
    #[must_use]
    pub fn start_at(keeps: usize, life: u32, blocks: u64, events: &str, replay: &str) -> Self {
        let (orders, received) = channel::<Order>();
        let (addresses, known) = channel();
        let (events, replay) = (events.to_owned(), replay.to_owned());
        let thread = std::thread::spawn(move || {
            let mut sockets = Sockets::new(keeps, life, events, replay);
            sockets.grow(blocks, false);
            sockets.bind();
            let _ = addresses.send(sockets.addresses());
            sockets.run(&received);
        });
        let (events, replay) = known.recv().expect("the sockets are bound");
        Self { events, replay, orders: Some(orders), thread: Some(thread) }
    }

    fn order(&self, order: impl FnOnce(&mut Sockets) + Send + 'static) {
        self.begin(order).recv().expect("the order is carried out");
    }

    /// Begins to carry out an order. Does not wait; the result signals the end.
    fn begin(&self, order: impl FnOnce(&mut Sockets) + Send + 'static) -> Receiver<()> {
        let (done, is_done) = channel();
        let order: Order = Box::new(move |sockets| {
            order(sockets);
            let _ = done.send(());
        });
        self.orders.as_ref().expect("it runs").send(order).expect("it runs");
        is_done
    }

    /// The registration, in JSON, by which a service follows these sockets as the worker `worker`.
    #[must_use]
    pub fn registration(&self, worker: &str, model: &str) -> String {
        let registration = json!({
            "instance_id": worker, "model_name": model, "block_size": BLOCK_SIZE,
            "endpoint": self.events, "replay_endpoint": self.replay,
        });
        registration.to_string()
    }

    /// The number of the last batch; none if there is none since the engine's start.
    #[must_use]
    pub fn last_seq(&self) -> Option<u64> {
        let (tell, told) = channel();
        self.order(move |it| _ = tell.send(it.last_seq()));
        told.recv().expect("the order is carried out")
    }

    /// Publishes a batch of these events.
    pub fn announce(&self, events: Vec<Event>) {
        self.order(move |it| _ = it.publish(payload(Some(0), events), true));
    }

    /// Publishes `batches` batches.
    pub fn publish(&self, batches: u64) {
        self.order(move |it| it.grow(batches, true));
    }

    /// Publishes `batches` batches. Does not wait; the result signals the end.
    pub fn publish_meanwhile(&self, batches: u64) -> Receiver<()> {
        self.begin(move |it| it.grow(batches, true))
    }

    /// Makes `batches` batches that are lost on the live socket.
    pub fn lose(&self, batches: u64) {
        self.order(move |it| it.grow(batches, false));
    }

    /// Sends the last `batches` batches again.
    pub fn repeat(&self, batches: u64) {
        self.order(move |it| it.repeat(batches as usize));
    }

    /// Publishes two batches in the wrong order.
    pub fn swap(&self) {
        self.order(|it| {
            it.grow(1, false);
            let first = it.last();
            it.grow(1, true);
            it.send(first.0, &first.1);
        });
    }

    /// Publishes a payload that is not a batch.
    pub fn poison(&self) {
        self.order(|it| _ = it.publish(b"\xc1 this is no batch".to_vec(), true));
    }

    /// Publishes a message with two frames.
    pub fn malformed(&self) {
        self.order(|it| it.send_frames(&[b"", b"two"]));
    }

    /// Publishes a batch that evicts all blocks of this life, each once.
    pub fn evict(&self) {
        self.order(|it| _ = it.publish(it.eviction(), true));
    }

    /// Makes a batch that evicts all blocks, but sends an unreadable payload in its place: on the live socket only, or
    /// by replay as well.
    pub fn evict_unreadably(&self, replayable: bool) {
        self.order(move |it| {
            let whole = it.eviction();
            let cut = whole[..whole.len() / 2].to_vec();
            if replayable {
                let seq = it.publish(whole, false);
                it.send(seq, &cut);
            } else {
                it.publish(cut, true);
            }
        });
    }

    /// Publishes a block whose event has an invalid token.
    pub fn publish_unreadably(&self) {
        self.order(|it| {
            let mut payload = it.next_block();
            // The first token, which is the life, becomes a string.
            let tokens = payload.windows(9).rposition(|bytes| bytes == b"token_ids").expect("a block") + 10;
            payload[tokens] = 0xa0;
            it.publish(payload, true);
        });
    }

    /// Publishes the blocks of this life once more, as an engine that announces cache hits in full.
    pub fn announce_again(&self) {
        self.order(|it| {
            for block in 0..it.blocks {
                it.publish(payload(Some(0), vec![it.chain.stored(block)]), true);
            }
        });
    }

    /// Publishes a batch with an event of an unknown type.
    pub fn publish_unknown(&self) {
        self.order(|it| {
            let mut payload = payload(Some(0), vec![Cleared.into()]);
            let tag = payload.windows(16).position(|bytes| bytes == b"AllBlocksCleared").expect("an event");
            payload[tag..tag + 16].copy_from_slice(b"BlocksSeenAsLate");
            it.publish(payload, true);
        });
    }

    /// Publishes a batch that clears everything.
    pub fn clear(&self) {
        self.announce(vec![Cleared.into()]);
    }

    /// Publishes batches alternately with a second engine at the same address, which has blocks of its own.
    pub fn publish_in_turns(&self, batches: u64) {
        self.order(move |it| {
            for _ in 0..batches {
                let other = it.stranger();
                let own = it.next_block();
                let seq = it.publish(own, true);
                it.send(seq, &other);
            }
        });
    }

    /// Restarts numbers and blocks, on the same sockets.
    pub fn rewind(&self) {
        self.order(Sockets::begin_life);
    }

    /// Restarts the engine as a new process at the same addresses.
    pub fn restart(&self) {
        self.order(|it| {
            it.close();
            it.begin_life();
            it.bind();
        });
    }

    /// Restarts the engine with a replay socket that is not available yet, and `batches` batches that no reader
    /// received.
    pub fn restart_unheard(&self, batches: u64) {
        self.order(move |it| {
            it.close();
            it.begin_life();
            it.grow(batches, false);
            it.bind_live();
        });
    }

    /// Closes both sockets.
    pub fn down(&self) {
        self.order(Sockets::close);
    }

    /// Closes the live socket, and keeps the replay socket.
    pub fn kill_live(&self) {
        self.order(Sockets::close_live);
    }

    /// Closes the replay socket.
    pub fn kill_replay(&self) {
        self.order(Sockets::close_replay);
    }

    /// Binds the replay socket again.
    pub fn revive_replay(&self) {
        self.order(Sockets::bind_replay);
    }

    /// Slows replays down: one batch per `pause`, and no end before.
    pub fn dribble(&self, pause: Duration) {
        self.order(move |it| it.dribble = Some(pause));
    }

    /// Interrupts the next replay by `batches` live batches, and sends nothing after it until the result is dropped.
    #[must_use]
    pub fn interrupt(&self, batches: u64) -> Sender<()> {
        let (resume, resumed) = channel();
        self.order(move |it| it.interruption = Some(Interruption { batches, resumed }));
        resume
    }

    /// Stops all work until the result is dropped.
    #[must_use]
    pub fn pause(&self) -> Sender<()> {
        let (resume, resumed) = channel::<()>();
        let (begun, has_begun) = channel();
        self.begin(move |_| {
            let _ = begun.send(());
            let _ = resumed.recv();
        });
        has_begun.recv().expect("the order is carried out");
        resume
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The greeting and the handshake of a socket of the given type (`PUB`, `DEALER`), without a key.
#[must_use]
pub fn greeting(socket: &str) -> Vec<u8> {
    let mut bytes = vec![0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 0];
    bytes.extend(b"NULL");
    bytes.resize(64, 0);
    let mut ready = b"\x05READY\x0bSocket-Type".to_vec();
    ready.extend((socket.len() as u32).to_be_bytes());
    ready.extend(socket.bytes());
    bytes.extend([4, ready.len() as u8]);
    bytes.extend(ready);
    bytes
}

/// A frame, with a short or a long head depending on its length.
#[must_use]
pub fn frame(more: bool, body: &[u8]) -> Vec<u8> {
    let mut bytes = match u8::try_from(body.len()) {
        Ok(length) => vec![u8::from(more), length],
        Err(_) => [&[2 | u8::from(more)][..], &(body.len() as u64).to_be_bytes()].concat(),
    };
    bytes.extend(body);
    bytes
}

/// A message of these frames.
#[must_use]
pub fn message(frames: &[&[u8]]) -> Vec<u8> {
    frames.iter().enumerate().flat_map(|(at, body)| frame(at + 1 < frames.len(), body)).collect()
}

/// Listens on a port without being an engine: sends the same bytes to every client, whatever it sends.
pub fn impostor(what: Vec<u8>) -> Listener {
    Listener::start(move |mut peer| {
        let _ = peer.write_all(&what);
        let _ = peer.set_read_timeout(Some(Duration::from_secs(5)));
        let _ = peer.read_to_end(&mut Vec::new());
    })
}

/// A publisher that completes the handshake, then writes `bytes` again and again, until the reader stops or `enough`
/// bytes are written. The second value is the number of bytes written.
pub fn flood(bytes: Vec<u8>, enough: u64) -> (Listener, Arc<AtomicU64>) {
    let written = Arc::new(AtomicU64::new(0));
    let count = written.clone();
    let listener = Listener::start(move |mut peer| {
        peer.write_all(&greeting("PUB")).expect("the handshake");
        peer.set_write_timeout(Some(Duration::from_secs(2))).expect("a timeout");
        while count.load(Relaxed) < enough {
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                match peer.write(rest) {
                    Ok(0) => return,
                    Ok(n) => {
                        rest = &rest[n..];
                        count.fetch_add(n as u64, Relaxed);
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
                    Err(_) => return,
                }
            }
        }
        let _ = peer.read_to_end(&mut Vec::new());
    });
    (listener, written)
}
