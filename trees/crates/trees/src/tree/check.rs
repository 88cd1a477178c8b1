//! A consistency check of a whole tree, for tests.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::nodes::{Core, Node, ROOT, Run};
use super::units::Units;

impl<U: Units> Core<U> {
    /// Panics unless all bookkeeping agrees with the nodes.
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
