//! Reading JetStream. If the connection is lost, reading goes on where it ended.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use async_nats::connection::State as Connection;
use async_nats::jetstream::consumer::pull::{Ordered, OrderedConfig};
use async_nats::jetstream::consumer::{DeliverPolicy, ReplayPolicy};
use async_nats::jetstream::context::ContextBuilder;
use async_nats::jetstream::stream::{Info, Stream};
use async_nats::jetstream::{Context, Message};
use bytes::Bytes;
use futures_util::StreamExt as _;
use tokio::sync::mpsc;

use super::ends::End;
use super::message::{LOOK, LogMessage};
use super::{Reader, store};
use crate::relay::{ASK, Link, Subject};

impl Reader {
    /// Reads until that fails. `asked`: subjects whose relays are to be asked.
    pub(super) async fn read_nats(&mut self, asked: &mut mpsc::Receiver<String>) -> Result<(), String> {
        let Some(client) = self.relay.client().cloned() else { return Err("not connected".to_owned()) };
        let mut link = self.line.link();
        let _ = tokio::time::timeout(LOOK, link.wait_for(|link| *link != Link::Down)).await;
        if client.connection_state() != Connection::Connected {
            return Err("not connected".to_owned());
        }
        let log = ContextBuilder::new().timeout(Duration::from_secs(2)).build(client.clone());
        if self.known.is_none() {
            if self.relay.config.snapshots {
                store::begin(&self.fleet, &self.relay, &self.line, &log).await;
            }
            self.known = Some(self.fleet.snapshots().sequences().await);
        }
        let (mut messages, mut ends) = self.open(&log).await?;
        self.is_open = true;
        loop {
            while let Ok(end) = ends.try_recv() {
                self.ends.add(end?);
            }
            let next = tokio::select! {
                next = tokio::time::timeout(LOOK, messages.next()) => next,
                // The sender is the line's, which is ours.
                Some(subject) = asked.recv() => {
                    if let Err(error) = client.publish(format!("{ASK}{subject}"), Bytes::new()).await {
                        tracing::debug!(%error, "a relay could not be asked");
                    }
                    continue;
                }
            };
            let message = match next {
                Ok(Some(Ok(message))) => message,
                Ok(Some(Err(error))) => return Err(error.to_string()),
                Ok(None) => return Err("the log has ended".to_owned()),
                Err(_) if client.connection_state() != Connection::Connected => {
                    return Err("the connection is lost".to_owned());
                }
                Err(_) if self.ends.are_missed(self.next) => {
                    return Err("the log has messages, and does not send them".to_owned());
                }
                Err(_) => {
                    // Nothing is left to be read.
                    self.near();
                    self.sweep().await;
                    continue;
                }
            };
            self.nats_message(message).await;
            if self.looked.elapsed() > LOOK {
                self.sweep().await;
            }
        }
    }

    async fn open(&mut self, log: &Context) -> Result<(Ordered, mpsc::Receiver<Result<End, String>>), String> {
        let name = &self.relay.config.stream;
        let at = Instant::now();
        let mut stream = log.get_stream(name).await.map_err(|error| {
            format!("there is no JetStream stream {name:?}, which relays make; does the server run with -js? ({error})")
        })?;
        let info = stream.info().await.map_err(|error| error.to_string())?.clone();
        let (first, last) = (info.state.first_sequence, info.state.last_sequence);
        self.ends.begin(End { at, first, last });
        let next = self.place(first, last);
        let deliver_policy = match next {
            Some(start_sequence) => DeliverPolicy::ByStartSequence { start_sequence },
            None => DeliverPolicy::LastPerSubject,
        };
        tracing::info!(stream = name, first, last, next, "reading the log");
        let filter_subject = Subject::ALL.to_owned();
        let replay_policy = ReplayPolicy::Instant;
        let config = OrderedConfig { deliver_policy, filter_subject, replay_policy, ..OrderedConfig::default() };
        let consumer = stream.create_consumer(config).await.map_err(|error| error.to_string())?;
        if next.is_some_and(|next| next > last) || last == 0 {
            self.near();
        }
        let messages = consumer.messages().await.map_err(|error| error.to_string())?;
        let (ends, receiver) = mpsc::channel(4);
        tokio::spawn(watch(stream, info, ends));
        Ok((messages, receiver))
    }

    async fn nats_message(&mut self, message: Message) {
        let Ok(info) = message.info() else { return self.refuse("its place in the log is unknown") };
        let (sequence, pending) = (info.stream_sequence, info.pending);
        let age = since_1970().saturating_sub(info.published.unix_timestamp().unsigned_abs());
        let message = message.message;
        self.message(LogMessage { subject: &message.subject, payload: message.payload, sequence, pending, age }).await;
    }
}

/// Asks the log what it keeps, until nobody wants to know, or it is to be opened anew.
async fn watch(stream: Stream<Info>, mut before: Info, ends: mpsc::Sender<Result<End, String>>) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(LOOK) => {}
            () = ends.closed() => return,
        }
        let at = Instant::now();
        // While it does not answer, nothing is known to be of now.
        let Ok(info) = stream.get_info().await else { continue };
        let (first, last) = (info.state.first_sequence, info.state.last_sequence);
        let is_other = info.created != before.created || last < before.state.last_sequence;
        let end = if is_other { Err("it was made anew".to_owned()) } else { Ok(End { at, first, last }) };
        before = info;
        if ends.send(end).await.is_err() || is_other {
            return;
        }
    }
}

fn since_1970() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
