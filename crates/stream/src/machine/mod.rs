//! The stream machine: rules for the batches of one stream. It has no sockets, no clock and no decoder; time is an argument.
//!
//! ```text
//!              connected, nothing known               all batches read
//!  Connect ─────────────────────────────▶ Whole ─────────────────────────▶ Live ◀──── filled, or given up ──── Gap
//!     ▲  └──── connected, batches known ──▶ Verify ──── same engine ────────▲ └── a number is missing ──────────▲
//!     │                                       ▲ └──── other engine ──▶ Whole│
//!     └──── disconnected (from anywhere)      └──── heard again ── Stale ◀──┘ silent too long
//! ```
//!
//! The rules that keep it right:
//!
//! 1. Batches are applied by number, each once, none left out; the next number is `last + 1`. Whatever came early waits.
//! 2. A sequence number alone does not show to which life of the engine (epoch) a batch belongs. So every question to the
//!    replay socket, except that for all batches, starts at `last` and not behind it: the answer must begin with the very
//!    batch applied last. If it does not, the engine has restarted unnoticed: clear, start over. After a new connection the
//!    question starts at the last batch of the old one, until an answer contained that batch and one of the new connection.
//! 3. A gap that cannot be filled costs the holdings: clear, go on with the batches at hand, and report it (`partial`). The
//!    same goes for a batch that cannot be read and may have removed blocks.
//! 4. Only `Live` is trusted, and never while a known batch is neither applied nor given up.
//! 5. Silence never stops a stream: each question has a deadline, and so have all questions for one purpose together;
//!    retries are bounded, and after the last the stream goes on without an answer.
//! 6. One connection brings one life. If its batches contradict each other, the stream is not trusted for a while.
//!
//! This file has the state as a whole, the settings and the actions. `inputs` has the events in a stream's life, `goals`
//! the way from one goal to the next, `batches` the place of a batch, `questions` what is asked and when, `proofs` that the
//! engine is still the same, and `doubts` reasons to suspend trust: contradictions, a second publisher, events of
//! unknown types, and silence of a busy engine.

mod batches;
mod doubts;
mod inputs;
mod proofs;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use self::batches::{Question, StoredBatch};
use self::doubts::{Doubt, Rivalry, Silence, UnknownEvents};
use self::inputs::Goal;
use self::proofs::{Life, RestoreState};
use crate::limits::SharedCounts;
use crate::window::{Recent, ReorderWindow};

/// Time after going live until the engine is asked for what was published before the subscription took effect.
const SOON: Duration = Duration::from_millis(500);
/// Longest wait between two attempts to make a partial stream whole.
const HEAL_MAX: Duration = Duration::from_secs(600);

/// Settings of a machine, each from the field of `StreamConfig` with the same name.
#[derive(Debug, Clone)]
pub struct MachineConfig {
    /// Silence, without an answer from the replay socket either, after which a stream is not trusted.
    pub stale_after: Duration,
    /// Silence after which the replay socket is asked for missing batches.
    pub probe_interval: Duration,
    /// Time within which a replay must bring its next batch.
    pub replay_timeout: Duration,
    /// Time that all replays for one purpose may take together.
    pub replay_total_timeout: Duration,
    /// Number of replays for one purpose, before the stream goes on without.
    pub replay_attempts: u32,
    /// Time for which a missing batch may still come by itself, without a replay socket.
    pub reorder_grace: Duration,
    /// Shortest pause between two attempts to connect or to ask.
    pub reconnect_min: Duration,
    /// Longest pause between two attempts to connect or to ask.
    pub reconnect_max: Duration,
    /// Number of batches that may wait.
    pub buffer_batches: usize,
    /// Bytes of the batches that may wait.
    pub buffer_bytes: usize,
    /// Bytes in the buffers of all streams together (`limits.buffer_bytes`).
    pub all_buffer_bytes: usize,
}

/// Outcome of applying a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The batch was applied.
    Whole,
    /// The batch was applied, and contained a clear of all blocks: batches lost before do not matter any more.
    Cleared,
    /// The batch was applied, except for stored blocks that cannot be read.
    Partial,
    /// The batch was applied, except for events of unknown types, which may have removed anything.
    UnknownEvents,
    /// Nothing of the batch was applied: it has a removal that cannot be read.
    Refused,
}

/// Actions of a machine on its stream, to be done at once and in order.
pub trait Effects<P> {
    /// Applies a batch. `live`: it came over the live connection.
    fn apply(&mut self, seq: u64, payload: &P, live: bool) -> Verdict;
    /// Clears the holdings.
    fn clear(&mut self);
    /// Asks the replay socket for all batches from a sequence number on. One question is open at a time.
    fn ask(&mut self, from: u64);
    /// Cancels the question; its answers must not reach the machine any more.
    fn cancel(&mut self);
    /// Drops the live connection with the batches still on their way, and makes another.
    fn reconnect(&mut self);
}

/// Counts of events in a stream's life.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Gaps, each of one or more missing batches.
    pub gaps: u64,
    /// Missing batches recovered by a replay or a late arrival.
    pub recovered_batches: u64,
    /// Missing batches that could not be recovered, if their number is known.
    pub lost_batches: u64,
    /// Clears of the holdings because a gap could not be filled.
    pub resets: u64,
    /// Batches received twice.
    pub duplicate_batches: u64,
    /// Live batches that did not fit into the buffer.
    pub overflowed_batches: u64,
    /// Replays requested.
    pub replays: u64,
    /// Replays without a batch in time.
    pub failed_replays: u64,
    /// Replays that started at a later batch than requested.
    pub truncated_replays: u64,
    /// Connections re-established after a loss.
    pub reconnects: u64,
    /// Connections re-established without a replay socket to verify that the engine has not restarted.
    pub unverified_reconnects: u64,
    /// Contradictions between batches of one connection.
    pub contradictions: u64,
    /// Connections of a publisher with the topic of one that was connected already.
    pub rivals: u64,
    /// Noticed restarts of the engine.
    pub epochs: u64,
}

/// The state of one stream, and the rules by which it changes. `P` is the payload of a batch.
pub struct Machine<P> {
    config: MachineConfig,
    /// True if there is a replay socket to ask.
    can_replay: bool,
    /// Counts of events so far.
    pub counts: Counts,
    goal: Goal,
    ever_connected: bool,
    /// Last batch applied.
    last: Option<u64>,
    /// First batch applied since the last clear.
    first: u64,
    /// Number below which all batches of this epoch were applied or counted as lost.
    accounted: u64,
    recent: Recent,
    /// True if the next batch may have any number, because those before it are lost anyway.
    open: bool,
    /// Lowest number that the next batch may have.
    floor: u64,
    /// True if the engine may hold blocks that are not known.
    partial: bool,
    /// Highest number that this live connection brought. It distinguishes a connection behind the replay from an engine
    /// that counts anew behind a proxy.
    highest: Option<u64>,
    waiting: ReorderWindow<StoredBatch<P>>,
    /// Highest known number that is neither applied nor waiting, so that the engine must be asked: of a batch that `waiting`
    /// had no room for, or that could not be read.
    owed: Option<u64>,
    life: Life,
    /// True if only a sequence number shows that the holdings are the connected engine's.
    unverified: bool,
    doubt: Doubt,
    rivalry: Rivalry,
    unknown_events: UnknownEvents,
    silence: Silence,
    /// True if the last complete answer ended before a number that was known when it was asked for.
    short: bool,
    ask: Option<Question>,
    /// Questions in a row without a useful answer.
    attempts: u32,
    /// Time of the next question, or, without a replay socket, of giving up a gap.
    ask_at: Option<Duration>,
    /// Time at which the stream goes on without the missing batches, even if some still come.
    limit: Option<Duration>,
    /// True if the replay socket ever brought a batch.
    keeps: bool,
    /// True if questions to the replay socket were given up without an answer: no gap waits for it until it answers again.
    dead: bool,
    /// Time at which the engine last sent anything.
    heard: Duration,
    /// Time at which the live connection last brought a batch.
    live_heard: Duration,
    asked: Duration,
    probe_at: Option<Duration>,
    heal_at: Option<Duration>,
    heal_wait: Duration,
    /// State of the holdings restored from a snapshot.
    restored: RestoreState,
}

impl<P: AsRef<[u8]>> Machine<P> {
    /// A machine without a connection. `can_replay`: whether there is a replay socket to ask.
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

    /// True if the engine may hold more than is known, because batches were lost or the beginning was missed.
    pub fn partial(&self) -> bool {
        self.partial
    }

    /// True if the holdings count as the connected engine's only because its next batch had the right number; no answer
    /// has proved it yet.
    pub fn unverified(&self) -> bool {
        self.unverified
    }

    /// The last batch applied or given up.
    pub fn last(&self) -> Option<u64> {
        self.last.or(self.floor.checked_sub(1).filter(|_| self.open))
    }

    /// Number of batches that wait for earlier ones.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }
}
