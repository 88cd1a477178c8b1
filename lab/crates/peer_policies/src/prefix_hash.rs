//! Prefix hashing: prompts with the same beginning go to the same worker.

use xxhash_rust::xxh3::xxh3_64;

use crate::parts::{BYTES_PER_TOKEN, Pieces};
use kvatlas_routing::parts::draw::{Draw, mix};
use kvatlas_routing::parts::mean;
use kvatlas_routing::parts::ring::Ring;
use kvatlas_routing::{Candidates, Choice, Error, Options, Policy, Request};

/// The `prefix_hash` policy of SMG 1.9 (and of sglang-router, its forerunner): the first 256 tokens hashed onto a ring.
///
/// ```text
/// key    = hash of the prompt's first `prefix_token_count` tokens
/// takes  = requests in flight of the worker <= load_factor * mean of all, or nothing is in flight
/// choice = first worker on the ring from `key` on that takes it; if none does, the fewest requests in flight
/// ```
/// Here the key is the hash of the full blocks that the first tokens fall into (so 256 tokens in blocks of 512 are one
/// block), or of the text's first bytes, four a token, where nothing is tokenised. A prompt without either has no key,
/// and goes to the worker with the fewest requests.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::fleet;

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
}
