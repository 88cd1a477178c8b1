//! Event sockets of a simulated engine, live and replay, over real ZeroMQ: one chain of blocks, one batch per block,
//! with faults on demand.

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

/// Event sockets of a simulated engine, controlled by a test. Each method returns when its work is done, unless
/// documented otherwise.
pub struct Publisher {
    /// Address of the live socket, which publishes batches.
    pub events: String,
    /// Address of the replay socket, which sends kept batches again.
    pub replay: String,
    orders: Option<Sender<Order>>,
    thread: Option<JoinHandle<()>>,
}

impl Publisher {
    /// Binds the sockets. `keeps`: number of recent batches that the replay socket can send again.
    #[must_use]
    pub fn start(keeps: usize) -> Self {
        Self::start_at(keeps, 1, 0, "tcp://127.0.0.1:*", "tcp://127.0.0.1:*")
    }

    /// Binds the sockets at the given addresses, after `blocks` blocks were published. `life`: number of the engine's
    /// restarts, which determines the blocks.
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

    /// Passes work to the sockets' thread without waiting. The returned receiver signals the end of the work.
    fn begin(&self, order: impl FnOnce(&mut Sockets) + Send + 'static) -> Receiver<()> {
        let (done, is_done) = channel();
        let order: Order = Box::new(move |sockets| {
            order(sockets);
            let _ = done.send(());
        });
        self.orders.as_ref().expect("it runs").send(order).expect("it runs");
        is_done
    }

    /// Body of a registration request, in JSON, by which a service receives the events of these sockets for the worker
    /// `worker`.
    #[must_use]
    pub fn registration(&self, worker: &str, model: &str) -> String {
        let registration = json!({
            "instance_id": worker, "model_name": model, "block_size": BLOCK_SIZE,
            "endpoint": self.events, "replay_endpoint": self.replay,
        });
        registration.to_string()
    }

    /// Sequence number of the last batch; `None` if nothing was published since the engine's start.
    #[must_use]
    pub fn last_seq(&self) -> Option<u64> {
        let (tell, told) = channel();
        self.order(move |it| _ = tell.send(it.last_seq()));
        told.recv().expect("the order is carried out")
    }

    /// Publishes a batch of the given events.
    pub fn announce(&self, events: Vec<Event>) {
        self.order(move |it| _ = it.publish(payload(Some(0), events), true));
    }

    /// Publishes `batches` batches, each with one more block of the chain.
    pub fn publish(&self, batches: u64) {
        self.order(move |it| it.grow(batches, true));
    }

    /// Publishes `batches` batches without waiting. The returned receiver signals the end.
    pub fn publish_meanwhile(&self, batches: u64) -> Receiver<()> {
        self.begin(move |it| it.grow(batches, true))
    }

    /// Creates `batches` batches that are not sent on the live socket, so that readers see a gap and can get them by
    /// replay.
    pub fn lose(&self, batches: u64) {
        self.order(move |it| it.grow(batches, false));
    }

    /// Sends the last `batches` batches a second time.
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

    /// Publishes a batch that evicts one copy of every block stored since the engine's start.
    pub fn evict(&self) {
        self.order(|it| _ = it.publish(it.eviction(), true));
    }

    /// Creates a batch that evicts all blocks, but sends an undecodable payload in its place. `replayable`: true if the
    /// replay socket sends the correct batch.
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

    /// Publishes a batch whose store event has an invalid token.
    pub fn publish_unreadably(&self) {
        self.order(|it| {
            let mut payload = it.next_block();
            // The first token, which is the life, becomes a string.
            let tokens = payload.windows(9).rposition(|bytes| bytes == b"token_ids").expect("a block") + 10;
            payload[tokens] = 0xa0;
            it.publish(payload, true);
        });
    }

    /// Publishes all blocks since the engine's start once more, like an engine that announces cache hits as stores.
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

    /// Publishes a batch that removes all blocks of the engine.
    pub fn clear(&self) {
        self.announce(vec![Cleared.into()]);
    }

    /// Publishes batches alternately with a second engine at the same address, which has other blocks.
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

    /// Restarts the sequence numbers and the blocks on the same sockets.
    pub fn rewind(&self) {
        self.order(Sockets::begin_life);
    }

    /// Restarts the engine like a new process at the same addresses.
    pub fn restart(&self) {
        self.order(|it| {
            it.close();
            it.begin_life();
            it.bind();
        });
    }

    /// Restarts the engine after which `batches` batches were published that no reader received, while the replay
    /// socket is not available yet.
    pub fn restart_unheard(&self, batches: u64) {
        self.order(move |it| {
            it.close();
            it.begin_life();
            it.grow(batches, false);
            it.bind_live();
        });
    }

    /// Closes the live socket and the replay socket.
    pub fn down(&self) {
        self.order(Sockets::close);
    }

    /// Closes the live socket only.
    pub fn kill_live(&self) {
        self.order(Sockets::close_live);
    }

    /// Closes the replay socket only.
    pub fn kill_replay(&self) {
        self.order(Sockets::close_replay);
    }

    /// Binds the replay socket again.
    pub fn revive_replay(&self) {
        self.order(Sockets::bind_replay);
    }

    /// Slows replays down to one batch per `pause`; the end of a replay follows after its last batch.
    pub fn dribble(&self, pause: Duration) {
        self.order(move |it| it.dribble = Some(pause));
    }

    /// Interrupts the next replay by `batches` live batches. Nothing more is sent until the returned sender is dropped.
    #[must_use]
    pub fn interrupt(&self, batches: u64) -> Sender<()> {
        let (resume, resumed) = channel();
        self.order(move |it| it.interruption = Some(Interruption { batches, resumed }));
        resume
    }

    /// Stops all work of the sockets until the returned sender is dropped.
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

/// Greeting and handshake of a ZeroMQ socket of the given type (`PUB`, `DEALER`), as bytes, without encryption.
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

/// A ZeroMQ frame as bytes, with a short or a long header depending on its length. `more`: true if another frame
/// follows in the message.
#[must_use]
pub fn frame(more: bool, body: &[u8]) -> Vec<u8> {
    let mut bytes = match u8::try_from(body.len()) {
        Ok(length) => vec![u8::from(more), length],
        Err(_) => [&[2 | u8::from(more)][..], &(body.len() as u64).to_be_bytes()].concat(),
    };
    bytes.extend(body);
    bytes
}

/// A ZeroMQ message of the given frames, as bytes.
#[must_use]
pub fn message(frames: &[&[u8]]) -> Vec<u8> {
    frames.iter().enumerate().flat_map(|(at, body)| frame(at + 1 < frames.len(), body)).collect()
}

/// Listens on a port without being an engine: sends the same bytes to every client, for any request.
pub fn impostor(what: Vec<u8>) -> Listener {
    Listener::start(move |mut peer| {
        let _ = peer.write_all(&what);
        let _ = peer.set_read_timeout(Some(Duration::from_secs(5)));
        let _ = peer.read_to_end(&mut Vec::new());
    })
}

/// Starts a ZeroMQ publisher that completes the handshake, then writes `bytes` again and again, until the reader stops
/// or `enough` bytes are written. Also returns the counter of the bytes written.
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
