//! State machine of one event stream: decides which received batches are applied, and when replays are requested. It
//! has no sockets, no clock and no decoder; time is an argument.
//!
//! ```text
//!              connected, nothing known               all batches read
//!  Connect ─────────────────────────────▶ Whole ─────────────────────────▶ Live ◀──── filled, or given up ──── Gap
//!     ▲  └──── connected, batches known ──▶ Verify ──── same engine ────────▲ └── a number is missing ──────────▲
//!     │                                       ▲ └──── other engine ──▶ Whole│
//!     └──── disconnected (from anywhere)      └──── heard again ── Stale ◀──┘ silent too long
//! ```
//!
//! The rules that keep the held blocks exact:
//!
//! 1. Batches are applied in the order of their sequence numbers, each once and none left out; the next number is
//!    `last + 1`. A batch that arrives early waits.
//! 2. A sequence number alone does not show whether a batch was published before or after a restart of the engine. So
//!    every replay request, except the one for all batches, starts at `last` and not after it: the answer must begin with
//!    the batch applied last. If it does not, the engine has restarted unnoticed, and the stream is cleared and read anew.
//!    After a new connection, requests start at the last batch of the old connection, until an answer has contained that
//!    batch and one of the new connection.
//! 3. If a gap cannot be filled, the held blocks are cleared, the stream continues with the available batches, and is
//!    reported as `partial`. The same applies to a batch that cannot be decoded and may have removed blocks.
//! 4. Only a stream with the goal `Live` is trusted, and never while a known batch is neither applied nor given up.
//! 5. Silence never blocks a stream: each replay request has a deadline, and so have all requests for one purpose
//!    together. Retries are bounded, and after the last one the stream continues without an answer.
//! 6. One connection delivers the batches of one run of the engine. If the batches contradict each other, the stream is
//!    distrusted for a while.
//!
//! This file has the state as a whole, the settings and the actions. `inputs` has the events in a stream's life and the
//! transitions from one goal to the next, `batches` the processing of batches and the replay requests, `proofs` the
//! ways in which an engine proves not to have restarted, and `doubts` the reasons to distrust a stream: contradictions,
//! a second publisher, events of unknown types, and silence of a busy engine.

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

/// Time from the moment when a stream is live until a replay is requested for batches that the engine published before
/// the subscription took effect.
const SOON: Duration = Duration::from_millis(500);
/// Maximum wait between two attempts to complete a partial stream (one with lost batches).
const HEAL_MAX: Duration = Duration::from_secs(600);

/// Settings of a stream machine. Each is equal to the field of `StreamConfig` with the same name, unless stated
/// otherwise.
#[derive(Debug, Clone)]
pub struct MachineConfig {
    /// Time without a message after which a stream is no longer trusted, if the replay socket does not answer either.
    pub stale_after: Duration,
    /// Time without a message after which the replay socket is asked for batches that may be missing.
    pub probe_interval: Duration,
    /// Maximum wait for the next batch during a replay (the resending of missed batches by an engine).
    pub replay_timeout: Duration,
    /// Maximum total time of all replays for one purpose, such as filling one gap.
    pub replay_total_timeout: Duration,
    /// Maximum number of replay requests for one purpose, after which the stream continues without the missing batches.
    pub replay_attempts: u32,
    /// Maximum wait for a missing batch to arrive late, for engines without a replay socket.
    pub reorder_grace: Duration,
    /// Minimum pause between two attempts to connect or to request a replay.
    pub reconnect_min: Duration,
    /// Maximum pause between two attempts to connect or to request a replay.
    pub reconnect_max: Duration,
    /// Maximum number of batches that are buffered while earlier ones are missing.
    pub buffer_batches: usize,
    /// Maximum total size, in bytes, of batches that are buffered while earlier ones are missing.
    pub buffer_bytes: usize,
    /// Maximum total size, in bytes, of the buffers of all streams together (the setting `limits.buffer_bytes`).
    pub all_buffer_bytes: usize,
}

/// Outcome of applying a batch to the held blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The batch was applied completely.
    Whole,
    /// The batch was applied, and contained a clear of all blocks. Batches lost before it no longer matter.
    Cleared,
    /// The batch was applied, except for store events that cannot be decoded.
    Partial,
    /// The batch was applied, except for events of unknown types, which may have removed any blocks.
    UnknownEvents,
    /// No event of the batch was applied, because it has a removal event that cannot be decoded.
    Refused,
}

/// Actions that a stream machine requests for its stream, to be performed at once and in order.
pub trait Effects<P> {
    /// Applies a batch to the held blocks. `live` is true if the batch was received over the live connection, and not
    /// in a replay.
    fn apply(&mut self, seq: u64, payload: &P, live: bool) -> Verdict;
    /// Removes all blocks held by the stream's ranks from the index.
    fn clear(&mut self);
    /// Requests all batches with sequence numbers of at least `from` from the replay socket. Only one request is open
    /// at a time.
    fn ask(&mut self, from: u64);
    /// Cancels the open replay request. No further batch of its answer may reach the machine.
    fn cancel(&mut self);
    /// Closes the live connection, together with batches still in transit, and opens a new one.
    fn reconnect(&mut self);
}

/// Counts of notable events on a stream, such as gaps and replays.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Number of gaps; a gap is one or more missing batches between two received ones.
    pub gaps: u64,
    /// Number of missing batches recovered by a replay or a late arrival.
    pub recovered_batches: u64,
    /// Number of missing batches that could not be recovered, as far as their number is known.
    pub lost_batches: u64,
    /// Number of times that the held blocks were cleared because a gap could not be filled.
    pub resets: u64,
    /// Number of batches that were received a second time.
    pub duplicate_batches: u64,
    /// Number of live batches that were dropped because the buffer was full.
    pub overflowed_batches: u64,
    /// Number of replays (resendings of past batches) requested from the engine.
    pub replays: u64,
    /// Number of replays that delivered no batch in time.
    pub failed_replays: u64,
    /// Number of replays that started at a later batch than the requested one.
    pub truncated_replays: u64,
    /// Number of connections re-established after a loss.
    pub reconnects: u64,
    /// Number of connections re-established to an engine whose identity could not be verified by a replay.
    pub unverified_reconnects: u64,
    /// Number of contradictions (different batches with one sequence number) on one connection.
    pub contradictions: u64,
    /// Number of times that a publisher connected with the same topic as one that was already connected.
    pub rivals: u64,
    /// Number of detected restarts of the engine.
    pub epochs: u64,
}

/// State machine of one event stream. `P` is the type of a batch's payload.
pub struct Machine<P> {
    config: MachineConfig,
    /// True if the engine has a replay socket.
    can_replay: bool,
    /// Counts of notable events on the stream so far.
    pub counts: Counts,
    goal: Goal,
    ever_connected: bool,
    /// Sequence number of the last applied batch; `None` before the first batch.
    last: Option<u64>,
    /// Sequence number of the first batch applied since the held blocks were last cleared.
    first: u64,
    /// Sequence number below which all batches since the engine's last restart were applied or counted as lost.
    accounted: u64,
    recent: Recent,
    /// True if the next batch to apply may have any sequence number from `floor` on, because the batches before it were
    /// given up.
    open: bool,
    /// Minimum sequence number of the next batch to apply.
    floor: u64,
    /// True if the engine may hold blocks that are not known, because batches were lost.
    partial: bool,
    /// Highest sequence number received over the present live connection; `None` before the first batch. Distinguishes
    /// a connection that lags behind the replay from an engine that has restarted behind a proxy and numbers its
    /// batches anew.
    highest: Option<u64>,
    waiting: ReorderWindow<StoredBatch<P>>,
    /// Highest known sequence number of a batch that must be requested from the engine, because it was dropped from a
    /// full buffer or could not be decoded; `None` if there is none.
    owed: Option<u64>,
    life: Life,
    /// True if only a matching sequence number indicates that the held blocks are the connected engine's.
    unverified: bool,
    doubt: Doubt,
    rivalry: Rivalry,
    unknown_events: UnknownEvents,
    silence: Silence,
    /// True if the last complete replay answer ended before a batch whose number was known when the replay was
    /// requested.
    short: bool,
    ask: Option<Question>,
    /// Number of consecutive replay requests without a useful answer.
    attempts: u32,
    /// Time of the next replay request or, without a replay socket, of giving up missing batches; `None` if neither is
    /// planned.
    ask_at: Option<Duration>,
    /// Time at which the stream continues without the missing batches, even if some still arrive; `None` if it does not
    /// wait for missing batches.
    limit: Option<Duration>,
    /// True if the replay socket has ever sent a batch, which shows that the engine keeps batches for replays.
    keeps: bool,
    /// True if the last replay requests were given up without an answer. Until the replay socket answers again, the
    /// stream does not wait for replays to fill gaps.
    dead: bool,
    /// Time at which the engine last sent a live batch or a replay answer.
    heard: Duration,
    /// Time at which the live connection last delivered a batch.
    live_heard: Duration,
    asked: Duration,
    probe_at: Option<Duration>,
    heal_at: Option<Duration>,
    heal_wait: Duration,
    /// Progress of proving that held blocks restored from a snapshot are still valid.
    restored: RestoreState,
}

impl<P: AsRef<[u8]>> Machine<P> {
    /// Creates a machine for a stream that is not connected yet. `can_replay` is true if the engine has a replay
    /// socket.
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

    /// True if the engine may hold more blocks than are known, because early batches were missed or later ones lost.
    pub fn partial(&self) -> bool {
        self.partial
    }

    /// True if, after a reconnection, the held blocks are taken to be the connected engine's only because its next
    /// batch had the expected sequence number, without a proof by a replay.
    pub fn unverified(&self) -> bool {
        self.unverified
    }

    /// Returns the sequence number of the last batch applied or given up; `None` if there is none.
    pub fn last(&self) -> Option<u64> {
        self.last.or(self.floor.checked_sub(1).filter(|_| self.open))
    }

    /// Returns the number of batches that wait because earlier batches are missing.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }
}
