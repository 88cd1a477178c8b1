//! Reasons to distrust a stream for a while, although all its batches have been applied.
//!
//! * **Contradictions** ([`Doubt`]). Two batches with one sequence number differ. An engine that restarts behind a proxy
//!   causes a single contradiction. Two publishers on one endpoint cause many, and the applied batches are then a mixture
//!   of both. So a stream is distrusted for a while after a contradiction, and for longer after each one that soon follows.
//! * **Rivals** ([`Rivalry`]). Two publishers are connected with one topic. The second may be the same engine, whose old
//!   connection was lost unnoticed; another engine with the same settings; or an impostor. The first publisher is read,
//!   and the others wait until it is gone (see `Publishers` in `kvatlas-follow`). The replay socket shows which publisher
//!   is the engine, by a batch published after the second connected. Until then, or without a replay socket, the stream
//!   is distrusted.
//! * **Events of unknown types** ([`UnknownEvents`]). An unknown event may have removed any block, so all held blocks are
//!   cleared. If an engine of a newer version sends harmless unknown events continually, the stream would be cleared
//!   without end. So after a few of them nothing is cleared any more, and the stream is distrusted until none has come for
//!   some time.
//! * **Silence of a busy engine** ([`Silence`]). Most engines are idle now and then. An engine that publishes several
//!   batches a second and suddenly stops is either out of work or hangs. A replay request is sent at once, and the stream
//!   is distrusted if no answer comes in time, provided that the engine has answered before over the same connection. The
//!   next batch or answer restores trust, because over the same connection it is the same engine.

use std::time::Duration;

use super::batches::Question;
use super::inputs::Goal;
use super::{Effects, HEAL_MAX, Machine};

/// Number of contradictions (different batches with one sequence number), each soon after the one before, from which on
/// restarts of the engine cannot explain them.
const STRONG: u32 = 3;
/// Maximum time between two contradictions (different batches with one sequence number) that are counted together.
const SOON_AFTER: Duration = Duration::from_secs(60);

/// Contradictions (different batches with one sequence number) in a stream, and the time until which they make the
/// stream distrusted.
#[derive(Debug, Default)]
pub(super) struct Doubt {
    /// Number of recent contradictions (different batches with one sequence number), each soon after the one before.
    count: u32,
    at: Duration,
    until: Option<Duration>,
    /// Sequence number of a live batch, not above the last applied one, whose hash is no longer remembered. Either the
    /// engine has restarted, or the batch is another publisher's. `None` if there is no undecided number.
    suspect: Option<u64>,
}

impl Doubt {
    pub(super) fn is_open(&self) -> bool {
        self.until.is_some()
    }

    pub(super) fn is_strong(&self) -> bool {
        self.is_open() && self.count >= STRONG
    }

    pub(super) fn until(&self) -> Option<Duration> {
        self.until
    }

    pub(super) fn pass(&mut self, now: Duration) {
        self.until = self.until.filter(|until| *until > now);
    }

    /// Records the loss of the connection to the engine. A single contradiction (different batches with one sequence
    /// number) is then explained by a restart of the engine, and forgotten.
    pub(super) fn disconnected(&mut self) {
        self.suspect = None;
        if self.count <= 1 {
            (self.count, self.until) = (0, None);
        }
    }

    pub(super) fn suspect(&mut self, seq: u64) {
        self.suspect = Some(seq);
    }

    /// Records that two batches with the same sequence number differ. `certain` is true if both came over the live
    /// connection; `pause` is the time for which the stream is distrusted after the first certain contradiction.
    pub(super) fn contradict(&mut self, now: Duration, certain: bool, pause: Duration) {
        let over = self.until.unwrap_or(self.at) + SOON_AFTER;
        self.count = if now > over { 1 } else { self.count + 1 };
        self.at = now;
        if certain || self.count > 1 {
            let wait = pause * 4u32.saturating_pow((self.count - 1).min(8));
            self.until = self.until.max(Some(now + wait.min(HEAL_MAX)));
        }
    }

    /// Removes the suspect sequence number (one that may belong to a restarted engine or to another publisher). Returns
    /// true if there was one.
    pub(super) fn take_suspect(&mut self) -> bool {
        self.suspect.take().is_some()
    }
}

impl<P: AsRef<[u8]>> Machine<P> {
    /// Counts a contradiction (different batches with one sequence number). `certain` is true if both batches came over
    /// the live connection; a batch from a replay may be that of an engine which has just restarted.
    pub(super) fn note_contradiction(&mut self, now: Duration, certain: bool) {
        self.counts.contradictions += 1;
        self.doubt.contradict(now, certain, self.config.probe_interval);
    }

    /// Counts a live batch of unclear origin, if there is one, as a contradiction (different batches with one sequence
    /// number). Called when the engine has proved not to have restarted, so that the batch must come from another
    /// publisher.
    pub(super) fn admit_suspect(&mut self, now: Duration) {
        if self.doubt.take_suspect() {
            self.note_contradiction(now, true);
        }
    }
}

/// State of a competition between several publishers that are connected with the same topic.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Rivalry {
    /// Only one publisher is connected, or the publisher that is read has proved to be the engine.
    #[default]
    None,
    /// A second publisher is connected, and is not read yet.
    Present,
    /// The second publisher has replaced the first, and has not yet proved to be the engine.
    Over,
}

impl Rivalry {
    pub(super) fn disconnected(&mut self, can_replay: bool) {
        *self = if *self == Self::None || !can_replay { Self::None } else { Self::Over };
    }
}

impl<P: AsRef<[u8]>> Machine<P> {
    /// Handles the connection of a further publisher with the same topic.
    pub fn rival(&mut self) {
        self.counts.rivals += 1;
        self.rivalry = Rivalry::Present;
        // Proofs from before do not show that the publisher read now is the engine.
        self.life.doubt();
    }

    /// Handles that only one publisher with the topic is still connected, after the others have disconnected.
    pub fn alone(&mut self) {
        if self.rivalry == Rivalry::Present {
            self.rivalry = Rivalry::None;
        }
    }

    /// True if several publishers were connected with one topic, and the live batches are not proved to be the
    /// engine's.
    pub(super) fn is_contested(&self) -> bool {
        match self.rivalry {
            Rivalry::None => false,
            Rivalry::Present => true,
            // No batch has come yet: the holdings were verified with the new connection.
            Rivalry::Over => self.life.sample().is_some(),
        }
    }
}

/// Maximum number of batches with events of unknown types, each soon after the one before, for which the held blocks
/// are cleared.
const FORGIVEN: u32 = 3;
/// Maximum time between two batches with events of unknown types that are counted together.
const WHILE: Duration = Duration::from_secs(600);

/// Count of batches that contain events of unknown types, each soon after the one before.
#[derive(Debug, Default)]
pub(super) struct UnknownEvents {
    /// Number of batches with events of unknown types, each soon after the one before.
    count: u32,
    at: Duration,
    /// True if an event of an unknown type came after the held blocks were last cleared, so that the event may have
    /// removed some of them.
    open: bool,
}

impl UnknownEvents {
    pub(super) fn is_open(&self) -> bool {
        self.open
    }

    /// Records that the stream's held blocks were cleared.
    pub(super) fn clear(&mut self) {
        self.open = false;
    }

    /// Returns the time at which the stream is trusted again, unless another event of an unknown type comes; `None` if
    /// the stream is not distrusted because of events of unknown types.
    pub(super) fn until(&self) -> Option<Duration> {
        self.open.then(|| self.at + WHILE)
    }

    /// Records a batch with events of unknown types. Returns true if the held blocks must be cleared.
    pub(super) fn add(&mut self, now: Duration) -> bool {
        let again = self.count > 0 && now <= self.at + WHILE;
        (self.count, self.at) = (if again { self.count.saturating_add(1) } else { 1 }, now);
        self.open = self.count > FORGIVEN;
        !self.open
    }
}

impl<P: AsRef<[u8]>> Machine<P> {
    /// Clears the held blocks a last time, once no event of an unknown type has come for the duration [`WHILE`].
    pub(super) fn end_unknown_events(&mut self, now: Duration, fx: &mut impl Effects<P>) {
        if self.unknown_events.until().is_some_and(|at| at <= now) {
            self.lose(self.next(), fx);
            self.heal_at = None;
        }
    }
}

/// Minimum number of batches in a row, without a pause, for an engine to count as busy.
const BUSY: u32 = 20;

/// State for detecting that a busy engine has stopped sending batches.
#[derive(Debug, Default)]
pub(super) struct Silence {
    /// Number of live batches received in a row without a pause.
    run: u32,
    /// True if the replay socket has answered since the live socket connected.
    answers: bool,
    /// True if the engine stopped sending batches while busy, and has not answered a replay request since.
    open: bool,
}

impl Silence {
    pub(super) fn connected(&mut self) {
        *self = Self::default();
    }

    pub(super) fn note_answer(&mut self) {
        (self.answers, self.open) = (true, false);
    }

    pub(super) fn is_open(&self) -> bool {
        self.open
    }

    /// Records a live batch. `pauses` is true if a time without batches preceded the batch.
    pub(super) fn note_batch(&mut self, pauses: bool) {
        self.run = if pauses { 1 } else { self.run.saturating_add(1) };
        self.open = false;
    }

    /// True if the engine was busy (sent batches without a pause), and has answered replay requests since the live
    /// socket connected.
    pub(super) fn was_busy(&self) -> bool {
        self.answers && self.run >= BUSY
    }

    /// Records that a busy engine has stopped sending batches and does not answer. Returns true if this was not
    /// recorded before.
    pub(super) fn begin(&mut self) -> bool {
        !std::mem::replace(&mut self.open, true)
    }
}

impl<P: AsRef<[u8]>> Machine<P> {
    /// Returns the minimum time without a live batch that counts as a pause.
    fn pause(&self) -> Duration {
        self.config.probe_interval / 5
    }

    /// Records a live batch for the detection of [`Silence`]. Must be called before `live_heard` is set to the time of
    /// this batch.
    pub(super) fn note_live_batch(&mut self, now: Duration) {
        let pauses = now.saturating_sub(self.live_heard) > self.pause();
        self.silence.note_batch(pauses);
    }

    fn was_busy(&self) -> bool {
        self.goal == Goal::Live && self.silence.was_busy()
    }

    /// Returns the time of the replay request to a busy engine that has stopped sending; one request is made per
    /// silence. `None` if none is due.
    pub(super) fn silence_due(&self) -> Option<Duration> {
        let asked = self.asked >= self.live_heard || self.ask.is_some() || self.ask_at.is_some();
        (self.was_busy() && self.can_ask() && !asked).then(|| self.live_heard + self.pause())
    }

    /// Records that a replay request was not answered in time, and distrusts the stream if its engine was busy.
    pub(super) fn note_no_answer(&mut self, now: Duration, ask: &Question) {
        if !ask.answered && self.was_busy() && self.asked >= self.live_heard && self.silence.begin() {
            self.probe_at = Some(now + self.pause());
        }
    }
}
