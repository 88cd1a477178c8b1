//! DualMap: a choice between two workers for each prefix.

use std::collections::{HashMap, VecDeque};

use crate::parts::Pieces;
use kvatlas_routing::parts::draw::mix;
use kvatlas_routing::{Candidates, Choice, Error, Options, Policy, Request};

/// Blocks of the shortest key, and most doublings of its length.
const KEY_BLOCKS: usize = 4;
const DOUBLINGS: usize = 7;
/// Number of recent requests over which the share of a key is computed.
const WINDOW: usize = 1_000;

/// DualMap (arXiv 2602.06502, ICLR 2026; the port in Dynamo, autumn 2026).
///
/// A prompt's key is its first four blocks; it doubles, at most seven times, while more than 2 / workers of the last 1,000
/// requests have it. Rendezvous hashing of the key names two workers. The one that holds more of the prompt takes it,
/// unless it would then have more than `max_pending_tokens` to compute: then the one with less to compute. A prompt
/// without a full block gets two workers by its number.
pub(crate) struct DualMap {
    most: f64,
    /// The keys of recent requests, and the number of requests with each.
    window: VecDeque<Vec<u64>>,
    counts: HashMap<u64, usize>,
}

impl DualMap {
    pub(crate) fn new(options: &mut Options, _seed: u64) -> Result<Self, Error> {
        let most = options.number("max_pending_tokens", 65_536.0, 0.0, 1e12)?;
        Ok(Self { most, window: VecDeque::new(), counts: HashMap::new() })
    }

    /// The keys of a prompt from the shortest to the longest.
    fn keys(request: &Request<'_>) -> Vec<u64> {
        let chain = Pieces::of(request).chain;
        let Some(last) = chain.len().checked_sub(1) else { return Vec::new() };
        let mut keys: Vec<u64> =
            (0..=DOUBLINGS).map(|doublings| chain[last.min((KEY_BLOCKS << doublings) - 1)]).collect();
        keys.dedup();
        keys
    }

    fn key(&self, request: &Request<'_>, workers: usize) -> u64 {
        let keys = Self::keys(request);
        let most = 2.0 / workers as f64 * self.window.len() as f64;
        let hot = |key: &u64| self.counts.get(key).copied().unwrap_or(0) as f64 > most;
        let key = keys.iter().find(|key| !hot(key)).or(keys.last());
        key.copied().unwrap_or_else(|| mix(request.number))
    }
}

impl Policy for DualMap {
    fn name(&self) -> &'static str {
        "dualmap"
    }

    fn uses_index(&self) -> bool {
        true
    }

    fn needs_text(&self) -> bool {
        true
    }

    fn choose(&mut self, request: &Request<'_>, candidates: &Candidates, _now: f64) -> Choice {
        let key = self.key(request, candidates.len());
        let mut rows: Vec<usize> = (0..candidates.len()).collect();
        rows.sort_by_key(|&row| mix(key ^ mix(u64::from(candidates.worker[row]))));
        let (Some(&one), Some(&two)) = (rows.first(), rows.get(1)) else { return Choice::Row(0) };
        let pending = |row: usize| {
            let uncached = request.tokens.saturating_sub(candidates.device_blocks[row] * request.block_size);
            candidates.queued_tokens[row].max(0.0) + f64::from(uncached)
        };
        let held = |row: usize| candidates.device_blocks[row];
        let idler = if pending(two) < pending(one) { two } else { one };
        let warmer = match held(one).cmp(&held(two)) {
            std::cmp::Ordering::Greater => one,
            std::cmp::Ordering::Less => two,
            std::cmp::Ordering::Equal => idler,
        };
        Choice::Row(if pending(warmer) > self.most { idler } else { warmer })
    }

    fn sent(&mut self, request: &Request<'_>, _candidates: &Candidates, _row: usize, _now: f64) {
        let keys = Self::keys(request);
        for &key in &keys {
            *self.counts.entry(key).or_insert(0) += 1;
        }
        self.window.push_back(keys);
        if self.window.len() > WINDOW {
            for key in self.window.pop_front().unwrap_or_default() {
                if let Some(count) = self.counts.get_mut(&key) {
                    *count -= 1;
                    if *count == 0 {
                        self.counts.remove(&key);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::tests::{blocks, fleet};

    fn row(policy: &mut DualMap, hashes: &[u64], candidates: &Candidates) -> usize {
        let Choice::Row(row) = policy.choose(&blocks(10_000, hashes), candidates, 0.0) else { panic!() };
        row
    }

    /// The two rows of a prefix, found by giving each worker the prefix in turn.
    fn pair(policy: &mut DualMap, hashes: &[u64]) -> Vec<usize> {
        let warm = |row: usize| {
            let mut candidates = fleet(6);
            candidates.device_blocks[row] = 1;
            candidates
        };
        (0..6).filter(|&each| row(policy, hashes, &warm(each)) == each).collect()
    }

    #[test]
    fn the_warmer_of_two_takes_it_until_it_has_too_much_to_do() {
        let mut policy = DualMap::new(&mut Options::default(), 0).unwrap();
        let prompt = [1, 2, 3, 4, 5];
        let both = pair(&mut policy, &prompt);
        assert_eq!(both.len(), 2);
        // The first four blocks decide.
        assert_eq!(pair(&mut policy, &[1, 2, 3, 4, 9]), both);
        let mut candidates = fleet(6);
        candidates.device_blocks[both[1]] = 4;
        candidates.queued_tokens[both[1]] = 55_536.0;
        assert_eq!(row(&mut policy, &prompt, &candidates), both[1]);
        // One token more than 65,536 with its own 10,000: the other has 50,000 to compute.
        candidates.queued_tokens[both[1]] = 55_537.0;
        assert_eq!(row(&mut policy, &prompt, &candidates), both[0]);
        // If the other has even more, it stays.
        candidates.queued_tokens[both[0]] = 90_000.0;
        assert_eq!(row(&mut policy, &prompt, &candidates), both[1]);
    }

    #[test]
    fn a_frequent_beginning_is_told_apart_by_more_blocks() {
        let mut policy = DualMap::new(&mut Options::default(), 0).unwrap();
        let prompt = |end: u64| [1, 2, 3, 4, 5, 6, 7, end];
        for end in 0..20 {
            policy.sent(&blocks(10_000, &prompt(end)), &fleet(6), 0, 0.0);
        }
        let rows: BTreeSet<Vec<usize>> = (0..20).map(|end| pair(&mut policy, &prompt(end))).collect();
        assert!(rows.len() > 3, "{rows:?}");
    }
}
