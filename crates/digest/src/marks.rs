//! Marks, the prefix hashes after every `grain` blocks: those of a rank's blocks, and those of a prompt.

use std::hash::{BuildHasherDefault, Hasher};

use hashbrown::HashMap;
use kvatlas_index::hash::next_prefix_hash;
use kvatlas_index::{BlockHash, RankCopy};

/// Prefix hashes of a prompt after every `grain` blocks: the i-th is the hash of the first (i + 1) · `grain` blocks.
///
/// # Panics
/// If `grain` is 0.
#[must_use]
pub fn marks_of_prompt(content_hashes: &[u64], grain: u32) -> Vec<u64> {
    let grain = grain as usize;
    let mut marks = Vec::with_capacity(content_hashes.len() / grain);
    let mut walk = Walk::default();
    for &content in &content_hashes[..content_hashes.len() / grain * grain] {
        walk.step(content);
        if (walk.depth as usize).is_multiple_of(grain) {
            marks.push(walk.prefix);
        }
    }
    marks
}

/// Prefix hashes after every `grain` blocks of all chains that a rank holds on its device from the start of a prompt;
/// in increasing order, without duplicates.
///
/// Blocks after a missing block, after an unknown parent, or only on other tiers do not count, as in [`View::Device`].
///
/// [`View::Device`]: kvatlas_index::View::Device
///
/// # Panics
///
/// If `grain` is 0.
#[must_use]
pub fn marks_of_rank(copy: &RankCopy, grain: u32) -> Vec<u64> {
    assert!(grain > 0, "a grain has at least one block");
    let parts = parts(copy);
    let mut below: HashMap<u64, Vec<u32>, Names> = HashMap::default();
    let mut stack: Vec<(u32, Walk)> = Vec::new();
    for (part, at) in parts.iter().zip(0..) {
        match part.parent {
            Some(parent) => below.entry(parent.0).or_default().push(at),
            None => stack.push((at, Walk::default())),
        }
    }
    let mut marks = Vec::new();
    while let Some((at, mut walk)) = stack.pop() {
        let part = &parts[at as usize];
        for (name, &content) in part.names.iter().zip(part.contents) {
            walk.step(content);
            if walk.depth.is_multiple_of(grain) {
                marks.push(walk.prefix);
            }
            // Each part is below one name, and taken out with it: it is walked once, also if names go in a circle.
            if !below.is_empty()
                && let Some(next) = below.remove(&name.0)
            {
                stack.extend(next.into_iter().map(|next| (next, walk)));
            }
        }
    }
    marks.sort_unstable();
    marks.dedup();
    marks
}

/// Consecutive blocks that a rank holds, with their block hashes and content hashes.
struct Part<'c> {
    parent: Option<BlockHash>,
    names: &'c [BlockHash],
    contents: &'c [u64],
}

fn parts(copy: &RankCopy) -> Vec<Part<'_>> {
    let mut parts = Vec::with_capacity(copy.chains.len() + copy.blocks.len());
    for chain in &copy.chains {
        for held in &chain.plain {
            let parent = held.start.checked_sub(1).map_or(chain.parent, |before| Some(chain.names[before]));
            parts.push(Part { parent, names: &chain.names[held.clone()], contents: &chain.contents[held.clone()] });
        }
    }
    for block in copy.blocks.iter().filter(|block| block.copies[0] > 0) {
        let (names, contents) = (std::slice::from_ref(&block.name), std::slice::from_ref(&block.content));
        parts.push(Part { parent: block.parent, names, contents });
    }
    parts
}

/// State of a walk down a chain of a rank's blocks: the number of blocks so far, and the prefix hash up to the last
/// one.
#[derive(Clone, Copy, Default)]
struct Walk {
    prefix: u64,
    depth: u32,
}

impl Walk {
    fn step(&mut self, content: u64) {
        self.prefix = if self.depth == 0 { content } else { next_prefix_hash(self.prefix, content) };
        self.depth += 1;
    }
}

type Names = BuildHasherDefault<NameHasher>;

/// Hasher for maps whose keys are block hashes, which may be small numbers.
#[derive(Default)]
struct NameHasher(u64);

impl Hasher for NameHasher {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u64(&mut self, name: u64) {
        self.0 = crate::table::mix(self.0 ^ name);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use kvatlas_index::{BlockIndex, Config, CopyState, RankCopier, Tier};

    use super::*;

    fn copy(index: &Arc<BlockIndex>) -> RankCopy {
        let mut copier = RankCopier::new(index.clone(), "w", 0);
        loop {
            match copier.step(BlockIndex::SLICE) {
                CopyState::More(more) => copier = more,
                CopyState::Done(done) => return done.sorted(),
            }
        }
    }

    fn names(of: std::ops::Range<u64>) -> Vec<BlockHash> {
        of.map(BlockHash).collect()
    }

    #[test]
    fn holes_end_a_chain_and_forks_do_not() {
        let index = Arc::new(BlockIndex::new(Config::default()).unwrap());
        let contents: Vec<u64> = (100..112).collect();
        let expected = marks_of_prompt(&contents, 2);
        let sorted = |mut marks: Vec<u64>| {
            marks.sort_unstable();
            marks
        };
        index.store("w", 0, Tier::Gpu, None, &names(0..12), &contents).unwrap();
        assert_eq!(marks_of_rank(&copy(&index), 2), sorted(expected.clone()));
        // A fork in the middle, which counts from the same root.
        index.store("w", 0, Tier::Gpu, Some(BlockHash(4)), &names(20..23), &[7, 8, 9]).unwrap();
        let fork: Vec<u64> = contents[..5].iter().copied().chain([7, 8, 9]).collect();
        let mut both = [expected.clone(), marks_of_prompt(&fork, 2)].concat();
        both.sort_unstable();
        both.dedup();
        assert_eq!(marks_of_rank(&copy(&index), 2), both);
        // A hole above both.
        index.remove("w", 0, Tier::Gpu, &[BlockHash(3)]);
        assert_eq!(marks_of_rank(&copy(&index), 2), expected[..1]);
        // Filled, with two copies of one block; offloaded blocks do not fill it.
        index.store("w", 0, Tier::Cpu, Some(BlockHash(2)), &[BlockHash(3)], &[103]).unwrap();
        assert_eq!(marks_of_rank(&copy(&index), 2), expected[..1]);
        index.store("w", 0, Tier::Gpu, Some(BlockHash(2)), &[BlockHash(3)], &[103]).unwrap();
        index.store("w", 0, Tier::Gpu, Some(BlockHash(2)), &[BlockHash(3)], &[103]).unwrap();
        assert_eq!(marks_of_rank(&copy(&index), 2), both);
        // Without a known parent.
        index.store("w", 0, Tier::Gpu, Some(BlockHash(77)), &names(30..34), &[1, 2, 3, 4]).unwrap();
        assert_eq!(marks_of_rank(&copy(&index), 2), both);
    }

    #[test]
    fn a_prompt_has_a_mark_for_each_full_grain() {
        let contents = [5, 6, 7, 8, 9];
        let prefixes = kvatlas_index::hash::prefix_hashes(&contents);
        assert_eq!(marks_of_prompt(&contents, 2), [prefixes[1], prefixes[3]]);
        assert_eq!(marks_of_prompt(&contents, 1), prefixes);
        assert_eq!(marks_of_prompt(&contents, 6), [] as [u64; 0]);
    }
}
