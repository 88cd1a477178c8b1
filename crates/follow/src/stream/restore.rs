//! Restoring of the blocks held by a stream's ranks from a snapshot, before the stream connects.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use kvatlas_adopt::FrontierState;
use kvatlas_index::snapshot::Dictionary;
use kvatlas_index::{BlockHash, BlockIndex, Tier};
use kvatlas_wire::{Reader, SaltedBlock};
use tokio::task::yield_now;

use super::holdings::Holdings;
use crate::snapshot::StreamRestore;
use crate::state::{RankHead, Registration, SavedRank};
use kvatlas_stream::Outcome;

/// Number of blocks stored before other tasks on the thread may run; storing them takes about a millisecond.
const TURN: usize = 4096;

/// Stores the blocks that a snapshot has of a stream in the index. Returns the number of blocks.
///
/// # Errors
/// The reason why the snapshot cannot be used. The caller must clear the blocks stored before the error.
pub(super) async fn restore(holdings: &mut Holdings, restoring: StreamRestore) -> Result<u64, Outcome> {
    let StreamRestore { dictionary, stream, .. } = restoring;
    let (head, blocks) = (&stream.head, stream.blocks());
    let Holdings { claimed, keyspace, stream: fed, .. } = holdings;
    if !claimed.restore(keyspace, fed, &head.claimed, head.plain) {
        return Err(Outcome::Ranks);
    }
    // With all copies, as a few bytes may stand for many.
    let steps = stream.ranks.iter().map(|rank| rank.held.copies()).max().unwrap_or(0);
    if steps > holdings.most_blocks() {
        return Err(Outcome::Limit);
    }
    let mut left = TURN;
    for (rank_head, rank) in head.ranks.iter().zip(stream.ranks) {
        let SavedRank { held, salts, answered } = rank;
        let rank = rank_head.rank;
        if !holdings.stream.feeds(rank) {
            return Err(Outcome::Ranks);
        }
        let mut stores = held.stores(&dictionary).peekable();
        while stores.peek().is_some() {
            let stored = holdings.store_all(rank, |store| {
                while left > 0
                    && let Some((tier, parent, names, contents)) = stores.next()
                {
                    store(tier, parent, names, contents)?;
                    left = left.saturating_sub(names.len());
                }
                Ok(())
            });
            stored.map_err(|_| Outcome::Limit)?;
            if left == 0 {
                yield_now().await;
                left = TURN;
            }
        }
        holdings.restore_reader(rank_head, salts);
        holdings.restore_late(rank, answered, &rank_head.unknown.kept());
    }
    if holdings.is_over_limits(blocks) {
        return Err(Outcome::Limit);
    }
    Ok(blocks)
}

/// Function that stores the blocks of one chain, given the tier, the parent's block hash, the block hashes and the
/// content hashes.
type Store<'a> = dyn FnMut(Tier, Option<BlockHash>, &[BlockHash], &[u64]) -> Result<(), kvatlas_index::Error> + 'a;

impl Holdings {
    /// Stores the blocks that a snapshot has of one rank. `stores` calls its argument with each chain of blocks.
    ///
    /// # Errors
    /// If the index cannot number any more blocks.
    pub(super) fn store_all(
        &mut self,
        rank: u32,
        stores: impl FnOnce(&mut Store<'_>) -> Result<(), kvatlas_index::Error>,
    ) -> Result<(), kvatlas_index::Error> {
        let worker = self.stream.worker.clone();
        let store = |index: &BlockIndex| {
            let changes = &mut index.changes();
            stores(&mut |tier, parent, names, contents| changes.store(&(&*worker, rank), tier, parent, names, contents))
        };
        self.keyspace.try_change(&self.index, store).unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// Restores the state of a rank's event reader from a snapshot.
    pub(super) fn restore_reader(&mut self, head: &RankHead, salts: Vec<SaltedBlock>) {
        if !head.seen {
            return;
        }
        let status = &self.stream.status;
        let reader = Reader::new(self.keyspace.block_size);
        let Registration { count_copies, host_chunk, .. } = &self.stream.registration;
        let reader = reader.counting(*count_copies).chunking(*host_chunk).following_groups(true);
        let reader = reader.with_state(head.reader(salts)).calling(self.keyspace.identity().clone());
        let reader = if self.stream.outlet().is_some() { reader.recording() } else { reader };
        for (tier, blocks) in Tier::ALL.into_iter().skip(1).zip(reader.chunks()).filter(|(_, blocks)| *blocks > 0) {
            self.index.learn_chunk(&self.stream.worker, head.rank, tier, blocks, reader.has_own_chunks(tier));
        }
        status.set_chunks(reader.chunks());
        let shows_salts = reader.shows_salts();
        status.upper_bound.fetch_or(reader.upper_bound(), Relaxed);
        self.seen.insert(head.rank);
        self.had.insert(head.rank, head.seq);
        self.readers.insert(head.rank, reader);
        self.note_salts(shows_salts);
        self.keyspace.trust_changed(&self.stream);
    }

    /// Keeps the dictionary (block hashes with their contents) of restored blocks until these are proved to be still
    /// held, or dropped.
    pub(super) fn restores(&mut self, dictionary: Arc<Dictionary>) {
        self.dictionary = Some(dictionary);
    }

    /// Records the outcome for blocks restored from a snapshot. If they were dropped, their block hashes and contents
    /// are kept for some time, as the engine may still be proved to hold some of them.
    pub(super) fn restored(&mut self, outcome: Outcome) {
        if let Some(dictionary) = self.dictionary.take().filter(|_| outcome != Outcome::Kept) {
            self.keyspace.teach(&dictionary);
        }
    }

    /// Restores a rank's block hashes that are known only from engines' reports of cached tokens, and its proved block
    /// hashes with unknown contents.
    pub(super) fn restore_late(&mut self, rank: u32, answered: Vec<BlockHash>, kept: &FrontierState) {
        if self.keyspace.prompt_queue().is_open() {
            self.stream.proven_blocks().of(rank).resume(answered, kept);
            if !kept.proofs.is_empty() {
                self.keyspace.set_waiting(true);
            }
            return;
        }
        // Without adoption, a second store of such a block would count twice.
        let remove = |index: &BlockIndex| index.remove(&self.stream.worker, rank, Tier::Gpu, &answered);
        self.keyspace.try_change(&self.index, remove).unwrap_or_else(|panic| resume_unwind(panic));
    }
}
