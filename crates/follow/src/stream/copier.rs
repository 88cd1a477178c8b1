//! Copying of the blocks held by a stream's ranks, by the stream's task, in steps between batches. Copies are made for
//! snapshots, and for readers of the NATS log that do not have the stream's blocks yet.
//!
//! Batches of a stream are applied only by its task. So when a rank's copy is complete, the task knows the last batch
//! that the copy includes, and the state of the rank's reader is from the same moment. Ranks are copied one after the
//! other, so each copy includes batches up to a different one.
//!
//! * A snapshot continues from its mark, the last batch before the first rank was copied. After loading, each rank skips the
//!   batches that its copy includes.
//! * The NATS log has batches and copies in the order in which the task wrote them. So a reader skips a rank's batches until
//!   the rank's copy is complete, and applies the batches after it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvatlas_adopt::RankAdoption;
use kvatlas_index::{BlockHash, BlockIndex, CopyDone, CopyState, RankCopier, Tier};
use kvatlas_wire::ReaderState;
use kvatlas_wire::compact::Frame;
use tokio::sync::OwnedSemaphorePermit;

use super::holdings::Holdings;
use crate::relay::Outlet;
use crate::state::{CopiedRank, CopiedStream, CopyRequest, RankHead, StreamHead, UnnamedProofs};
use kvatlas_stream::machine::Machine;
use kvatlas_stream::{Mark, Skip};

/// Time for which copying steps are made in a row before a pause. Each step takes the index's lock for a fraction of
/// this time; shorter series would be lost to the coarse resolution of timers.
const TURN: Duration = Duration::from_micros(800);
/// Pause between two series of copying steps, in which other threads can change the index, and the stream's batches are
/// applied.
const PAUSE: Duration = Duration::from_micros(500);
/// Maximum number of ranks that are copied in one step while the index's lock is held, if they have few blocks.
const RANKS_A_STEP: usize = 64;
/// Maximum number of times that a copy for a snapshot is restarted because the held blocks were cleared. After more,
/// the snapshot leaves the stream out.
const MOST_RESTARTS: usize = 3;
/// Approximate size, in bytes, of the pieces in which all blocks of a rank are published to the NATS log.
const PIECE: usize = 96 << 10;
/// Maximum number of blocks that one published change removes because they are known only from engines' reports of
/// cached tokens.
const ANSWERED: usize = 1 << 14;
/// Wait before a permit to copy a stream's blocks is requested again.
const AGAIN: Duration = Duration::from_millis(20);

/// Position of a stream, in batches of its engine or in messages of the NATS log.
pub(super) trait Moment {
    /// Returns the number and hash of the last batch, if all held blocks are proved to have been announced since the
    /// engine's last restart; else the reason to leave the stream out of a snapshot.
    fn mark(&self) -> Result<Mark, Skip>;
    /// Returns the number of the last batch; `None` if there was none.
    fn last(&self) -> Option<u64>;
    /// Returns the number of the first batch applied since the last clear, and true if the engine may hold more blocks
    /// than are known.
    fn reach(&self) -> (u64, bool);
    /// Returns the sequence number up to which the NATS log was read; `None` if the stream is read from an engine.
    fn sequence(&self) -> Option<u64>;
}

impl<P: AsRef<[u8]>> Moment for Machine<P> {
    fn mark(&self) -> Result<Mark, Skip> {
        Machine::mark(self)
    }
    fn last(&self) -> Option<u64> {
        Machine::last(self)
    }
    fn reach(&self) -> (u64, bool) {
        Machine::reach(self)
    }
    fn sequence(&self) -> Option<u64> {
        None
    }
}

/// Destination for a copy of a stream's held blocks: a snapshot or the NATS log.
pub(super) trait CopySink: Sized {
    /// Begins a copy of a stream's held blocks, or restarts it after these blocks were cleared. Returns a wait if the
    /// copy cannot begin yet.
    ///
    /// # Errors
    /// The reason why the stream cannot be copied.
    fn begin(&mut self, holdings: &Holdings, rules: &impl Moment) -> Result<Option<Duration>, Skip>;

    /// Adds the completed copy of one rank.
    ///
    /// # Errors
    /// The reason why the stream cannot be copied.
    fn add(
        &mut self,
        rank: u32,
        blocks: CopyDone,
        proven: &mut RankAdoption,
        holdings: &mut Holdings,
        rules: &impl Moment,
    ) -> Result<(), Skip>;

    /// Ends the copy. `copied`: success, or the reason why the copy failed.
    fn end(self, copied: Result<(), Skip>, holdings: &Holdings, rules: &impl Moment);

    /// True if the requester of the copy has stopped waiting for it.
    fn is_given_up(&self) -> bool {
        false
    }
}

/// Copy of a stream's held blocks that is in progress or waits to begin.
pub(super) struct Copier<S> {
    sink: S,
    progress: Option<CopyProgress>,
    /// Time at which the copy of the stream's blocks is to be continued.
    due: Instant,
}

/// Progress of a copy of a stream's blocks since it was last started or restarted.
struct CopyProgress {
    /// Number of times that the held blocks had been cleared when the copy began. If the number has changed, the copy
    /// is restarted.
    clears: u64,
    copied: BTreeSet<u32>,
    current: Option<(u32, RankCopier)>,
}

impl<S: CopySink> Copier<S> {
    pub(super) fn new(sink: S) -> Self {
        Self { sink, progress: None, due: Instant::now() }
    }

    pub(super) fn due(&self) -> Instant {
        self.due
    }

    /// Continues the copy of the stream's blocks if the time for its next step has come. Returns `None` once the copy
    /// has ended.
    pub(super) fn step(mut self, holdings: &mut Holdings, rules: &impl Moment) -> Option<Self> {
        if Instant::now() < self.due {
            return Some(self);
        }
        if self.sink.is_given_up() {
            return None;
        }
        let ended = match self.steps(holdings, rules) {
            Ok(Some(pause)) => {
                self.due = Instant::now() + pause;
                return Some(self);
            }
            Ok(None) => Ok(()),
            Err(why) => Err(why),
        };
        self.sink.end(ended, holdings, rules);
        None
    }

    /// Copies slices of ranks until it is time for a pause. Returns the length of the pause; `None` once all ranks are
    /// copied.
    fn steps(&mut self, holdings: &mut Holdings, rules: &impl Moment) -> Result<Option<Duration>, Skip> {
        let clears = holdings.clears();
        let progress = match &mut self.progress {
            Some(progress) if progress.clears == clears => progress,
            progress => {
                if let Some(pause) = self.sink.begin(holdings, rules)? {
                    return Ok(Some(pause));
                }
                progress.insert(CopyProgress { clears, copied: BTreeSet::new(), current: None })
            }
        };
        let turn = Instant::now();
        while turn.elapsed() < TURN {
            if progress.step(&mut self.sink, holdings, rules)? {
                return Ok(None);
            }
        }
        Ok(Some(PAUSE))
    }
}

impl CopyProgress {
    /// Makes one step of the copy: a slice of one rank's blocks, or several small ranks. Returns true once all ranks
    /// are copied.
    fn step(&mut self, sink: &mut impl CopySink, holdings: &mut Holdings, rules: &impl Moment) -> Result<bool, Skip> {
        let mut left = BlockIndex::SLICE;
        let stream = holdings.stream.clone();
        for _ in 0..RANKS_A_STEP {
            let next = || stream.ranks().into_iter().find(|rank| !self.copied.contains(rank));
            let begins = self.current.is_none();
            let (rank, copier) = match self.current.take() {
                Some(current) => current,
                None => match next() {
                    Some(rank) => (rank, RankCopier::new(holdings.index.clone(), &stream.worker, rank)),
                    None => return Ok(true),
                },
            };
            // No block is adopted in between.
            let mut proven_blocks = stream.proven_blocks();
            match copier.step(left) {
                CopyState::More(copier) => {
                    left = left.saturating_sub(copier.spent());
                    self.current = Some((rank, copier));
                    if !begins || left == 0 {
                        return Ok(false);
                    }
                }
                CopyState::Done(blocks) => {
                    sink.add(rank, blocks, proven_blocks.of(rank), holdings, rules)?;
                    self.copied.insert(rank);
                }
            }
        }
        Ok(false)
    }
}

/// Destination for a copy that a snapshot has requested.
pub(super) struct SnapshotSink {
    request: CopyRequest,
    begins: usize,
    /// Number and hash of the last batch applied before the copy began.
    mark: Mark,
    /// Sequence number up to which the NATS log was read when the copy began; `None` if the stream is read from an
    /// engine.
    sequence: Option<u64>,
    ranks: Vec<(RankHead, CopiedRank)>,
}

impl SnapshotSink {
    pub(super) fn new(request: CopyRequest) -> Self {
        Self { request, begins: 0, mark: Mark { seq: 0, hash: 0 }, sequence: None, ranks: Vec::new() }
    }

    fn head(&self, heads: Vec<RankHead>, holdings: &Holdings, rules: &impl Moment) -> StreamHead {
        let registration = &holdings.stream.registration;
        let (claimed, plain) = holdings.claimed.saved();
        let (first, partial) = rules.reach();
        StreamHead {
            worker: holdings.stream.worker.to_string(),
            rank: registration.rank,
            topic: registration.topic.clone(),
            count_copies: registration.count_copies,
            mark: self.mark,
            first,
            partial,
            claimed,
            plain,
            sequence: self.sequence,
            key: holdings.keyspace.identity().key_check(),
            ranks: heads,
        }
    }
}

impl CopySink for SnapshotSink {
    fn begin(&mut self, holdings: &Holdings, rules: &impl Moment) -> Result<Option<Duration>, Skip> {
        self.begins += 1;
        if self.begins > 1 + MOST_RESTARTS {
            return Err(Skip::Changing);
        }
        // A stream without a replay socket is copied too: its blocks cannot be proved later, but their meanings stay true.
        if holdings.stream.status.limit().is_some() {
            return Err(Skip::Nothing);
        }
        (self.mark, self.sequence) = (rules.mark()?, rules.sequence());
        self.ranks.clear();
        Ok(None)
    }

    fn add(
        &mut self,
        rank: u32,
        blocks: CopyDone,
        proven: &mut RankAdoption,
        holdings: &mut Holdings,
        rules: &impl Moment,
    ) -> Result<(), Skip> {
        let answered: Vec<BlockHash> = proven.answered().collect();
        let (seen, reader) = holdings.reader_state(rank, proven).ok_or(Skip::Hybrid)?;
        let seq = rules.last().unwrap_or(self.mark.seq);
        let head = RankHead::new(rank, seq, seen, &reader, UnnamedProofs::of(proven.frontier()));
        self.ranks.push((head, CopiedRank { blocks, salts: reader.salts, answered }));
        Ok(())
    }

    fn end(mut self, copied: Result<(), Skip>, holdings: &Holdings, rules: &impl Moment) {
        // A stream that was doubted meanwhile is left out.
        let copied = copied.and_then(|()| rules.mark()).map(|_| {
            let (heads, ranks) = std::mem::take(&mut self.ranks).into_iter().unzip();
            CopiedStream { head: self.head(heads, holdings, rules), ranks }
        });
        self.request.answer(copied);
    }

    fn is_given_up(&self) -> bool {
        self.request.is_given_up()
    }
}

/// Destination for a copy that is published in the NATS log, through the stream's queue to the log (its outlet).
pub(super) struct LogSink {
    outlet: Arc<Outlet>,
    permit: Option<OwnedSemaphorePermit>,
}

impl LogSink {
    pub(super) fn new(outlet: Arc<Outlet>) -> Self {
        Self { outlet, permit: None }
    }
}

impl CopySink for LogSink {
    fn begin(&mut self, _: &Holdings, _: &impl Moment) -> Result<Option<Duration>, Skip> {
        if self.permit.is_none() {
            self.permit = self.outlet.may_copy();
        }
        if self.permit.is_none() {
            return Ok(Some(AGAIN));
        }
        self.outlet.state(Frame::StateBegin, None);
        Ok(None)
    }

    fn add(
        &mut self,
        rank: u32,
        blocks: CopyDone,
        proven: &mut RankAdoption,
        holdings: &mut Holdings,
        _: &impl Moment,
    ) -> Result<(), Skip> {
        if let Some(recorder) = holdings.recorder(rank) {
            let piece = |changes: Vec<u8>| self.outlet.state(Frame::State { rank, changes: &changes }, None);
            recorder.state(&blocks.sorted(), PIECE, piece);
            // A batch may announce blocks again that are known from answers only: then they must not count twice.
            let answered: Vec<BlockHash> = proven.answered().collect();
            for some in answered.chunks(ANSWERED) {
                let changes = recorder.removed(Tier::Gpu, some);
                self.outlet.state(Frame::State { rank, changes: &changes }, None);
            }
        }
        self.outlet.state(Frame::StateRankEnd { rank }, None);
        Ok(())
    }

    fn end(self, copied: Result<(), Skip>, _: &Holdings, _: &impl Moment) {
        if copied.is_ok() {
            self.outlet.state(Frame::StateEnd, self.permit);
        }
    }
}

impl Holdings {
    /// Returns true if a block was ever stored under a rank, and the state of the rank's event reader. `None` for a
    /// hybrid model, whose state cannot be copied.
    fn reader_state(&mut self, rank: u32, proven: &mut RankAdoption) -> Option<(bool, ReaderState)> {
        let seen = self.seen.contains(&rank);
        let Some(reader) = self.readers.get_mut(&rank) else { return Some((seen, ReaderState::default())) };
        proven.tell_salts(reader);
        Some((seen, reader.state()?))
    }
}
