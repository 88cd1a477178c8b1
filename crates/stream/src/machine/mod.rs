//! Rules for what to do with a stream's batches: no sockets, no clock, no decoding; time comes as an argument.
//!
//! ```text
//!              connected, nothing known               everything read
//!  Connect ─────────────────────────────▶ Whole ─────────────────────────▶ Live ◀──── filled, or given up ──── Gap
//!     ▲  └──── connected, batches known ──▶ Verify ──── same engine ────────▲ └── a number is missing ──────────▲
//!     │                                       ▲ └──── other engine ──▶ Whole│
//!     └──── disconnected (from anywhere)      └──── heard again ── Stale ◀──┘ silent too long
//! ```
//!
//! The rules that keep it right:
//!
//! 1. Batches are applied by number, each once, none left out; the next number is `last + 1`. Whatever came early waits.
//! 2. A number alone does not say which life of the engine (epoch) a batch is of. So every question to the replay socket,
//!    except for everything, starts at `last` and not behind it: the answer must begin with the very batch applied last.
//!    If it does not, the engine has restarted in silence: clear, start over. After a new connection it starts at the
//!    last batch of the old one, until that and one of the new one were in an answer.
//! 3. What cannot be filled costs the holdings: clear, go on with what is at hand, and say so (`partial`). The same goes
//!    for a batch that cannot be read and may have removed something.
//! 4. Only `Live` is trusted, and never while a batch is known of that is neither applied nor given up.
//! 5. Nobody's silence stops it: each question has a deadline, and so has all that is asked for one purpose; retries are
//!    bounded, and after them it goes on without.
//! 6. One connection brings one life. If its batches contradict each other, nothing is trusted for a while.
//!
//! Here is what happens; `goals` has where it goes, `batches` where a batch belongs, `questions` what is asked and
//! when, `life` what proves that it is still the same engine, `doubt` what becomes of contradictions, `rivalry` of a
// check_words: the name of the module
//! second publisher, `unknown_events` of events of unknown types, `restored` of what a snapshot had, `silence` of an engine that
//! stops in the middle of its load.

mod batches;
mod config;
mod doubt;
mod goals;
mod life;
mod questions;
mod restored;
mod rivalry;
mod silence;
#[cfg(test)]
mod tests;
mod unknown_events;

use std::sync::Arc;
use std::time::Duration;

use xxhash_rust::xxh3::xxh3_64;

use self::batches::StoredBatch;
pub use self::config::MachineConfig;
use self::doubt::Doubt;
use self::goals::Goal;
use self::life::Life;
use self::questions::Ask;
use self::restored::RestoreState;
use self::rivalry::Rivalry;
use self::silence::Silence;
use self::unknown_events::UnknownEvents;
use crate::Outcome;
use crate::State;
use crate::limits::SharedCounts;
use crate::window::{Recent, ReorderWindow};

/// Time after going live until the engine is asked for what was published before the subscription took effect.
const SOON: Duration = Duration::from_millis(500);
/// Longest wait between two attempts to make a partial stream whole.
const HEAL_MAX: Duration = Duration::from_secs(600);

/// Outcome of a batch that was to be applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The batch was applied.
    Whole,
    /// The batch was applied, and the engine cleared everything in it: what was lost before does not matter any more.
    Cleared,
    /// The batch was applied, but for blocks stored that cannot be read.
    Partial,
    /// The batch was applied, but for events of a type that is not known here: they may have removed anything.
    UnknownEvents,
    /// Nothing of the batch was applied, because it may have removed something that cannot be read.
    Refused,
}

/// Actions that the machine wants done, at once and in this order.
pub trait Effects<P> {
    /// Apply a batch. `live`: it came as it was published.
    fn apply(&mut self, seq: u64, payload: &P, live: bool) -> Verdict;
    /// Forget all that was applied.
    fn clear(&mut self);
    /// Ask the replay socket for all batches from this number on. One question at a time.
    fn ask(&mut self, from: u64);
    /// Forget the question; answers to it must not come any more.
    fn cancel(&mut self);
    /// Drop the live connection with all that is still on its way, and make another.
    fn reconnect(&mut self);
}

/// Counts of what happened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Gaps: how often batches were missing.
    pub gaps: u64,
    /// Missing batches recovered by a replay or a late arrival.
    pub recovered_batches: u64,
    /// Missing batches that could not be recovered, as far as their number is known.
    pub lost_batches: u64,
    /// Times that what was applied was cleared because a gap could not be filled.
    pub resets: u64,
    /// Batches received twice.
    pub duplicate_batches: u64,
    /// Live batches that did not fit into the buffer.
    pub overflowed_batches: u64,
    /// Replays requested.
    pub replays: u64,
    /// Replays that delivered nothing in time.
    pub failed_replays: u64,
    /// Replays that started at a later batch than requested.
    pub truncated_replays: u64,
    /// Connections re-established after a loss.
    pub reconnects: u64,
    /// Connections re-established without a replay socket to verify that the engine has not restarted.
    pub unverified_reconnects: u64,
    /// Times that batches of one connection contradicted each other.
    pub contradictions: u64,
    /// Connections of a publisher with the topic of one that was connected already.
    pub rivals: u64,
    /// Restarts of the engine that were noticed.
    pub epochs: u64,
}

/// The state of one stream, and the rules by which it changes. `P` is the payload of a batch.
pub struct Machine<P> {
    config: MachineConfig,
    /// True if there is a replay socket to ask.
    can_replay: bool,
    /// Counts of what happened so far.
    pub counts: Counts,
    goal: Goal,
    ever_connected: bool,
    /// The last batch applied.
    last: Option<u64>,
    /// The first batch applied since the last clear.
    first: u64,
    /// Batches before this number were applied in this epoch, or counted as lost.
    accounted: u64,
    recent: Recent,
    /// True if the next batch may have any number, because what comes before it is lost anyway.
    open: bool,
    /// The lowest number that the next batch may have.
    floor: u64,
    partial: bool,
    /// The highest number that this live connection brought. It tells a connection that is behind the replay from an
    /// engine that counts anew behind a proxy.
    highest: Option<u64>,
    waiting: ReorderWindow<StoredBatch<P>>,
    /// The highest number known of that is neither applied nor waits, so that the engine must be asked: one that
    /// `waiting` had no room for, or that could not be read.
    owed: Option<u64>,
    life: Life,
    /// True if a number alone says that what is held is of the engine that is connected.
    unverified: bool,
    doubt: Doubt,
    rivalry: Rivalry,
    unknown_events: UnknownEvents,
    silence: Silence,
    /// True if the last whole answer ended before what was known of when it was asked for.
    short: bool,
    ask: Option<Ask>,
    /// Questions in a row that brought nothing.
    attempts: u32,
    /// When to ask (again), or, without a replay socket, when to give a gap up.
    ask_at: Option<Duration>,
    /// When to go on without what is asked for now, however much of it still comes.
    limit: Option<Duration>,
    /// True if the replay socket ever brought a batch.
    keeps: bool,
    /// True if the replay socket let questions pass until they were given up: then nothing waits for it, until it is
    /// heard again.
    dead: bool,
    heard: Duration,
    /// Time at which the live connection last brought a batch.
    live_heard: Duration,
    asked: Duration,
    probe_at: Option<Duration>,
    heal_at: Option<Duration>,
    heal_wait: Duration,
    /// State of what a snapshot had.
    restored: RestoreState,
}

impl<P: AsRef<[u8]>> Machine<P> {
    /// `can_replay`: whether there is a replay socket to ask.
    pub fn new(
        config: MachineConfig,
        shared: Arc<SharedCounts>,
        can_replay: bool,
        counts: Counts,
        now: Duration,
    ) -> Self {
        let waiting = ReorderWindow::new(config.buffer_batches, config.buffer_bytes, shared, config.all_buffer_bytes);
        Self {
            can_replay,
            counts,
            goal: Goal::Connect,
            ever_connected: false,
            last: None,
            first: 0,
            accounted: 0,
            recent: Recent::default(),
            open: false,
            floor: 0,
            partial: false,
            highest: None,
            waiting,
            owed: None,
            life: Life::default(),
            unverified: false,
            doubt: Doubt::default(),
            rivalry: Rivalry::default(),
            unknown_events: UnknownEvents::default(),
            silence: Silence::default(),
            short: false,
            ask: None,
            attempts: 0,
            ask_at: None,
            limit: None,
            keeps: false,
            dead: false,
            heard: now,
            live_heard: now,
            asked: now,
            probe_at: None,
            heal_at: None,
            heal_wait: config.probe_interval,
            restored: RestoreState::Over,
            config,
        }
    }

    /// True if what is applied is what the engine has announced.
    pub fn trusted(&self) -> bool {
        let is_certain = !self.doubt.is_open() && !self.unknown_events.is_open() && !self.is_contested();
        self.goal == Goal::Live && is_certain && !self.silence.is_open()
    }

    /// True if batches of several lives keep coming by one connection.
    pub fn is_mixed(&self) -> bool {
        self.doubt.is_strong()
    }

    /// The state of the stream.
    pub fn state(&self, now: Duration) -> State {
        match self.goal {
            Goal::Verify | Goal::Whole | Goal::Gap | Goal::Live if self.doubt.is_open() || self.is_contested() => {
                State::Conflict
            }
            Goal::Connect if self.ever_connected && self.silent_too_long(now) => State::Stale,
            Goal::Connect | Goal::Verify => State::Connecting,
            Goal::Whole => State::Replaying,
            Goal::Gap => State::Gap,
            Goal::Live if self.unknown_events.is_open() => State::Unreadable,
            Goal::Live if self.silence.is_open() => State::Stale,
            Goal::Live => State::Live,
            Goal::Stale => State::Stale,
        }
    }

    /// True if the engine may hold more than is known, because the stream began or lost something without a replay.
    pub fn partial(&self) -> bool {
        self.partial
    }

    /// True if what is held was taken for the connected engine's because its next batch had the right number, and no
    /// answer has shown it yet.
    pub fn unverified(&self) -> bool {
        self.unverified
    }

    /// The last batch applied or given up.
    pub fn last(&self) -> Option<u64> {
        self.last.or(self.floor.checked_sub(1).filter(|_| self.open))
    }

    /// Number of batches that wait for others.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// The live socket is connected and subscribed.
    pub fn connected(&mut self, now: Duration, fx: &mut impl Effects<P>) {
        if self.goal != Goal::Connect {
            return;
        }
        self.counts.reconnects += u64::from(self.ever_connected);
        self.ever_connected = true;
        self.heard = now;
        (self.highest, self.dead) = (None, false);
        self.life.connected();
        self.silence.connected();
        self.probe_at = Some(now + SOON);
        match self.last {
            None => self.read_whole(now, fx),
            Some(_) => self.verify(now, fx),
        }
    }

    /// The live socket has lost its connection. What waits on it is forgotten; the replay brings it again.
    pub fn disconnected(&mut self, fx: &mut impl Effects<P>) {
        self.waiting.clear();
        self.owed = None;
        self.forget_ask(fx);
        let last = self.last.and_then(|last| Some((last, self.recent.hash(last)?)));
        self.life.disconnected(last.filter(|_| self.can_replay));
        self.doubt.disconnected();
        self.rivalry.disconnected(self.can_replay);
        self.silence.connected();
        self.goal = Goal::Connect;
    }

    /// A batch as it was published.
    pub fn live(&mut self, now: Duration, seq: u64, payload: P, fx: &mut impl Effects<P>) {
        self.connected(now, fx);
        self.no_hush(now);
        (self.heard, self.live_heard) = (now, now);
        if self.goal == Goal::Stale {
            self.verify(now, fx);
        }
        if self.goal == Goal::Verify {
            self.wait(seq, StoredBatch { payload, live: true });
            self.go_on_unverified(now, fx);
        } else {
            self.place(now, seq, payload, fx);
        }
    }

    /// A batch in answer to the question.
    pub fn reply(&mut self, now: Duration, seq: u64, payload: P, fx: &mut impl Effects<P>) {
        let Some(ask) = &mut self.ask else { return };
        self.heard = now;
        (self.keeps, self.dead) = (true, false);
        self.silence.answered();
        ask.deadline = (now + self.config.replay_timeout).min(ask.limit);
        let begins = !std::mem::replace(&mut ask.answered, true);
        ask.highest = ask.highest.max(Some(seq));
        let (from, past, heal) = (ask.from, ask.past, ask.heal);
        if !self.is_proof(seq, xxh3_64(payload.as_ref())) {
            return self.other_life(now, fx);
        }
        if begins && self.open {
            // It may have been asked before all came that was given up since.
            self.owed = self.owed.max(self.floor.checked_sub(1).filter(|known| *known >= seq));
            self.floor = seq;
        }
        if begins && heal {
            match self.last {
                None => self.partial = seq > 0,
                // The engine remembers no more than we do.
                Some(_) if self.first <= seq => self.heal_at = None,
                Some(_) => return self.start_over(fx),
            }
        } else if begins && !self.open && self.begins_late(seq, from, past) {
            if self.live_catches_up() {
                // The engine is far ahead of what has been read here, and the live connection is bringing it.
                self.owed = self.owed.max(Some(seq));
                self.forget_ask(fx);
                if self.goal == Goal::Live {
                    self.goal = Goal::Gap;
                    (self.attempts, self.limit) = (0, Some(now + self.config.replay_total_timeout));
                }
                self.ask_at = Some(now + SOON);
                return;
            }
            // Without the last batch nothing proves that these follow it.
            self.counts.truncated_replays += 1;
            self.heal_at = None;
            self.end_restored(Outcome::TurnedOver);
            self.lose(seq, fx);
        }
        if begins && self.last.is_none() && self.goal == Goal::Live {
            // More follows it.
            (self.goal, self.limit) = (Goal::Whole, Some(now + self.config.replay_total_timeout));
        }
        if self.last.is_some_and(|last| seq <= last) {
            if self.recent.hash(seq).is_some_and(|hash| hash != xxh3_64(payload.as_ref())) {
                self.other_life(now, fx);
            }
        } else if self.has_turn(seq) {
            if let Some(ask) = &mut self.ask {
                ask.useful = true;
            }
            self.counts.recovered_batches += u64::from(self.goal == Goal::Gap || self.goal == Goal::Live);
            self.attempts = 0;
            self.apply(now, seq, &payload, false, fx);
            self.drain(now, fx);
        } else {
            self.wait(seq, StoredBatch { payload, live: false });
            self.missing(now, fx);
        }
    }

    /// The answer is complete.
    pub fn reply_end(&mut self, now: Duration, fx: &mut impl Effects<P>) {
        let Some(ask) = self.ask.take() else { return };
        self.heard = now;
        self.dead = false;
        self.silence.answered();
        self.short = ask.known > ask.highest;
        if ask.lacks_proof() && (self.keeps || self.goal == Goal::Verify) {
            return self.other_life(now, fx); // The last batch is not there any more, nor anything after it.
        }
        self.admit_suspect(now);
        match self.goal {
            Goal::Connect | Goal::Live => {}
            Goal::Whole | Goal::Verify | Goal::Stale | Goal::Gap => {
                let known = std::mem::replace(&mut self.goal, Goal::Gap) == Goal::Gap;
                self.drain(now, fx);
                self.counts.gaps += u64::from(self.goal == Goal::Gap && !known);
                if self.goal == Goal::Gap && self.ask.is_none() {
                    self.try_again(now, &ask, false, fx);
                }
            }
        }
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Duration, fx: &mut impl Effects<P>) {
        self.doubt.pass(now);
        self.end_strange(now, fx);
        if self.limit_due().is_some_and(|at| at <= now) {
            self.counts.failed_replays += u64::from(self.ask.is_some());
            self.forget_ask(fx);
            self.give_up(now, fx);
        }
        if let Some(ask) = self.ask.take_if(|ask| ask.deadline <= now) {
            self.counts.failed_replays += 1;
            fx.cancel();
            self.not_answered(now, &ask);
            if matches!(self.goal, Goal::Whole | Goal::Verify | Goal::Gap) {
                self.try_again(now, &ask, !ask.answered, fx);
            }
        }
        if self.ask_at.is_some_and(|at| at <= now) {
            self.ask_at = None;
            if self.can_ask() { self.ask_for_goal(now, fx) } else { self.give_up(now, fx) }
        }
        let silent = self.can_replay && self.silent_too_long(now);
        if silent && matches!(self.goal, Goal::Live | Goal::Verify) {
            self.goal = Goal::Stale;
        }
        if self.heal_due().is_some_and(|at| at <= now) {
            self.heal_at = Some(now + self.heal_wait);
            self.heal_wait = (self.heal_wait * 2).min(HEAL_MAX);
            let past = self.last.and_then(|last| Some((last, self.recent.hash(last)?)));
            self.send(now, Ask { heal: true, ..self.question(0, past, self.life.sample()) }, fx);
        } else if self.probe_due().is_some_and(|at| at <= now) {
            self.probe_at = None;
            self.ask_for_goal(now, fx);
        }
    }

    /// When `tick` is needed next, if nothing else happens.
    pub fn wake(&self, now: Duration) -> Option<Duration> {
        let can_be_stale = match self.goal {
            Goal::Connect => self.ever_connected,
            Goal::Live | Goal::Verify => self.can_replay,
            Goal::Whole | Goal::Gap | Goal::Stale => false,
        };
        let stale = (can_be_stale && !self.silent_too_long(now))
            .then(|| self.heard + self.config.stale_after + Duration::from_millis(1));
        let deadline = self.ask.as_ref().map(|ask| ask.deadline);
        let limits = [self.limit_due(), self.doubt.until(), self.unknown_events.until()];
        [deadline, self.ask_at, stale, self.probe_due(), self.heal_due()].into_iter().chain(limits).flatten().min()
    }
}
