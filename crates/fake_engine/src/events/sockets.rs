//! The event sockets in a thread of their own, and the batches they publish.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use crate::chain::{Chain, payload};
use crate::net::free_port;

/// Work for the thread of the sockets.
pub(super) type Order = Box<dyn FnOnce(&mut Sockets) + Send>;

/// An interruption of a replay: a number of live batches, then silence until the other side is dropped.
pub(super) struct Interruption {
    pub(super) batches: u64,
    pub(super) resumed: Receiver<()>,
}

pub(super) struct Sockets {
    context: zmq::Context,
    live: Option<zmq::Socket>,
    replay: Option<zmq::Socket>,
    live_address: String,
    replay_address: String,
    keeps: usize,
    /// Batches for the replay socket, each with its number.
    kept: VecDeque<(u64, Vec<u8>)>,
    seq: u64,
    pub(super) chain: Chain,
    /// Number of blocks of this life.
    pub(super) blocks: u64,
    pub(super) interruption: Option<Interruption>,
    pub(super) dribble: Option<Duration>,
}

impl Sockets {
    /// Sockets that are not bound yet.
    pub(super) fn new(keeps: usize, life: u32, live_address: String, replay_address: String) -> Self {
        Self {
            context: zmq::Context::new(),
            live: None,
            replay: None,
            live_address,
            replay_address,
            keeps,
            kept: VecDeque::new(),
            seq: 0,
            chain: Chain::new(life),
            blocks: 0,
            interruption: None,
            dribble: None,
        }
    }

    pub(super) fn addresses(&self) -> (String, String) {
        (self.live_address.clone(), self.replay_address.clone())
    }

    /// Carries out orders and answers replay requests until the orders' sender is dropped.
    pub(super) fn run(mut self, orders: &Receiver<Order>) {
        loop {
            match orders.recv_timeout(Duration::from_millis(2)) {
                Ok(order) => order(&mut self),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.answer();
        }
    }

    fn bound(&self, kind: zmq::SocketType, address: &str) -> (zmq::Socket, String) {
        let chosen = address.strip_suffix(":*").map(|host| format!("{host}:{}", free_port()));
        let address = chosen.as_deref().unwrap_or(address);
        loop {
            let socket = self.context.socket(kind).expect("a socket");
            // A replay is sent whole, however slowly it is read.
            socket.set_sndhwm(if kind == zmq::ROUTER { 0 } else { 100_000 }).expect("an option");
            socket.set_linger(0).expect("an option");
            // After a restart the old socket may take a moment to close.
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

    pub(super) fn bind(&mut self) {
        self.bind_live();
        self.bind_replay();
    }

    pub(super) fn bind_live(&mut self) {
        let (socket, bound) = self.bound(zmq::PUB, &self.live_address);
        (self.live, self.live_address) = (Some(socket), bound);
    }

    pub(super) fn bind_replay(&mut self) {
        let (socket, bound) = self.bound(zmq::ROUTER, &self.replay_address);
        (self.replay, self.replay_address) = (Some(socket), bound);
    }

    pub(super) fn close(&mut self) {
        self.close_live();
        self.close_replay();
    }

    pub(super) fn close_live(&mut self) {
        self.live = None;
    }

    pub(super) fn close_replay(&mut self) {
        self.replay = None;
    }

    /// Begins a life: numbers and blocks restart.
    pub(super) fn begin_life(&mut self) {
        self.kept.clear();
        self.chain = Chain::new(self.chain.life + 1);
        (self.seq, self.blocks) = (0, 0);
    }

    /// Appends blocks to the chain, one batch each.
    pub(super) fn grow(&mut self, blocks: u64, arrives: bool) {
        for _ in 0..blocks {
            let payload = self.next_block();
            self.publish(payload, arrives);
        }
    }

    /// The batch of the next block, not published yet.
    pub(super) fn next_block(&mut self) -> Vec<u8> {
        self.blocks += 1;
        payload(Some(0), vec![self.chain.stored(self.blocks - 1)])
    }

    /// The batch of another engine's block.
    pub(super) fn stranger(&self) -> Vec<u8> {
        payload(Some(0), vec![Chain::new(self.chain.life + 100).stored(self.blocks)])
    }

    /// The batch that evicts all blocks of this life.
    pub(super) fn eviction(&self) -> Vec<u8> {
        payload(Some(0), vec![self.chain.removed(self.blocks)])
    }

    /// Numbers and keeps a batch; sends it if `arrives`.
    pub(super) fn publish(&mut self, payload: Vec<u8>, arrives: bool) -> u64 {
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

    pub(super) fn last_seq(&self) -> Option<u64> {
        self.seq.checked_sub(1)
    }

    /// The last batch.
    pub(super) fn last(&self) -> (u64, Vec<u8>) {
        self.kept.back().cloned().expect("there is one")
    }

    /// Sends the last batches again.
    pub(super) fn repeat(&self, batches: usize) {
        let from = self.kept.len().saturating_sub(batches);
        self.kept.range(from..).for_each(|(seq, payload)| self.send(*seq, payload));
    }

    pub(super) fn send(&self, seq: u64, payload: &[u8]) {
        self.send_frames(&[b"", &seq.to_be_bytes(), payload]);
    }

    pub(super) fn send_frames(&self, frames: &[&[u8]]) {
        if let Some(live) = &self.live {
            live.send_multipart(frames, 0).expect("sent");
        }
    }

    /// Answers a replay request as engines do: an empty frame first, an empty topic, and an end with the number -1.
    fn answer(&mut self) {
        while let Some(Ok(request)) = self.replay.as_ref().map(|replay| replay.recv_multipart(zmq::DONTWAIT)) {
            let [who, empty, from] = request.as_slice() else { continue };
            let (true, Ok(from)) = (empty.is_empty(), from.as_slice().try_into().map(u64::from_be_bytes)) else {
                continue;
            };
            let mut kept: VecDeque<_> = self.kept.iter().filter(|(seq, _)| *seq >= from).cloned().collect();
            let interruption = self.interruption.take();
            if let Some(interruption) = &interruption {
                kept.pop_front().inspect(|(seq, payload)| self.reply(who, *seq, payload));
                self.grow(interruption.batches, true);
                // Before the rest, so that they arrive first.
                std::thread::sleep(Duration::from_millis(200));
            }
            for (seq, payload) in kept {
                self.reply(who, seq, &payload);
                self.dribble.inspect(|pause| std::thread::sleep(*pause));
            }
            self.reply(who, u64::MAX, b"");
            if let Some(interruption) = interruption {
                let _ = interruption.resumed.recv();
            }
        }
    }

    fn reply(&self, who: &[u8], seq: u64, payload: &[u8]) {
        if let Some(replay) = &self.replay {
            let _ = replay.send_multipart([who, b"", b"", &seq.to_be_bytes()[..], payload], zmq::DONTWAIT);
        }
    }
}
