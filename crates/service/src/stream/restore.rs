//! A stream takes up what a snapshot has of it, before it connects.

use kvatlas_index::{BlockHash, Tier};
use tokio::task::yield_now;

use super::holdings::Holdings;
use crate::snapshot::{Outcome, Restoring, SavedRank};

/// Blocks stored before others have the thread: about a millisecond.
const TURN: usize = 4096;

/// Puts what a snapshot has of a stream into the index. Returns how many blocks that is.
///
/// # Errors
/// Why it cannot be used; then nothing of it is held.
pub(super) async fn restore(holdings: &mut Holdings, restoring: Restoring) -> Result<u64, Outcome> {
    let Restoring { dictionary, stream, .. } = restoring;
    let (head, blocks) = (&stream.head, stream.blocks());
    if !holdings.claim_again(&head.claimed, head.plain) {
        return Err(Outcome::Ranks);
    }
    // With all copies: a few bytes say many.
    let steps = stream.ranks.iter().map(SavedRank::copies).max().unwrap_or(0);
    if steps > holdings.most_blocks() {
        return Err(Outcome::Limit);
    }
    let mut left = TURN;
    for (rank_head, rank) in head.ranks.iter().zip(stream.ranks) {
        let SavedRank { pieces, odd, salts, answered } = rank;
        let rank = rank_head.rank;
        if !holdings.stream.feeds(rank) {
            return Err(Outcome::Ranks);
        }
        let mut pieces = pieces.into_iter().peekable();
        while pieces.peek().is_some() {
            let stored = holdings.store_all(rank, |store| {
                while left > 0
                    && let Some(piece) = pieces.next()
                {
                    let (parent, names, contents) = dictionary.get(piece);
                    store(Tier::Gpu, parent, names, contents)?;
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
        for odd in odd {
            let stored = holdings.store_all(rank, |store| {
                for (tier, copies) in Tier::ALL.into_iter().zip(odd.copies) {
                    for _ in 0..copies {
                        store(tier, odd.parent, &odd.names, &odd.contents)?;
                    }
                }
                Ok(())
            });
            stored.map_err(|_| Outcome::Limit)?;
            left = left.saturating_sub(odd.names.len());
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
pub(super) type Store<'a> =
    dyn FnMut(Tier, Option<BlockHash>, &[BlockHash], &[u64]) -> Result<(), kvatlas_index::Error> + 'a;
