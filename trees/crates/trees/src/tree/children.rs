//! Children of a tree's node: pairs of key and node, in a list if there are few, else in a hash table.
//!
//! The key of text is its first character and identifies one child; the key of tokens is a hash of the first page,
//! which several children may share, so that a search compares the found child with its input.

use hashbrown::HashTable;
use smallvec::SmallVec;

/// Number of a node's children up to which a scan of the list is faster than hashing.
const FEW: usize = 16;

#[derive(Debug)]
pub(crate) enum Children {
    Few(SmallVec<[(u32, u32); 2]>),
    Many(Box<HashTable<(u32, u32)>>),
}

impl Default for Children {
    fn default() -> Self {
        Self::Few(SmallVec::new())
    }
}

fn hash(key: u32) -> u64 {
    // The table takes its tags from the high bits and its buckets from the low ones: a product mixed once serves both.
    let x = u64::from(key).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x ^ (x >> 32)
}

impl Children {
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Few(list) => list.len(),
            Self::Many(table) => table.len(),
        }
    }

    /// Finds the first child of a node with the given key (of its first character or page) for which `is_it` returns
    /// true.
    pub(crate) fn find(&self, key: u32, mut is_it: impl FnMut(u32) -> bool) -> Option<u32> {
        match self {
            Self::Few(list) => list.iter().find(|&&(k, node)| k == key && is_it(node)).map(|&(_, node)| node),
            Self::Many(table) => table.find(hash(key), |&(k, node)| k == key && is_it(node)).map(|&(_, node)| node),
        }
    }

    pub(crate) fn add(&mut self, key: u32, node: u32) {
        match self {
            Self::Few(list) if list.len() < FEW => list.push((key, node)),
            Self::Few(list) => {
                let mut table = HashTable::with_capacity(2 * FEW);
                for &(k, n) in list.iter().chain([&(key, node)]) {
                    table.insert_unique(hash(k), (k, n), |&(k, _)| hash(k));
                }
                *self = Self::Many(Box::new(table));
            }
            Self::Many(table) => {
                table.insert_unique(hash(key), (key, node), |&(k, _)| hash(k));
            }
        }
    }

    /// Replaces, in a node's list of children, the child `old` by the child `new`, which has the same key.
    pub(crate) fn replace(&mut self, key: u32, old: u32, new: u32) {
        let slot = match self {
            Self::Few(list) => list.iter_mut().find(|c| c.1 == old),
            Self::Many(table) => table.find_mut(hash(key), |c| c.1 == old),
        };
        if let Some(slot) = slot {
            slot.1 = new;
        }
    }

    pub(crate) fn remove(&mut self, key: u32, node: u32) {
        match self {
            Self::Few(list) => {
                if let Some(at) = list.iter().position(|c| c.1 == node) {
                    list.swap_remove(at);
                    if list.spilled() && list.len() * 4 <= list.capacity() {
                        list.shrink_to_fit();
                    }
                }
            }
            Self::Many(table) => {
                if let Ok(found) = table.find_entry(hash(key), |c| c.1 == node) {
                    found.remove();
                }
                if table.len() <= FEW / 2 {
                    let mut list: SmallVec<[(u32, u32); 2]> = SmallVec::new();
                    list.reserve_exact(table.len());
                    list.extend(table.iter().copied());
                    *self = Self::Few(list);
                } else if table.len() * 8 <= table.capacity() {
                    table.shrink_to_fit(|&(k, _)| hash(k));
                }
            }
        }
    }

    /// Numbers of all children of a node, in unspecified order.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = u32> + '_ {
        let (list, table) = match self {
            Self::Few(list) => (Some(list.iter()), None),
            Self::Many(table) => (None, Some(table.iter())),
        };
        list.into_iter().flatten().chain(table.into_iter().flatten()).map(|&(_, node)| node)
    }

    /// Heap memory of the list of a node's children, in bytes.
    pub(crate) fn heap_bytes(&self) -> usize {
        match self {
            Self::Few(list) if list.spilled() => list.capacity() * 8,
            Self::Few(_) => 0,
            // One byte of tag per slot, and one slot in eight stays free.
            Self::Many(table) => size_of::<HashTable<(u32, u32)>>() + table.capacity() * 72 / 7,
        }
    }
}
