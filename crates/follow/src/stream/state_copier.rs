//! A stream's task copies all that the stream holds into its outlet, step by step between its batches, for whoever reads
//! the log and does not know it.
//!
//! As in `copier`, ranks are copied one after the other, and each is complete after a batch of its own. The log has the
//! batches and the copies in the order in which the task made them. So a reader that leaves out a rank's batches until
//! it has all of its copy, and applies those after it, holds what the rank holds.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use kvatlas_index::{BlockIndex, CopyState, RankCopier, Tier};
use kvatlas_wire::compact::Frame;
use tokio::sync::OwnedSemaphorePermit;

use super::copier::PAUSE;
use super::holdings::Holdings;

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
