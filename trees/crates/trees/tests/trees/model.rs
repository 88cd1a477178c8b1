//! Model of the trees for tests: a map from the path of each node to its holders. Every access is written to every node
//! of its path, and every query looks at all nodes.

use std::collections::BTreeMap;

use kvatlas_trees::EvictionPolicy;

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ModelBlock {
    pub(crate) accessed: u64,
    pub(crate) since: u64,
    pub(crate) hits: u64,
    pub(crate) priority: i32,
}

type Holders = BTreeMap<String, ModelBlock>;

/// Path of a node from the root, and the node's holders (tenants) with the times of their last accesses.
pub(crate) type Node<I> = (Vec<I>, Vec<(String, u64)>);

/// A model of a tree; `I` is a character or a token.
pub(crate) struct Model<I> {
    pub(crate) page: usize,
    pub(crate) policy: EvictionPolicy,
    pub(crate) ticks: u64,
    pub(crate) nodes: BTreeMap<Vec<I>, Holders>,
}

impl<I: Copy + Ord> Model<I> {
    pub(crate) fn new(page: usize, policy: EvictionPolicy) -> Self {
        Self { page, policy, ticks: 0, nodes: BTreeMap::new() }
    }

    fn whole<'a>(&self, key: &'a [I]) -> &'a [I] {
        &key[..key.len() / self.page * self.page]
    }

    fn common(&self, a: &[I], b: &[I]) -> usize {
        a.iter().zip(b).take_while(|(x, y)| x == y).count() / self.page * self.page
    }

    fn parent(&self, path: &[I]) -> usize {
        // Nodes end at page boundaries.
        let mut ends = (1..path.len().div_ceil(self.page)).rev().map(|pages| pages * self.page);
        ends.find(|&end| self.nodes.contains_key(&path[..end])).unwrap_or(0)
    }

    /// Paths of the nodes in which a path of this length ends or through which it passes.
    fn on_path(&self, path: &[I]) -> Vec<Vec<I>> {
        self.nodes
            .keys()
            .filter(|node| {
                let above = self.parent(node);
                path.len() > above && self.common(node, path) > above
            })
            .cloned()
            .collect()
    }

    fn access(&mut self, path: &[I], tenant: &str) {
        self.ticks += 1;
        for node in self.on_path(path) {
            if let Some(held) = self.nodes.get_mut(&node).and_then(|h| h.get_mut(tenant)) {
                held.accessed = self.ticks;
                held.hits += 1;
            }
        }
    }

    pub(crate) fn insert(&mut self, key: &[I], tenant: &str, priority: i32) {
        let key = self.whole(key).to_vec();
        if key.is_empty() {
            return;
        }
        // A node ends where the key leaves an edge or ends in it.
        for node in self.nodes.keys().cloned().collect::<Vec<_>>() {
            let (shared, above) = (self.common(&node, &key), self.parent(&node));
            if shared > above && shared < node.len() {
                let holders = self.nodes[&node].clone();
                self.nodes.insert(node[..shared].to_vec(), holders);
            }
        }
        self.nodes.entry(key.clone()).or_default();
        for pages in 1..=key.len() / self.page {
            if let Some(holders) = self.nodes.get_mut(&key[..pages * self.page]) {
                let fresh = ModelBlock { accessed: 0, since: self.ticks + 1, hits: 0, priority: i32::MIN };
                let held = holders.entry(tenant.to_owned()).or_insert(fresh);
                held.priority = held.priority.max(priority);
            }
        }
        self.access(&key, tenant);
    }

    fn deepest(&self, key: &[I]) -> Option<(usize, &Holders)> {
        self.nodes
            .iter()
            .map(|(node, holders)| (self.common(node, key), self.parent(node), holders))
            .filter(|(shared, above, _)| shared > above)
            .map(|(shared, _, holders)| (shared, holders))
            .max_by_key(|(shared, _)| *shared)
    }

    pub(crate) fn matches(&mut self, key: &[I]) -> (usize, Option<String>) {
        let key = self.whole(key).to_vec();
        let Some((matched, holders)) = self.deepest(&key) else { return (0, None) };
        let tenant = holders.iter().min_by_key(|(_, held)| held.since).map(|(name, _)| name.clone()).unwrap();
        self.access(&key[..matched], &tenant);
        (matched, Some(tenant))
    }

    pub(crate) fn depths(&self, key: &[I]) -> Vec<(String, usize)> {
        let key = self.whole(key);
        let mut depths: BTreeMap<String, usize> = BTreeMap::new();
        for (node, holders) in &self.nodes {
            let shared = self.common(node, key);
            if shared > self.parent(node) {
                for name in holders.keys() {
                    let depth = depths.entry(name.clone()).or_default();
                    *depth = shared.max(*depth);
                }
            }
        }
        let mut depths: Vec<_> = depths.into_iter().collect();
        depths.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(&b.0)));
        depths
    }

    pub(crate) fn match_tenant(&mut self, key: &[I], tenant: &str) -> usize {
        let depth = self.depths(key).iter().find(|d| d.0 == tenant).map_or(0, |d| d.1);
        if depth > 0 {
            self.access(&key[..depth], tenant);
        }
        depth
    }

    pub(crate) fn sizes(&self) -> BTreeMap<String, usize> {
        let mut sizes = BTreeMap::new();
        for (node, holders) in &self.nodes {
            for name in holders.keys() {
                *sizes.entry(name.clone()).or_insert(0) += node.len() - self.parent(node);
            }
        }
        sizes
    }

    pub(crate) fn total(&self) -> usize {
        self.sizes().values().sum()
    }

    fn rank(&self, held: &ModelBlock) -> (i128, u64) {
        match self.policy {
            EvictionPolicy::Lru => (held.accessed.into(), 0),
            EvictionPolicy::Mru => (-i128::from(held.accessed), 0),
            EvictionPolicy::Fifo => (held.since.into(), 0),
            EvictionPolicy::Filo => (-i128::from(held.since), 0),
            EvictionPolicy::Lfu => (held.hits.into(), held.accessed),
            EvictionPolicy::Priority => (held.priority.into(), held.accessed),
        }
    }

    /// Leaf that is evicted first, of one tenant or, if `None`, of all: its path and its tenant.
    fn first_leaf(&self, of: Option<&str>) -> Option<(Vec<I>, String)> {
        let mut leaves = Vec::new();
        for (node, holders) in &self.nodes {
            for (name, held) in holders.iter().filter(|(name, _)| of.is_none_or(|t| t == *name)) {
                let below = |(other, h): (&Vec<I>, &Holders)| {
                    other.len() > node.len() && other.starts_with(node) && h.contains_key(name)
                };
                if !self.nodes.iter().any(below) {
                    leaves.push((self.rank(held), node.clone(), name.clone()));
                }
            }
        }
        leaves.into_iter().min().map(|(_, node, name)| (node, name))
    }

    fn take(&mut self, node: &[I], tenant: &str) -> usize {
        let units = node.len() - self.parent(node);
        let holders = self.nodes.get_mut(node).unwrap();
        holders.remove(tenant).unwrap();
        if holders.is_empty() {
            self.nodes.remove(node);
        }
        units
    }

    pub(crate) fn evict_tenant(&mut self, tenant: &str, most: usize) -> usize {
        let mut gone = 0;
        while self.sizes().get(tenant).is_some_and(|&size| size > most) {
            let (node, _) = self.first_leaf(Some(tenant)).unwrap();
            gone += self.take(&node, tenant);
        }
        gone
    }

    pub(crate) fn evict_to_size(&mut self, most: usize) -> usize {
        let mut gone = 0;
        while self.total() > most {
            let (node, name) = self.first_leaf(None).unwrap();
            gone += self.take(&node, &name);
        }
        gone
    }

    pub(crate) fn evict_path(&mut self, path: &[I], tenant: Option<&str>) -> usize {
        if !self.nodes.contains_key(path) {
            return 0;
        }
        let mut below: Vec<Vec<I>> = self.nodes.keys().filter(|n| n.starts_with(path)).cloned().collect();
        below.sort_by_key(|n| std::cmp::Reverse(n.len()));
        let mut gone = 0;
        for node in below {
            for name in self.nodes[&node].keys().cloned().collect::<Vec<_>>() {
                if tenant.is_none_or(|t| t == name) {
                    gone += self.take(&node, &name);
                }
            }
        }
        gone
    }

    /// Paths of all nodes in order, with their holders (tenants) and the times of the holders' last accesses.
    pub(crate) fn entries(&self) -> Vec<Node<I>> {
        let accesses = |holders: &Holders| holders.iter().map(|(name, held)| (name.clone(), held.accessed)).collect();
        self.nodes.iter().map(|(path, holders)| (path.clone(), accesses(holders))).collect()
    }
}
