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
//! 1. Batches are applied by number, each once, none left out; the next number is `last + 1`. A batch that arrives early
//!    waits.
//! 2. A sequence number alone does not show to which life of the engine (epoch) a batch belongs. So every replay request,
//!    except the one for all batches, starts at `last` and not after it: the answer must begin with the very batch
//!    applied last. If it does not, the engine has restarted unnoticed: clear, start over. After a new connection, requests
//!    start at the last batch of the old connection, until an answer contained that batch and one of the new connection.
//! 3. A gap that cannot be filled costs the holdings: clear, continue with the batches at hand, and report it (`partial`).
//!    The same applies to a batch that cannot be read and may have removed blocks.
//! 4. Only `Live` is trusted, and never while a known batch is neither applied nor given up.
//! 5. Silence never stops a stream: each replay request has a deadline, and so have all requests for one purpose together;
//!    retries are bounded, and after the last the stream continues without an answer.
//! 6. One connection brings one life. If its batches contradict each other, the stream is not trusted for a while.
//!
//! This file has the state as a whole, the settings and the actions. `inputs` has the events in a stream's life and the
//! transitions from one goal to the next, `batches` what is done with a batch and which replays are requested when,
//! `proofs` how an engine proves to be still the same, and `doubts` reasons to suspend trust: contradictions, a second
//! publisher, events of unknown types, and silence of a busy engine.

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

/// Time from going live until the engine is asked for what was published before the subscription took effect.
const SOON: Duration = Duration::from_millis(500);
/// Longest wait between two attempts to complete a partial stream.
const HEAL_MAX: Duration = Duration::from_secs(600);

/// Settings of a stream machine, each equal to the field of `StreamConfig` with the same name.
#[derive(Debug, Clone)]
pub struct MachineConfig {
    /// Silence after which a stream is no longer trusted, if the replay socket does not answer either.
    pub stale_after: Duration,
    /// Silence after which the replay socket is asked for missing batches.
    pub probe_interval: Duration,
    /// Longest wait for the next batch of a replay.
    pub replay_timeout: Duration,
    /// Longest total time of all replays for one purpose.
    pub replay_total_timeout: Duration,
    /// Maximum number of replays for one purpose, after which the stream continues without them.
    pub replay_attempts: u32,
    /// Longest wait for a missing batch to arrive by itself, without a replay socket.
    pub reorder_grace: Duration,
    /// Shortest pause between two attempts to connect or to request a replay.
    pub reconnect_min: Duration,
    /// Longest pause between two attempts to connect or to request a replay.
    pub reconnect_max: Duration,
    /// Maximum number of batches that wait for earlier ones.
    pub buffer_batches: usize,
    /// Maximum total size, in bytes, of the batches that wait for earlier ones.
    pub buffer_bytes: usize,
    /// Maximum number of bytes in the buffers of all streams together (`limits.buffer_bytes`).
    pub all_buffer_bytes: usize,
}

/// Outcome of applying a batch to the holdings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The batch was applied completely.
    Whole,
    /// The batch was applied, and contained a clear of all blocks, so that batches lost before no longer matter.
    Cleared,
    /// The batch was applied, except for stored blocks that cannot be read.
    Partial,
    /// The batch was applied, except for events of unknown types, which may have removed anything.
    UnknownEvents,
    /// Nothing of the batch was applied: it has a removal that cannot be read.
    Refused,
}

/// Actions that a machine takes on its stream, to be done at once and in order.
pub trait Effects<P> {
    /// Applies a batch. `live`: whether the batch came over the live connection.
    fn apply(&mut self, seq: u64, payload: &P, live: bool) -> Verdict;
    /// Clears the stream's holdings.
    fn clear(&mut self);
    /// Asks the replay socket for all batches from sequence number `from` on. One request is open at a time.
    fn ask(&mut self, from: u64);
    /// Cancels the replay request; no further answer to it may reach the machine.
    fn cancel(&mut self);
    /// Drops the live connection with the batches still on their way, and opens another.
    fn reconnect(&mut self);
}

/// Counts of events on a stream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Number of gaps, each of one or more missing batches.
    pub gaps: u64,
    /// Number of missing batches recovered by a replay or a late arrival.
    pub recovered_batches: u64,
    /// Number of missing batches that could not be recovered, as far as known.
    pub lost_batches: u64,
    /// Number of times that the holdings were cleared because a gap could not be filled.
    pub resets: u64,
    /// Number of batches received twice.
    pub duplicate_batches: u64,
    /// Number of live batches that did not fit into the buffer.
    pub overflowed_batches: u64,
    /// Number of replays requested.
    pub replays: u64,
    /// Number of replays that delivered nothing in time.
    pub failed_replays: u64,
    /// Number of replays that started at a later batch than requested.
    pub truncated_replays: u64,
    /// Number of connections re-established after a loss.
    pub reconnects: u64,
    /// Number of connections re-established without a replay socket to verify that the engine has not restarted.
    pub unverified_reconnects: u64,
    /// Number of contradictions between batches of one connection.
    pub contradictions: u64,
    /// Number of connections of a publisher with the topic of one that was already connected.
    pub rivals: u64,
    /// Number of restarts of the engine that were noticed.
    pub epochs: u64,
}

/// State of one stream, and the rules by which it changes. `P` is the type of a batch's payload.
pub struct Machine<P> {
    config: MachineConfig,
    /// True if the engine has a replay socket.
    can_replay: bool,
    /// Counts of events on the stream so far.
    pub counts: Counts,
    goal: Goal,
    ever_connected: bool,
    /// Number of the last batch applied; `None` before the first.
    last: Option<u64>,
    /// Number of the first batch applied since the last clear.
    first: u64,
    /// Number below which all batches of this epoch were applied or counted as lost.
    accounted: u64,
    recent: Recent,
    /// True if the next batch may have any number from `floor` on, because the batches before are lost anyway.
    open: bool,
    /// Lowest sequence number that the next batch may have.
    floor: u64,
    /// True if the engine may hold blocks that are not known.
    partial: bool,
    /// Highest number received over this live connection. It distinguishes a connection that lags behind the replay
    /// from an engine that counts anew behind a proxy.
    highest: Option<u64>,
    waiting: ReorderWindow<StoredBatch<P>>,
    /// Highest known number of a batch that is neither applied nor waiting, as `waiting` had no room for the batch or
    /// it could not be read, so that the engine must be asked for it.
    owed: Option<u64>,
    life: Life,
    /// True if only a sequence number shows that the holdings are the connected engine's.
    unverified: bool,
    doubt: Doubt,
    rivalry: Rivalry,
    unknown_events: UnknownEvents,
    silence: Silence,
    /// True if the last complete answer ended before a number that was known when the replay was requested.
    short: bool,
    ask: Option<Question>,
    /// Number of replay requests in a row without a useful answer.
    attempts: u32,
    /// Time of the next replay request, or, without a replay socket, of giving up a gap; `None` if neither is due.
    ask_at: Option<Duration>,
    /// Time at which the stream continues without the missing batches, even if some still arrive.
    limit: Option<Duration>,
    /// True if the replay socket has ever sent a batch.
    keeps: bool,
    /// True if replay requests were given up without an answer; no gap waits for the replay socket until it answers
    /// again.
    dead: bool,
    /// Time at which the engine last sent a batch or an answer.
    heard: Duration,
    /// Time at which the live connection last delivered a batch.
    live_heard: Duration,
    asked: Duration,
    probe_at: Option<Duration>,
    heal_at: Option<Duration>,
    heal_wait: Duration,
    /// State of the proof of holdings restored from a snapshot.
    restored: RestoreState,
}

impl<P: AsRef<[u8]>> Machine<P> {
    /// Creates a machine without a connection. `can_replay`: whether the engine has a replay socket.
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

    /// True if the engine may hold more than is known, because early batches were missed or later ones lost.
    pub fn partial(&self) -> bool {
        self.partial
    }

    /// True if the holdings count as the connected engine's only because its next batch had the right number, and no
    /// answer has proved this yet.
    pub fn unverified(&self) -> bool {
        self.unverified
    }

    /// Number of the last batch applied or given up; `None` if there is none.
    pub fn last(&self) -> Option<u64> {
        self.last.or(self.floor.checked_sub(1).filter(|_| self.open))
    }

    /// Number of batches that wait for earlier ones.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }
}
