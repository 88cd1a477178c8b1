//! The sockets of a stream, over libzmq, driven by tokio through their file descriptors.
//!
//! A SUB socket here lives as long as one connection and no longer: libzmq's own reconnection stays off. So a batch is
//! of the connection that it came by, without doubt, and a connection that libzmq gives up for good (as it does after a
//! protocol error) is made again like any other.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep_until};

use super::address::Address;
use super::contexts::Place;
use super::monitor::{Monitor, News};
use super::polled::Polled;
use super::transport::{Incoming, Transport};
use crate::config::StreamConfig;
use crate::state::Registration;

/// Messages that libzmq reads ahead of us. Beyond that they wait at the engine, which keeps 100,000 by default. libzmq
/// counts messages, not bytes: this many of [`MAX_FRAME`] are a socket's most, 1 GiB. The number must not change while
/// a connection lasts, neither up nor down: libzmq may then wait for ever for room that there is.
const READ_AHEAD: i32 = 64;
/// Bytes of a frame at most; a peer that announces more is disconnected.
const MAX_FRAME: i64 = 16 << 20;
/// The connection is checked this often, so that a peer that vanished is noticed without traffic.
const HEARTBEAT: Duration = Duration::from_secs(5);
/// Without a sign of the peer, the connection is given up.
const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(15);
/// To connect, and again to shake hands.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// After which an attempt has failed, whatever libzmq says.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(15);

/// The bytes of a batch, in libzmq's own buffer.
pub(crate) struct Payload(zmq::Message);

impl AsRef<[u8]> for Payload {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// One attempt at a live connection.
struct Live {
    events: Polled,
    // After the socket that it watches.
    monitor: Monitor,
    connected: bool,
    /// Why it has ended; what it brought before is still to be read.
    ended: Option<&'static str>,
}

/// The sockets of a stream.
pub(crate) struct ZmqTransport {
    live: Option<Live>,
    dealer: Option<Polled>,
    place: Place,
    live_address: Address,
    replay_address: Option<Address>,
    worker: String,
    rank: u32,
    topic: String,
    /// A question not sent yet.
    question: Option<u64>,
    /// Until the next attempt, or its end.
    timer: Pin<Box<Sleep>>,
    pause: Duration,
    pause_min: Duration,
    pause_max: Duration,
    /// Whether the replay socket is read first.
    replies_first: bool,
    /// Why there was no connection, as the log was last told.
    told: Option<String>,
    frames: Vec<zmq::Message>,
}

impl ZmqTransport {
    pub(crate) fn new(registration: &Registration, config: &StreamConfig) -> Self {
        Self {
            live: None,
            dealer: None,
            place: Place::take(),
            live_address: Address::new(&registration.endpoint),
            replay_address: registration.replay_endpoint.as_ref().map(Address::new),
            worker: registration.worker.clone(),
            rank: registration.rank,
            topic: registration.topic.clone(),
            told: None,
            question: None,
            timer: Box::pin(sleep_until(Instant::now())),
            pause: config.reconnect_min,
            pause_min: config.reconnect_min,
            pause_max: config.reconnect_max,
            replies_first: false,
            frames: Vec::with_capacity(8),
        }
    }

    fn socket(&self, kind: zmq::SocketType, address: &str) -> io::Result<zmq::Socket> {
        let socket = self.place.context.socket(kind)?;
        socket.set_linger(0)?;
        socket.set_rcvhwm(READ_AHEAD)?;
        socket.set_maxmsgsize(MAX_FRAME)?;
        socket.set_ipv6(address.starts_with("tcp://["))?;
        socket.set_heartbeat_ivl(HEARTBEAT.as_millis() as i32)?;
        socket.set_heartbeat_timeout(HEARTBEAT_TIMEOUT.as_millis() as i32)?;
        socket.set_connect_timeout(CONNECT_TIMEOUT.as_millis() as i32)?;
        socket.set_handshake_ivl(CONNECT_TIMEOUT.as_millis() as i32)?;
        Ok(socket)
    }

    fn open_live(&self, address: &str) -> io::Result<Live> {
        let (mut monitor, name) = Monitor::new(&self.place.context)?;
        let socket = self.socket(zmq::SUB, address)?;
        socket.set_reconnect_ivl(-1)?;
        socket.set_subscribe(self.topic.as_bytes())?;
        monitor.start(&socket, &name)?;
        let live = Live { events: Polled::new(socket)?, monitor, connected: false, ended: None };
        live.events.socket.connect(address)?;
        Ok(live)
    }

    fn open_dealer(&self, address: &str) -> io::Result<Polled> {
        let socket = self.socket(zmq::DEALER, address)?;
        socket.set_reconnect_ivl(self.pause_min.as_millis().clamp(1, 60_000) as i32)?;
        socket.set_reconnect_ivl_max(self.pause_max.as_millis().clamp(1, 60_000) as i32)?;
        let dealer = Polled::new(socket)?;
        dealer.socket.connect(address)?;
        Ok(dealer)
    }

    fn set_timer(&mut self, after: Duration) {
        self.timer.as_mut().reset(Instant::now() + after);
    }

    /// The attempt or connection has ended; the next one follows after a pause.
    fn end(&mut self, why: String) -> Incoming<Payload> {
        let was_connected = self.live.take().is_some_and(|live| live.connected);
        self.set_timer(self.pause);
        self.pause = (self.pause * 2).clamp(self.pause_min, self.pause_max);
        if was_connected {
            self.told = None;
            return Incoming::Disconnected(why);
        }
        self.unreachable("", &why)
    }

    /// Why there is no connection is for the log: everybody may read the status, and could look by it for what listens
    /// where. Said once, not with each attempt.
    fn unreachable(&mut self, socket: &str, why: &str) -> Incoming<Payload> {
        if self.told.as_deref() != Some(why) {
            tracing::info!(worker = self.worker, rank = self.rank, socket, why, "cannot connect");
            self.told = Some(why.to_owned());
        }
        Incoming::Unreachable(format!("{socket}cannot connect"))
    }

    /// Makes a live connection if there is none.
    fn poll_connect(&mut self, cx: &mut Context<'_>) -> Poll<Incoming<Payload>> {
        if self.live.is_none() {
            ready!(self.timer.as_mut().poll(cx));
            let opened = ready!(self.live_address.poll(cx)).and_then(|address| self.open_live(&address));
            match opened {
                Ok(live) => self.live = Some(live),
                Err(error) => return Poll::Ready(self.end(error.to_string())),
            }
            self.set_timer(ATTEMPT_TIMEOUT);
        }
        if self.live.as_ref().is_some_and(|live| !live.connected) && self.timer.as_mut().poll(cx).is_ready() {
            return Poll::Ready(self.end("no answer to the connection".to_owned()));
        }
        Poll::Pending
    }

    /// News of the live connection, then its batches.
    fn poll_live(&mut self, cx: &mut Context<'_>) -> Poll<Incoming<Payload>> {
        let Some(live) = &mut self.live else { return Poll::Pending };
        while live.ended.is_none() {
            match live.monitor.poll(cx, &mut self.frames) {
                Poll::Pending => break,
                Poll::Ready(News::Ended(why)) => live.ended = Some(why),
                Poll::Ready(News::Connected) => {
                    live.connected = true;
                    self.pause = self.pause_min;
                    return Poll::Ready(Incoming::Connected);
                }
            }
        }
        match live.events.poll_message(cx, &mut self.frames) {
            Poll::Ready(Ok(())) => Poll::Ready(live_batch(&mut self.frames)),
            Poll::Ready(Err(error)) => Poll::Ready(self.end(error.to_string())),
            Poll::Pending => match live.ended.take() {
                Some(why) => Poll::Ready(self.end(why.to_owned())),
                None => Poll::Pending,
            },
        }
    }

    /// Sends the question, if there is one, and reads answers.
    fn poll_replay(&mut self, cx: &mut Context<'_>) -> Poll<Incoming<Payload>> {
        if let Some(from) = self.question {
            if self.dealer.is_none() {
                let Some(address) = &mut self.replay_address else { return Poll::Pending };
                match ready!(address.poll(cx)).and_then(|address| self.open_dealer(&address)) {
                    Ok(dealer) => self.dealer = Some(dealer),
                    Err(error) => {
                        self.question = None; // Its deadline passes.
                        return Poll::Ready(self.unreachable("replay: ", &error.to_string()));
                    }
                }
            }
            if let Some(dealer) = &mut self.dealer {
                let _ = dealer.socket.send_multipart([&b""[..], &from.to_be_bytes()[..]], zmq::DONTWAIT);
                // Sending may have taken note of messages without telling the descriptor.
                dealer.ready = true;
            }
            self.question = None;
        }
        let Some(dealer) = &mut self.dealer else { return Poll::Pending };
        match ready!(dealer.poll_message(cx, &mut self.frames)) {
            Ok(()) => Poll::Ready(reply(&mut self.frames)),
            Err(error) => {
                self.dealer = None;
                Poll::Ready(self.unreachable("replay: ", &error.to_string()))
            }
        }
    }
}

impl Transport for ZmqTransport {
    type Payload = Payload;

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Incoming<Payload>> {
        self.replies_first = !self.replies_first;
        if self.replies_first
            && let Poll::Ready(incoming) = self.poll_replay(cx)
        {
            return Poll::Ready(incoming);
        }
        if let Poll::Ready(incoming) = self.poll_connect(cx) {
            return Poll::Ready(incoming);
        }
        if let Poll::Ready(incoming) = self.poll_live(cx) {
            return Poll::Ready(incoming);
        }
        if self.replies_first { Poll::Pending } else { self.poll_replay(cx) }
    }

    fn ask(&mut self, from: u64) {
        self.question = Some(from);
    }

    fn cancel(&mut self) {
        self.question = None;
        self.dealer = None;
    }

    fn reconnect(&mut self) {
        self.live = None;
        self.set_timer(Duration::ZERO);
    }
}

/// Topic, number, payload.
fn live_batch(frames: &mut Vec<zmq::Message>) -> Incoming<Payload> {
    match (number(frames), frames.len(), frames.pop()) {
        (Some(seq), 3, Some(payload)) if seq != u64::MAX => Incoming::Live { seq, payload: Payload(payload) },
        _ => Incoming::BadFrames,
    }
}

/// An empty frame, topic (not from older engines), number, payload. The number -1 is the end.
fn reply(frames: &mut Vec<zmq::Message>) -> Incoming<Payload> {
    match (number(frames), frames.len(), frames.pop()) {
        (Some(u64::MAX), 3 | 4, _) => Incoming::ReplyEnd,
        (Some(seq), 3 | 4, Some(payload)) => Incoming::Reply { seq, payload: Payload(payload) },
        _ => Incoming::BadFrames,
    }
}

fn number(frames: &[zmq::Message]) -> Option<u64> {
    let frame = frames.len().checked_sub(2).and_then(|at| frames.get(at))?;
    Some(u64::from_be_bytes(frame.as_ref().try_into().ok()?))
}
