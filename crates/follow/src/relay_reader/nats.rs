//! Reader of NATS JetStream, which distinguishes messages that were just published from older ones.
//!
//! If the connection is lost, reading continues where it ended. The clocks of different machines are not precise enough
//! to show that a message was just published. So the log is asked every second for its last message; all messages after
//! that one were published later.

use std::collections::VecDeque;
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

use super::{LogMessage, Reader, store};
use crate::relay::{ASK, LinkState, Subject};

/// Interval at which the log is asked for its last message; also the time without a message after which the connection
/// is checked.
const LOOK: Duration = Duration::from_secs(1);
/// Maximum time since its publication for which a message counts as just published.
const NOW: Duration = Duration::from_secs(2);

/// Ranges of messages (by first and last sequence number) that the NATS log had at several moments within the last
/// [`NOW`], oldest first.
#[derive(Default)]
pub(super) struct Ends {
    ends: VecDeque<End>,
    /// Sequence number of the last message in the log when it was last reported that messages were not delivered.
    missed: u64,
}

/// Sequence numbers of the first and last message that the log had at one moment.
#[derive(Clone, Copy)]
struct End {
    at: Instant,
    first: u64,
    last: u64,
}

impl Ends {
    /// True if the message with this sequence number was certainly published within [`NOW`].
    pub(super) fn is_new(&mut self, sequence: u64) -> bool {
        self.forget();
        self.ends.front().is_some_and(|end| sequence > end.last)
    }

    /// True if the log should have delivered the messages from number `next` on by now, and has not. Returns true once
    /// for each last message of the log, because that message may have been deleted.
    fn are_missed(&mut self, next: Option<u64>) -> bool {
        self.forget();
        let next = next.unwrap_or(0);
        let is_there = |end: &&End| end.at.elapsed() > LOOK / 2 && end.first.max(next) <= end.last;
        let missed = self.ends.iter().filter(is_there).map(|end| end.last).max();
        missed.is_some_and(|last| last > std::mem::replace(&mut self.missed, last))
    }

    /// Adds `end`, the range of messages that the NATS log has at present, to these ranges.
    fn add(&mut self, end: End) {
        self.ends.push_back(end);
    }

    /// Replaces these ranges of messages by the range `end`, after the NATS log was opened again.
    fn begin(&mut self, end: End) {
        self.ends.clear();
        self.missed = self.missed.min(end.last);
        self.add(end);
    }

    fn forget(&mut self) {
        while self.ends.front().is_some_and(|end| end.at.elapsed() > NOW) {
            self.ends.pop_front();
        }
    }
}

impl Reader {
    /// Reads the log until reading fails. `questions` receives the NATS subjects of streams whose publishers are to be
    /// asked to publish all held blocks.
    pub(super) async fn read_nats(&mut self, questions: &mut mpsc::Receiver<String>) -> Result<(), String> {
        let Some(client) = self.relay.client().cloned() else { return Err("not connected".to_owned()) };
        let mut state = self.relay.link.watch();
        let _ = tokio::time::timeout(LOOK, state.wait_for(|state| *state != LinkState::Down)).await;
        if client.connection_state() != Connection::Connected {
            return Err("not connected".to_owned());
        }
        let log = ContextBuilder::new().timeout(Duration::from_secs(2)).build(client.clone());
        if self.known.is_none() {
            if self.relay.config.snapshots {
                store::begin(&self.fleet, &self.relay, &log).await;
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
                // The sender is the link's, which lasts as long.
                Some(subject) = questions.recv() => {
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
                    // No message is left to be read.
                    self.caught_up();
                    self.sweep().await;
                    continue;
                }
            };
            self.nats_message(message).await;
            if self.swept.elapsed() > LOOK {
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
            self.caught_up();
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

/// Asks the log every second for the range of messages that it has, until the receiver is dropped or the log must be
/// opened again.
async fn watch(stream: Stream<Info>, mut before: Info, ends: mpsc::Sender<Result<End, String>>) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(LOOK) => {}
            () = ends.closed() => return,
        }
        let at = Instant::now();
        // While it does not answer, no message counts as just published.
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
