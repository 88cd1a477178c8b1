//! Estimate of the share of prompt tokens that caches could hold: the hit rate of a single cache, by its size, for the
//! prompts of about the last hour. `kvatlas.lab.traffic.curve` computes the same from a trace.

mod last_uses;

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use parking_lot::Mutex;
use serde_json::{Value, json};

use self::last_uses::{LastUses, UsedBlock};

/// Time, in seconds, after which a prompt's weight has halved.
const HALF_LIFE: f64 = 3600.0;

/// Minimum time, in seconds, between two reductions of the weights of old prompts.
const DECAY_EVERY: f64 = 10.0;

/// Number of computed cache sizes from one size to twice that size, in the curve of hit rates by cache size.
const STEPS: f64 = 8.0;

/// Tolerance for rounding errors in the comparison of cache sizes: a number of tokens needs the next larger computed
/// size only if it exceeds a computed size by this factor.
const ABOVE: f64 = 1.0 + 1e-9;

/// Prompt of a request that has ended, with the numbers of tokens that the engine reported.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EndedPrompt<'a> {
    pub(crate) model: Option<&'a str>,
    /// Number of tokens in the prompt.
    pub(crate) tokens: u32,
    /// Number of tokens in the answer.
    pub(crate) output: u32,
    pub(crate) block_size: u32,
    /// Content hashes of the prompt's blocks.
    pub(crate) hashes: &'a [u64],
    /// Number of prompt tokens that the engine had cached; None if not reported.
    pub(crate) cached: Option<u32>,
}

/// Estimator of the share of prompt tokens that caches of various sizes could hold.
#[derive(Debug)]
pub(crate) struct ReuseMeter(Mutex<Measurement>);

#[derive(Debug)]
struct Measurement {
    uses: LastUses,
    sums: Sums,
    /// Time of the last reduction of the weights, in seconds of the router's clock.
    decayed: f64,
    sample: Vec<UsedBlock>,
    /// Block size of the last prompt, in tokens.
    block_size: u32,
}

/// Sums over the prompts of all ended requests, in which older prompts have less weight.
#[derive(Debug, Default)]
struct Sums {
    requests: f64,
    prompt_tokens: f64,
    /// Number of tokens that could come from a cache, counted exactly over all blocks.
    usable: f64,
    /// Number of tokens that could come from a cache, as extrapolated from the sample of blocks.
    usable_by_sample: f64,
    /// Number of tokens in blocks that were used before, by the number of the smallest computed cache size that would
    /// have held them.
    found: BTreeMap<u32, f64>,
    /// Number of prompt tokens in requests whose engine reported cached tokens.
    told_of: f64,
    /// Number of prompt tokens that engines reported as cached.
    told_cached: f64,
}

impl ReuseMeter {
    /// Makes an estimator that starts at time `now`, in seconds.
    pub(crate) fn new(now: f64) -> Self {
        Self(Mutex::new(Measurement {
            uses: LastUses::new(),
            sums: Sums::default(),
            decayed: now,
            sample: Vec::new(),
            block_size: 0,
        }))
    }

    /// Adds the prompt of a request that has ended. `now`: time in seconds.
    pub(crate) fn add(&self, prompt: &EndedPrompt<'_>, now: f64) {
        if prompt.block_size == 0 || prompt.tokens == 0 {
            return;
        }
        let mut measured = self.0.lock();
        measured.decay(now);
        measured.block_size = prompt.block_size;
        measured.add(prompt);
    }

    /// Returns the hit rate of a cache of `blocks` blocks, where infinity means an unlimited cache. None before the
    /// first prompt.
    pub(crate) fn rate(&self, blocks: f64) -> Option<f64> {
        let measured = self.0.lock();
        measured.sums.rate(blocks * f64::from(measured.block_size))
    }

    /// Returns the estimated hit rates by cache size as JSON. `fleet_blocks`: capacity of all engines' caches in
    /// blocks; None if unknown.
    pub(crate) fn to_json(&self, fleet_blocks: Option<f64>) -> Value {
        let measured = self.0.lock();
        let sums = &measured.sums;
        let fleet_tokens = fleet_blocks.map(|blocks| blocks * f64::from(measured.block_size));
        let curve: Vec<_> = sums
            .found
            .keys()
            .map(|step| {
                let tokens = size_of(*step);
                json!({ "tokens": tokens.round(), "hit_rate": sums.rate(tokens).map(rounded) })
            })
            .collect();
        json!({
            "half_life": HALF_LIFE,
            "requests": sums.requests.round(),
            "prompt_tokens": sums.prompt_tokens.round(),
            "hit_rate": (sums.told_of > 0.0).then(|| rounded(sums.told_cached / sums.told_of)),
            "fleet_tokens": fleet_tokens,
            "fleet": fleet_tokens.and_then(|tokens| sums.rate(tokens)).map(rounded),
            "unlimited": sums.rate(f64::INFINITY).map(rounded),
            "sample": 1.0 / measured.uses.scale(),
            "curve": curve,
        })
    }
}

impl Measurement {
    fn decay(&mut self, now: f64) {
        let passed = now - self.decayed;
        if passed >= DECAY_EVERY {
            self.decayed = now;
            self.sums.times((-passed / HALF_LIFE).exp2());
        }
    }

    fn add(&mut self, prompt: &EndedPrompt<'_>) {
        let (scale, size) = (self.uses.scale(), prompt.block_size);
        let usable = (prompt.tokens - 1) / size * size;
        self.sums.requests += 1.0;
        self.sums.prompt_tokens += f64::from(prompt.tokens);
        if let Some(cached) = prompt.cached {
            self.sums.told_of += f64::from(prompt.tokens);
            self.sums.told_cached += f64::from(cached.min(prompt.tokens));
        }
        self.sample.clear();
        let mut chain = seed_of(prompt.model);
        for (at, &content) in prompt.hashes.iter().enumerate() {
            chain = next_chain(chain, content);
            if self.uses.is_sampled(chain) {
                let start = u32::try_from(at).unwrap_or(u32::MAX).saturating_mul(size);
                let usable = usable.saturating_sub(start).min(size);
                self.sums.usable_by_sample += f64::from(usable) * scale;
                self.sample.push(UsedBlock { chain, tokens: size, usable });
            }
        }
        let named = u32::try_from(prompt.hashes.len()).unwrap_or(u32::MAX).saturating_mul(size);
        self.sums.usable += f64::from(usable.min(named));
        let unnamed = f64::from(prompt.tokens.saturating_add(prompt.output).saturating_sub(named)) / scale;
        // Blocks that follow each other were mostly used one after the other, and so have the same step.
        let (mut step, mut sizes, mut there) = (0, 0.0..0.0, 0.0);
        let found = &mut self.sums.found;
        self.uses.use_prompt(&self.sample, unnamed as u32, |usable, tokens| {
            let tokens = tokens as f64 * scale;
            if !sizes.contains(&tokens) {
                if there > 0.0 {
                    *found.entry(step).or_default() += std::mem::take(&mut there);
                }
                step = step_of(tokens);
                sizes = size_of(step) * (-1.0 / STEPS).exp2() * ABOVE..size_of(step);
            }
            there += f64::from(usable) * scale;
        });
        if there > 0.0 {
            *found.entry(step).or_default() += there;
        }
    }
}

impl Sums {
    /// Multiplies all sums over prompts by `factor`, to reduce the weight of older prompts.
    fn times(&mut self, factor: f64) {
        let Self { requests, prompt_tokens, usable, usable_by_sample, found, told_of, told_cached } = self;
        for sum in [requests, prompt_tokens, usable, usable_by_sample, told_of, told_cached] {
            *sum *= factor;
        }
        for sum in found.values_mut() {
            *sum *= factor;
        }
    }

    fn rate(&self, tokens: f64) -> Option<f64> {
        let found: f64 = self.found.iter().take_while(|(step, _)| size_of(**step) <= tokens).map(|(_, sum)| sum).sum();
        // Blocks that the sample has too few of are taken to be the ones that are used most: so SHARDS corrects itself.
        let corrected = if found > 0.0 { (found + self.usable - self.usable_by_sample).max(0.0) } else { 0.0 };
        (self.prompt_tokens > 0.0).then(|| (corrected / self.prompt_tokens).min(1.0))
    }
}

/// Returns the initial value for hashing the chain of blocks of a model's prompt, so that prompts of different models
/// share no block.
fn seed_of(model: Option<&str>) -> u64 {
    let mut hasher = DefaultHasher::new();
    model.hash(&mut hasher);
    hasher.finish()
}

/// Computes the hash of a block together with all blocks before it, from the hash of the blocks before (`before`) and
/// the block's content hash. One multiplication suffices, as the content hash is well mixed already.
fn next_chain(before: u64, content: u64) -> u64 {
    let product = u128::from(before.rotate_left(1) ^ content) * 0x9e37_79b9_7f4a_7c15;
    (product as u64) ^ ((product >> 64) as u64)
}

/// Returns the number of the smallest computed cache size that has at least `tokens` tokens.
fn step_of(tokens: f64) -> u32 {
    (tokens.max(1.0).log2() * STEPS - 1e-9).ceil() as u32
}

/// Returns the computed cache size with the number `step`, in tokens.
fn size_of(step: u32) -> f64 {
    (f64::from(step) / STEPS).exp2()
}

fn rounded(rate: f64) -> f64 {
    (rate * 1e4).round() / 1e4
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use kvatlas_index::hash::next_prefix_hash;

    use super::*;

    const SIZE: u32 = 16;

    /// Generator of pseudo-random numbers, equal in each run of the tests (SplitMix64).
    struct Numbers(u64);

    impl Numbers {
        fn below(&mut self, most: u64) -> u64 {
            self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let mut mixed = self.0;
            mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            (mixed ^ (mixed >> 31)) % most
        }
    }

    /// Makes prompts of growing conversations, in random order, with a prefix common to all conversations.
    fn prompts(count: usize, conversations: u64) -> Vec<Vec<u64>> {
        let mut numbers = Numbers(7);
        let mut open: Vec<Vec<u64>> = (0..conversations).map(|one| vec![1, 2, 3, 1000 + one]).collect();
        (0..count)
            .map(|at| {
                let one = &mut open[numbers.below(conversations) as usize];
                let more = 1 + numbers.below(6);
                one.extend((0..more).map(|number| at as u64 * 100 + number + 1_000_000));
                if one.len() > 400 {
                    one.truncate(3);
                    one.push(numbers.below(1 << 40) + 2000);
                }
                one.clone()
            })
            .collect()
    }

    /// Simulates an LRU cache of `room` blocks, and returns its hit rate.
    fn simulated(prompts: &[Vec<u64>], room: usize) -> f64 {
        let (mut cache, mut found, mut all) = (VecDeque::<u64>::new(), 0, 0);
        for prompt in prompts {
            let chains: Vec<u64> = prompt
                .iter()
                .scan(0, |chain, content| {
                    *chain = next_prefix_hash(*chain, *content);
                    Some(*chain)
                })
                .collect();
            found += chains.iter().filter(|chain| cache.contains(chain)).count();
            all += chains.len();
            for chain in chains.iter().rev() {
                cache.retain(|held| held != chain);
                cache.push_back(*chain);
            }
            while cache.len() > room {
                cache.pop_front();
            }
        }
        found as f64 / all as f64
    }

    fn measured(prompts: &[Vec<u64>]) -> ReuseMeter {
        let meter = ReuseMeter::new(0.0);
        for hashes in prompts {
            // One token more than the blocks have: all of them may be found.
            let tokens = hashes.len() as u32 * SIZE + 1;
            let prompt = EndedPrompt { model: None, tokens, output: 0, block_size: SIZE, hashes, cached: None };
            meter.add(&prompt, 0.0);
        }
        meter
    }

    #[test]
    fn the_curve_is_that_of_simulated_caches() {
        let prompts = prompts(400, 20);
        let meter = measured(&prompts);
        for room in [64, 256, 1024] {
            let expected = simulated(&prompts, room as usize);
            let found = meter.rate(f64::from(room)).expect("there are prompts");
            assert!((found - expected).abs() < 0.01, "{room} blocks: {found} instead of {expected}");
        }
    }

    #[test]
    fn many_blocks_are_sampled_and_give_nearly_the_same() {
        let prompts = prompts(20_000, 3000);
        let meter = measured(&prompts);
        assert!(meter.0.lock().uses.scale() >= 2.0, "the sample is of all blocks");
        let (mut seen, mut found, mut all) = (std::collections::HashSet::new(), 0.0, 0.0);
        for prompt in &prompts {
            let mut chain = 0;
            for content in prompt {
                chain = next_prefix_hash(chain, *content);
                all += 1.0;
                found += if seen.insert(chain) { 0.0 } else { 1.0 };
            }
        }
        let rate = meter.rate(f64::INFINITY).expect("there are prompts");
        assert!((rate - found / all).abs() < 0.02, "{rate} instead of {}", found / all);
    }

    #[test]
    fn models_share_nothing_and_the_last_token_is_computed() {
        let meter = ReuseMeter::new(0.0);
        let of = |model| EndedPrompt {
            model: Some(model),
            tokens: 2 * SIZE,
            output: 5,
            block_size: SIZE,
            hashes: &[1, 2],
            cached: Some(SIZE),
        };
        assert_eq!(meter.rate(f64::INFINITY), None);
        meter.add(&of("a"), 0.0);
        meter.add(&of("b"), 0.0);
        assert_eq!(meter.rate(f64::INFINITY), Some(0.0));
        meter.add(&of("a"), 0.0);
        // The first block of the last prompt: its second ends with the prompt.
        assert_eq!(meter.rate(f64::INFINITY), Some(1.0 / 6.0));
        let told = meter.to_json(Some(1e6));
        assert_eq!((&told["hit_rate"], &told["requests"]), (&json!(0.5), &json!(3.0)));
        assert_eq!(told["fleet"], told["unlimited"]);
    }

    #[test]
    fn old_prompts_count_less() {
        let meter = ReuseMeter::new(0.0);
        let prompt = EndedPrompt { model: None, tokens: 17, output: 0, block_size: SIZE, hashes: &[1], cached: None };
        meter.add(&prompt, 0.0);
        meter.add(&prompt, 0.0);
        meter.add(&EndedPrompt { hashes: &[2], ..prompt }, HALF_LIFE);
        // One of two counts half as much as the third does: 0.5 × 16 of 0.5 × 34 + 17 tokens.
        assert!((meter.rate(f64::INFINITY).expect("there are prompts") - 8.0 / 34.0).abs() < 1e-9);
    }

    #[test]
    fn prompts_of_many_blocks_do_no_harm() {
        let meter = ReuseMeter::new(0.0);
        let hashes: Vec<u64> = (1..300_000).collect();
        for block_size in [1, SIZE] {
            let tokens = hashes.len() as u32 * block_size;
            let prompt = EndedPrompt { model: None, tokens, output: 1, block_size, hashes: &hashes, cached: None };
            meter.add(&prompt, 0.0);
            meter.add(&prompt, 0.0);
        }
        let rate = meter.rate(f64::INFINITY).expect("there are prompts");
        assert!((0.0..=1.0).contains(&rate), "{rate}");
    }
}
