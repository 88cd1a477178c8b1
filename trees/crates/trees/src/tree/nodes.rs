//! Nodes of a tree, and runs: shared buffers of text or tokens that contain the nodes' edges.
//!
//! Nodes are identified by number. A number is reused after its node is removed, so a reference kept without the lock
//! includes the node's `birth`, which is unique, and its `shape`, which changes with its edge.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use super::children::Children;
use super::holders::{Holders, Tenants};
use super::order::{EvictionPolicy, Leaf};
use super::path_hash::PathHasher;
use super::units::{Mark, Units};

/// Number of the root node, which no tenant holds and which has no text or tokens of its own.
pub(crate) const ROOT: u32 = 0;

/// A run, that is, a shared buffer of items (bytes of text or tokens), with the number of items that nodes still use.
pub(crate) struct Run<B> {
    pub(crate) buffer: B,
    items: u32,
    pub(crate) live: AtomicU32,
}

impl<B> Run<B> {
    pub(crate) fn new(buffer: B, items: usize) -> Arc<Self> {
        Arc::new(Self { buffer, items: items as u32, live: AtomicU32::new(0) })
    }
}

pub(crate) struct Node<B> {
    pub(crate) birth: u64,
    pub(crate) shape: u32,
    pub(crate) parent: u32,
    pub(crate) key: u32,
    /// Position at which the text or tokens of the node's edge begin in their run (a shared buffer). The following
    /// fields are the edge's numbers of items (bytes or tokens) and units (characters or tokens).
    pub(crate) from: Mark,
    pub(crate) items: u32,
    pub(crate) units: u32,
    pub(crate) run: Option<Arc<Run<B>>>,
    pub(crate) children: Children,
    pub(crate) holders: Holders,
}

impl<B> Node<B> {
    pub(crate) fn heap_bytes(&self) -> usize {
        self.children.heap_bytes() + self.holders.heap_bytes()
    }
}

/// Place in the tree at which a descent from the root along an input (text or tokens) ended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Descent {
    pub(crate) node: u32,
    pub(crate) birth: u64,
    pub(crate) shape: u32,
    /// Number of items (bytes or tokens) matched within the node's edge, the text or tokens between its parent and it.
    /// The next field is the position of their end in the edge's buffer.
    pub(crate) within: u32,
    pub(crate) mark: Mark,
    /// Number of items (bytes or tokens) matched since the root. The next field is the number of units (characters or
    /// tokens).
    pub(crate) items: usize,
    pub(crate) units: usize,
}

/// A new run (buffer of text or tokens) to be added to a tree, with its numbers of items (bytes or tokens) and units
/// (characters or tokens).
pub(crate) struct Piece<B> {
    pub(crate) run: Arc<Run<B>>,
    pub(crate) items: usize,
    pub(crate) units: usize,
}

pub(crate) struct Core<U: Units> {
    pub(crate) policy: EvictionPolicy,
    pub(crate) units_of: Arc<U>,
    // A box for each node: evicted nodes are freed, and the list of boxes is small beside them.
    pub(crate) nodes: Vec<Option<Box<Node<U::Buffer>>>>,
    free: Vec<u32>,
    pub(crate) tenants: Tenants,
    births: u64,
    /// Number of accesses of the tree so far, which serves as its clock.
    pub(crate) ticks: AtomicU64,
    /// Sum of the units (characters or tokens) held by all tenants.
    pub(crate) units: usize,
    /// Memory of the nodes, their heap data, and the runs (shared buffers) that contain their text or tokens, in bytes.
    pub(crate) stored: usize,
    /// Number of entries in the heaps of all tenants that order their leaves by eviction.
    pub(crate) queued: usize,
}

impl<U: Units> Core<U> {
    pub(crate) fn new(units_of: Arc<U>, policy: EvictionPolicy) -> Self {
        let mut core = Self {
            policy,
            units_of,
            nodes: Vec::new(),
            free: Vec::new(),
            tenants: Tenants::default(),
            births: 0,
            ticks: AtomicU64::new(0),
            units: 0,
            stored: 0,
            queued: 0,
        };
        core.create(Node {
            birth: 0,
            shape: 0,
            parent: ROOT,
            key: 0,
            from: 0,
            items: 0,
            units: 0,
            run: None,
            children: Children::default(),
            holders: Holders::default(),
        });
        core
    }

    pub(crate) fn try_node(&self, node: u32) -> Option<&Node<U::Buffer>> {
        self.nodes.get(node as usize)?.as_deref()
    }

    /// Returns a node by its number, which must exist: a parent, a child or the caller refers to it.
    pub(crate) fn node(&self, node: u32) -> &Node<U::Buffer> {
        match self.try_node(node) {
            Some(node) => node,
            None => unreachable!("node {node} is gone"),
        }
    }

    pub(super) fn node_mut(&mut self, node: u32) -> &mut Node<U::Buffer> {
        match self.nodes[node as usize].as_deref_mut() {
            Some(node) => node,
            None => unreachable!("node {node} is gone"),
        }
    }

    /// True if the node at which an earlier descent along an input ended still exists, with an unchanged edge (text or
    /// tokens below its parent).
    pub(crate) fn still(&self, found: &Descent) -> bool {
        self.try_node(found.node).is_some_and(|n| n.birth == found.birth && n.shape == found.shape)
    }

    /// Number of nodes in the tree, without the root.
    pub(crate) fn len(&self) -> usize {
        self.nodes.len() - self.free.len() - 1
    }

    pub(crate) fn bytes(&self) -> usize {
        self.stored
            + self.nodes.capacity() * size_of::<usize>()
            + self.free.capacity() * 4
            + self.queued * size_of::<Leaf>()
            + self.tenants.bytes()
    }

    /// All nodes of the tree but the root, in unspecified order.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = &Node<U::Buffer>> {
        self.nodes.iter().skip(1).filter_map(Option::as_deref)
    }

    pub(crate) fn tick(&self) -> u64 {
        self.ticks.fetch_add(1, Relaxed) + 1
    }

    // Nodes and runs.

    fn create(&mut self, node: Node<U::Buffer>) -> u32 {
        self.stored += size_of::<Node<U::Buffer>>() + node.heap_bytes();
        let node = Some(Box::new(node));
        match self.free.pop() {
            Some(number) => {
                self.nodes[number as usize] = node;
                number
            }
            None => {
                self.nodes.push(node);
                (self.nodes.len() - 1) as u32
            }
        }
    }

    fn birth(&mut self) -> u64 {
        self.births += 1;
        self.births
    }

    /// Changes a node by the function `how`, and updates the count of the node's heap memory.
    pub(super) fn change<T>(&mut self, node: u32, how: impl FnOnce(&mut Node<U::Buffer>) -> T) -> T {
        let node = self.node_mut(node);
        let before = node.heap_bytes();
        let out = how(node);
        let after = node.heap_bytes();
        self.stored = self.stored + after - before;
        out
    }

    pub(crate) fn run_bytes(run: &Run<U::Buffer>) -> usize {
        // The reference counts of the `Arc` come in addition.
        16 + size_of::<Run<U::Buffer>>() + U::bytes(&run.buffer)
    }

    /// Adds a node under `parent`, without holders. Its edge (its text or tokens) consists of `items` items (bytes or
    /// tokens) of a run, a shared buffer, from the position `from` on.
    pub(crate) fn grow(
        &mut self,
        parent: u32,
        key: u32,
        piece: &Piece<U::Buffer>,
        from: Mark,
        items: usize,
        units: usize,
    ) -> u32 {
        if piece.run.live.fetch_add(items as u32, Relaxed) == 0 {
            self.stored += Self::run_bytes(&piece.run);
        }
        let birth = self.birth();
        let node = self.create(Node {
            birth,
            shape: 0,
            parent,
            key,
            from,
            items: items as u32,
            units: units as u32,
            run: Some(piece.run.clone()),
            children: Children::default(),
            holders: Holders::default(),
        });
        self.change(parent, |p| p.children.add(key, node));
        node
    }

    /// Splits a node into two at a place within its edge (its text or tokens), after `items` items and `units` units.
    /// Returns the number of the new upper node.
    pub(crate) fn split(&mut self, lower: u32, items: u32, units: u32, mark: Mark, lower_key: u32) -> u32 {
        let (birth, node) = (self.birth(), self.node(lower));
        let (parent, key) = (node.parent, node.key);
        let mut children = Children::default();
        children.add(lower_key, lower);
        let upper = Node {
            birth,
            shape: 0,
            parent,
            key,
            from: node.from,
            items,
            units,
            run: node.run.clone(),
            children,
            holders: node.holders.above(),
        };
        let upper = self.create(upper);
        let node = self.node_mut(lower);
        node.shape = node.shape.wrapping_add(1);
        node.parent = upper;
        node.key = lower_key;
        node.from = mark;
        node.items -= items;
        node.units -= units;
        self.change(parent, |p| p.children.replace(key, lower, upper));
        upper
    }

    /// Removes a node that no tenant holds from the tree.
    pub(super) fn remove(&mut self, number: u32) {
        let (parent, key) = (self.node(number).parent, self.node(number).key);
        self.change(parent, |p| p.children.remove(key, number));
        let Some(node) = self.nodes[number as usize].take() else { return };
        self.stored -= size_of::<Node<U::Buffer>>() + node.heap_bytes();
        self.free.push(number);
        let Some(run) = node.run else { return };
        let live = run.live.fetch_sub(node.items, Relaxed) - node.items;
        if live == 0 {
            self.stored -= Self::run_bytes(&run);
        } else if live <= run.items / 2 {
            self.trim(parent, &run, live);
        }
    }

    /// Copies the part of a run (buffer of text or tokens) that nodes still use to a new run, to free memory.
    ///
    /// The nodes of a run lie on one path, and the lowest are removed first, so they are found upwards from `lowest`,
    /// the parent of the removed node.
    fn trim(&mut self, lowest: u32, run: &Arc<Run<U::Buffer>>, live: u32) {
        let shares = |node: u32| self.node(node).run.as_ref().is_some_and(|r| Arc::ptr_eq(r, run));
        if !shares(lowest) {
            return;
        }
        let mut top = lowest;
        while shares(self.node(top).parent) {
            top = self.node(top).parent;
        }
        let (first, last) = (self.node(top), self.node(lowest));
        let end = self.units_of.seek(&run.buffer, last.from, last.items as usize);
        let (buffer, less) = self.units_of.cut(&run.buffer, first.from, end);
        let fresh = Run::new(buffer, live as usize);
        fresh.live.store(live, Relaxed);
        self.stored = self.stored + Self::run_bytes(&fresh) - Self::run_bytes(run);
        let mut at = lowest;
        loop {
            let node = self.node_mut(at);
            // Marks of the old run are invalid in the new one.
            node.shape = node.shape.wrapping_add(1);
            node.from -= less;
            node.run = Some(fresh.clone());
            if at == top {
                return;
            }
            at = node.parent;
        }
    }

    /// Frees unused capacity of the tree's lists of nodes.
    pub(crate) fn shrink(&mut self) {
        if self.free.len() < 1024 || self.free.len() * 2 < self.nodes.len() {
            return;
        }
        while self.nodes.last().is_some_and(Option::is_none) {
            self.nodes.pop();
        }
        let len = self.nodes.len() as u32;
        self.free.retain(|&n| n < len);
        self.free.shrink_to_fit();
        self.nodes.shrink_to(self.nodes.len() + self.nodes.len() / 8);
    }

    /// Continues the numbering of the creation of nodes (each node's `birth`) from another tree, which this tree
    /// replaces.
    pub(crate) fn births_from(&mut self, other: &Self) {
        self.births = other.births;
    }

    /// Finds the node whose path from the root has the given hash. Returns its number, and its birth, a number that
    /// identifies its creation. Walks the tree: O(bytes stored).
    pub(crate) fn find_hash(&self, hash: u64) -> Option<(u32, u64)> {
        let mut stack = vec![(ROOT, PathHasher::new())];
        let mut edge = Vec::new();
        while let Some((at, hasher)) = stack.pop() {
            for child in self.node(at).children.nodes() {
                let node = self.node(child);
                let mut hasher = hasher.clone();
                edge.clear();
                if let Some(run) = &node.run {
                    self.units_of.read(&run.buffer, node.from, node.items as usize, &mut edge);
                }
                U::hash(&mut hasher, &edge);
                if hasher.finish() == hash {
                    return Some((child, node.birth));
                }
                if !node.children.is_empty() {
                    stack.push((child, hasher));
                }
            }
        }
        None
    }
}
