//! Policies by a hash of a prompt's beginning: prefix hashing, where prompts with the same beginning go to the same
//! worker, and DualMap, which chooses between two workers for each beginning.

use std::collections::{HashMap, VecDeque};

use kvatlas_routing::parts::draw::{Draw, mix};
use kvatlas_routing::parts::mean;
use kvatlas_routing::parts::ring::Ring;
use kvatlas_routing::{Candidates, Choice, Error, Options, Policy, Request};
use xxhash_rust::xxh3::xxh3_64;

use crate::parts::{BYTES_PER_TOKEN, Pieces};

/// The policy `prefix_hash` of SMG 1.9 (and of sglang-router, its forerunner): the first 256 tokens hashed onto a ring
/// of workers.
///
/// ```text
/// key    = hash of the prompt's first `prefix_token_count` tokens
/// takes  = requests in flight of the worker <= load_factor * mean of all, or nothing is in flight
/// choice = first worker on the ring from `key` on that takes it; if none does, the fewest requests in flight
/// ```
/// In this implementation the key is the hash of the full blocks that contain the first tokens (256 tokens in blocks of
/// 512 are one block), or of the text's first bytes, four per token, for a prompt that was not tokenised. A prompt
/// without either has no key, and goes to the worker with the fewest requests.
pub(crate) struct PrefixHash {
    tokens: f64,
    load_factor: f64,
    ring: Ring,
    draw: Draw,
}

impl PrefixHash {
    pub(crate) fn new(options: &mut Options, seed: u64) -> Result<Self, Error> {
        Ok(Self {
            tokens: options.number("prefix_token_count", 256.0, 1.0, 1e9)?,
            load_factor: options.number("load_factor", 1.25, 1.0, 1e9)?,
            ring: Ring::new(options.number("points", 160.0, 1.0, 10_000.0)? as u32),
            draw: Draw::new(seed),
        })
    }

    fn key(&self, request: &Request<'_>) -> Option<u64> {
        if request.content_hashes.is_empty() || request.block_size == 0 {
            let text = request.text.filter(|text| !text.is_empty())?.as_bytes();
            let bytes = (self.tokens as usize).saturating_mul(BYTES_PER_TOKEN);
            return Some(xxh3_64(&text[..text.len().min(bytes)]));
        }
        let blocks = (self.tokens / f64::from(request.block_size)).ceil() as usize;
        let leading = &request.content_hashes[..request.content_hashes.len().min(blocks)];
        Pieces::of(&Request { content_hashes: leading, ..*request }).chain.last().copied()
    }
}

impl Policy for PrefixHash {
    fn name(&self) -> &'static str {
        "prefix-hash"
    }

    fn uses_index(&self) -> bool {
        false
    }

    fn needs_text(&self) -> bool {
        true
    }

    fn choose(&mut self, request: &Request<'_>, candidates: &Candidates, _now: f64) -> Choice {
        self.ring.put(&candidates.worker);
        let requests = |row: usize| f64::from(candidates.requests[row]);
        let most = self.load_factor * mean(candidates.requests.iter().map(|&count| f64::from(count)));
        let takes = |row: usize| most <= 0.0 || requests(row) <= most;
        let found = self.key(request).and_then(|key| self.ring.first(mix(key), &candidates.worker, takes));
        Choice::Row(found.or_else(|| self.draw.lowest(0..candidates.len(), requests)).unwrap_or(0))
    }

    fn left(&mut self, worker: u32) {
        self.ring.remove(worker);
    }

    fn remembered(&self) -> (usize, usize) {
        (0, self.ring.len())
    }
}

/// Number of blocks of the shortest key, and maximum number of times that its length is doubled.
const KEY_BLOCKS: usize = 4;
const DOUBLINGS: usize = 7;
/// Number of recent requests over which the share of requests with a key is computed.
const WINDOW: usize = 1_000;

/// The policy DualMap (arXiv 2602.06502, ICLR 2026; the port in Dynamo, autumn 2026): each prompt's beginning maps to
/// two workers.
///
/// A prompt's key is its first four blocks. The key doubles, at most seven times, while more than 2 / workers of the
/// last 1,000 requests have the same key. Rendezvous hashing of the key names two workers. The worker that holds more
/// of the prompt gets the request, unless it would then have more than `max_pending_tokens` to compute: then the one
/// with less to compute. A prompt without a full block gets two workers by its number.
pub(crate) struct DualMap {
    most: f64,
    /// Keys of recent requests. The next field is the number of requests with each key.
    window: VecDeque<Vec<u64>>,
    counts: HashMap<u64, usize>,
}

impl DualMap {
    pub(crate) fn new(options: &mut Options, _seed: u64) -> Result<Self, Error> {
        let most = options.number("max_pending_tokens", 65_536.0, 0.0, 1e12)?;
        Ok(Self { most, window: VecDeque::new(), counts: HashMap::new() })
    }

    /// Possible keys of a prompt, hashes of its beginning, from the shortest to the longest.
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

    fn choose(policy: &mut PrefixHash, request: &Request<'_>, candidates: &Candidates) -> usize {
        let Choice::Row(row) = policy.choose(request, candidates, 0.0) else { panic!() };
        row
    }

    fn tokens(hashes: &[u64]) -> Request<'_> {
        Request { tokens: 128 * hashes.len() as u32, block_size: 128, content_hashes: hashes, ..Request::default() }
    }

    #[test]
    fn only_the_beginning_counts() {
        let mut policy = PrefixHash::new(&mut Options::default(), 0).unwrap();
        let candidates = fleet(8);
        // 256 tokens are two blocks of 128.
        let homes: Vec<usize> = (0..20).map(|last| choose(&mut policy, &tokens(&[1, 2, last]), &candidates)).collect();
        assert!(homes.iter().all(|&home| home == homes[0]));
        let others = (0..20).filter(|&other| choose(&mut policy, &tokens(&[1, other]), &candidates) != homes[0]);
        assert!(others.count() > 10);
    }

    #[test]
    fn a_busy_home_is_passed_over_and_no_home_means_the_fewest_requests() {
        let mut policy = PrefixHash::new(&mut Options::default(), 0).unwrap();
        let mut candidates = fleet(4);
        let home = choose(&mut policy, &tokens(&[1, 2]), &candidates);
        // Mean 4, bound 5: at five it is still taken, at six it is not.
        candidates.requests = vec![3; 4];
        candidates.requests[home] = 5;
        candidates.requests[(home + 1) % 4] = 5;
        assert_eq!(choose(&mut policy, &tokens(&[1, 2]), &candidates), home);
        candidates.requests[home] = 6;
        candidates.requests[(home + 1) % 4] = 4;
        assert_ne!(choose(&mut policy, &tokens(&[1, 2]), &candidates), home);
        candidates.requests = vec![3, 2, 3, 3];
        assert_eq!(choose(&mut policy, &Request { tokens: 5, ..tokens(&[]) }, &candidates), 1);
    }

    fn row(policy: &mut DualMap, hashes: &[u64], candidates: &Candidates) -> usize {
        let Choice::Row(row) = policy.choose(&blocks(10_000, hashes), candidates, 0.0) else { panic!() };
        row
    }

    /// Finds the two candidates to which a prompt's beginning maps: each worker in turn is the only one that holds the
    /// beginning.
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
