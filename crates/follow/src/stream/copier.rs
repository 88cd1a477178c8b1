//! A stream's task copies what the stream holds, step by step between its batches.
//!
//! The task alone applies the stream's batches. So the moment at which a rank is complete is after a batch whose number the
//! task knows, and what its reader remembers is of the same moment. Ranks of one stream are copied one after the other;
//! each has its own last batch. All go on from the mark, which was taken before the first; a rank leaves out the batches
//! that it has.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use kvatlas_adopt::RankAdoption;
use kvatlas_index::{BlockHash, BlockIndex, CopyState, RankCopier, Tier};
use kvatlas_wire::compact::Frame;
use kvatlas_wire::{ReaderState, SaltedBlock};
use tokio::sync::OwnedSemaphorePermit;

use super::holdings::Holdings;
use crate::state::{CopiedRank, CopiedStream, CopyRequest, RankHead, StreamHead, UnnamedProofs};
use kvatlas_stream::machine::Machine;
use kvatlas_stream::{Mark, Skip};

/// Time for which steps are made in a row, each with a lock of its own: timers are coarse, and a step is a fraction of
/// this.
const TURN: Duration = Duration::from_micros(800);

/// Pause between two rows of steps, for others who want to change the index, and for the stream's own batches.
pub(super) const PAUSE: Duration = Duration::from_micros(500);

/// Number of small ranks that are one step.
const RANKS_A_STEP: usize = 64;

/// A stream that is cleared so often while it is copied is left out.
const MOST_AGAIN: usize = 3;

/// A copy that is being made.
pub(super) struct StreamCopier {
    request: CopyRequest,
    begun: CopyProgress,
    again: usize,
    /// Time at which the next step is due.
    due: Instant,
}

/// State of a stream at one moment, as whoever decides about the stream knows it.
pub(super) trait Moment {
    /// The last batch, if all that is held is known to be of its life.
    fn mark(&self) -> Result<Mark, Skip>;
    /// The number of the last batch.
    fn last(&self) -> Option<u64>;
    /// The first batch applied since the last clear, and whether the engine may hold more than is known.
    fn reach(&self) -> (u64, bool);
    /// Position up to which the log is read that the stream comes by, if it comes by one.
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

struct CopyProgress {
    mark: Mark,
    /// Position up to which the log was read when the copy began.
    sequence: Option<u64>,
    /// Number of clears when the copy began: what was cleared by then does not come again.
    clears: u64,
    ranks: Vec<u32>,
    copier: Option<RankCopier>,
    done: Vec<(RankHead, CopiedRank)>,
}

impl StreamCopier {
    /// Begins, if there is anything that could be of use to somebody later; else says why not.
    pub(super) fn begin(request: CopyRequest, holdings: &Holdings, machine: &impl Moment) -> Option<Self> {
        match CopyProgress::new(holdings, machine) {
            Ok(begun) => Some(Self { request, begun, again: 0, due: Instant::now() }),
            Err(why) => {
                request.answer(Err(why));
                None
            }
        }
    }

    pub(super) fn due(&self) -> Instant {
        self.due
    }

    /// Goes on, if that is due. None if it is done.
    pub(super) fn step(mut self, holdings: &mut Holdings, machine: &impl Moment) -> Option<Self> {
        if Instant::now() < self.due {
            return Some(self);
        }
        if self.request.is_given_up() {
            return None;
        }
        if self.begun.clears != holdings.clears() {
            self.again += 1;
            let begun =
                if self.again > MOST_AGAIN { Err(Skip::Changing) } else { CopyProgress::new(holdings, machine) };
            match begun {
                Ok(begun) => self.begun = begun,
                Err(why) => {
                    self.request.answer(Err(why));
                    return None;
                }
            }
        }
        let turn = Instant::now();
        let copied = loop {
            match self.begun.step(holdings, machine) {
                Ok(false) if turn.elapsed() < TURN => {}
                copied => break copied,
            }
        };
        match copied {
            Ok(false) => {
                self.due = Instant::now() + PAUSE;
                Some(self)
            }
            Ok(true) => {
                let Self { request, begun, .. } = self;
                request.answer(begun.end(holdings, machine));
                None
            }
            Err(why) => {
                self.request.answer(Err(why));
                None
            }
        }
    }
}

impl CopyProgress {
    fn new(holdings: &Holdings, machine: &impl Moment) -> Result<Self, Skip> {
        // One without a replay socket is copied too: its blocks cannot be proved later, but what they are stays true.
        if holdings.stream.status.limit().is_some() {
            return Err(Skip::Nothing);
        }
        let mark = machine.mark()?;
        let (clears, ranks) = (holdings.clears(), holdings.stream.ranks().into_iter().collect());
        let sequence = machine.sequence();
        Ok(Self { mark, sequence, clears, ranks, copier: None, done: Vec::new() })
    }

    /// True when all ranks are copied.
    fn step(&mut self, holdings: &mut Holdings, machine: &impl Moment) -> Result<bool, Skip> {
        let mut left = BlockIndex::SLICE;
        // Several small ranks are one step.
        while let Some(&rank) = self.ranks.last() {
            let begins = self.copier.is_none();
            let (worker, index) = (holdings.stream.worker.clone(), holdings.index.clone());
            let copier = self.copier.take().unwrap_or_else(|| RankCopier::new(index, &worker, rank));
            // Nobody adopts in between.
            let stream = holdings.stream.clone();
            let mut proven_blocks = stream.proven_blocks();
            match copier.step(left) {
                CopyState::More(copier) => {
                    left = left.saturating_sub(copier.spent());
                    self.copier = Some(copier);
                    if !begins || left == 0 {
                        return Ok(false);
                    }
                }
                CopyState::Done(done) => {
                    let late = proven_blocks.of(rank);
                    let answered: Vec<BlockHash> = late.answered().collect();
                    let (seen, reader) = holdings.reader_state(rank, late).ok_or(Skip::Hybrid)?;
                    let seq = machine.last().unwrap_or(self.mark.seq);
                    let head = RankHead::new(rank, seq, seen, &reader, UnnamedProofs::of(late.frontier()));
                    let salts: Vec<SaltedBlock> = reader.salts;
                    self.done.push((head, CopiedRank { blocks: done, salts, answered }));
                    self.ranks.pop();
                    if self.done.len().is_multiple_of(RANKS_A_STEP) {
                        break;
                    }
                }
            }
        }
        Ok(self.ranks.is_empty())
    }

    fn end(self, holdings: &Holdings, machine: &impl Moment) -> Result<CopiedStream, Skip> {
        // What was doubted meanwhile is not worth much.
        machine.mark()?;
        let registration = &holdings.stream.registration;
        let (heads, ranks) = self.done.into_iter().unzip();
        let (claimed, plain) = holdings.claimed.saved();
        let (first, partial) = machine.reach();
        let head = StreamHead {
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
        };
        Ok(CopiedStream { head, ranks })
    }
}

impl Holdings {
    /// Returns whether anything was stored under a rank, and what its reader remembers; none of a hybrid model's.
    pub(super) fn reader_state(&mut self, rank: u32, late: &mut RankAdoption) -> Option<(bool, ReaderState)> {
        let seen = self.seen.contains(&rank);
        let Some(reader) = self.readers.get_mut(&rank) else { return Some((seen, ReaderState::default())) };
        late.tell_salts(reader);
        Some((seen, reader.state()?))
    }
}

/// Bytes of one piece.
const PIECE: usize = 96 << 10;
/// Blocks in a piece that says what is not held after all.
const ANSWERED: usize = 1 << 14;
/// Pause until leave to copy is asked for again.
const AGAIN: Duration = Duration::from_millis(20);

/// A copy that is being made, or waits to be.
pub(super) struct StateCopier {
    permit: Option<OwnedSemaphorePermit>,
    clears: u64,
    done: BTreeSet<u32>,
    copier: Option<(u32, RankCopier)>,
    due: Instant,
}

impl StateCopier {
    pub(super) fn new(holdings: &Holdings) -> Self {
        Self { permit: None, clears: holdings.clears(), done: BTreeSet::new(), copier: None, due: Instant::now() }
    }

    pub(super) fn due(&self) -> Instant {
        self.due
    }

    /// Goes on, if that is due. None if it is done.
    pub(super) fn step(mut self, holdings: &mut Holdings) -> Option<Self> {
        if Instant::now() < self.due {
            return Some(self);
        }
        let stream = holdings.stream.clone();
        let outlet = stream.outlet()?;
        if self.permit.is_none() {
            let Some(permit) = outlet.may_copy() else {
                self.due = Instant::now() + AGAIN;
                return Some(self);
            };
            self.begin(Some(permit), holdings);
        } else if self.clears != holdings.clears() {
            let permit = self.permit.take();
            self.begin(permit, holdings);
        }
        let next = || stream.ranks().into_iter().find(|rank| !self.done.contains(rank));
        let (rank, copier) = match self.copier.take() {
            Some(copying) => copying,
            None => match next() {
                Some(rank) => (rank, RankCopier::new(holdings.index.clone(), &stream.worker, rank)),
                None => {
                    outlet.state(Frame::StateEnd, self.permit.take());
                    return None;
                }
            },
        };
        // Nobody adopts in between.
        let mut proven_blocks = stream.proven_blocks();
        match copier.step(BlockIndex::SLICE) {
            CopyState::More(copier) => self.copier = Some((rank, copier)),
            CopyState::Done(done) => {
                // What only an answer has said, a batch may say again: then it must not count twice.
                let answered: Vec<_> = proven_blocks.of(rank).answered().collect();
                if let Some(recorder) = holdings.recorder(rank) {
                    let piece = |changes: Vec<u8>| outlet.state(Frame::State { rank, changes: &changes }, None);
                    recorder.state(&done.sorted(), PIECE, piece);
                    for some in answered.chunks(ANSWERED) {
                        let changes = recorder.removed(Tier::Gpu, some);
                        outlet.state(Frame::State { rank, changes: &changes }, None);
                    }
                }
                outlet.state(Frame::StateRankEnd { rank }, None);
                self.done.insert(rank);
            }
        }
        self.due = Instant::now() + PAUSE;
        Some(self)
    }

    fn begin(&mut self, permit: Option<OwnedSemaphorePermit>, holdings: &Holdings) {
        (self.permit, self.clears) = (permit, holdings.clears());
        self.done.clear();
        self.copier = None;
        if let Some(outlet) = holdings.stream.outlet() {
            outlet.state(Frame::StateBegin, None);
        }
    }
}
