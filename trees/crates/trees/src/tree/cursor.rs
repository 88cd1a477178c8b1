//! Iteration over a tree without a borrow of it: each step acquires the read lock.
//!
//! The path of a node never changes while the node exists (a split divides its edge, not its path), so the cursor keeps
//! its current path, extends it and cuts it. A node removed before the cursor reaches it is skipped.

use super::nodes::{Core, ROOT};
use super::shared::SharedTree;
use super::units::Units;
use super::{Entry, TenantId};

/// A node on the path from the root to the present node of an iteration, with its children not yet visited.
struct Level {
    node: u32,
    /// Length of the node's path from the root, in items (bytes of text or tokens).
    path: usize,
    /// Children of the node that the iteration has not visited yet, the next one last.
    children: Vec<(u32, u64)>,
}

/// Position of an iteration over the nodes of a tree.
pub(crate) struct Cursor<I> {
    path: Vec<I>,
    /// Nodes on the path from the root to the iteration's present node; `None` before the first step.
    levels: Option<Vec<Level>>,
}

impl<U: Units> Core<U> {
    /// Children of a node, ordered by their first character or page.
    pub(super) fn sorted_children(&self, node: u32) -> Vec<u32> {
        let mut steps: Vec<(Vec<U::Item>, u32)> = Vec::with_capacity(self.node(node).children.len());
        for number in self.node(node).children.nodes() {
            let child = self.node(number);
            let mut first = Vec::new();
            if let Some(run) = &child.run {
                let items = self.units_of.step_items().min(child.items as usize);
                self.units_of.read(&run.buffer, child.from, items, &mut first);
            }
            // Comparing bytes orders characters correctly in UTF-8.
            first.truncate(self.units_of.first_step(&first).len());
            steps.push((first, number));
        }
        steps.sort_unstable();
        steps.into_iter().map(|(_, number)| number).collect()
    }

    fn level(&self, node: u32, path: usize) -> Level {
        let children = self.sorted_children(node).into_iter().rev().map(|n| (n, self.node(n).birth)).collect();
        Level { node, path, children }
    }
}

impl<I: Copy> Cursor<I> {
    pub(crate) fn new() -> Self {
        Self { path: Vec::new(), levels: None }
    }

    /// Moves the iteration to the next node of the tree, and returns this node; `None` at the end.
    pub(crate) fn next<U: Units<Item = I>>(&mut self, tree: &SharedTree<U>) -> Option<Entry<Vec<I>>> {
        tree.with(|core| {
            let levels = self.levels.get_or_insert_with(|| vec![core.level(ROOT, 0)]);
            loop {
                let level = levels.last_mut()?;
                let Some((number, birth)) = level.children.pop() else {
                    levels.pop();
                    continue;
                };
                let Some(node) = core.try_node(number).filter(|n| n.birth == birth) else { continue };
                self.path.truncate(level.path);
                // Its own edge, and those of nodes inserted between it and its parent.
                let mut edges = vec![number];
                let mut above = node.parent;
                while above != level.node {
                    edges.push(above);
                    above = core.node(above).parent;
                }
                for edge in edges.into_iter().rev() {
                    let node = core.node(edge);
                    if let Some(run) = &node.run {
                        core.units_of.read(&run.buffer, node.from, node.items as usize, &mut self.path);
                    }
                }
                let tenants = core.holders_by_name(number);
                if !node.children.is_empty() {
                    levels.push(core.level(number, self.path.len()));
                }
                return Some(Entry { path: self.path.clone(), tenants });
            }
        })
    }
}

impl<U: Units> Core<U> {
    fn holders_by_name(&self, node: u32) -> Vec<(TenantId, u64)> {
        let holders = self.node(node).holders.iter();
        let mut tenants: Vec<(TenantId, u64)> =
            holders.filter_map(|h| Some((self.tenants.get(h.tenant)?.name.clone(), h.accessed()))).collect();
        tenants.sort_unstable();
        tenants
    }
}
