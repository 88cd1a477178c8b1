//! Tests of the radix trie: random operations against a map from whole sequences to pages, with a recount after each
//! operation.

use std::collections::{BTreeMap, BTreeSet};

use kvatlas_testing::Random;

use super::trie::{NONE, ROOT};
use super::*;

impl<B> RadixTrie<B> {
    /// Checks all counts that the trie keeps against counts computed anew; panics if one differs.
    fn recount(&self) {
        let (mut nodes, mut blocks, mut free) = (1, 0, BTreeSet::new());
        for (index, node) in self.nodes.iter().enumerate() {
            let index = index as u32;
            if node.generation == 0 {
                assert!(self.vacant.contains(&index) && node.blocks.capacity() == 0);
                continue;
            }
            let mut previous = NONE;
            let mut child = node.first_child;
            while child != NONE {
                let below = &self.nodes[child as usize];
                assert_eq!((below.parent, below.previous), (index, previous));
                assert!(below.users.iter().all(|user| index == ROOT || node.users.contains(user)));
                assert_eq!(below.key, self.key(index, &below.tokens[..self.page_size]));
                assert!(self.children.find(below.key, |&other| other == child).is_some());
                (previous, child) = (child, below.next);
            }
            assert_eq!(node.last_child, previous);
            if index != ROOT {
                (nodes, blocks) = (nodes + 1, blocks + node.blocks.len());
                assert!(!node.blocks.is_empty() && node.tokens.len() == node.blocks.len() * self.page_size);
                if node.is_leaf() && node.users.is_empty() {
                    free.insert((node.stamp, index));
                }
            }
        }
        assert_eq!((nodes, blocks, &free), (self.node_count(), self.len(), &self.order));
        assert_eq!(self.children.len(), nodes - 1);
        assert_eq!(self.vacant.len() + nodes, self.nodes.len());
    }
}

/// One page of tokens in the model of a trie: its block, its time of last use, its users, and true if a node begins
/// with it.
struct Page {
    block: u64,
    stamp: u64,
    users: BTreeSet<i64>,
    begins_node: bool,
}

/// A model of a radix trie: a map from whole sequences of tokens to pages.
///
/// The model is not divided into nodes, except for the order of eviction, where a leaf is a sequence of consecutive
/// pages without branches that were created or released together.
struct Model {
    page: usize,
    pages: BTreeMap<Vec<u32>, Page>,
    clock: u64,
}

impl Model {
    fn prefixes<'a>(&self, tokens: &'a [u32]) -> impl Iterator<Item = &'a [u32]> + use<'a> {
        let page = self.page;
        (1..=tokens.len() / page).map(move |pages| &tokens[..pages * page])
    }

    fn children(&self, key: &[u32]) -> Vec<Vec<u32>> {
        let is_child = |other: &&Vec<u32>| other.len() == key.len() + self.page && other.starts_with(key);
        self.pages.keys().filter(is_child).cloned().collect()
    }

    /// Blocks of the leading pages of `tokens` that the model contains. As in the trie, a match makes a node end after
    /// the last of these pages.
    fn matched(&mut self, tokens: &[u32]) -> Vec<u64> {
        let found: Vec<u64> = self.prefixes(tokens).map_while(|key| self.pages.get(key)).map(|it| it.block).collect();
        if !found.is_empty() {
            for child in self.children(&tokens[..found.len() * self.page]) {
                self.pages.get_mut(&child).unwrap().begins_node = true;
            }
        }
        found
    }

    /// Inserts the last pages of `tokens`, with their blocks, into the model. Returns the number of leading pages of
    /// `tokens` that the model already contained.
    fn insert(&mut self, tokens: &[u32], blocks: &[u64]) -> usize {
        let known = self.matched(tokens).len();
        let above = tokens.len() / self.page - blocks.len();
        let fresh: Vec<Vec<u32>> = self.prefixes(tokens).skip(known).map(<[u32]>::to_vec).collect();
        self.clock += u64::from(!fresh.is_empty());
        for (at, key) in fresh.into_iter().enumerate() {
            let block = blocks[known + at - above];
            self.pages.insert(key, Page { block, stamp: self.clock, users: BTreeSet::new(), begins_node: at == 0 });
        }
        known
    }

    fn mark(&mut self, end: &[u32], user: i64) {
        self.prefixes(end).for_each(|key| _ = self.pages.get_mut(key).unwrap().users.insert(user));
    }

    fn release(&mut self, end: &[u32], user: i64) {
        self.clock += 1;
        for key in self.prefixes(end) {
            let page = self.pages.get_mut(key).unwrap();
            page.users.remove(&user);
            page.stamp = self.clock;
        }
    }

    fn evict(&mut self, wanted: usize) -> Vec<u64> {
        let mut evicted = Vec::new();
        while evicted.len() < wanted {
            let is_leaf = |(key, page): &(&Vec<u32>, &Page)| page.users.is_empty() && self.children(key).is_empty();
            let leaves = self.pages.iter().filter(is_leaf);
            let Some((end, _)) = leaves.min_by_key(|(_, page)| page.stamp) else { break };
            let mut end = end.clone();
            let mut part = Vec::new();
            // The node that ends here, from its end.
            while evicted.len() + part.len() < wanted {
                let page = self.pages.remove(&end).unwrap();
                part.push(page.block);
                end.truncate(end.len() - self.page);
                if page.begins_node || end.is_empty() || !self.children(&end).is_empty() {
                    break;
                }
            }
            evicted.extend(part.into_iter().rev());
        }
        evicted
    }

    fn evictable(&self) -> BTreeSet<u64> {
        self.pages.values().filter(|page| page.users.is_empty()).map(|page| page.block).collect()
    }
}

fn random_run(seed: u64) {
    let mut random = Random(seed);
    let page = [1, 1, 2, 3, 16][random.index(5)];
    let mut trie = RadixTrie::new(page).unwrap();
    let mut model = Model { page, pages: BTreeMap::new(), clock: 0 };
    let mut marks: Vec<(NodeId, i64, Vec<u32>)> = Vec::new();
    let mut held: Vec<(NodeId, Vec<u32>)> = vec![(trie.root(), Vec::new())];
    let mut next = 0;
    for _ in 0..200 {
        let (base, above) = held[if random.index(3) == 0 { random.index(held.len()) } else { 0 }].clone();
        let length = (1 + random.index(8)) * page;
        let tokens: Vec<u32> = (0..length).map(|_| random.index(2) as u32).collect();
        match random.index(10) {
            0..4 => {
                let mut blocks: Vec<u64> = (next..).take(length / page).collect();
                next += blocks.len() as u64;
                let full = [above.as_slice(), &tokens].concat();
                let known = model.insert(&full, &blocks) - above.len() / page;
                let end = trie.insert(tokens.as_slice(), &mut blocks, Some(base)).unwrap();
                assert_eq!(blocks.len(), known);
                held.push((end, full));
            }
            4..7 => {
                let query = &tokens[..1 + random.index(length)];
                let wide: Vec<u64> = query.iter().map(|&token| token.into()).collect();
                let (node, blocks) = if random.index(2) == 0 {
                    trie.match_prefix(query, Some(base)).unwrap()
                } else {
                    trie.match_prefix(&WideTokens(&wide), Some(base)).unwrap()
                };
                let full = [above.as_slice(), query].concat();
                assert_eq!(blocks, model.matched(&full)[above.len() / page..]);
                let end = full[..above.len() + blocks.len() * page].to_vec();
                if node != trie.root() && random.index(2) == 0 {
                    let sequence = next as i64;
                    next += 1;
                    trie.mark_in_use_by(node, sequence).unwrap();
                    model.mark(&end, sequence);
                    marks.push((node, sequence, end.clone()));
                }
                held.push((node, end));
            }
            7 if !marks.is_empty() => {
                let (node, sequence, end) = marks.swap_remove(random.index(marks.len()));
                trie.mark_not_in_use_by(node, sequence).unwrap();
                model.release(&end, sequence);
                assert_eq!(trie.mark_not_in_use_by(node, sequence), Err(Error::NotInUse { sequence }));
            }
            _ => {
                assert_eq!(trie.evictable_blocks().copied().collect::<BTreeSet<_>>(), model.evictable());
                let wanted = random.index(20);
                assert_eq!(trie.evict_blocks(wanted), model.evict(wanted));
                let is_gone = |end: &Vec<u32>| !end.is_empty() && !model.pages.contains_key(end);
                assert!(held.iter().all(|(node, end)| trie.path(*node).is_err() == is_gone(end)));
                held.retain(|(_, end)| !is_gone(end));
            }
        }
        trie.recount();
        assert_eq!(trie.len(), model.pages.len());
        for (node, end) in &held {
            // Valid handles still refer to what they were made for.
            let path: Vec<u32> = trie.path(*node).unwrap().iter().flat_map(|(tokens, _)| *tokens).copied().collect();
            assert_eq!(&path, end);
            let users: BTreeSet<i64> = trie.users(*node).unwrap().iter().copied().collect();
            assert_eq!(users, model.pages.get(end).map_or_else(BTreeSet::new, |page| page.users.clone()));
        }
    }
    for (node, sequence, _) in marks {
        trie.mark_not_in_use_by(node, sequence).unwrap();
    }
    assert_eq!(trie.evict_blocks(usize::MAX).len(), model.pages.len());
    trie.recount();
    assert_eq!((trie.nodes.len(), trie.is_empty()), (1, true));
}

#[test]
fn random_operations_are_those_of_a_map() {
    for seed in 0..200 {
        println_on_panic(seed, || random_run(seed));
    }
}

fn println_on_panic(seed: u64, run: impl FnOnce() + std::panic::UnwindSafe) {
    if let Err(panic) = std::panic::catch_unwind(run) {
        panic!("seed {seed}: {}", panic.downcast_ref::<String>().map_or("see above", |text| text));
    }
}

#[test]
fn a_million_levels_are_walked_and_dropped() {
    let mut trie = RadixTrie::new(1).unwrap();
    let mut end = None;
    for token in 0..1_000_000_u32 {
        end = Some(trie.insert([token].as_slice(), &mut vec![token], end).unwrap());
    }
    let end = end.unwrap();
    let tokens: Vec<u32> = (0..1_000_000).collect();
    assert_eq!(trie.match_prefix(tokens.as_slice(), None).unwrap(), (end, tokens));
    trie.mark_in_use_by(end, 1).unwrap();
    assert_eq!(trie.evict_blocks(5), []);
    trie.mark_not_in_use_by(end, 1).unwrap();
    let mut deepest = 0;
    trie.visit(|depth, _, _| deepest = deepest.max(depth));
    assert_eq!(deepest, 999_999);
    assert_eq!(trie.evict_blocks(400_000).len(), 400_000);
    assert_eq!(trie.len(), 600_000);
    drop(trie);
}

#[test]
fn a_name_means_its_end_or_nothing() {
    let mut trie = RadixTrie::new(1).unwrap();
    let end = trie.insert([1, 2, 3, 4].as_slice(), &mut vec![1, 2, 3, 4], None).unwrap();
    let (upper, _) = trie.match_prefix([1, 2].as_slice(), None).unwrap();
    assert_eq!(trie.tokens(end).unwrap(), [3, 4]);
    assert_eq!(trie.evict_blocks(1), [4]);
    // The node exists, but its end does not: a suffix below it would follow the wrong tokens.
    assert_eq!(trie.insert([5].as_slice(), &mut vec![5], Some(end)), Err(Error::EvictedNode));
    assert_eq!(trie.evict_blocks(1), [3]);
    assert_eq!(trie.tokens(upper).unwrap(), [1, 2]);
    let other = trie.insert([9].as_slice(), &mut vec![9], None).unwrap();
    assert_eq!((other.index, trie.tokens(end)), (end.index, Err(Error::EvictedNode)));
    trie.mark_in_use_by(other, 1).unwrap();
    assert_eq!(trie.clear().len(), 3);
    trie.recount();
    let newer = trie.insert([9].as_slice(), &mut vec![9], None).unwrap();
    assert!(newer != other && trie.tokens(other).is_err() && trie.users(newer).unwrap().is_empty());
}

#[test]
fn refused_calls_change_nothing() {
    assert_eq!(RadixTrie::<u8>::new(0).unwrap_err(), Error::PageSize { got: 0 });
    let mut trie = RadixTrie::new(2).unwrap();
    let mut refused = |tokens: &[u32], blocks: usize| {
        let mut given = vec![0; blocks];
        let error = trie.insert(tokens, &mut given, None).unwrap_err();
        assert_eq!((given.len(), trie.node_count()), (blocks, 1));
        error.code()
    };
    assert_eq!(refused(&[1], 0), "token_count");
    assert_eq!(refused(&[1, 2, 3], 2), "token_count");
    assert_eq!(refused(&[1, 2], 2), "length_mismatch");
    assert_eq!(refused(&[], 1), "length_mismatch");
    assert_eq!(refused(&[], 0), "no_tokens");
    assert_eq!(trie.match_prefix([].as_slice(), None).unwrap_err(), Error::Empty);
}

#[test]
fn memory_follows_what_is_kept() {
    let mut trie = RadixTrie::new(1).unwrap();
    for token in 0..10_000_u32 {
        trie.insert([token].as_slice(), &mut vec![token], None).unwrap();
    }
    trie.evict_blocks(9_900);
    assert_eq!(trie.len(), 100);
    // The last node made stayed, at the end of the vector, so the vacant slots before it remain.
    for token in 0..500_u32 {
        trie.insert([token].as_slice(), &mut vec![token], None).unwrap();
    }
    assert_eq!(trie.nodes.len(), 10_001);
    trie.evict_blocks(100);
    assert!(trie.nodes.capacity() < 2_100, "{}", trie.nodes.capacity());
    assert!(trie.children.capacity() < 4_100, "{}", trie.children.capacity());
}
