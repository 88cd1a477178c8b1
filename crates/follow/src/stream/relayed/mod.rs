//! Stream that is read from a NATS log, to which a relay publishes it: the log's messages, and the rules that decide
//! which are applied.

mod rules;
#[cfg(test)]
mod tests;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use kvatlas_index::snapshot::Dictionary;
use kvatlas_wire::compact::FormatError;
use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};

use self::rules::{LogEffects, LogRules};
use super::copier::Moment as _;
use super::engine::{end_restored, set_flags, settle};
use super::holdings::Holdings;
use super::task::{self, RestorePoint, StreamNews, StreamSource};
use crate::context::StreamContext;
use crate::relay::{Delivery, Inbox, LinkState, Relay};
use crate::state::{Keyspace, State, Stream};
use kvatlas_stream::Outcome;

/// Follows a stream that is read from the NATS log, until stopped.
pub(super) async fn follow(
    keyspace: Arc<Keyspace>,
    stream: Arc<Stream>,
    context: StreamContext,
    inbox: Option<Inbox>,
    stop: oneshot::Receiver<()>,
) {
    let inbox = Arc::new(Mutex::new(inbox.unwrap_or_else(Inbox::empty)));
    let source = || LogSource::new(&keyspace, &stream, &context.relay, inbox.clone());
    task::follow(keyspace.clone(), stream.clone(), context.clone(), source, stop).await;
}

/// Future that completes when the state of the connection to the NATS log changes, with the receiver of the state.
type LinkChange = Pin<Box<dyn Future<Output = watch::Receiver<LinkState>> + Send>>;

fn next_change(mut link: watch::Receiver<LinkState>) -> LinkChange {
    Box::pin(async move {
        // The sender is the relay's, which the source keeps.
        let _ = link.changed().await;
        link
    })
}

/// Messages of one stream in the NATS log, with the rules that decide which are applied.
struct LogSource {
    stream: Arc<Stream>,
    relay: Arc<Relay>,
    inbox: Arc<Mutex<Inbox>>,
    rules: LogRules,
    start: Instant,
    link: LinkState,
    link_change: LinkChange,
    /// Number of times that the held blocks had been cleared when blocks were restored from a snapshot; `None` once the
    /// restored blocks are proved to be still held, or dropped.
    restored: Option<u64>,
}

/// Event of the NATS log: a message, or a change of the connection.
enum LogEvent {
    Message(Delivery),
    /// The state of the connection to the NATS log has changed.
    Link(watch::Receiver<LinkState>),
}

impl LogSource {
    fn new(keyspace: &Keyspace, stream: &Arc<Stream>, relay: &Arc<Relay>, inbox: Arc<Mutex<Inbox>>) -> Self {
        let key = keyspace.identity().key_check();
        let mut link = relay.link.watch();
        let state = *link.borrow_and_update();
        Self {
            stream: stream.clone(),
            relay: relay.clone(),
            inbox,
            rules: LogRules::new(keyspace.block_size, key, relay.config.lost_after),
            start: Instant::now(),
            link: state,
            link_change: next_change(link),
            restored: None,
        }
    }
}

impl StreamSource for LogSource {
    type Rules = LogRules;
    type Event = LogEvent;

    fn rules(&self) -> &LogRules {
        &self.rules
    }

    fn can_prove(&self, point: &RestorePoint) -> bool {
        // Holdings that came from the engine itself have the engine's names.
        point.sequence.is_some()
    }

    fn restored(&mut self, point: RestorePoint, _: Arc<Dictionary>, holdings: &mut Holdings) {
        self.rules.restore(point.mark, point.first, point.sequence);
        self.restored = Some(holdings.clears());
    }

    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<LogEvent> {
        if let Poll::Ready(Some(message)) = self.inbox.lock().messages.poll_recv(cx) {
            return Poll::Ready(LogEvent::Message(message));
        }
        self.link_change.as_mut().poll(cx).map(LogEvent::Link)
    }

    fn take_in(&mut self, event: LogEvent, now: Duration, holdings: &mut Holdings) -> StreamNews {
        match event {
            LogEvent::Message(Delivery { payload, sequence, heard }) => {
                let heard = heard.map(|heard| heard.saturating_duration_since(self.start));
                let mut actions = LogActions { holdings, relay: &self.relay };
                self.rules.message(now, heard, &payload, sequence, &mut actions);
                holdings.heard = true;
            }
            LogEvent::Link(mut link) => {
                self.link = *link.borrow_and_update();
                self.link_change = next_change(link);
            }
        }
        let trusted = self.state(now) == State::Live;
        StreamNews { speaks: true, is_urgent: trusted != self.stream.status.is_trusted() }
    }

    fn tick(&mut self, now: Duration, holdings: &mut Holdings) {
        self.rules.tick(now, &mut LogActions { holdings, relay: &self.relay });
    }

    fn wake(&self, now: Duration) -> Option<Duration> {
        Some(self.rules.wake(now))
    }

    fn report(&mut self, now: Duration, _: bool, holdings: &mut Holdings, context: &StreamContext) {
        self.report_state(now, holdings, context);
        if let Some(clears) = self.restored
            && (self.rules.is_whole() || holdings.clears() > clears)
        {
            self.restored = None;
            let outcome = if holdings.clears() > clears { Outcome::Restarted } else { Outcome::Kept };
            end_restored(&self.stream, context, outcome);
        }
    }
}

impl LogSource {
    fn state(&self, now: Duration) -> State {
        if self.stream.status.limit().is_some() {
            State::Limited
        } else if self.link == LinkState::Down {
            State::Connecting
        } else if self.rules.is_stale(now) {
            State::Stale
        } else if self.rules.has_gap() {
            State::Gap
        } else if self.link == LinkState::Up && self.rules.trusted(now) {
            State::Live
        } else {
            State::Replaying
        }
    }

    fn report_state(&mut self, now: Duration, holdings: &mut Holdings, context: &StreamContext) {
        let forgotten = holdings.take_forgotten();
        let state = self.state(now);
        let (stream, rules) = (&self.stream, &mut self.rules);
        let (status, counters) = (&stream.status, &stream.status.counters);
        let trusted = state == State::Live;
        let (worker, rank) = (&*stream.worker, stream.registration.rank);
        if state != status.state() {
            let what = "the state of a stream that is read from the log has changed";
            tracing::info!(worker, rank, state = state.name(), forgotten, "{what}");
        }
        status.set_state(state);
        let counts = rules.counts;
        for (counter, count) in [
            (&counters.gaps, counts.gaps),
            (&counters.recovered_batches, counts.recovered),
            (&counters.lost_batches, counts.lost),
            (&counters.resets, counts.resets),
            (&counters.duplicate_batches, counts.duplicates),
            (&counters.other_relays, counts.other_relays),
            (&counters.undecodable_batches, counts.malformed),
            (&status.epoch, counts.epochs),
            (&status.buffered, rules.waiting() as u64),
        ] {
            counter.store(count, Relaxed);
        }
        status.set_last_seq(rules.last());
        status.set_gone(rules.is_gone());
        let told = rules.told();
        let flags = [
            (&status.partial, told.partial),
            (&status.unverified, told.unverified),
            (&status.upper_bound, told.upper_bound),
            (&status.no_salts, told.no_salts),
        ];
        set_flags(&holdings.keyspace, stream, flags);
        let trouble = || self.relay.link.trouble().filter(|_| self.link == LinkState::Down);
        if let Some(error) = rules.error.take().or_else(trouble) {
            if status.last_error().as_ref() != Some(&error) {
                tracing::warn!(worker, rank, error, "a stream that is read from the log");
            }
            status.set_error(error);
        } else if trusted && !status.is_trusted() {
            status.recover();
        }
        settle(holdings, trusted, now >= context.config.settle_timeout);
    }
}

/// Executor of the actions that the rules for a relay's messages take: changes of the held blocks, and requests to the
/// relay.
struct LogActions<'a> {
    holdings: &'a mut Holdings,
    relay: &'a Relay,
}

impl LogEffects for LogActions<'_> {
    fn apply(&mut self, id: u64, rank: u32, changes: &[u8]) -> Result<(), FormatError> {
        self.holdings.apply_changes(id, rank, changes)
    }
    fn clear(&mut self) {
        self.holdings.clear();
    }
    fn ask(&mut self) {
        self.relay.ask(self.holdings.stream.registration.endpoint.log_subject().unwrap_or_default());
    }
    fn timestamp(&mut self, timestamp: f64) {
        self.holdings.note_timestamp(timestamp);
    }
}
