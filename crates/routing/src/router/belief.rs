//! Corrections of the index: the fraction of a worker's indexed blocks that its cache is expected to have, lower if the
//! worker's own reports show fewer cached tokens than the index.

use crate::candidates::Candidates;
use crate::router::outcome::WorkerId;

/// Correction of the number of a prompt's blocks that the index shows for a worker, learnt from the worker's own
/// reports.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Belief {
    /// Number of blocks at the end of the cached prefix that the worker always recomputes. Engines with a draft head
    /// for speculative decoding may drop the last matching block.
    pub shortfall: u32,
    /// Share of the indexed blocks, after subtraction of `shortfall`, that the worker's cache is expected to have; from
    /// 0 to 1.
    pub share: f64,
}

impl Default for Belief {
    fn default() -> Self {
        Self { shortfall: 0, share: 1.0 }
    }
}

impl Belief {
    /// Number of a prompt's blocks that the worker is expected to take from its cache. `held`: number of leading blocks
    /// that it holds by the index; `usable`: largest number of the prompt's blocks that a cache can provide.
    #[must_use]
    pub fn expected(&self, held: u32, usable: u32) -> u32 {
        let rest = held.min(usable).saturating_sub(self.shortfall);
        (f64::from(rest) * self.share.clamp(0.0, 1.0)).floor() as u32
    }
}

/// Corrections of the index for all workers, and the uncorrected numbers of the last request's blocks at each worker.
#[derive(Debug, Default)]
pub(super) struct Beliefs {
    all: Vec<Belief>,
    /// Number of workers for which the index is corrected.
    doubted: usize,
    /// Number of the last prompt's blocks by the index before correction, on the device and on any tier, by worker.
    held: Vec<(u32, u32)>,
}

impl Beliefs {
    pub(super) fn set(&mut self, id: WorkerId, belief: Belief) {
        let at = id.0 as usize;
        if self.all.len() <= at {
            self.all.resize_with(at + 1, Belief::default);
        }
        let before = std::mem::replace(&mut self.all[at], belief);
        let is_doubted = |belief: Belief| usize::from(belief != Belief::default());
        self.doubted = self.doubted + is_doubted(belief) - is_doubted(before);
    }

    /// Corrects the numbers of a prompt's blocks that all workers hold by the index. `usable`: largest number of the
    /// prompt's blocks that a cache can provide.
    pub(super) fn doubt(&mut self, rows: &mut Candidates, usable: u32) {
        self.held.clear();
        if self.doubted == 0 {
            return;
        }
        self.held.extend(rows.device_blocks.iter().copied().zip(rows.any_blocks.iter().copied()));
        for (at, belief) in self.all.iter().enumerate().filter(|(_, belief)| **belief != Belief::default()) {
            let columns =
                [&mut rows.device_blocks, &mut rows.host_blocks, &mut rows.any_blocks, &mut rows.predicted_blocks];
            for column in columns {
                if let Some(blocks) = column.get_mut(at) {
                    *blocks = belief.expected(*blocks, usable);
                }
            }
        }
    }

    /// Number of the last prompt's blocks that the index showed for a worker before correction: on its device, and on
    /// any tier.
    pub(super) fn held(&self, rows: &Candidates, worker: u32) -> (u32, u32) {
        let at = worker as usize;
        self.held.get(at).copied().unwrap_or_else(|| (rows.device_blocks[at], rows.any_blocks[at]))
    }
}

#[cfg(test)]
mod tests {
    use crate::{Belief, Config, Depth, Depths, Options, Outcome, Request, Router, by_name};

    fn placed(router: &mut Router, tokens: u32) -> crate::Decision {
        let hashes: Vec<u64> = (0..u64::from(tokens / 16)).collect();
        let request = Request { tokens, block_size: 16, content_hashes: &hashes, ..Request::default() };
        let mut depths = Depths::unknown();
        depths.begin();
        depths.set(0, Depth { device: 8, host: 8, any: 8 });
        let Outcome::Placed(decision) = router.choose(&request, &depths, 0.0) else { unreachable!() };
        router.fail(decision.id, 0.0);
        decision
    }

    #[test]
    fn what_is_expected_is_what_is_believed_and_what_is_held_is_kept() {
        let mut router = Router::new(Config::default(), by_name("random", Options::default(), 0).unwrap());
        let worker = router.add_worker("a", 0, 1.0, 0.0);
        let expected = |router: &mut Router, tokens| {
            let decision = placed(router, tokens);
            (decision.cached_tokens / 16, decision.held_blocks)
        };
        assert_eq!(expected(&mut router, 200), (8, Some(8)));
        router.set_belief(worker, Belief { shortfall: 1, share: 1.0 });
        assert_eq!(expected(&mut router, 200), (7, Some(8)));
        // The dropped block is the last block that could be used.
        assert_eq!(expected(&mut router, 96), (4, Some(5)));
        router.set_belief(worker, Belief { shortfall: 0, share: 0.5 });
        assert_eq!(expected(&mut router, 200), (4, Some(8)));
        router.set_belief(worker, Belief::default());
        assert_eq!(expected(&mut router, 200), (8, Some(8)));
        // Whoever has its number next is believed.
        router.set_belief(worker, Belief { shortfall: 3, share: 0.0 });
        router.remove_worker(worker, 0.0);
        assert_eq!(router.add_worker("b", 0, 1.0, 0.0), worker);
        assert_eq!(expected(&mut router, 200), (8, Some(8)));
    }
}
