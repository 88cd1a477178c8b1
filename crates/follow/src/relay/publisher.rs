//! Publishing of a stream's queue to the NATS log, by one task per stream. Messages are sent in order, with a limited
//! number of them unacknowledged.
//!
//! A message that is not acknowledged in time is sent again, with all messages after it. The log recognizes repeated
//! messages by their identifiers and keeps each once. If it should keep one twice, readers recognize the repeated
//! message number.

use std::collections::VecDeque;
use std::future::IntoFuture as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_nats::connection::State as Connection;
use async_nats::jetstream::Context;
use async_nats::jetstream::context::{ContextBuilder, PublishAckFuture, PublishError};
use async_nats::jetstream::stream::{Config as LogConfig, StorageType};
use async_nats::{Client, HeaderMap};
use futures_util::StreamExt as _;
use kvatlas_wire::compact::MessageWriter;
use tokio::time::{Instant, sleep, timeout};

use super::outlet::Envelope;
use super::{ASK, LinkState, Outlet, Relay, Subject};

/// Maximum number of a stream's messages that NATS has not acknowledged yet.
const WINDOW: usize = 8;
/// Time without an acknowledgement from NATS after which a message counts as lost.
const UNANSWERED: Duration = Duration::from_secs(2);
/// Wait before a failed attempt to publish is repeated.
const AGAIN: Duration = Duration::from_millis(200);
/// Maximum time for publishing the last messages of a stream that ends.
const LAST: Duration = Duration::from_secs(2);

impl Relay {
    /// Creates the queue of a stream that begins, and starts the task that publishes it. Must be called inside an async
    /// runtime.
    pub(crate) fn outlet(self: &Arc<Self>, subject: &Subject, block_size: u32, key: u32) -> Arc<Outlet> {
        let subject = subject.to_string();
        let writer = MessageWriter { life: new_life(), block_size, key };
        let outlet = Arc::new(Outlet::new(self.clone(), subject.clone(), writer));
        self.publishes_stream(subject, outlet.asker());
        // It is set before streams begin.
        if let Some(client) = self.client().cloned() {
            tokio::spawn(run(outlet.clone(), client));
        }
        outlet
    }
}

/// Creates a number for the time between two restarts of a stream's relay, greater than all earlier ones: milliseconds
/// since 1970, followed by bits that differ between the streams of a process and between processes.
fn new_life() -> u64 {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let millis = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
    let low = COUNT.fetch_add(1, Relaxed) ^ u64::from(std::process::id()) << 7;
    millis << 20 | low & 0xf_ffff
}

/// Message that was sent to the NATS log, with the acknowledgement that is expected for it.
struct SentMessage {
    packed: Envelope,
    ack: Option<PublishAckFuture>,
}

async fn run(outlet: Arc<Outlet>, client: Client) {
    let relay = outlet.relay.clone();
    let log = ContextBuilder::new().ack_timeout(UNANSWERED).timeout(UNANSWERED).build(client.clone());
    let mut ahead: VecDeque<SentMessage> = VecDeque::new();
    let mut heartbeat = Instant::now();
    let mut until = None;
    let (mut failures, mut told) = (0, String::new());
    loop {
        if outlet.is_closed() {
            let until = *until.get_or_insert_with(|| Instant::now() + LAST);
            if Instant::now() > until {
                break;
            }
        }
        if client.connection_state() != Connection::Connected {
            // The queue is left alone, so that its items go in few messages once the connection is back.
            sleep(AGAIN / 4).await;
            heartbeat = Instant::now();
            if ahead.is_empty() {
                continue;
            }
        } else {
            let mut failed = false;
            while !failed && ahead.len() < WINDOW && ahead.iter().all(|sent| sent.ack.is_some()) {
                let beats = ahead.is_empty() && heartbeat <= Instant::now();
                let Some(packed) = outlet.pack(beats) else { break };
                heartbeat = Instant::now() + relay.config.heartbeat;
                let ack = send(&log, &outlet, &packed).await.ok();
                failed = ack.is_none();
                ahead.push_back(SentMessage { packed, ack });
            }
        }
        let Some(first) = ahead.front_mut() else {
            if outlet.is_closed() {
                break;
            }
            let _ = timeout(heartbeat.saturating_duration_since(Instant::now()), outlet.added.notified()).await;
            continue;
        };
        let failure = match first.ack.take() {
            Some(ack) => {
                let mut ack = std::pin::pin!(ack.into_future());
                loop {
                    let more = outlet.added.notified();
                    tokio::select! {
                        biased;
                        acknowledged = &mut ack => break acknowledged.err().map(|error| error.to_string()),
                        // More may be sent meanwhile.
                        () = more, if ahead.len() < WINDOW && client.connection_state() == Connection::Connected => {
                            let Some(packed) = outlet.pack(false) else { continue };
                            let ack = send(&log, &outlet, &packed).await.ok();
                            ahead.push_back(SentMessage { packed, ack });
                        }
                    }
                }
            }
            None => Some("it could not be sent".to_owned()),
        };
        let Some(failure) = failure else {
            (failures, told) = (0, String::new());
            if let Some(SentMessage { packed, .. }) = ahead.pop_front() {
                relay.counts.published.fetch_add(1, Relaxed);
                relay.counts.published_bytes.fetch_add(packed.payload.len() as u64, Relaxed);
                outlet.note_arrival(&packed);
            }
            continue;
        };
        failures += 1;
        // The first one may have been for want of a log, which is there now.
        if let Some(failure) = again(&log, &client, &outlet, &mut ahead, failure).await
            && failures > 1
            && failure != told
        {
            let (subject, error) = (&outlet.subject, &failure);
            tracing::warn!(error, subject, "the log does not take messages; they are kept, and sent again");
            told = failure;
        }
    }
    ahead.iter().for_each(|sent| outlet.note_arrival(&sent.packed));
    relay.forget_ended();
}

/// Sends all unacknowledged messages to the NATS log again. Returns the reason if this fails; `None` if the connection
/// is lost.
async fn again(
    log: &Context,
    client: &Client,
    outlet: &Outlet,
    ahead: &mut VecDeque<SentMessage>,
    failure: String,
) -> Option<String> {
    sleep(AGAIN).await;
    if client.connection_state() != Connection::Connected {
        return None;
    }
    outlet.relay.counts.retries.fetch_add(ahead.len() as u64, Relaxed);
    let mut failure = ensure_log(log, &outlet.relay).await.err().or(Some(failure));
    for sent in ahead {
        sent.packed.note_late();
        sent.ack = match send(log, outlet, &sent.packed).await {
            Ok(ack) => Some(ack),
            Err(error) => {
                failure = Some(error.to_string());
                None
            }
        };
    }
    failure
}

async fn send(log: &Context, outlet: &Outlet, packed: &Envelope) -> Result<PublishAckFuture, PublishError> {
    let mut headers = HeaderMap::new();
    headers.insert("Nats-Msg-Id", format!("{:x}.{:x}.{:x}", outlet.writer.life, packed.id, outlet.named).as_str());
    log.publish_with_headers(outlet.subject.clone(), headers, packed.payload.clone()).await
}

/// Creates the JetStream stream of the log, if it does not exist.
pub(super) async fn ensure_log(log: &Context, relay: &Relay) -> Result<(), String> {
    let config = &relay.config;
    let storage = if config.in_memory { StorageType::Memory } else { StorageType::File };
    let made = LogConfig {
        name: config.stream.clone(),
        subjects: vec![Subject::ALL.to_owned()],
        max_age: config.max_age,
        max_bytes: config.max_bytes,
        duplicate_window: config.max_age.min(Duration::from_secs(120)),
        storage,
        ..LogConfig::default()
    };
    log.get_or_create_stream(made).await.map(drop).map_err(|error| error.to_string())
}

/// Passes the requests of the log's readers for all held blocks of a stream to the task of that stream.
pub(super) async fn answer_asks(relay: Arc<Relay>) {
    let Some(client) = relay.client().cloned() else { return };
    let log = ContextBuilder::new().timeout(UNANSWERED).build(client.clone());
    loop {
        if client.connection_state() == Connection::Connected && ensure_log(&log, &relay).await.is_ok() {
            // Messages can be published.
            relay.link.set(LinkState::Up);
            break;
        }
        sleep(AGAIN).await;
    }
    loop {
        let Ok(mut asks) = client.subscribe(format!("{ASK}{}", Subject::ALL)).await else {
            sleep(AGAIN).await;
            continue;
        };
        while let Some(ask) = asks.next().await {
            let Some(subject) = ask.subject.strip_prefix(ASK) else { continue };
            relay.note_request(subject);
        }
        if client.connection_state() == Connection::Pending {
            return;
        }
        sleep(AGAIN).await;
    }
}
