//! Tests of a tree: sequences of operations after which all counts are checked by a recount, and hand-made
//! interleavings of two threads.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::nodes::{Core, Node, ROOT, Run};
use super::shared::{START, SharedTree};
use super::{EvictionPolicy, Text, Tokens, Units};

fn numbers(mut state: u64) -> impl FnMut(usize) -> usize {
    move |n| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % n
    }
}

fn history<U: Units>(units: U, policy: EvictionPolicy, seed: u64, words: &[&[U::Item]]) {
    let tree = SharedTree::new(units, policy);
    let mut next = numbers(seed);
    for step in 0..400 {
        let key: Vec<U::Item> = (0..1 + next(7)).flat_map(|_| words[next(words.len())]).copied().collect();
        let tenant = format!("w{}", next(4));
        match next(12) {
            0..=4 => tree.insert(&key, &tenant, next(3) as i32),
            5..=7 => drop(tree.match_prefix(&key)),
            8 => drop(tree.match_tenant(&key, &tenant)),
            9 => drop(tree.evict_tenant(&tenant, next(300))),
            10 => drop(tree.evict_to_size(tree.total() * 4 / 5)),
            _ => drop(tree.evict_to_bytes(tree.bytes() * 4 / 5)),
        }
        if step % 10 == 0 {
            tree.with(|core| core.check());
        }
    }
    tree.evict_to_size(0);
    tree.with(|core| core.check());
}

#[test]
fn what_is_kept_is_what_the_nodes_say() {
    let long = "and so on and on, naïve ".repeat(9);
    let words = ["a", "b", "静か", "the end", &long].map(str::as_bytes);
    let pages: Vec<Vec<u32>> = (0..4).map(|i| vec![i * 40_000; 8 * (1 + i as usize * i as usize)]).collect();
    let pages: Vec<&[u32]> = pages.iter().map(Vec::as_slice).collect();
    for policy in EvictionPolicy::ALL {
        for seed in 0..3 {
            history(Text::new(), policy, seed, &words);
            history(Tokens::of(8), policy, seed, &pages);
        }
    }
}

#[test]
fn orders_of_eviction_do_not_grow_with_accesses() {
    for policy in EvictionPolicy::ALL {
        let tree = SharedTree::new(Tokens::of(1), policy);
        for i in 0..20_000 {
            tree.insert(&[i % 10, i % 7], "w0", 0);
            let _ = tree.match_prefix(&[i % 10, i % 7]);
        }
        tree.with(|core| assert!(core.queued < 400, "{} entries of {} nodes", core.queued, core.len()));
    }
}

/// Inserts the same text a second time between the descent and the addition of the first insert, so that the first
/// insert adds only a part that begins within its run.
#[test]
fn a_run_may_be_used_from_its_middle() {
    let text = "one two three, naïve four ".repeat(20);
    for skipped in [5, 99, 300] {
        let tree = SharedTree::new(Text::new(), EvictionPolicy::Lru);
        let pieces = tree.store(text.as_bytes());
        tree.insert(&text.as_bytes()[..skipped], "w0", 0);
        let mut core = tree.core.write();
        tree.splice(&mut core, START, &pieces, text.as_bytes(), "w1", 0);
        core.check();
        drop(core);
        let part = (skipped + 40..).find(|&end| text.is_char_boundary(end)).unwrap();
        for end in [text.len(), part] {
            tree.insert(&text.as_bytes()[..end], "w1", 0);
        }
        let whole = tree.units.count(&text.as_bytes()[..part]);
        assert_eq!(tree.match_tenant(text.as_bytes(), "w1"), tree.units.count(text.as_bytes()));
        tree.evict_tenant("w1", whole);
        tree.with(|core| core.check());
        assert_eq!(tree.match_tenant(text.as_bytes(), "w1"), whole);
    }
}

impl<U: Units> Core<U> {
    /// Checks that all counts and links that the tree keeps agree with its nodes; panics otherwise.
    pub(super) fn check(&self) {
        let (mut stored, mut held) = (size_of::<Node<U::Buffer>>() + self.node(ROOT).heap_bytes(), 0);
        let mut runs: HashMap<*const Run<U::Buffer>, (usize, u32)> = HashMap::new();
        let mut tenants: HashMap<u32, (usize, usize)> = HashMap::new();
        for number in 1..self.nodes.len() as u32 {
            let Some(node) = self.try_node(number) else { continue };
            stored += size_of::<Node<U::Buffer>>() + node.heap_bytes();
            let parent = self.node(node.parent);
            assert_eq!(parent.children.find(node.key, |n| n == number), Some(number));
            assert!(!node.holders.is_empty() && node.items > 0);
            let run = node.run.as_ref().unwrap();
            let entry = runs.entry(Arc::as_ptr(run)).or_insert((Self::run_bytes(run), 0));
            entry.1 += node.items;
            let mut edge = Vec::new();
            self.units_of.read(&run.buffer, node.from, node.items as usize, &mut edge);
            assert_eq!((self.units_of.count(&edge), self.units_of.key(&edge)), (node.units as usize, node.key));
            for holder in node.holders.iter() {
                let kids = node.children.nodes().filter(|&n| self.node(n).holders.get(holder.tenant).is_some()).count();
                assert_eq!(holder.kids as usize, kids);
                assert!(node.parent == ROOT || parent.holders.get(holder.tenant).is_some());
                let tenant = tenants.entry(holder.tenant).or_default();
                tenant.0 += node.units as usize;
                tenant.1 += usize::from(kids == 0);
                held += node.units as usize;
                if kids == 0 {
                    let rank = self.policy.rank(holder);
                    let order = &self.tenants.get(holder.tenant).unwrap().order;
                    assert!(order.iter().any(|(was, n)| *n == number && was.0 <= rank), "a leaf is not in its order");
                }
            }
            assert_eq!(node.holders.first().map(|h| h.since), node.holders.iter().map(|h| h.since).min());
        }
        for (run, (bytes, live)) in runs {
            stored += bytes;
            let node = self.nodes().find(|n| n.run.as_ref().is_some_and(|r| Arc::as_ptr(r) == run)).unwrap();
            assert_eq!(node.run.as_ref().unwrap().live.load(Relaxed), live);
        }
        assert_eq!((self.stored, self.units), (stored, held));
        let mut queued = 0;
        for (number, tenant) in self.tenants.numbers() {
            assert_eq!(tenants.remove(&number), Some((tenant.units, tenant.leaves)), "{}", tenant.name);
            queued += tenant.order.len();
        }
        assert!(tenants.is_empty());
        assert_eq!(self.queued, queued);
    }
}
