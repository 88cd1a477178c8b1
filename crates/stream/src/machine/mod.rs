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
//! Here is the state as a whole; `state` has the parts that decide something by themselves. `inputs` has what happens to a
//! stream, `goals` where it goes then, `batches` where a batch belongs, `questions` what is asked and when, `life` what
//! proves that it is still the same engine, `doubt` what becomes of contradictions, `rivalry` of a second publisher,
//! `unknown_events` of events of unknown types, `restored` of what a snapshot had, `silence` of an engine that stops in the
//! middle of its load, `trust` what follows from all of it.

mod batches;
mod config;
mod doubt;
mod effects;
mod goals;
mod inputs;
mod life;
mod questions;
mod restored;
mod rivalry;
mod silence;
mod state;
#[cfg(test)]
mod tests;
mod trust;
mod unknown_events;

use std::sync::Arc;
use std::time::Duration;

pub use self::config::MachineConfig;
pub use self::effects::{Counts, Effects, Verdict};
use self::state::{Doubt, Goal, Life, Question, RestoreState, Rivalry, Silence, StoredBatch, UnknownEvents};
use crate::limits::SharedCounts;
use crate::window::{Recent, ReorderWindow};

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
    ask: Option<Question>,
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
}
