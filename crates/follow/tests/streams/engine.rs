//! An engine's sockets, without the engine: publishes one chain of blocks, one batch a block, over real ZMQ.

use std::collections::VecDeque;
use std::net::TcpListener;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use kvatlas_wire::encode::{Dialect, encode};
use kvatlas_wire::{Batch, Cleared, Event, Name, Removed, Stored};

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
    /// The same, but in its place comes nonsense: on the live socket only, or by replay as well.
    EvictUnreadably {
        replayable: bool,
    },
    /// A block whose event has tokens that are none.
    PublishUnreadably,
    /// The blocks of this life once more, as an engine announces hits that reports in full.
    AnnounceAgain,
    /// A batch with a block and an event of an unknown type.
    PublishUnknown,
    /// A batch that clears everything.
    Clear,
    /// Before the rest of its next answer comes so much on the live socket; after it nothing more, as long as the sender
    /// of this lives.
    Interrupt(u64, Receiver<()>),
    /// Numbers and blocks begin anew, on the same sockets.
    Rewind,
    /// A second engine with blocks of its own publishes at the same address, in turns with this one.
    PublishInTurns(u64),
    /// New process with the replay socket not there yet, and so many batches that nobody heard.
    RestartUnheard(u64),
    /// The publisher goes away, the replay socket stays.
    KillPublisher,
    /// From now on a replay brings a batch each so often, and no end.
    Dribble(Duration),
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

/// Handle that a test holds of an engine.
pub(crate) struct Engine {
    pub(crate) events: String,
    pub(crate) replay: String,
    orders: Option<Sender<(Order, Sender<()>)>>,
    thread: Option<JoinHandle<()>>,
}

impl Engine {
    /// Starts an engine. `keeps`: batches for the replay socket.
    pub(crate) fn start(keeps: usize) -> Self {
        Self::start_at(keeps, 1, 0, "tcp://127.0.0.1:*", "tcp://127.0.0.1:*")
    }

    /// Starts an engine with these addresses, and blocks of this life, so many of them already when it binds its
    /// sockets.
    pub(crate) fn start_at(keeps: usize, life: u32, blocks: u64, events: &str, replay: &str) -> Self {
        let (orders, received) = channel();
        let (addresses, known) = channel();
        let (events, replay) = (events.to_owned(), replay.to_owned());
        let thread = std::thread::spawn(move || {
            Process::new(keeps, (life, blocks), (events, replay), &addresses).run(&received)
        });
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
    pub(crate) fn publish_unknown(&self) {
        self.order(Order::PublishUnknown);
    }
    pub(crate) fn evict_unreadably(&self, replayable: bool) {
        self.order(Order::EvictUnreadably { replayable });
    }
    pub(crate) fn publish_unreadably(&self) {
        self.order(Order::PublishUnreadably);
    }
    pub(crate) fn announce_again(&self) {
        self.order(Order::AnnounceAgain);
    }
    pub(crate) fn clear(&self) {
        self.order(Order::Clear);
    }
    pub(crate) fn rewind(&self) {
        self.order(Order::Rewind);
    }
    pub(crate) fn publish_in_turns(&self, batches: u64) {
        self.order(Order::PublishInTurns(batches));
    }
    pub(crate) fn restart_unheard(&self, batches: u64) {
        self.order(Order::RestartUnheard(batches));
    }
    pub(crate) fn kill_publisher(&self) {
        self.order(Order::KillPublisher);
    }
    pub(crate) fn dribble(&self, pause: Duration) {
        self.order(Order::Dribble(pause));
    }
    /// Interrupts the engine's next answer by so many live batches; after it comes nothing more until the result is
    /// dropped.
    pub(crate) fn interrupt(&self, batches: u64) -> Sender<()> {
        let (resume, interrupted) = channel();
        self.order(Order::Interrupt(batches, interrupted));
        resume
    }
    /// Pauses the engine until the result is dropped.
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

/// A port that nothing listens on, and that the system gives nobody: not from its pool for outgoing connections. Whoever
/// tries again and again to reach one of those that is down is given it in the end, and is connected to itself.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970").subsec_nanos();
    // Processes of tests that run beside this one begin elsewhere.
    let _ = NEXT.compare_exchange(0, clock ^ std::process::id().wrapping_mul(0x9e37_79b1), Relaxed, Relaxed);
    loop {
        let port = 10_000 + (NEXT.fetch_add(1, Relaxed) % 20_000) as u16;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
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
    interrupt: Option<(u64, Receiver<()>)>,
    dribble: Option<Duration>,
}

impl Process {
    fn new(
        keeps: usize,
        (life, blocks): (u32, u64),
        at: (String, String),
        addresses: &Sender<(String, String)>,
    ) -> Self {
        let mut process = Self {
            context: zmq::Context::new(),
            publisher: None,
            router: None,
            events: at.0,
            replay: at.1,
            keeps,
            kept: VecDeque::new(),
            life,
            seq: 0,
            blocks: 0,
            interrupt: None,
            dribble: None,
        };
        (0..blocks).for_each(|_| {
            let payload = process.next_block();
            process.publish(payload, false);
        });
        process.bind_publisher();
        process.bind_router();
        let _ = addresses.send((process.events.clone(), process.replay.clone()));
        process
    }

    fn bind(&self, kind: zmq::SocketType, address: &str) -> (zmq::Socket, String) {
        let chosen = address.strip_suffix(":*").map(|host| format!("{host}:{}", free_port()));
        let address = chosen.as_deref().unwrap_or(address);
        loop {
            let socket = self.context.socket(kind).expect("a socket");
            // A replay is never cut short, however slowly it is read.
            socket.set_sndhwm(if kind == zmq::ROUTER { 0 } else { 100_000 }).expect("an option");
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
                let payload = self.eviction();
                self.publish(payload, true);
            }
            Order::EvictUnreadably { replayable } => {
                let payload = self.eviction();
                let cut = payload[..payload.len() / 2].to_vec();
                if replayable {
                    let seq = self.publish(payload, false);
                    self.send(seq, &cut);
                } else {
                    self.publish(cut, true);
                }
            }
            Order::PublishUnreadably => {
                let mut payload = self.next_block();
                // The first token, which is the life, becomes a string.
                let tokens = payload.windows(9).rposition(|bytes| bytes == b"token_ids").expect("a block") + 10;
                payload[tokens] = 0xa0;
                self.publish(payload, true);
            }
            Order::PublishUnknown => {
                let mut payload = self.batch(Event::Cleared(Cleared));
                let tag = payload.windows(16).position(|bytes| bytes == b"AllBlocksCleared").expect("an event");
                payload[tag..tag + 16].copy_from_slice(b"BlocksSeenAsLate");
                self.publish(payload, true);
            }
            Order::AnnounceAgain => {
                for block in 0..self.blocks {
                    let payload = self.block(self.life, block);
                    self.publish(payload, true);
                }
            }
            Order::Clear => {
                let payload = self.batch(Event::Cleared(Cleared));
                self.publish(payload, true);
            }
            Order::Interrupt(batches, resume) => self.interrupt = Some((batches, resume)),
            Order::Rewind => {
                self.kept.clear();
                (self.life, self.seq, self.blocks) = (self.life + 1, 0, 0);
            }
            Order::PublishInTurns(batches) => (0..batches).for_each(|_| {
                let other = self.block(self.life + 100, self.blocks);
                let own = self.next_block();
                let seq = self.publish(own, true);
                self.send(seq, &other);
            }),
            Order::RestartUnheard(batches) => {
                (self.publisher, self.router) = (None, None);
                self.kept.clear();
                (self.life, self.seq, self.blocks) = (self.life + 1, 0, 0);
                (0..batches).for_each(|_| {
                    let payload = self.next_block();
                    self.publish(payload, false);
                });
                self.bind_publisher();
            }
            Order::KillPublisher => self.publisher = None,
            Order::Dribble(pause) => self.dribble = Some(pause),
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
        self.blocks += 1;
        self.block(self.life, self.blocks - 1)
    }

    fn block(&self, life: u32, block: u64) -> Vec<u8> {
        let name = |block: u64| Name::from(u64::from(life) << 40 | block);
        let stored = Stored {
            block_hashes: vec![name(block)],
            parent: block.checked_sub(1).map(name),
            tokens: block_tokens(life, block).to_vec(),
            block_size: BLOCK_SIZE,
            medium: Some("GPU".into()),
            ..Stored::default()
        };
        self.batch(Event::Stored(stored.into()))
    }

    fn eviction(&self) -> Vec<u8> {
        let block_hashes = (0..self.blocks).map(|block| self.name(block)).collect();
        let removed = Removed { block_hashes, medium: Some("GPU".into()), ..Removed::default() };
        self.batch(Event::Removed(removed))
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

    /// Answers as engines do: an empty frame first, an empty topic, and an end with the number -1.
    fn answer(&mut self) {
        while let Some(Ok(request)) = self.router.as_ref().map(|router| router.recv_multipart(zmq::DONTWAIT)) {
            let [who, empty, from] = request.as_slice() else { continue };
            let who = who.clone();
            let (true, Ok(from)) = (empty.is_empty(), from.as_slice().try_into().map(u64::from_be_bytes)) else {
                continue;
            };
            let mut kept: VecDeque<_> = self.kept.iter().filter(|(seq, _)| *seq >= from).cloned().collect();
            let interrupt = self.interrupt.take();
            if let Some((batches, _)) = &interrupt {
                kept.pop_front().inspect(|(seq, payload)| self.reply(&who, *seq, payload));
                self.obey(Order::Publish(*batches));
                // So that they are there before the rest.
                std::thread::sleep(Duration::from_millis(200));
            }
            for (seq, payload) in kept {
                self.reply(&who, seq, &payload);
                self.dribble.inspect(|pause| std::thread::sleep(*pause));
            }
            self.reply(&who, u64::MAX, b"");
            if let Some((_, resume)) = interrupt {
                let _ = resume.recv();
            }
        }
    }

    fn reply(&self, who: &[u8], seq: u64, payload: &[u8]) {
        if let Some(router) = &self.router {
            let _ = router.send_multipart([who, b"", b"", &seq.to_be_bytes()[..], payload], zmq::DONTWAIT);
        }
    }
}
