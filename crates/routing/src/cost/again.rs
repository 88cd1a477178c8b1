//! Share of the computed blocks that had been computed before and were evicted since.
//!
//! A full cache evicts as many blocks as are computed. This share is therefore also the probability that the blocks
//! evicted by a prompt will be requested again. If it is large, each admitted prompt destroys nearly as much work as it
//! does.
//!
//! Copies from other workers evict blocks, too. So the price of a copy follows from another share: that of the blocks
//! computed again among all that are new at a worker, computed or copied. A new block evicts one that is computed again
//! with this probability, which evicts the next one: `share / (1 - share)` blocks in all.

/// Number of remembered blocks, a sample of the latest prompts' blocks; a new one replaces the one at the same index.
const SLOTS: usize = 1 << 16;
/// Distance between two sampled blocks of a prompt. Sampled positions are multiples of it, so prompts with a common
/// beginning are sampled at the same blocks.
const EVERY: usize = 8;
/// Factor by which the counts of earlier blocks (all computed ones, and those computed again) shrink with each new
/// sampled block.
const KEPT: f64 = 1.0 - 1.0 / 4_096.0;
/// Number of computed blocks that are assumed at the beginning and count as not computed before.
const PRIOR: f64 = 64.0;
/// Initial number of blocks new at a worker, as a prior: half of them evict a block that is computed again.
const NEW_PRIOR: f64 = 64.0;

/// Sample of the computed blocks, with decaying counts of blocks computed repeatedly and of all blocks. A second pair of
/// counts includes copied blocks among all, and starts with the first repeated block, since caches may have had free
/// space before.
#[derive(Debug, Default)]
pub(super) struct Again {
    /// Part of the hash (32 bits) of the last sampled block at each index of the sample, a table. Other bits of the
    /// hash give the index.
    seen: Vec<u32>,
    again: f64,
    all: f64,
    undone: f64,
    new: f64,
}

impl Again {
    /// Records a prompt sent to a worker that computes the prompt's blocks from index `held` on, and copies `copied`
    /// blocks before these. No worker holds the blocks from index `gone` on.
    pub(super) fn sent(&mut self, content_hashes: &[u64], held: usize, gone: usize, copied: u32) {
        let (mut looked_at, mut again) = (0_u32, 0_u32);
        for (at, hash) in content_hashes.iter().enumerate().skip(held.next_multiple_of(EVERY)).step_by(EVERY) {
            if self.seen.is_empty() {
                self.seen.resize(SLOTS, 0);
            }
            let key = (hash ^ at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let key = (key ^ key >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let (slot, tag) = ((key >> 48) as usize % SLOTS, key as u32);
            let is_again = (std::mem::replace(&mut self.seen[slot], tag) == tag) & (at >= gone);
            again += u32::from(is_again);
            looked_at += 1;
        }
        let kept = KEPT.powi(looked_at as i32);
        self.again = self.again * kept + f64::from(again);
        self.all = self.all * kept + f64::from(looked_at);
        if self.undone > 0.0 || again > 0 {
            let new = f64::from(looked_at) + f64::from(copied) / EVERY as f64;
            let kept = KEPT.powf(new);
            self.undone = self.undone * kept + f64::from(again);
            self.new = self.new * kept + new;
        }
    }

    /// Share, from 0 to 1, of the computed blocks that were computed before and are held by no worker.
    pub(super) fn share(&self) -> f64 {
        self.again / (self.all + PRIOR)
    }

    /// Expected number of blocks that are computed again because one block is new at a worker; 1 until learnt.
    pub(super) fn undone_by_one(&self) -> f64 {
        let undone = self.undone + 0.5 * NEW_PRIOR;
        undone / (self.new + NEW_PRIOR - undone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_back_after_it_was_pushed_out_counts() {
        let prompt = |from: u64| (from..from + 512).map(|n| n.wrapping_mul(0x2545_f491_4f6c_dd1d)).collect::<Vec<_>>();
        let mut again = Again::default();
        assert_eq!(again.share(), 0.0);
        for number in 0..16 {
            again.sent(&prompt(number << 32), 0, 0, 0);
        }
        assert!(again.share() < 0.01, "{}", again.share());
        // The same prompts again: held by the worker, held by another one, and evicted.
        for number in 0..16 {
            again.sent(&prompt(number << 32), 512, 512, 0);
            again.sent(&prompt(number << 32), 0, 512, 0);
        }
        assert!(again.share() < 0.01, "{}", again.share());
        for _ in 0..20 {
            for number in 0..16 {
                again.sent(&prompt(number << 32), 0, 0, 0);
            }
        }
        assert!(again.share() > 0.8, "{}", again.share());
    }

    #[test]
    fn a_copy_costs_what_evicted_blocks_cost_to_compute_again() {
        let prompt = |from: u64| (from..from + 512).map(|n| n.wrapping_mul(0x2545_f491_4f6c_dd1d)).collect::<Vec<_>>();
        let mut again = Again::default();
        // While nothing comes back there is nothing to learn, however much is copied.
        for number in 1..=16 {
            again.sent(&prompt(number << 32), 0, 0, 0);
            again.sent(&prompt(number << 32), 512, 512, 512);
        }
        assert_eq!(again.undone_by_one(), 1.0);
        // Of three blocks that are new, one was evicted by all.
        for number in 0..160 {
            let prompt = prompt((number % 16 + 1) << 32);
            again.sent(&prompt, 0, 0, 0);
            again.sent(&prompt, 512, 512, 1_024);
        }
        assert!((again.undone_by_one() - 0.5).abs() < 0.05, "{}", again.undone_by_one());
        // Blocks that were never seen before make copies cheap, as nothing that is evicted comes back.
        for number in 100..300 {
            again.sent(&prompt(number << 32), 0, 0, 0);
        }
        assert!(again.undone_by_one() < 0.1, "{}", again.undone_by_one());
    }
}
