//! An engine's sockets, without the engine: publishes one chain of blocks, one batch a block, over real ZMQ.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use kvatlas_wire::encode::{Dialect, encode};
use kvatlas_wire::{Batch, Event, Name, Removed, Stored};

pub(crate) const BLOCK_SIZE: u32 = 4;

enum Order {
    /// Publishes so many batches.
    Publish(u64),
    /// Makes so many batches that the live socket loses.
    Lose(u64),
    /// Sends the last batches again.
    Repeat(u64),
    /// Two batches in the wrong order.
    Swap,
    /// A payload that is no batch.
    Poison,
    /// A message with two frames.
    Malformed,
    /// A batch that evicts all blocks of this life, each once.
    Evict,
    /// New process, same addresses.
    Restart,
    /// The sockets go away.
    Down,
    /// The replay socket goes away, and comes back.
    KillReplay,
    ReviveReplay,
    /// Nothing is done, for as long as the sender of this lives.
    Pause(Receiver<()>),
}

/// What a test holds of it.
pub(crate) struct Engine {
    pub(crate) events: String,
    pub(crate) replay: String,
    orders: Option<Sender<(Order, Sender<()>)>>,
    thread: Option<JoinHandle<()>>,
}

impl Engine {
    /// `keeps`: batches for the replay socket.
    pub(crate) fn start(keeps: usize) -> Self {
        let (orders, received) = channel();
        let (addresses, known) = channel();
        let thread = std::thread::spawn(move || Process::new(keeps, &addresses).run(&received));
        let (events, replay) = known.recv().expect("the sockets are bound");
        Self { events, replay, orders: Some(orders), thread: Some(thread) }
    }

    fn order(&self, order: Order) {
        self.begin(order).recv().expect("the order is carried out");
    }

    fn begin(&self, order: Order) -> Receiver<()> {
        let (done, is_done) = channel();
        self.orders.as_ref().expect("it runs").send((order, done)).expect("it runs");
        is_done
    }

    /// Does not wait; the result says when it is done.
    pub(crate) fn publish_meanwhile(&self, batches: u64) -> Receiver<()> {
        self.begin(Order::Publish(batches))
    }

    pub(crate) fn publish(&self, batches: u64) {
        self.order(Order::Publish(batches));
    }
    pub(crate) fn lose(&self, batches: u64) {
        self.order(Order::Lose(batches));
    }
    pub(crate) fn repeat(&self, batches: u64) {
        self.order(Order::Repeat(batches));
    }
    pub(crate) fn swap(&self) {
        self.order(Order::Swap);
    }
    pub(crate) fn poison(&self) {
        self.order(Order::Poison);
    }
    pub(crate) fn malformed(&self) {
        self.order(Order::Malformed);
    }
    pub(crate) fn evict(&self) {
        self.order(Order::Evict);
    }
    pub(crate) fn restart(&self) {
        self.order(Order::Restart);
    }
    pub(crate) fn down(&self) {
        self.order(Order::Down);
    }
    pub(crate) fn kill_replay(&self) {
        self.order(Order::KillReplay);
    }
    pub(crate) fn revive_replay(&self) {
        self.order(Order::ReviveReplay);
    }
    /// Until the result is dropped.
    pub(crate) fn pause(&self) -> Sender<()> {
        let (resume, paused) = channel();
        self.order(Order::Pause(paused));
        resume
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Tokens of the first blocks of a life.
pub(crate) fn tokens(life: u32, blocks: u64) -> Vec<u32> {
    (0..blocks).flat_map(|block| block_tokens(life, block)).collect()
}

fn block_tokens(life: u32, block: u64) -> [u32; BLOCK_SIZE as usize] {
    [life, block as u32, 7, 8]
}

struct Process {
    context: zmq::Context,
    publisher: Option<zmq::Socket>,
    router: Option<zmq::Socket>,
    events: String,
    replay: String,
    keeps: usize,
    kept: VecDeque<(u64, Vec<u8>)>,
    life: u32,
    seq: u64,
    /// Blocks of this life.
    blocks: u64,
}

impl Process {
    fn new(keeps: usize, addresses: &Sender<(String, String)>) -> Self {
        let any = || "tcp://127.0.0.1:*".to_owned();
        let mut process = Self {
            context: zmq::Context::new(),
            publisher: None,
            router: None,
            events: any(),
            replay: any(),
            keeps,
            kept: VecDeque::new(),
            life: 1,
            seq: 0,
            blocks: 0,
        };
        process.bind_publisher();
        process.bind_router();
        let _ = addresses.send((process.events.clone(), process.replay.clone()));
        process
    }

    fn bind(&self, kind: zmq::SocketType, address: &str) -> (zmq::Socket, String) {
        loop {
            let socket = self.context.socket(kind).expect("a socket");
            socket.set_sndhwm(100_000).expect("an option");
            socket.set_linger(0).expect("an option");
            // After a restart the old socket may take a moment to go.
            match socket.bind(address) {
                Ok(()) => {
                    let bound = socket.get_last_endpoint().expect("bound").expect("text");
                    return (socket, bound);
                }
                Err(zmq::Error::EADDRINUSE) => std::thread::sleep(Duration::from_millis(5)),
                Err(error) => panic!("{address}: {error}"),
            }
        }
    }

    fn bind_publisher(&mut self) {
        let (socket, bound) = self.bind(zmq::PUB, &self.events);
        (self.publisher, self.events) = (Some(socket), bound);
    }

    fn bind_router(&mut self) {
        let (socket, bound) = self.bind(zmq::ROUTER, &self.replay);
        (self.router, self.replay) = (Some(socket), bound);
    }

    fn run(mut self, orders: &Receiver<(Order, Sender<()>)>) {
        loop {
            match orders.recv_timeout(Duration::from_millis(2)) {
                Ok((Order::Pause(resume), done)) => {
                    let _ = done.send(());
                    let _ = resume.recv();
                }
                Ok((order, done)) => {
                    self.obey(order);
                    let _ = done.send(());
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.answer();
        }
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Publish(batches) => (0..batches).for_each(|_| {
                let payload = self.next_block();
                self.publish(payload, true);
            }),
            Order::Lose(batches) => (0..batches).for_each(|_| {
                let payload = self.next_block();
                self.publish(payload, false);
            }),
            Order::Repeat(batches) => {
                let from = self.kept.len().saturating_sub(batches as usize);
                self.kept.range(from..).for_each(|(seq, payload)| self.send(*seq, payload));
            }
            Order::Swap => {
                let (first, second) = (self.next_block(), self.next_block());
                let first = self.publish(first, false);
                self.publish(second, true);
                self.repeat_one(first);
            }
            Order::Poison => {
                self.publish(b"\xc1 this is no batch".to_vec(), true);
            }
            Order::Malformed => {
                let publisher = self.publisher.as_ref().expect("it is up");
                publisher.send_multipart([&b""[..], &b"two"[..]], 0).expect("sent");
            }
            Order::Evict => {
                let block_hashes = (0..self.blocks).map(|block| self.name(block)).collect();
                let removed = Removed { block_hashes, medium: Some("GPU".into()), ..Removed::default() };
                let payload = self.batch(Event::Removed(removed));
                self.publish(payload, true);
            }
            Order::Restart => {
                (self.publisher, self.router) = (None, None);
                self.kept.clear();
                (self.life, self.seq, self.blocks) = (self.life + 1, 0, 0);
                self.bind_publisher();
                self.bind_router();
            }
            Order::Down => (self.publisher, self.router) = (None, None),
            Order::KillReplay => self.router = None,
            Order::ReviveReplay => self.bind_router(),
            Order::Pause(_) => {}
        }
    }

    fn name(&self, block: u64) -> Name {
        Name::from(u64::from(self.life) << 40 | block)
    }

    fn batch(&self, event: Event) -> Vec<u8> {
        let timestamp = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970").as_secs_f64();
        encode(&Batch { timestamp, rank: Some(0), events: vec![event], refused: Vec::new() }, Dialect::Vllm)
    }

    fn next_block(&mut self) -> Vec<u8> {
        let block = self.blocks;
        self.blocks += 1;
        let stored = Stored {
            block_hashes: vec![self.name(block)],
            parent: block.checked_sub(1).map(|parent| self.name(parent)),
            tokens: block_tokens(self.life, block).to_vec(),
            block_size: BLOCK_SIZE,
            medium: Some("GPU".into()),
            ..Stored::default()
        };
        self.batch(Event::Stored(stored.into()))
    }

    fn publish(&mut self, payload: Vec<u8>, arrives: bool) -> u64 {
        let seq = self.seq;
        self.seq += 1;
        if arrives {
            self.send(seq, &payload);
        }
        self.kept.push_back((seq, payload));
        if self.kept.len() > self.keeps {
            self.kept.pop_front();
        }
        seq
    }

    fn repeat_one(&self, wanted: u64) {
        self.kept.iter().filter(|(seq, _)| *seq == wanted).for_each(|(seq, payload)| self.send(*seq, payload));
    }

    fn send(&self, seq: u64, payload: &[u8]) {
        if let Some(publisher) = &self.publisher {
            publisher.send_multipart([&b""[..], &seq.to_be_bytes()[..], payload], 0).expect("sent");
        }
    }

    /// As engines do: an empty frame first, an empty topic, and an end with the number -1.
    fn answer(&self) {
        let Some(router) = &self.router else { return };
        while let Ok(request) = router.recv_multipart(zmq::DONTWAIT) {
            let [who, empty, from] = request.as_slice() else { continue };
            let (true, Ok(from)) = (empty.is_empty(), from.as_slice().try_into().map(u64::from_be_bytes)) else {
                continue;
            };
            for (seq, payload) in self.kept.iter().filter(|(seq, _)| *seq >= from) {
                let frames = [&who[..], b"", b"", &seq.to_be_bytes()[..], payload];
                let _ = router.send_multipart(frames, zmq::DONTWAIT);
            }
            let _ = router.send_multipart([&who[..], b"", b"", &[0xff; 8], b""], zmq::DONTWAIT);
        }
    }
}
