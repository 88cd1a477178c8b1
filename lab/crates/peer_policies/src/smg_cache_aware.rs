//! The cache-aware policy of SMG (SGLang's model gateway) up to 1.9.

use crate::parts::sent_blocks::{Bounds, SentBlocks};
use crate::parts::{BYTES_PER_TOKEN, Pieces};
use kvatlas_routing::parts::sheet;
use kvatlas_routing::{Candidates, Choice, Error, Options, Policy, Request, Terms};

/// The policy `cache_aware` of SMG 1.9 (SGLang's model gateway) with the defaults of its command line.
///
/// ```text
/// load       = requests in flight
/// imbalanced = max load - min load > balance_abs_threshold  and  max load > balance_rel_threshold * min load
///              or highest KV usage - lowest > balance_token_usage_threshold, or highest > overload_token_usage_threshold
/// imbalanced: the least loaded (of equals: fewest requests ever, then the first)
/// balanced:   share = longest beginning of the prompt sent to any worker before / prompt
///             share > cache_threshold: the worker that was sent that beginning last; else the least loaded
/// ```
/// With `kv_events` (in SMG: engines over its own gRPC only) the balanced case prefers the most blocks held on the
/// device, then the lower load, then the fewer blocks held in total, then the last worker; without any block held, the
/// least loaded.
///
/// Over HTTP, SMG's tree has characters; this implementation has blocks. The tree is cut to `max_tree_size` characters
/// a worker (four a token) at once; in SMG every 120 s.
pub(crate) struct SmgCacheAware {
    cache_threshold: f64,
    balance_abs: f64,
    balance_rel: f64,
    balance_usage: f64,
    overload_usage: f64,
    tree_size: f64,
    kv_events: bool,
    tree: SentBlocks,
}

impl SmgCacheAware {
    pub(crate) fn new(options: &mut Options, _seed: u64) -> Result<Self, Error> {
        Ok(Self {
            cache_threshold: options.number("cache_threshold", 0.3, 0.0, 1.0)?,
            balance_abs: options.number("balance_abs_threshold", 64.0, 0.0, 1e9)?,
            balance_rel: options.number("balance_rel_threshold", 1.5, 1.0, 1e9)?,
            balance_usage: options.number("balance_token_usage_threshold", 1.0, 0.0, 1.0)?,
            overload_usage: options.number("overload_token_usage_threshold", 1.0, 0.0, 1.0)?,
            tree_size: options.number("max_tree_size", f64::from(1 << 26), 1.0, 1e12)?,
            kv_events: options.flag("kv_events", false)?,
            tree: SentBlocks::new(0.0),
        })
    }

    fn imbalanced(&self, candidates: &Candidates) -> bool {
        let most = f64::from(candidates.requests.iter().copied().max().unwrap_or(0));
        let fewest = f64::from(candidates.requests.iter().copied().min().unwrap_or(0));
        if most - fewest > self.balance_abs && most > self.balance_rel * fewest {
            return true;
        }
        let usages = || candidates.reported_kv_usage.iter().copied().filter(|usage| usage.is_finite());
        let (high, low) = (usages().fold(f64::NEG_INFINITY, f64::max), usages().fold(f64::INFINITY, f64::min));
        // 1 means off: a usage is never above it, but may be reported slightly larger.
        (self.balance_usage < 1.0 && high - low > self.balance_usage)
            || (self.overload_usage < 1.0 && high > self.overload_usage)
    }

    fn matched(&self, request: &Request<'_>, candidates: &Candidates, now: f64) -> Option<usize> {
        if self.kv_events {
            let key = |row: usize| {
                let fewer_requests = std::cmp::Reverse(candidates.requests[row]);
                (candidates.device_blocks[row], fewer_requests, -candidates.held_blocks[row].max(0.0), row)
            };
            let best = (0..candidates.len()).reduce(|best, row| if key(row) > key(best) { row } else { best });
            return best.filter(|&row| candidates.device_blocks[row] > 0);
        }
        let (pieces, depth, rows) = deepest(&self.tree, request, candidates, now);
        if pieces.share(depth) <= self.cache_threshold {
            return None;
        }
        let name = pieces.chain[depth - 1];
        rows.into_iter().max_by_key(|&row| self.tree.last_touch(candidates.worker[row], name))
    }
}

/// Pieces of the prompt, the largest number of leading pieces that any candidate was sent before, and the candidates
/// with this number.
pub(crate) fn deepest(
    tree: &SentBlocks,
    request: &Request<'_>,
    candidates: &Candidates,
    now: f64,
) -> (Pieces, usize, Vec<usize>) {
    let pieces = Pieces::of(request);
    let (mut depth, mut rows) = (0, Vec::new());
    for (row, &worker) in candidates.worker.iter().enumerate() {
        let own = tree.depth(worker, &pieces.chain, f64::INFINITY, now);
        if own > depth {
            depth = own;
            rows.clear();
        }
        if own == depth && own > 0 {
            rows.push(row);
        }
    }
    (pieces, depth, rows)
}

/// Candidate with the fewest requests in flight; among equals the one with the fewest requests ever, then the first.
/// `None` without candidates.
pub(crate) fn least_loaded(candidates: &Candidates, rows: impl Iterator<Item = usize>) -> Option<usize> {
    rows.min_by_key(|&row| (candidates.requests[row], candidates.sent[row], row))
}

/// Limits of the table of sent prompts that correspond to a tree of `characters` characters per worker, in pieces of a
/// prompt.
pub(crate) fn tree_bounds(characters: f64, pieces: &Pieces) -> Bounds {
    let worker = (characters / (BYTES_PER_TOKEN as f64 * pieces.size.max(1.0))).max(1.0);
    Bounds { worker: worker as usize, all: usize::MAX, ttl: f64::INFINITY }
}

impl Policy for SmgCacheAware {
    fn name(&self) -> &'static str {
        "smg-cache-aware"
    }

    fn uses_index(&self) -> bool {
        self.kv_events
    }

    fn needs_text(&self) -> bool {
        true
    }

    fn choose(&mut self, request: &Request<'_>, candidates: &Candidates, now: f64) -> Choice {
        let found = if self.imbalanced(candidates) { None } else { self.matched(request, candidates, now) };
        Choice::Row(found.or_else(|| least_loaded(candidates, 0..candidates.len())).unwrap_or(0))
    }

    fn sent(&mut self, request: &Request<'_>, candidates: &Candidates, row: usize, now: f64) {
        if !self.kv_events {
            let pieces = Pieces::of(request);
            self.tree.insert(candidates.worker[row], &pieces.chain, tree_bounds(self.tree_size, &pieces), now);
        }
    }

    fn left(&mut self, worker: u32) {
        self.tree.remove(worker);
    }

    fn explain(&self, request: &Request<'_>, candidates: &Candidates, now: f64) -> Option<Terms> {
        let imbalanced = f64::from(u8::from(self.imbalanced(candidates)));
        let pieces = Pieces::of(request);
        Some(sheet(["imbalanced", "requests", "matched share"], candidates.len(), |row| {
            let blocks = match self.kv_events {
                true => candidates.device_blocks[row] as usize,
                false => self.tree.depth(candidates.worker[row], &pieces.chain, f64::INFINITY, now),
            };
            [imbalanced, f64::from(candidates.requests[row]), pieces.share(blocks)]
        }))
    }

    fn remembered(&self) -> (usize, usize) {
        (0, self.tree.workers())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{blocks, fleet, send, sent_to};

    fn policy(options: &str) -> SmgCacheAware {
        SmgCacheAware::new(&mut Options::from_json(options).unwrap(), 0).unwrap()
    }

    #[test]
    fn more_than_the_threshold_of_a_prompt_must_match() {
        let mut policy = policy("");
        let mut candidates = fleet(3);
        sent_to(&mut policy, &blocks(10, &[1, 2, 3, 4]), &candidates, 2);
        candidates.requests = vec![0, 0, 1];
        // 4 blocks of ten match: 0.4 is more than 0.3.
        let long = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10];
        assert_eq!(policy.choose(&blocks(10, &long), &candidates, 0.0), Choice::Row(2));
        // 3 of ten are 0.3, not more: least loaded, the first of equals.
        let other = [1, 2, 3, 40, 5, 6, 7, 8, 9, 10];
        assert_eq!(policy.choose(&blocks(10, &other), &candidates, 0.0), Choice::Row(0));
        candidates.sent = vec![5, 4, 9];
        assert_eq!(policy.choose(&blocks(10, &other), &candidates, 0.0), Choice::Row(1));
    }

    #[test]
    fn the_last_one_sent_the_beginning_is_taken() {
        let mut policy = policy("");
        let candidates = fleet(3);
        for row in [1, 0] {
            sent_to(&mut policy, &blocks(10, &[1, 2]), &candidates, row);
        }
        assert_eq!(send(&mut policy, &blocks(10, &[1, 2, 3]), &candidates, 0.0), 0);
    }

    #[test]
    fn imbalance_is_of_the_whole_fleet() {
        let mut policy = policy("");
        let mut candidates = fleet(3);
        sent_to(&mut policy, &blocks(10, &[1, 2]), &candidates, 0);
        // 130 - 66 = 64 is not more than 64.
        candidates.requests = vec![130, 70, 66];
        assert_eq!(policy.choose(&blocks(10, &[1, 2]), &candidates, 0.0), Choice::Row(0));
        // 65 more, and 131 > 1.5 * 66 = 99.
        candidates.requests = vec![131, 70, 66];
        assert_eq!(policy.choose(&blocks(10, &[1, 2]), &candidates, 0.0), Choice::Row(2));
        // 265 > 64 more, but 600 < 1.5 * 420 = 630.
        candidates.requests = vec![600, 500, 420];
        assert_eq!(policy.choose(&blocks(10, &[1, 2]), &candidates, 0.0), Choice::Row(0));
    }

    #[test]
    fn with_events_the_deepest_wins_then_load_then_size_then_the_last() {
        let mut policy = policy(r#"{"kv_events": true}"#);
        let mut candidates = fleet(4);
        candidates.device_blocks = vec![1, 3, 3, 3];
        candidates.requests = vec![0, 9, 8, 8];
        candidates.held_blocks = vec![0.0, 0.0, 20.0, 20.0];
        assert_eq!(policy.choose(&blocks(10, &[1, 2, 3]), &candidates, 0.0), Choice::Row(3));
        candidates.held_blocks[3] = 30.0;
        assert_eq!(policy.choose(&blocks(10, &[1, 2, 3]), &candidates, 0.0), Choice::Row(2));
        candidates.device_blocks = vec![0; 4];
        assert_eq!(policy.choose(&blocks(10, &[1, 2, 3]), &candidates, 0.0), Choice::Row(0));
    }

    #[test]
    fn kv_usage_can_make_an_imbalance() {
        let mut policy = policy(r#"{"balance_token_usage_threshold": 0.3}"#);
        let mut candidates = fleet(2);
        sent_to(&mut policy, &blocks(10, &[1, 2]), &candidates, 0);
        candidates.requests = vec![2, 1];
        candidates.reported_kv_usage = vec![0.9, 0.5];
        assert_eq!(policy.choose(&blocks(10, &[1, 2]), &candidates, 0.0), Choice::Row(1));
        candidates.reported_kv_usage = vec![0.9, f64::NAN];
        assert_eq!(policy.choose(&blocks(10, &[1, 2]), &candidates, 0.0), Choice::Row(0));
    }
}
