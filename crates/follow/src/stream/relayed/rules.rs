//! Rules for the messages of a relay about one stream. They use no connection and no clock. A relay is a service that
//! follows an engine and publishes its stream to a NATS log.
//!
//! Messages are numbered consecutively from each start of the relay. If none is missing, the held blocks equal the
//! relay's. If a number is missing, later messages wait for a moment, as the missing one may be sent again. Then the
//! held blocks are cleared, and the relay is asked for a full state.
//!
//! If two relays publish the same engine's stream, the one that was started last counts. Messages of the other one are
//! skipped, unless the first has been silent for a long time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use kvatlas_wire::compact::{FormatError, Frame, Message, Status};

use crate::stream::copier::Moment;
use kvatlas_stream::{Mark, Skip};

/// Maximum wait for a missing message of the relay that may still arrive.
const GRACE: Duration = Duration::from_millis(2500);
/// Maximum number of a relay's messages that wait because an earlier message is missing.
const MOST_WAITING: usize = 256;
/// Maximum total size, in bytes, of a relay's messages that wait because an earlier message is missing.
const MOST_WAITING_BYTES: usize = 64 << 20;
/// Wait before the relay (the publisher of the stream) is asked again to publish all held blocks, if they have not
/// arrived.
const ASK_AGAIN: Duration = Duration::from_secs(2);

/// Actions that the rules for a relay's messages take on their stream.
pub(super) trait LogEffects {
    /// Applies the changes in message number `id` to the blocks held by a rank.
    fn apply(&mut self, id: u64, rank: u32, changes: &[u8]) -> Result<(), FormatError>;
    /// Removes all blocks held by the stream's ranks from the index.
    fn clear(&mut self);
    /// Asks the relay (the publisher of the stream) to publish all blocks held by the stream's ranks.
    fn ask(&mut self);
    /// Records the engine's timestamp of the last batch in a message, in seconds since 1970.
    fn timestamp(&mut self, timestamp: f64);
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
enum Phase {
    /// The blocks that the stream holds are not known, because the relay (its publisher) has not sent them all yet.
    #[default]
    Unknown,
    /// The relay (the publisher of the stream) is sending all held blocks; those of the given ranks have been received.
    Told(BTreeSet<u32>),
    /// The held blocks equal those that the relay (the publisher of the stream) knows.
    Whole,
}

/// Counts of notable events on a stream that is read from the NATS log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) epochs: u64,
    pub(super) gaps: u64,
    pub(super) recovered: u64,
    pub(super) lost: u64,
    pub(super) resets: u64,
    pub(super) duplicates: u64,
    pub(super) other_relays: u64,
    pub(super) malformed: u64,
}

/// State of one stream that is read from the NATS log, with the rules that decide which messages are applied.
#[derive(Debug)]
pub(super) struct LogRules {
    block_size: u32,
    key: u32,
    silence: Duration,
    life: Option<u64>,
    next: u64,
    phase: Phase,
    told: Status,
    /// True if blocks restored from a snapshot must still be proved to be held, by a message that the relay (the
    /// publisher of the stream) has sent since its last restart.
    unproved: bool,
    waiting: BTreeMap<u64, (Bytes, u64)>,
    /// Total size, in bytes, of the messages that wait because an earlier message is missing.
    waiting_bytes: usize,
    gap_until: Option<Duration>,
    heard: Option<Duration>,
    asked: Option<Duration>,
    /// Sequence number of the last applied message in the NATS log.
    sequence: u64,
    first: u64,
    gone: bool,
    pub(super) counts: Counts,
    pub(super) error: Option<String>,
}

impl LogRules {
    pub(super) fn new(block_size: u32, key: u32, silence: Duration) -> Self {
        Self {
            block_size,
            key,
            silence,
            life: None,
            next: 0,
            phase: Phase::Unknown,
            told: Status::default(),
            unproved: false,
            waiting: BTreeMap::new(),
            waiting_bytes: 0,
            gap_until: None,
            heard: None,
            asked: None,
            sequence: 0,
            first: 0,
            gone: false,
            counts: Counts::default(),
            error: None,
        }
    }

    /// Initializes the rules for held blocks that were restored from a snapshot, up to message `mark`. `first` is the
    /// number of the first message since the last clear, and `sequence` the sequence number of the last message in the
    /// NATS log.
    pub(super) fn restore(&mut self, mark: Mark, first: u64, sequence: Option<u64>) {
        (self.life, self.next, self.first) = (Some(mark.hash), mark.seq + 1, first);
        (self.phase, self.unproved, self.sequence) = (Phase::Whole, true, sequence.unwrap_or(0));
    }

    /// Handles a message. `heard` is the time at which it was received, or `None` if it was not published just before.
    ///
    /// A message with an invalid header is ignored, because any NATS client may have published it. If it was the
    /// relay's, the number of the next message shows a gap; if no other message follows, the relay is found to be
    /// silent.
    pub(super) fn message(
        &mut self,
        now: Duration,
        heard: Option<Duration>,
        payload: &Bytes,
        sequence: u64,
        fx: &mut impl LogEffects,
    ) {
        let message = match Message::read(payload) {
            Ok(message) => message,
            Err(error) => return self.refuse(error.to_string()),
        };
        if let Some(life) = self.life
            && message.life < life
            && !self.is_stale(now)
        {
            self.counts.other_relays += 1;
            self.error = Some(
                "another relay publishes the same engine: the one that began later is followed, the other one's \
                 messages are left out; stop one of them"
                    .to_owned(),
            );
            return;
        }
        if message.block_size != self.block_size {
            // The stream is to be registered anew, if others of the model do not contradict.
            self.gone |= self.life != Some(message.life);
            return self.refuse(format!(
                "the relay says that blocks have {} tokens, and not {} as others of the model have",
                message.block_size, self.block_size
            ));
        }
        if message.key != self.key {
            let message = match (message.key, self.key) {
                (0, _) => "the relay has no key, but this service has one (relay.key_file)",
                (_, 0) => "the relay has a key: give this service the same (relay.key_file)",
                _ => "the relay has another key than this service (relay.key_file)",
            };
            return self.refuse(message.to_owned());
        }
        if self.life != Some(message.life) {
            self.counts.epochs += u64::from(self.life.is_some());
            self.life = Some(message.life);
            self.next = message.id;
            self.forget(fx);
        }
        self.heard = self.heard.max(heard);
        if message.id < self.next {
            self.counts.duplicates += 1;
            self.unproved = false;
        } else if message.id > self.next {
            let before = self.waiting.insert(message.id, (payload.clone(), sequence));
            self.waiting_bytes += payload.len();
            self.waiting_bytes -= before.map_or(0, |(payload, _)| payload.len());
            if self.gap_until.is_none() {
                self.counts.gaps += 1;
                self.gap_until = Some(now + GRACE);
            }
            let are_many = self.waiting.len() > MOST_WAITING || self.waiting_bytes > MOST_WAITING_BYTES;
            if are_many || self.phase == Phase::Unknown {
                self.lose(now, fx);
            }
        } else {
            self.take(now, message, sequence, fx);
            self.drain(now, fx);
        }
        self.ask_if_needed(now, fx);
    }

    /// Performs all actions that are due at time `now`: gives up missing messages, and asks the relay (the publisher of
    /// the stream) for all held blocks if needed.
    pub(super) fn tick(&mut self, now: Duration, fx: &mut impl LogEffects) {
        if self.gap_until.is_some_and(|until| until <= now) {
            self.lose(now, fx);
        }
        self.ask_if_needed(now, fx);
    }

    /// Returns the time at which [`tick`](Self::tick) must be called next, if no message comes before.
    pub(super) fn wake(&self, now: Duration) -> Duration {
        let stale = self.heard.filter(|_| !self.is_stale(now)).map(|heard| heard + self.silence);
        let ask = self.needs().then(|| self.asked.map_or(now, |asked| asked + ASK_AGAIN));
        [self.gap_until, stale, ask].into_iter().flatten().min().unwrap_or(now + Duration::from_secs(3600))
    }

    /// True if the held blocks are exactly those that the engine has announced.
    pub(super) fn trusted(&self, now: Duration) -> bool {
        let is_now = self.told.trusted && !self.told.late && !self.is_stale(now) && self.heard.is_some() && !self.gone;
        is_now && self.phase == Phase::Whole && !self.unproved && self.waiting.is_empty()
    }

    pub(super) fn told(&self) -> Status {
        self.told
    }

    pub(super) fn is_whole(&self) -> bool {
        self.phase == Phase::Whole && !self.unproved
    }

    pub(super) fn has_gap(&self) -> bool {
        !self.waiting.is_empty()
    }

    pub(super) fn is_gone(&self) -> bool {
        self.gone
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// True if the relay (the publisher of the stream) has been silent for so long that the stream is no longer
    /// trusted.
    pub(super) fn is_stale(&self, now: Duration) -> bool {
        self.silent(now, self.silence)
    }

    /// True if the relay (the publisher of the stream) has been silent for `limit` or longer.
    pub(super) fn silent(&self, now: Duration, limit: Duration) -> bool {
        now.saturating_sub(self.heard.unwrap_or_default()) >= limit
    }

    fn take(&mut self, now: Duration, message: Message<'_>, sequence: u64, fx: &mut impl LogEffects) {
        self.next = message.id + 1;
        self.sequence = sequence;
        self.unproved = false;
        if let Err(error) = message.check() {
            self.refuse(error.to_string());
            return self.forget(fx);
        }
        for frame in message.frames() {
            let done = frame.and_then(|frame| self.frame(now, message.id, frame, fx));
            if let Err(error) = done {
                // A part of the message may be applied.
                self.refuse(error.to_string());
                self.forget(fx);
                return;
            }
        }
        if self.phase == Phase::Whole {
            fx.timestamp(message.timestamp);
        }
    }

    fn frame(&mut self, now: Duration, id: u64, frame: Frame<'_>, fx: &mut impl LogEffects) -> Result<(), FormatError> {
        match frame {
            Frame::Batch { rank, changes } => {
                let counts = match &self.phase {
                    Phase::Unknown => false,
                    Phase::Told(ranks) => ranks.contains(&rank),
                    Phase::Whole => true,
                };
                if counts {
                    fx.apply(id, rank, changes)?;
                }
            }
            Frame::Forgotten => {
                fx.clear();
                (self.phase, self.told.trusted, self.first) = (Phase::Whole, false, id);
            }
            Frame::StateBegin if self.phase != Phase::Whole => {
                fx.clear();
                (self.phase, self.first, self.asked) = (Phase::Told(BTreeSet::new()), id, Some(now));
            }
            Frame::State { rank, changes } => {
                if let Phase::Told(ranks) = &self.phase
                    && !ranks.contains(&rank)
                {
                    fx.apply(id, rank, changes)?;
                    self.asked = Some(now);
                }
            }
            Frame::StateRankEnd { rank } => {
                if let Phase::Told(ranks) = &mut self.phase {
                    ranks.insert(rank);
                }
            }
            Frame::StateEnd => {
                if matches!(self.phase, Phase::Told(_)) {
                    self.phase = Phase::Whole;
                    self.error = None;
                }
            }
            Frame::Status(status) => self.told = status,
            Frame::Gone => self.gone = true,
            Frame::StateBegin => {}
        }
        if !matches!(frame, Frame::Gone | Frame::Status(_)) {
            self.gone = false;
        }
        Ok(())
    }

    fn drain(&mut self, now: Duration, fx: &mut impl LogEffects) {
        while let Some(entry) = self.waiting.first_entry().filter(|entry| *entry.key() <= self.next) {
            let (id, (payload, sequence)) = entry.remove_entry();
            self.waiting_bytes -= payload.len();
            if id == self.next
                && let Ok(message) = Message::read(&payload)
            {
                self.counts.recovered += 1;
                self.take(now, message, sequence, fx);
            }
        }
        self.gap_until = if self.waiting.is_empty() { None } else { self.gap_until.or(Some(now + GRACE)) };
    }

    /// Gives up missing messages, clears the held blocks, and continues with the waiting messages.
    fn lose(&mut self, now: Duration, fx: &mut impl LogEffects) {
        self.gap_until = None;
        let Some(first) = self.waiting.keys().next().copied() else { return };
        self.counts.lost += first - self.next;
        if self.phase != Phase::Unknown {
            self.counts.resets += 1;
            let lost = first - self.next;
            self.error = Some(format!("{lost} messages of the relay are missing: it is asked for all that it holds"));
        }
        fx.clear();
        (self.phase, self.unproved, self.next) = (Phase::Unknown, false, first);
        self.drain(now, fx);
    }

    /// Clears the held blocks, and drops the waiting messages.
    fn forget(&mut self, fx: &mut impl LogEffects) {
        fx.clear();
        self.waiting.clear();
        self.waiting_bytes = 0;
        (self.phase, self.unproved, self.gap_until) = (Phase::Unknown, false, None);
        (self.told, self.asked) = (Status::default(), None);
    }

    fn refuse(&mut self, why: String) {
        self.counts.malformed += 1;
        self.error = Some(why);
    }

    fn needs(&self) -> bool {
        self.life.is_some() && self.phase != Phase::Whole && !self.gone
    }

    fn ask_if_needed(&mut self, now: Duration, fx: &mut impl LogEffects) {
        if self.needs() && self.asked.is_none_or(|asked| asked + ASK_AGAIN <= now) {
            self.asked = Some(now);
            fx.ask();
        }
    }
}

impl Moment for LogRules {
    fn mark(&self) -> Result<Mark, Skip> {
        let Some(life) = self.life.filter(|_| self.next > 0) else { return Err(Skip::Nothing) };
        if !self.is_whole() || !self.waiting.is_empty() {
            return Err(Skip::Unproven);
        }
        Ok(Mark { seq: self.next - 1, hash: life })
    }

    fn last(&self) -> Option<u64> {
        self.next.checked_sub(1).filter(|_| self.life.is_some())
    }

    fn reach(&self) -> (u64, bool) {
        (self.first, self.told.partial)
    }

    fn sequence(&self) -> Option<u64> {
        Some(self.sequence)
    }
}
