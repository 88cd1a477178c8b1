//! A stream takes up what a snapshot has of it, before it connects.

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
use crate::state::{RankHead, SavedRank};
use kvatlas_stream::Outcome;

/// Blocks stored before others have the thread: about a millisecond.
const TURN: usize = 4096;

/// Puts what a snapshot has of a stream into the index. Returns how many blocks that is.
///
/// # Errors
/// The reason for which the snapshot cannot be used. Nothing of it is held then.
pub(super) async fn restore(holdings: &mut Holdings, restoring: StreamRestore) -> Result<u64, Outcome> {
    let StreamRestore { dictionary, stream, .. } = restoring;
    let (head, blocks) = (&stream.head, stream.blocks());
    let Holdings { claimed, keyspace, stream: fed, .. } = holdings;
    if !claimed.restore(keyspace, fed, &head.claimed, head.plain) {
        return Err(Outcome::Ranks);
    }
    // With all copies: a few bytes say many.
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

/// Stores blocks of one chain.
type Store<'a> = dyn FnMut(Tier, Option<BlockHash>, &[BlockHash], &[u64]) -> Result<(), kvatlas_index::Error> + 'a;

impl Holdings {
    /// Stores what a snapshot has of a rank.
    ///
    /// # Errors
    /// If the index is full.
    pub(super) fn store_all(
        &mut self,
        rank: u32,
        stores: impl FnOnce(&mut Store<'_>) -> Result<(), kvatlas_index::Error>,
    ) -> Result<(), kvatlas_index::Error> {
        let worker = self.stream.worker.clone();
        let store = |index: &BlockIndex| {
            let changes = &mut index.changes();
            stores(&mut |tier, parent, names, contents| changes.store(&worker, rank, tier, parent, names, contents))
        };
        self.keyspace.try_change(&self.index, store).unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// Takes up what a rank's reader remembered.
    pub(super) fn restore_reader(&mut self, head: &RankHead, salts: Vec<SaltedBlock>) {
        if !head.seen {
            return;
        }
        let status = &self.stream.status;
        let reader = Reader::new(self.keyspace.block_size);
        let reader = reader.counting(self.stream.registration.count_copies).following_groups(true);
        let reader = reader.with_state(head.reader(salts)).calling(self.keyspace.identity().clone());
        let reader = if self.stream.outlet().is_some() { reader.recording() } else { reader };
        let shows_salts = reader.shows_salts();
        status.upper_bound.fetch_or(reader.upper_bound(), Relaxed);
        self.seen.insert(head.rank);
        self.had.insert(head.rank, head.seq);
        self.readers.insert(head.rank, reader);
        self.note_salts(shows_salts);
        self.keyspace.trust_changed(&self.stream);
    }

    /// Notes that a snapshot's blocks are held, and that it is not known yet whether they may be.
    pub(super) fn restores(&mut self, dictionary: Arc<Dictionary>) {
        self.dictionary = Some(dictionary);
    }

    /// Notes whether a snapshot's blocks are kept. If they are not, what their names mean may still be of use.
    pub(super) fn restored(&mut self, outcome: Outcome) {
        if let Some(dictionary) = self.dictionary.take().filter(|_| outcome != Outcome::Kept) {
            self.keyspace.teach(&dictionary);
        }
    }

    /// Takes up which of a rank's blocks are known from answers alone, and what it waits for.
    pub(super) fn restore_late(&mut self, rank: u32, answered: Vec<BlockHash>, kept: &FrontierState) {
        if self.keyspace.prompt_queue().is_open() {
            self.stream.proven_blocks().of(rank).resume(answered, kept);
            if !kept.proofs.is_empty() {
                self.keyspace.set_waiting(true);
            }
            return;
        }
        // Nobody would notice a store that comes twice.
        let remove = |index: &BlockIndex| index.remove(&self.stream.worker, rank, Tier::Gpu, &answered);
        self.keyspace.try_change(&self.index, remove).unwrap_or_else(|panic| resume_unwind(panic));
    }
}
