//! Readers apply to their own rank, whichever ranks are cleared, dropped and registered again: compared with the reference.

use kvatlas_index::reference::ReferenceIndex;
use kvatlas_index::{BlockHash, BlockIndex, Config, Tier, View, hash};
use kvatlas_testing::{Random, mix, seeds};
use kvatlas_wire::{BatchOf, Cleared, EventOf, Reader, RemovedOf, StoredOf, Tally};

const BLOCK: u32 = 2;
const WORKERS: [&str; 4] = ["a", "b", "c", "a-longer-name-of-a-worker"];
const RANKS: u32 = 2;
const CHAINS: u64 = 4;
const LONGEST: u64 = 8;

/// An index and what it must answer.
struct Pair {
    index: BlockIndex,
    reference: ReferenceIndex,
}

fn tokens(chain: u64, from: u64, to: u64) -> Vec<u32> {
    // Chains begin alike.
    (from..to).flat_map(|block| [(if block < 2 { 0 } else { chain }) as u32, block as u32]).collect()
}

fn contents(chain: u64, from: u64, to: u64) -> Vec<u64> {
    hash::content_hashes(&tokens(chain, from, to), BLOCK as usize, None, None)
}

fn name(chain: u64, block: u64) -> BlockHash {
    BlockHash(mix(1 + block + if block < 2 { 0 } else { 100 * chain }))
}

impl Pair {
    fn new(count_copies: bool) -> Self {
        let index = BlockIndex::new(Config { block_size: BLOCK, count_copies }).expect("a block size");
        Self { index, reference: ReferenceIndex::new(count_copies) }
    }

    /// Applies a batch by a reader, and to the reference by name.
    fn batch(&mut self, random: &mut Random, reader: &mut Reader, worker: &str, rank: u32) {
        let mut batch = BatchOf::<BlockHash>::default();
        for _ in 0..=random.below(2) {
            let (chain, from) = (random.below(CHAINS), random.below(LONGEST));
            let from = if random.chance(60) { 0 } else { from };
            let to = from + 1 + random.below(LONGEST - from);
            let tier = if random.chance(20) { Tier::Cpu } else { Tier::Gpu };
            let medium = (tier == Tier::Cpu).then(|| "CPU".into());
            let block_hashes: Vec<_> = (from..to).map(|block| name(chain, block)).collect();
            let event: EventOf<BlockHash> = match random.below(20) {
                0 => {
                    self.reference.clear(worker, Some(rank), None);
                    Cleared.into()
                }
                1..12 => {
                    let parent = from.checked_sub(1).map(|before| name(chain, before));
                    let contents = contents(chain, from, to);
                    self.reference.store(worker, rank, tier, parent, &block_hashes, &contents).expect("of one length");
                    let (tokens, block_size) = (tokens(chain, from, to), BLOCK);
                    StoredOf { block_hashes, parent, tokens, block_size, medium, ..StoredOf::default() }.into()
                }
                _ => {
                    self.reference.remove(worker, rank, tier, &block_hashes);
                    RemovedOf { block_hashes, medium, ..RemovedOf::default() }.into()
                }
            };
            batch.events.push(event);
        }
        let mut tally = Tally::default();
        reader.apply(&batch, &self.index, worker, rank, &mut tally);
        assert_eq!(tally.refused_total(), 0);
    }

    fn assert_equal(&self, when: &str) {
        for chain in 0..CHAINS {
            let query = contents(chain, 0, LONGEST);
            for view in View::ALL {
                let found = self.index.find(&query);
                let mut got: Vec<_> = found
                    .by_rank(view)
                    .into_iter()
                    .map(|(worker, rank, depth)| (worker.to_string(), rank, depth))
                    .collect();
                let mut wanted: Vec<_> = (self.reference.find(&query).by_rank(view).into_iter())
                    .map(|(worker, rank, depth)| (worker.to_string(), rank, depth))
                    .collect();
                got.sort();
                wanted.sort();
                assert_eq!(got, wanted, "{when}, chain {chain}, {view:?}");
            }
        }
        let (stats, blocks) = (self.index.stats(), self.reference.workers().iter().map(|(_, blocks)| blocks).sum());
        assert_eq!((stats.blocks, stats.unknown_removals), (blocks, self.reference.unknown_removals), "{when}");
    }
}

#[test]
fn readers_apply_to_their_rank_whichever_ranks_come_and_go() {
    for seed in 0..seeds(120) {
        let random = &mut Random(seed + 1);
        let count_copies = random.chance(70);
        let mut pairs = [Pair::new(count_copies), Pair::new(count_copies)];
        let new = || Reader::new(BLOCK);
        let mut readers: Vec<Reader> = (0..WORKERS.len() as u32 * RANKS).map(|_| new()).collect();
        for step in 0..150 {
            // Most readers have one index and one rank; nothing goes wrong if one has others in between.
            let pair = &mut pairs[usize::from(random.chance(10))];
            let at = random.index(readers.len());
            let (worker, rank) = (WORKERS[at / RANKS as usize], at as u32 % RANKS);
            match random.below(20) {
                0 => {
                    pair.index.drop_worker(worker);
                    pair.reference.drop_worker(worker);
                    match random.below(3) {
                        0 => readers[at] = new(),
                        1 => readers[at].reset(),
                        _ => {}
                    }
                }
                1 => {
                    let rank = random.chance(50).then_some(rank);
                    let tier = random.chance(50).then(|| *random.pick(&[Tier::Gpu, Tier::Cpu]));
                    pair.index.clear(worker, rank, tier);
                    pair.reference.clear(worker, rank, tier);
                }
                2 => {
                    let other = random.index(readers.len());
                    pair.batch(random, &mut readers[other], worker, rank);
                }
                _ => pair.batch(random, &mut readers[at], worker, rank),
            }
            if step % 10 == 9 {
                pairs.iter().for_each(|pair| pair.assert_equal(&format!("seed {seed}, step {step}")));
            }
        }
    }
}
