//! Blocks that are called the same: an adversary who knows the code, the public seed and the fleet's prompts, but no
//! secret, makes them up. Under the public hash they are found, and counted; under a key there are none.

use std::sync::Arc;

use kvatlas_index::{BlockHash, BlockIndex, Config, View, hash};
use kvatlas_testing::{Random, seeds};
use kvatlas_wire::{BatchOf, Identity, Key, Reader, StoredOf, Tally};
use xxhash_rust::const_xxh3::const_custom_default_secret;

const BLOCK: usize = 16;
const BLOCKS: usize = 8;

/// A prompt, and which of its blocks another one differs in that was made up from it.
struct Pair {
    honest: Vec<u32>,
    made_up: Vec<u32>,
    differs: usize,
}

/// Two blocks with one content hash. XXH3 multiplies two halves of 16 bytes, each xored with a part of the secret, which
/// is public here: if one half is that part, the product is 0 whatever the other is.
fn colliding_blocks(random: &mut Random) -> [Vec<u32>; 2] {
    const SECRET: [u8; 192] = const_custom_default_secret(hash::SEED);
    // Where the halves of a block of 64 bytes are, and the parts of the secret that meet them.
    const LANES: [(usize, usize); 4] = [(0, 0), (48, 16), (16, 32), (32, 48)];
    let (at, secret) = LANES[random.index(LANES.len())];
    let half = 8 * random.index(2);
    let mut block: Vec<u8> = (0..BLOCK as u32 * 4).map(|_| random.next() as u8).collect();
    block[at + half..][..8].copy_from_slice(&SECRET[secret + half..][..8]);
    let mut other = block.clone();
    let free = at + 8 - half;
    other[free + random.index(8)] ^= 1 + random.below(255) as u8;
    [block, other].map(|bytes| bytes.as_chunks().0.iter().map(|&token| u32::from_le_bytes(token)).collect())
}

fn pair(random: &mut Random) -> Pair {
    let mut honest: Vec<u32> = (0..BLOCKS * BLOCK).map(|_| random.below(150_000) as u32).collect();
    let mut made_up = honest.clone();
    let differs = random.index(BLOCKS);
    let at = differs * BLOCK..(differs + 1) * BLOCK;
    let [one, other] = colliding_blocks(random);
    honest[at.clone()].copy_from_slice(&one);
    made_up[at].copy_from_slice(&other);
    Pair { honest, made_up, differs }
}

struct Fleet {
    index: BlockIndex,
    identity: Arc<Identity>,
    names: u64,
}

impl Fleet {
    fn new(identity: Identity) -> Self {
        let config = Config { block_size: BLOCK as u32, ..Config::default() };
        Self { index: BlockIndex::new(config).expect("a block size"), identity: Arc::new(identity), names: 0 }
    }

    /// A worker's engine has computed a prompt, and says so. `keys`: of its first block.
    fn computed(&mut self, worker: &str, tokens: &[u32], keys: &[Key]) -> Tally {
        // Engines' own names are SHA-256, which cannot be made to collide.
        let block_hashes: Vec<BlockHash> =
            (1..=tokens.len() / BLOCK).map(|i| BlockHash(self.names + i as u64)).collect();
        self.names += block_hashes.len() as u64;
        let stored = StoredOf {
            block_hashes,
            tokens: tokens.to_vec(),
            block_size: BLOCK as u32,
            extra_keys: keys.iter().map(|key| (0, key.clone())).collect(),
            ..StoredOf::default()
        };
        let batch = BatchOf { events: vec![stored.into()], ..BatchOf::default() };
        let mut tally = Tally::default();
        Reader::new(BLOCK as u32).calling(self.identity.clone()).apply(&batch, &self.index, worker, 0, &mut tally);
        assert_eq!((tally.events, tally.refused_total()), (1, 0));
        tally
    }

    fn depth(&self, tokens: &[u32]) -> usize {
        self.index.find(&self.identity.words(tokens, BLOCK, None, None)).depth(View::Device) as usize
    }
}

#[test]
fn without_a_key_made_up_collisions_match_and_are_counted() {
    let random = &mut Random(1);
    let mut fleet = Fleet::new(Identity::public());
    for round in 0..seeds(100) {
        let Pair { honest, made_up, .. } = pair(random);
        assert_eq!(fleet.computed("honest", &honest, &[]).collisions, 0, "round {round}");
        // What the index cannot know: the prompts differ.
        assert_eq!((fleet.depth(&honest), fleet.depth(&made_up)), (BLOCKS, BLOCKS), "round {round}");
        assert_eq!(fleet.computed("honest", &made_up, &[]).collisions, 1, "round {round}");
        assert_eq!(fleet.identity.collisions(), round + 1);
    }
}

#[test]
fn under_a_key_no_made_up_collision_matches() {
    for seed in 0..seeds(20) {
        let random = &mut Random(seed);
        let mut fleet = Fleet::new(Identity::keyed());
        for _ in 0..20 {
            let Pair { honest, made_up, differs } = pair(random);
            fleet.computed("honest", &honest, &[]);
            assert_eq!((fleet.depth(&honest), fleet.depth(&made_up)), (BLOCKS, differs), "seed {seed}");
            fleet.computed("other", &made_up, &[]);
            let found = fleet.index.find(&fleet.identity.words(&made_up, BLOCK, None, None)).to_owned();
            let depths: Vec<_> = found.scores(View::Device).into_iter().map(|(name, depth)| (&**name, depth)).collect();
            let mut expected = vec![("other", BLOCKS as u32)];
            expected.extend((differs > 0).then_some(("honest", differs as u32)));
            assert_eq!(depths, expected, "seed {seed}");
        }
        assert_eq!(fleet.identity.collisions(), 0);
    }
}

/// The shared contract takes 16 digits of an image's SHA-256: these are made to agree in an afternoon.
#[test]
fn images_that_agree_in_the_digits_that_count() {
    let image = |end: &str| Key::Item { identifier: format!("{}{}", "5".repeat(16), end.repeat(48)).into(), offset: 0 };
    let tokens: Vec<u32> = (0..BLOCK as u32).collect();
    for (identity, collisions, positions) in [(Identity::public(), 1, 1), (Identity::keyed(), 0, 2)] {
        let mut fleet = Fleet::new(identity);
        assert_eq!(fleet.computed("w", &tokens, &[image("a")]).collisions, 0);
        assert_eq!(fleet.computed("v", &tokens, &[image("A")]).collisions, 0, "the same, written otherwise");
        assert_eq!(fleet.computed("u", &tokens, &[image("b")]).collisions, collisions);
        assert_eq!(fleet.index.stats().positions, positions);
    }
}

#[test]
fn adapters_and_salts_are_parts_of_the_identity() {
    let (identity, tokens) = (Identity::keyed(), (0..BLOCK as u32).collect::<Vec<_>>());
    let names = [None, Some("a"), Some("b"), Some("ab")];
    let spaces = names.iter().flat_map(|lora| names.iter().map(move |salt| (*lora, *salt)));
    let mut words: Vec<u64> = spaces.map(|(lora, salt)| identity.words(&tokens, BLOCK, lora, salt)[0]).collect();
    assert_eq!(identity.words(&tokens, BLOCK, Some(""), Some("")), words[..1]);
    assert_ne!(Identity::keyed().words(&tokens, BLOCK, None, None), words[..1], "each has a key of its own");
    words.sort_unstable();
    words.dedup();
    assert_eq!(words.len(), 16);
}

#[test]
fn equal_blocks_are_no_collision_and_public_words_are_content_hashes() {
    let random = &mut Random(7);
    let tokens: Vec<u32> = (0..100 * BLOCK).map(|_| random.below(150_000) as u32).collect();
    let mut fleet = Fleet::new(Identity::public());
    let plain = hash::content_hashes(&tokens, BLOCK, None, None);
    assert_eq!(fleet.identity.words(&tokens, BLOCK, None, None), plain);
    for worker in ["a", "b", "a"] {
        assert_eq!(fleet.computed(worker, &tokens, &[]).collisions, 0);
    }
    assert_eq!(fleet.index.find(&plain).depth(View::Device), 100);
}
