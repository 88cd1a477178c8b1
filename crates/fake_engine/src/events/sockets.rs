//! Event sockets of a simulated engine, served by their own thread, and the batches that they publish.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use crate::chain::{Chain, payload};
use crate::net::free_port;

/// Function to be run by the sockets' thread.
pub(super) type Order = Box<dyn FnOnce(&mut Sockets) + Send>;

/// An interruption of a replay: the number of live batches to send in between, and a signal for which the replay then
/// waits.
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
    /// Recent batches for the replay socket, each with its sequence number.
    kept: VecDeque<(u64, Vec<u8>)>,
    seq: u64,
    pub(super) chain: Chain,
    /// Number of blocks published since the engine's last restart.
    pub(super) blocks: u64,
    pub(super) interruption: Option<Interruption>,
    pub(super) dribble: Option<Duration>,
}

impl Sockets {
    /// Creates the state of both sockets without binding them. `keeps`: number of recent batches kept for replay.
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

    /// Runs the functions sent by the test and answers replay requests until the test drops the sender.
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

    /// Begins a new life of the engine: sequence numbers and blocks restart.
    pub(super) fn begin_life(&mut self) {
        self.kept.clear();
        self.chain = Chain::new(self.chain.life + 1);
        (self.seq, self.blocks) = (0, 0);
    }

    /// Publishes the next `blocks` blocks of the chain, one batch each. `arrives`: false if the batches are not sent on
    /// the live socket.
    pub(super) fn grow(&mut self, blocks: u64, arrives: bool) {
        for _ in 0..blocks {
            let payload = self.next_block();
            self.publish(payload, arrives);
        }
    }

    /// Payload that stores the chain's next block, not published yet.
    pub(super) fn next_block(&mut self) -> Vec<u8> {
        self.blocks += 1;
        payload(Some(0), vec![self.chain.stored(self.blocks - 1)])
    }

    /// Payload that stores a block of another engine.
    pub(super) fn stranger(&self) -> Vec<u8> {
        payload(Some(0), vec![Chain::new(self.chain.life + 100).stored(self.blocks)])
    }

    /// Payload that evicts all blocks published since the engine's last restart.
    pub(super) fn eviction(&self) -> Vec<u8> {
        payload(Some(0), vec![self.chain.removed(self.blocks)])
    }

    /// Gives a batch its sequence number and keeps it for replay; sends it on the live socket if `arrives`. Returns the
    /// sequence number.
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

    /// Sequence number and payload of the last batch.
    pub(super) fn last(&self) -> (u64, Vec<u8>) {
        self.kept.back().cloned().expect("there is one")
    }

    /// Sends the last `batches` batches again.
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

    /// Answers a replay request like an engine: each message begins with an empty frame and an empty topic, and a
    /// message with the sequence number -1 marks the end.
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
