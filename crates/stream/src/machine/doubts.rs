//! Reasons to suspend trust in a stream for a while, although all its batches are applied.
//!
//! * **Contradictions** ([`Doubt`]). An engine behind a proxy may restart and show it by its sequence numbers alone; that
//!   happens once. Two publishers on one endpoint show it again and again, and the batches applied in between are a mixture.
//!   So a stream is not trusted for a while after a contradiction, and each further contradiction soon after lengthens the time.
//! * **Rivals** ([`Rivalry`]): two publishers connected under one name. The second may be the engine, whose old connection is
//!   dead unnoticed; another engine with the same settings; or an impostor. The first that came is read, and the
//!   others wait until it is gone (see `Publishers` in `kvatlas-follow`). Only the replay socket can tell which of them is the
//!   engine, by a batch that came after the second connected. Until then, or without a replay socket, the stream is not trusted.
//! * **Events of unknown types** ([`UnknownEvents`]). Such an event may have removed anything, so all that was applied before is
//!   forgotten. But an engine of a newer version may send one each second and mean something harmless; the stream
//!   would then read and forget without end. So after a few of them nothing is forgotten any more, and the stream is not
//!   trusted until none has come for as long.
//! * **Silence of a busy engine** ([`Silence`]). Silence alone says little: most engines are idle now and then. An engine that
//!   publishes several batches a second and stops without a word either has no work left or hangs. So it is asked
//!   at once, and not trusted if it does not answer in time, provided that it has answered before over the same connection.
//!   Its next batch or answer restores the trust: the connection is still the same, so it is the same engine.

use std::time::Duration;

use super::batches::Question;
use super::inputs::Goal;
use super::{Effects, HEAL_MAX, Machine};

/// Number of contradictions, each soon after the one before, from which on they cannot be explained by restarts.
const STRONG: u32 = 3;
/// Time without a contradiction after which counting starts anew.
const SOON_AFTER: Duration = Duration::from_secs(60);

/// Contradictions among the batches of a stream, and the end of the doubt that they raise.
#[derive(Debug, Default)]
pub(super) struct Doubt {
    /// Number of contradictions so far, each soon after the one before.
    count: u32,
    at: Duration,
    until: Option<Duration>,
    /// Sequence number below the last applied one, too old to show by itself whether the engine has restarted.
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

    /// Records the loss of the connection, which explains a single contradiction: the engine has restarted.
    pub(super) fn disconnected(&mut self) {
        self.suspect = None;
        if self.count <= 1 {
            (self.count, self.until) = (0, None);
        }
    }

    pub(super) fn suspect(&mut self, seq: u64) {
        self.suspect = Some(seq);
    }

    /// Records that two batches with the same number differ. `certain`: whether both came over the live connection;
    /// `pause`: time for which the stream is not trusted after the first certain contradiction.
    pub(super) fn contradict(&mut self, now: Duration, certain: bool, pause: Duration) {
        let over = self.until.unwrap_or(self.at) + SOON_AFTER;
        self.count = if now > over { 1 } else { self.count + 1 };
        self.at = now;
        if certain || self.count > 1 {
            let wait = pause * 4u32.saturating_pow((self.count - 1).min(8));
            self.until = self.until.max(Some(now + wait.min(HEAL_MAX)));
        }
    }

    /// Takes out the suspect sequence number. True if there was one.
    pub(super) fn take_suspect(&mut self) -> bool {
        self.suspect.take().is_some()
    }
}

impl<P: AsRef<[u8]>> Machine<P> {
    /// Records a contradiction between two batches. `certain`: whether both came over the live connection, as an answer
    /// of the replay socket may already be the restarted engine's.
    pub(super) fn note_contradiction(&mut self, now: Duration, certain: bool) {
        self.counts.contradictions += 1;
        self.doubt.contradict(now, certain, self.config.probe_interval);
    }

    /// Counts a suspect sequence number as a contradiction: as the engine has proved to be the same, the number is
    /// another's.
    pub(super) fn admit_suspect(&mut self, now: Duration) {
        if self.doubt.take_suspect() {
            self.note_contradiction(now, true);
        }
    }
}

/// State of a competition between publishers connected under the engine's name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Rivalry {
    /// There is one publisher, or the first of several has proved to be the engine.
    #[default]
    None,
    /// A second publisher is connected, and waits.
    Present,
    /// The second publisher has taken the place of the first, and its batches still have to be proved.
    Over,
}

impl Rivalry {
    pub(super) fn disconnected(&mut self, can_replay: bool) {
        *self = if *self == Self::None || !can_replay { Self::None } else { Self::Over };
    }
}

impl<P: AsRef<[u8]>> Machine<P> {
    /// Handles the input that another publisher has connected.
    pub fn rival(&mut self) {
        self.counts.rivals += 1;
        self.rivalry = Rivalry::Present;
        // Proofs from before do not show that the publisher read now is the engine.
        self.life.doubt();
    }

    /// Handles the input that all publishers but one have disconnected.
    pub fn alone(&mut self) {
        if self.rivalry == Rivalry::Present {
            self.rivalry = Rivalry::None;
        }
    }

    /// True if the live batches may be those of an impostor.
    pub(super) fn is_contested(&self) -> bool {
        match self.rivalry {
            Rivalry::None => false,
            Rivalry::Present => true,
            // No batch has come yet: the holdings were verified with the new connection.
            Rivalry::Over => self.life.sample().is_some(),
        }
    }
}

/// Maximum number of batches with events of unknown types, each soon after the one before, that clear the holdings.
const FORGIVEN: u32 = 3;
/// Longest time between two batches with events of unknown types for which they are counted together.
const WHILE: Duration = Duration::from_secs(600);

/// Count of batches with events of unknown types, each soon after the one before.
#[derive(Debug, Default)]
pub(super) struct UnknownEvents {
    /// Number of batches with events of unknown types, each soon after the one before.
    count: u32,
    at: Duration,
    /// True if such a batch came after the present holdings, which may therefore be wrong.
    open: bool,
}

impl UnknownEvents {
    pub(super) fn is_open(&self) -> bool {
        self.open
    }

    /// Records that the stream's holdings were cleared.
    pub(super) fn clear(&mut self) {
        self.open = false;
    }

    /// Time at which trust returns, unless another event of an unknown type comes; `None` if the stream is not
    /// distrusted for this reason.
    pub(super) fn until(&self) -> Option<Duration> {
        self.open.then(|| self.at + WHILE)
    }

    /// Records a batch with events of unknown types. True if the holdings must be cleared.
    pub(super) fn add(&mut self, now: Duration) -> bool {
        let again = self.count > 0 && now <= self.at + WHILE;
        (self.count, self.at) = (if again { self.count.saturating_add(1) } else { 1 }, now);
        self.open = self.count > FORGIVEN;
        !self.open
    }
}

impl<P: AsRef<[u8]>> Machine<P> {
    /// Clears the holdings a last time, once no event of an unknown type has come for the duration [`WHILE`].
    pub(super) fn end_unknown_events(&mut self, now: Duration, fx: &mut impl Effects<P>) {
        if self.unknown_events.until().is_some_and(|at| at <= now) {
            self.lose(self.next(), fx);
            self.heal_at = None;
        }
    }
}

/// Number of batches in a row, without a pause, from which on an engine counts as busy.
const BUSY: u32 = 20;

/// State of a live connection for noticing that a busy engine has fallen silent.
#[derive(Debug, Default)]
pub(super) struct Silence {
    /// Number of live batches in a row without a pause.
    run: u32,
    /// True if the replay socket has answered since the live socket was connected.
    answers: bool,
    /// True if the engine fell silent while busy, and does not answer.
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

    /// Records a live batch. `pauses`: whether a pause preceded the batch.
    pub(super) fn note_batch(&mut self, pauses: bool) {
        self.run = if pauses { 1 } else { self.run.saturating_add(1) };
        self.open = false;
    }

    /// True if the engine was busy, and has answered replay requests since the live socket was connected.
    pub(super) fn was_busy(&self) -> bool {
        self.answers && self.run >= BUSY
    }

    /// Records that a busy engine does not answer. True if this was not known before.
    pub(super) fn begin(&mut self) -> bool {
        !std::mem::replace(&mut self.open, true)
    }
}

impl<P: AsRef<[u8]>> Machine<P> {
    /// Shortest time without a live batch that counts as a pause.
    fn pause(&self) -> Duration {
        self.config.probe_interval / 5
    }

    /// Records a live batch for [`Silence`]. Must be called before `live_heard` is set to the time of this batch.
    pub(super) fn note_live_batch(&mut self, now: Duration) {
        let pauses = now.saturating_sub(self.live_heard) > self.pause();
        self.silence.note_batch(pauses);
    }

    fn was_busy(&self) -> bool {
        self.goal == Goal::Live && self.silence.was_busy()
    }

    /// Time of the replay request to a busy engine that has fallen silent, made once per silence; `None` if none is
    /// due.
    pub(super) fn silence_due(&self) -> Option<Duration> {
        let asked = self.asked >= self.live_heard || self.ask.is_some() || self.ask_at.is_some();
        (self.was_busy() && self.can_ask() && !asked).then(|| self.live_heard + self.pause())
    }

    /// Records that a replay request was not answered in time.
    pub(super) fn note_no_answer(&mut self, now: Duration, ask: &Question) {
        if !ask.answered && self.was_busy() && self.asked >= self.live_heard && self.silence.begin() {
            self.probe_at = Some(now + self.pause());
        }
    }
}
