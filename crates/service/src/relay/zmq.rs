//! A relay without NATS: readers connect to it over ZeroMQ, each with one DEALER socket, and have the last messages of all
//! its streams from the place on that they name.
//!
//! Whoever reads slowly gets what is next as they can take it. If that is not kept any more, they get what is, and notice
//! which numbers are missing, as if NATS had lost them.

use std::future::{Future as _, poll_fn};
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Poll;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

use super::ring::Ring;
use super::{Outlet, Relay};
use crate::config::StreamConfig;
use crate::error::Error;
use crate::state::lock;
use crate::zmtp::{Budget, Connection, Event, Kind, Socket};

/// Readers at most.
const READERS: usize = 1024;
/// Bytes on their way to a reader.
const OUTPUT: usize = 256 << 10;
/// After a connection could not be accepted.
const PAUSE: Duration = Duration::from_millis(100);

/// What a reader says: its first byte, then what is given here.
pub(crate) mod say {
    /// A place, of 8 bytes, big-endian: all messages from there on are to be sent, for as long as the connection lasts.
    /// 0: the last message of each stream, then all others.
    pub(crate) const FOLLOW: u8 = b'F';
    /// Up to 16 bytes that are to come back, together with which messages are kept.
    pub(crate) const KEPT: u8 = b'K';
    /// A subject, whose stream's holdings are to be published.
    pub(crate) const ASK: u8 = b'A';
}

/// Listens for readers.
///
/// # Errors
/// [`Error::Start`] if the address is none, or in use.
pub(super) async fn listen(
    relay: &Arc<Relay>,
    ring: &Arc<Ring>,
    url: &str,
    config: &StreamConfig,
) -> Result<(), Error> {
    let wrong = |error: &dyn std::fmt::Display| Error::Start {
        message: format!("relay.publish: cannot listen at {url}: {error}; it is tcp://ADDRESS:PORT"),
    };
    let address = url.strip_prefix("tcp://").unwrap_or(url).replace('*', "0.0.0.0");
    let address: SocketAddr = address.parse().map_err(|error| wrong(&error))?;
    let listener = TcpListener::bind(address).await.map_err(|error| wrong(&error))?;
    let address = listener.local_addr().map_err(|error| wrong(&error))?;
    tracing::info!(%address, "listening for readers");
    if !address.ip().is_loopback() {
        tracing::warn!(%address, "anyone who can connect here reads which content hashes the engines hold");
    }
    let (relay, ring, config) = (Arc::downgrade(relay), ring.clone(), config.clone());
    tokio::spawn(async move {
        let places = Arc::new(Semaphore::new(READERS));
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
            let Ok(place) = places.clone().try_acquire_owned() else {
                tracing::warn!(%from, most = READERS, "a reader is refused: there are too many");
                continue;
            };
            let mut connection = Connection::new(Socket::of_peer(peer), Kind::Router, "", Budget::new(&config));
            connection.keep(place);
            let ring = ring.clone();
            tokio::spawn(async move {
                let why = serve(&relay, &ring, &mut connection).await;
                tracing::info!(%from, why, "a reader has left");
            });
        }
    });
    Ok(())
}

/// Serves a reader until it leaves; why.
async fn serve(relay: &Relay, ring: &Ring, connection: &mut Connection) -> String {
    let mut end = ring.watch();
    let mut next = None;
    loop {
        while let Some(from) = next
            && connection.waiting() < OUTPUT
        {
            let some = ring.after(from, OUTPUT);
            let Some(last) = some.last() else { break };
            next = Some(last.sequence + 1);
            for kept in &some {
                connection.send_frames(&[b"", kept.subject.as_bytes(), &kept.sequence.to_be_bytes()], &kept.payload);
            }
        }
        let event = {
            let mut changed = pin!(end.changed());
            poll_fn(|cx| {
                if let Poll::Ready(event) = connection.poll(cx) {
                    return Poll::Ready(Some(event));
                }
                let has_room = connection.waiting() < OUTPUT;
                if next.is_some_and(|next| has_room && (changed.as_mut().poll(cx).is_ready() || next < ring.range().1))
                {
                    return Poll::Ready(None);
                }
                Poll::Pending
            })
            .await
        };
        let body = match event {
            None | Some(Event::Open) => continue,
            Some(Event::Ended(why)) => return why,
            Some(Event::Message(body)) => body,
        };
        match body.split_first() {
            Some((&say::FOLLOW, place)) if let Ok(place) = place.try_into().map(u64::from_be_bytes) => {
                next = Some(place);
                if place == 0 {
                    // What comes after this is sent with all others.
                    let behind = ring.range().1;
                    for kept in ring.latest().iter().filter(|kept| kept.sequence < behind) {
                        connection
                            .send_frames(&[b"", kept.subject.as_bytes(), &kept.sequence.to_be_bytes()], &kept.payload);
                    }
                    next = Some(behind);
                }
            }
            Some((&say::KEPT, back)) if back.len() <= 16 => {
                // Who does not read gets no answers.
                if connection.waiting() < 2 * OUTPUT {
                    let (first, behind) = ring.range();
                    let answer = [&first.to_be_bytes()[..], back].concat();
                    connection.send_frames(&[b"", b"", &behind.to_be_bytes()], &answer);
                }
            }
            Some((&say::ASK, subject)) => {
                let outlet = std::str::from_utf8(subject).ok().and_then(|subject| relay.outlet_of(subject));
                if let Some(outlet) = outlet {
                    outlet.ask();
                }
            }
            _ => return "it says what no reader says".to_owned(),
        }
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
            outlet.arrived(&packed);
        }
        if is_closed {
            break;
        }
        let _ = timeout(heartbeat.saturating_duration_since(Instant::now()), outlet.added.notified()).await;
    }
    lock(&relay.outlets).retain(|_, outlet| outlet.strong_count() > 0);
}
