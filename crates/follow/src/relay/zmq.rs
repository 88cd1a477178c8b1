//! A relay without NATS: readers connect to it over ZeroMQ, each with one DEALER socket, and have the last messages of all
//! its streams from the place on that they name.
//!
//! Whoever reads slowly gets what is next as they can take it. If that is not kept any more, they get what is, and notice
//! which numbers are missing, as if NATS had lost them.

use std::future::{Future as _, poll_fn};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Poll;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::time::{Instant, sleep_until, timeout};

use super::places::{Place, Places};
use super::ring::Ring;
use super::{Outlet, Relay, RelayConfig};
use crate::error::Error;
use kvatlas_stream::zmtp::{Budget, Connection, Event, Kind, Room, Security, Socket, WRONG_KEY};

/// Readers at most that follow.
const READERS: usize = 1024;
/// Connections at most that do not: of these the oldest gives way to the next one.
const STRANGERS: usize = 256;
/// A reader that was heard within this time does not give way to others. Ours say something each second.
const HEARD: Duration = Duration::from_secs(5);
/// Time within which a connection must follow.
const SOON: Duration = Duration::from_secs(10);
/// Bytes on their way to a reader.
const OUTPUT: usize = 64 << 10;
/// A reader that takes nothing of what is on its way to it for so long is disconnected, and comes again.
const STALLED: Duration = Duration::from_secs(20);
/// Time to wait after a connection could not be accepted.
const PAUSE: Duration = Duration::from_millis(100);

/// The first bytes of what a reader says; each is followed by what is given here.
pub(crate) mod say {
    /// A place, of 8 bytes, big-endian: all messages from there on are to be sent, for as long as the connection lasts.
    /// 0: the last message of each stream, then all others. It is said once.
    pub(crate) const FOLLOW: u8 = b'F';
    /// Up to 16 bytes that are to come back, together with which messages are kept.
    pub(crate) const KEPT: u8 = b'K';
    /// A subject, whose stream's holdings are to be published.
    pub(crate) const ASK: u8 = b'A';
}

/// Listens for readers.
///
/// # Errors
/// [`Error::Start`] if the address is none, or in use, or others reach it and there is no key.
pub(super) async fn listen(relay: &Arc<Relay>, ring: &Arc<Ring>, url: &str, room: Room) -> Result<(), Error> {
    let wrong = |error: &dyn std::fmt::Display| Error::Start {
        message: format!("relay.publish: cannot listen at {url}: {error}; it is tcp://ADDRESS:PORT"),
    };
    let address = url.strip_prefix("tcp://").unwrap_or(url).replace('*', "0.0.0.0");
    let address: SocketAddr = address.parse().map_err(|error| wrong(&error))?;
    let listener = TcpListener::bind(address).await.map_err(|error| wrong(&error))?;
    let address = listener.local_addr().map_err(|error| wrong(&error))?;
    let security = security(&relay.config)?;
    if !address.ip().is_loopback() && matches!(security, Security::Open) {
        if !relay.config.insecure_readers {
            let message = format!(
                "relay.publish: whoever reaches {address} would read what the engines hold: set relay.reader_key_file, \
                 or relay.insecure_readers if only those can who may"
            );
            return Err(Error::Start { message });
        }
        tracing::warn!(%address, "anyone who can connect here reads which content hashes the engines hold");
    }
    tracing::info!(%address, "listening for readers");
    let (relay, ring) = (Arc::downgrade(relay), ring.clone());
    tokio::spawn(async move {
        let strangers = Places::new(STRANGERS, Duration::ZERO);
        let readers = Places::new(READERS, HEARD);
        loop {
            let (peer, from) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "a reader's connection could not be accepted");
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            };
            let Some(relay) = relay.upgrade() else { return };
            let Some(place) = strangers.take() else { continue };
            let (budget, security) = (Budget::new(&room), security.clone());
            let connection = Connection::secured(Socket::of_peer(peer), Kind::Router, "", budget, security);
            let (ring, readers) = (ring.clone(), readers.clone());
            tokio::spawn(async move {
                let mut reader =
                    ReaderConnection { relay: &relay, ring: &ring, connection, ahead: Vec::new(), next: None };
                let begun = reader.begin(place).await;
                let why = match begun.and_then(|()| reader.place_of(&readers)) {
                    Ok(place) => reader.go_on(place).await,
                    Err(why) => why,
                };
                tracing::info!(%from, why, "a reader has left");
            });
        }
    });
    Ok(())
}

fn security(config: &RelayConfig) -> Result<Security, Error> {
    Ok(config.reader_key()?.map_or(Security::Open, Security::Asks))
}

/// A reader's connection.
struct ReaderConnection<'a> {
    relay: &'a Relay,
    ring: &'a Ring,
    connection: Connection,
    /// Places of messages that come before all others, the last one first.
    ahead: Vec<u64>,
    /// The place that is sent next, once the reader follows.
    next: Option<u64>,
}

impl ReaderConnection<'_> {
    /// Waits until it follows.
    ///
    /// # Errors
    /// Why it does not.
    async fn begin(&mut self, mut place: Place) -> Result<(), String> {
        let counts = &self.relay.counts;
        let until = Instant::now() + SOON;
        while self.next.is_none() {
            let event = tokio::select! {
                event = poll_fn(|cx| self.connection.poll(cx)) => event,
                _ = &mut place.lost => {
                    counts.readers_gave_way.fetch_add(1, Relaxed);
                    return Err("it followed nothing, and gave way to others".to_owned());
                }
                () = sleep_until(until) => {
                    counts.silent_readers.fetch_add(1, Relaxed);
                    return Err(format!("it followed nothing within {} s", SOON.as_secs()));
                }
            };
            match event {
                Event::Open => {}
                Event::Message(body) => self.hear(&body)?,
                Event::Ended(why) => {
                    if why == WRONG_KEY {
                        counts.reader_keys_refused.fetch_add(1, Relaxed);
                        tracing::warn!("a reader does not show the key of relay.reader_key_file");
                    }
                    return Err(why);
                }
            }
        }
        Ok(())
    }

    /// The reader's place among those that follow.
    fn place_of(&self, readers: &Arc<Places>) -> Result<Place, String> {
        readers.take().ok_or_else(|| {
            self.relay.counts.too_many_readers.fetch_add(1, Relaxed);
            tracing::warn!(most = READERS, "a reader is refused: there are too many");
            "there are too many readers".to_owned()
        })
    }

    /// Serves it until it leaves; why.
    async fn go_on(mut self, mut place: Place) -> String {
        let mut end = self.ring.watch();
        let mut taken = (self.connection.written(), Instant::now());
        loop {
            self.send();
            let event = {
                let mut changed = pin!(end.changed());
                let (connection, ring, next) = (&mut self.connection, self.ring, self.next);
                let is_ahead = !self.ahead.is_empty();
                let lost = &mut place.lost;
                let events = poll_fn(|cx| {
                    if Pin::new(&mut *lost).poll(cx).is_ready() {
                        return Poll::Ready(Some(Event::Ended("it was silent, and gave way to others".to_owned())));
                    }
                    if let Poll::Ready(event) = connection.poll(cx) {
                        return Poll::Ready(Some(event));
                    }
                    let is_behind = || is_ahead || next.is_some_and(|next| next < ring.range().1);
                    if connection.waiting() < OUTPUT && (changed.as_mut().poll(cx).is_ready() || is_behind()) {
                        return Poll::Ready(None);
                    }
                    Poll::Pending
                });
                timeout(STALLED / 4, events).await
            };
            if taken.0 != self.connection.written() || self.connection.waiting() == 0 {
                taken = (self.connection.written(), Instant::now());
            } else if taken.1.elapsed() > STALLED {
                self.relay.counts.stalled_readers.fetch_add(1, Relaxed);
                return format!("it took nothing for {} s", STALLED.as_secs());
            }
            match event {
                Err(_) | Ok(None | Some(Event::Open)) => {}
                Ok(Some(Event::Ended(why))) => {
                    if place.lost.is_terminated() {
                        self.relay.counts.readers_gave_way.fetch_add(1, Relaxed);
                    }
                    return why;
                }
                Ok(Some(Event::Message(body))) => {
                    place.hear();
                    if let Err(why) = self.hear(&body) {
                        return why;
                    }
                }
            }
        }
    }

    /// Sends what is next, as far as there is room: the rest stays where it is kept.
    fn send(&mut self) {
        while self.connection.waiting() < OUTPUT {
            let some = match (self.ahead.pop(), self.next) {
                // If it is not kept any more, either the stream has said more since, or nothing for very long.
                (Some(place), _) => self.ring.at(place).into_iter().collect(),
                (None, Some(next)) => {
                    let some = self.ring.after(next, OUTPUT);
                    let Some(last) = some.last() else { return };
                    self.next = Some(last.sequence + 1);
                    some
                }
                (None, None) => return,
            };
            for kept in &some {
                let head = [b"", kept.subject.as_bytes(), &kept.sequence.to_be_bytes()];
                self.connection.send_frames(&head, &kept.payload);
            }
        }
    }

    /// Does what it says.
    ///
    /// # Errors
    /// It says what no reader says.
    fn hear(&mut self, body: &[u8]) -> Result<(), String> {
        match body.split_first() {
            Some((&say::FOLLOW, place))
                if let Ok(place) = place.try_into().map(u64::from_be_bytes)
                    && self.next.is_none() =>
            {
                self.next = Some(place);
                if place == 0 {
                    // What comes after this is sent with all others.
                    let behind = self.ring.range().1;
                    let latest = self.ring.latest().into_iter().rev().map(|kept| kept.sequence);
                    self.ahead = latest.filter(|sequence| *sequence < behind).collect();
                    self.next = Some(behind);
                }
            }
            Some((&say::KEPT, back)) if back.len() <= 16 => {
                // Who does not read gets no answers.
                if self.connection.waiting() < 2 * OUTPUT {
                    let (first, behind) = self.ring.range();
                    let answer = [&first.to_be_bytes()[..], back].concat();
                    self.connection.send_frames(&[b"", b"", &behind.to_be_bytes()], &answer);
                }
            }
            Some((&say::ASK, subject)) => {
                if let Ok(subject) = std::str::from_utf8(subject) {
                    self.relay.note_request(subject);
                }
            }
            _ => return Err("it says what no reader says".to_owned()),
        }
        Ok(())
    }
}

/// Brings a stream's queue to the ring, which takes all.
pub(super) async fn run(outlet: Arc<Outlet>, ring: Arc<Ring>) {
    let relay = outlet.relay.clone();
    let subject: Arc<str> = outlet.subject.as_str().into();
    let mut heartbeat = Instant::now();
    loop {
        let is_closed = outlet.is_closed();
        while let Some(packed) = outlet.pack(heartbeat <= Instant::now()) {
            heartbeat = Instant::now() + relay.config.heartbeat;
            relay.counts.published.fetch_add(1, Relaxed);
            relay.counts.published_bytes.fetch_add(packed.payload.len() as u64, Relaxed);
            ring.push(&subject, packed.payload.clone());
            outlet.note_arrival(&packed);
        }
        if is_closed {
            break;
        }
        let _ = timeout(heartbeat.saturating_duration_since(Instant::now()), outlet.added.notified()).await;
    }
    relay.forget_ended();
}
