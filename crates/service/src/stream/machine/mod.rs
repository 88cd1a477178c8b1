//! What to do with a stream's batches: no sockets, no clock, no decoding; time comes as an argument.
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
//!    If it does not, the engine has restarted in silence: clear, start over.
//! 3. What cannot be filled costs the holdings: clear, go on with what is at hand, and say so (`partial`).
//! 4. Only `Live` is trusted.
//! 5. Nobody's silence stops it: each question has a deadline, retries are bounded, and after them it goes on without.
//!
//! Here is what happens; `goals` has where it goes, `batches` where a batch belongs, `questions` what is asked and when.

mod batches;
mod goals;
mod questions;
#[cfg(test)]
mod tests;

use std::time::Duration;

use xxhash_rust::xxh3::xxh3_64;

use self::goals::Goal;
use self::questions::Ask;
use super::window::{Recent, Waiting};
use crate::config::StreamConfig;
use crate::state::State;

/// After going live, until the engine is asked for what was published before the subscription took effect.
const SOON: Duration = Duration::from_millis(500);
/// Longest wait between two attempts to make a partial stream whole.
const HEAL_MAX: Duration = Duration::from_secs(600);

/// What the machine wants done, at once and in this order.
pub(crate) trait Effects<P> {
    /// Apply a batch. `live`: it came as it was published.
    fn apply(&mut self, seq: u64, payload: &P, live: bool);
    /// Forget all that was applied.
    fn clear(&mut self);
    /// Ask the replay socket for all batches from this number on. One question at a time.
    fn ask(&mut self, from: u64);
    /// Forget the question; answers to it must not come any more.
    fn cancel(&mut self);
    /// Drop the live connection with all that is still on its way, and make another.
    fn reconnect(&mut self);
}

/// What happened how often.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) gaps: u64,
    pub(crate) recovered_batches: u64,
    pub(crate) lost_batches: u64,
    pub(crate) resets: u64,
    pub(crate) duplicate_batches: u64,
    pub(crate) overflowed_batches: u64,
    pub(crate) replays: u64,
    pub(crate) failed_replays: u64,
    pub(crate) truncated_replays: u64,
    pub(crate) reconnects: u64,
    pub(crate) unverified_reconnects: u64,
    pub(crate) epochs: u64,
}

pub(crate) struct Machine<P> {
    config: StreamConfig,
    /// Whether there is a replay socket to ask.
    can_replay: bool,
    pub(crate) counts: Counts,
    goal: Goal,
    ever_connected: bool,
    /// The last batch applied.
    last: Option<u64>,
    /// The first batch applied since the last clear.
    first: u64,
    recent: Recent,
    /// Whether the next batch may have any number, because what comes before it is lost anyway.
    open: bool,
    partial: bool,
    /// The highest number that this live connection brought. It tells a connection that is behind the replay from an
    /// engine that counts anew behind a proxy.
    highest: Option<u64>,
    waiting: Waiting<P>,
    /// Whether `waiting` had to forget some, so that the engine must be asked at the end.
    forgot: bool,
    ask: Option<Ask>,
    /// Questions in a row that brought nothing.
    attempts: u32,
    /// When to ask (again), or, without a replay socket, when to give a gap up.
    ask_at: Option<Duration>,
    /// Whether the replay socket ever brought a batch.
    keeps: bool,
    /// Whether it let questions pass until they were given up: then nothing waits for it, until it is heard again.
    dead: bool,
    heard: Duration,
    /// When the live connection last brought a batch.
    live_heard: Duration,
    asked: Duration,
    probe_at: Option<Duration>,
    heal_at: Option<Duration>,
    heal_wait: Duration,
}

impl<P: AsRef<[u8]>> Machine<P> {
    /// `can_replay`: whether there is a replay socket to ask.
    pub(crate) fn new(config: &StreamConfig, can_replay: bool, counts: Counts, now: Duration) -> Self {
        Self {
            config: config.clone(),
            can_replay,
            counts,
            goal: Goal::Connect,
            ever_connected: false,
            last: None,
            first: 0,
            recent: Recent::default(),
            open: false,
            partial: false,
            highest: None,
            waiting: Waiting::new(
                config.buffer_batches,
                config.buffer_bytes,
                config.shared.clone(),
                config.limits.buffer_bytes,
            ),
            forgot: false,
            ask: None,
            attempts: 0,
            ask_at: None,
            keeps: false,
            dead: false,
            heard: now,
            live_heard: now,
            asked: now,
            probe_at: None,
            heal_at: None,
            heal_wait: config.probe_interval,
        }
    }

    pub(crate) fn trusted(&self) -> bool {
        self.goal == Goal::Live
    }

    pub(crate) fn state(&self, now: Duration) -> State {
        match self.goal {
            Goal::Connect if self.ever_connected && self.silent_too_long(now) => State::Stale,
            Goal::Connect | Goal::Verify => State::Connecting,
            Goal::Whole => State::Replaying,
            Goal::Gap => State::Gap,
            Goal::Live => State::Live,
            Goal::Stale => State::Stale,
        }
    }

    pub(crate) fn partial(&self) -> bool {
        self.partial
    }

    pub(crate) fn last(&self) -> Option<u64> {
        self.last
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// The live socket is connected and subscribed.
    pub(crate) fn connected(&mut self, now: Duration, fx: &mut impl Effects<P>) {
        if self.goal != Goal::Connect {
            return;
        }
        self.counts.reconnects += u64::from(self.ever_connected);
        self.ever_connected = true;
        self.heard = now;
        (self.highest, self.dead) = (None, false);
        self.probe_at = Some(now + SOON);
        match self.last {
            None => self.read_whole(now, fx),
            Some(_) => self.verify(now, fx),
        }
    }

    /// The live socket has lost its connection. What waits on it is forgotten; the replay brings it again.
    pub(crate) fn disconnected(&mut self, fx: &mut impl Effects<P>) {
        self.waiting.clear();
        self.forget_ask(fx);
        self.goal = Goal::Connect;
    }

    /// A batch as it was published.
    pub(crate) fn live(&mut self, now: Duration, seq: u64, payload: P, fx: &mut impl Effects<P>) {
        self.connected(now, fx);
        (self.heard, self.live_heard) = (now, now);
        if self.goal == Goal::Stale {
            self.verify(now, fx);
        }
        if self.goal == Goal::Verify {
            self.wait(seq, payload);
            self.go_on_unverified(now, fx);
        } else {
            self.place(now, seq, payload, fx);
        }
    }

    /// A batch in answer to the question.
    pub(crate) fn reply(&mut self, now: Duration, seq: u64, payload: P, fx: &mut impl Effects<P>) {
        let Some(ask) = &mut self.ask else { return };
        self.heard = now;
        (self.keeps, self.dead) = (true, false);
        ask.deadline = now + self.config.replay_timeout;
        let begins = !std::mem::replace(&mut ask.answered, true);
        if begins && seq == ask.from && ask.expect.is_some_and(|hash| hash != xxh3_64(payload.as_ref())) {
            return self.restarted(fx);
        }
        if begins && self.open && self.goal == Goal::Live {
            self.goal = Goal::Whole; // More follows it.
        }
        if begins && ask.heal {
            if self.first <= seq {
                self.heal_at = None; // The engine remembers no more than we do.
            } else {
                self.forget_all(fx);
                (self.goal, self.open, self.partial) = (Goal::Whole, true, seq > 0);
            }
        } else if begins && seq + u64::from(ask.expect.is_some()) > self.next() && !self.open {
            if self.goal == Goal::Live && self.live_heard > self.asked {
                // The engine is far ahead of what has been read here, and the live connection is bringing it.
                self.forget_ask(fx);
                self.probe_at = Some(now + SOON);
                return;
            }
            // Without the last batch nothing proves that these follow it.
            self.counts.truncated_replays += 1;
            self.heal_at = None;
            self.lose(seq, fx);
        }
        if self.last.is_some_and(|last| seq <= last) {
            if self.recent.hash(seq).is_some_and(|hash| hash != xxh3_64(payload.as_ref())) {
                self.restarted(fx);
            }
        } else if seq == self.next() || self.open {
            if let Some(ask) = &mut self.ask {
                ask.useful = true;
            }
            self.counts.recovered_batches += u64::from(self.goal == Goal::Gap || self.goal == Goal::Live);
            self.attempts = 0;
            self.apply(seq, &payload, false, fx);
            self.drain(now, fx);
        } else {
            self.wait(seq, payload);
            self.missing(now, fx);
        }
    }

    /// The answer is complete.
    pub(crate) fn reply_end(&mut self, now: Duration, fx: &mut impl Effects<P>) {
        let Some(ask) = self.ask.take() else { return };
        self.heard = now;
        self.dead = false;
        if !ask.answered && ask.expect.is_some() && (self.keeps || self.goal == Goal::Verify) {
            return self.restarted(fx); // The last batch is not there any more, nor anything after it.
        }
        match self.goal {
            Goal::Connect | Goal::Live => {}
            Goal::Whole | Goal::Verify | Goal::Stale | Goal::Gap => {
                self.goal = Goal::Gap;
                self.drain(now, fx);
                if self.goal == Goal::Gap && self.ask.is_none() {
                    self.try_again(now, &ask, false, fx);
                }
            }
        }
    }

    /// Time has passed.
    pub(crate) fn tick(&mut self, now: Duration, fx: &mut impl Effects<P>) {
        if let Some(ask) = self.ask.take_if(|ask| ask.deadline <= now) {
            self.counts.failed_replays += 1;
            fx.cancel();
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
        if self.probe_due().is_some_and(|at| at <= now) {
            self.probe_at = None;
            self.ask_for_goal(now, fx);
        } else if self.heal_due().is_some_and(|at| at <= now) {
            self.heal_at = Some(now + self.heal_wait);
            self.heal_wait = (self.heal_wait * 2).min(HEAL_MAX);
            self.send(now, Ask { heal: true, ..self.question(0, None) }, fx);
        }
    }

    /// When `tick` is needed next, if nothing else happens.
    pub(crate) fn wake(&self, now: Duration) -> Option<Duration> {
        let can_be_stale = match self.goal {
            Goal::Connect => self.ever_connected,
            Goal::Live | Goal::Verify => self.can_replay,
            Goal::Whole | Goal::Gap | Goal::Stale => false,
        };
        let stale = (can_be_stale && !self.silent_too_long(now))
            .then(|| self.heard + self.config.stale_after + Duration::from_millis(1));
        let deadline = self.ask.as_ref().map(|ask| ask.deadline);
        [deadline, self.ask_at, stale, self.probe_due(), self.heal_due()].into_iter().flatten().min()
    }
}
