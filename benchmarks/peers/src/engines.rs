//! A simulated engine's block pool: hit and extend, LRU, leaf first on release.
//!
//! The pool counts blocks but keeps one node for each trace block (which is `per_id` blocks of the
//! engine): the blocks of a trace block are always touched together, so this gives exactly the evictions
//! of a pool that tracks every block, at a fraction of the memory.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::rng::mix;

const NIL: u32 = u32::MAX;

/// Blocks `lo..hi` of trace block `id`; an eviction takes them from `hi - 1` down.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    pub id: u32,
    pub lo: u8,
    pub hi: u8,
}

/// The blocks that a request found and got: `0..hit` were cached, `hit..end` are new. `end` is less than the
/// request only if the pool cannot hold it.
pub struct Admission {
    pub hit: u32,
    pub end: u32,
}

struct Node {
    id: u32,
    held: u8,
    older: u32,
    newer: u32,
}

pub struct Pool {
    capacity: u32,
    per_id: u8,
    used: u32,
    nodes: Vec<Node>,
    free: Vec<u32>,
    at: HashMap<u32, u32, BuildHasherDefault<IdHasher>>,
    oldest: u32,
    newest: u32,
}

impl Pool {
    /// A pool of `capacity` blocks; a trace block is `per_id` of them.
    pub fn new(capacity: u32, per_id: u8) -> Self {
        Self {
            capacity,
            per_id,
            used: 0,
            nodes: Vec::new(),
            free: Vec::new(),
            at: HashMap::default(),
            oldest: NIL,
            newest: NIL,
        }
    }

    /// Runs one request: pins what it hits, evicts for the rest (into `evicted`, in order), caches it, and
    /// releases everything, deepest block first.
    pub fn admit(&mut self, ids: &[u32], evicted: &mut Vec<Piece>) -> Admission {
        let per_id = u32::from(self.per_id);
        let mut hit = 0;
        let mut touched = Vec::with_capacity(ids.len());
        for id in ids {
            let Some(&slot) = self.at.get(id) else { break };
            self.unlink(slot);
            touched.push(slot);
            let held = self.nodes[slot as usize].held;
            hit += u32::from(held);
            if held < self.per_id {
                break;
            }
        }
        let wanted = ids.len() as u32 * per_id - hit;
        while self.capacity - self.used < wanted && self.oldest != NIL {
            self.evict(wanted - (self.capacity - self.used), evicted);
        }
        let end = hit + wanted.min(self.capacity - self.used);
        self.used += end - hit;
        for (i, &id) in ids.iter().enumerate() {
            let held = end.saturating_sub(i as u32 * per_id).min(per_id) as u8;
            if held == 0 {
                break;
            }
            match touched.get(i) {
                Some(&slot) => self.nodes[slot as usize].held = held,
                None => {
                    let slot = self.insert(id, held);
                    touched.push(slot);
                }
            }
        }
        for &slot in touched.iter().rev() {
            self.link_newest(slot);
        }
        Admission { hit, end }
    }

    /// Everything held, in the order in which it would be evicted.
    pub fn contents(&self) -> impl Iterator<Item = Piece> + '_ {
        let mut at = self.oldest;
        std::iter::from_fn(move || {
            let node = self.nodes.get(at as usize)?;
            at = node.newer;
            Some(Piece { id: node.id, lo: 0, hi: node.held })
        })
    }

    /// Blocks held.
    pub fn used(&self) -> u32 {
        self.used
    }

    /// Takes up to `wanted` blocks from the tail of the oldest node.
    fn evict(&mut self, wanted: u32, evicted: &mut Vec<Piece>) {
        let slot = self.oldest;
        let node = &mut self.nodes[slot as usize];
        let taken = wanted.min(u32::from(node.held)) as u8;
        let hi = node.held;
        node.held -= taken;
        evicted.push(Piece { id: node.id, lo: node.held, hi });
        self.used -= u32::from(taken);
        if node.held == 0 {
            let id = node.id;
            self.unlink(slot);
            self.at.remove(&id);
            self.free.push(slot);
        }
    }

    fn insert(&mut self, id: u32, held: u8) -> u32 {
        let node = Node { id, held, older: NIL, newer: NIL };
        let slot = match self.free.pop() {
            Some(slot) => {
                self.nodes[slot as usize] = node;
                slot
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() as u32 - 1
            }
        };
        self.at.insert(id, slot);
        slot
    }

    fn unlink(&mut self, slot: u32) {
        let (older, newer) = (self.nodes[slot as usize].older, self.nodes[slot as usize].newer);
        match self.nodes.get_mut(older as usize) {
            Some(node) => node.newer = newer,
            None => self.oldest = newer,
        }
        match self.nodes.get_mut(newer as usize) {
            Some(node) => node.older = older,
            None => self.newest = older,
        }
    }

    fn link_newest(&mut self, slot: u32) {
        let node = &mut self.nodes[slot as usize];
        node.older = self.newest;
        node.newer = NIL;
        match self.nodes.get_mut(self.newest as usize) {
            Some(node) => node.newer = slot,
            None => self.oldest = slot,
        }
        self.newest = slot;
    }
}

/// One multiplication chain for a small integer: ids are dense, so they need mixing, not protection.
#[derive(Default)]
pub struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u32(&mut self, x: u32) {
        self.write_u64(u64::from(x));
    }

    fn write_u64(&mut self, x: u64) {
        self.0 = mix(self.0 ^ x);
    }
}

#[cfg(test)]
mod tests {
    use super::{Piece, Pool};

    #[test]
    fn evicts_least_recent_leaf_first_and_partly() {
        let mut pool = Pool::new(8, 2);
        let mut out = Vec::new();
        assert_eq!(pool.admit(&[0, 1, 2], &mut out).hit, 0);
        assert_eq!(pool.admit(&[0, 3], &mut out).hit, 2);
        assert!(out.is_empty());
        // 8 of 8 used; two more blocks: the leaf of the oldest chain goes.
        let got = pool.admit(&[0, 3, 4], &mut out);
        assert_eq!((got.hit, got.end), (4, 6));
        assert_eq!(out, [Piece { id: 2, lo: 0, hi: 2 }]);
        assert_eq!(pool.admit(&[0, 1, 2], &mut out).hit, 4);
    }

    #[test]
    fn a_request_larger_than_the_pool_is_cut() {
        let mut pool = Pool::new(3, 2);
        let mut out = Vec::new();
        let got = pool.admit(&[0, 1], &mut out);
        assert_eq!((got.hit, got.end, pool.used()), (0, 3, 3));
        let got = pool.admit(&[0, 1], &mut out);
        assert_eq!((got.hit, got.end), (3, 3));
        assert_eq!(pool.contents().collect::<Vec<_>>(), [Piece { id: 1, lo: 0, hi: 1 }, Piece { id: 0, lo: 0, hi: 2 }]);
    }
}
