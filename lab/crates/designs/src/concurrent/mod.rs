//! Rung 5 of the ladder of index designs: the radix tree of [`super::radix`] with a read-write lock in each node,
//! changed and read by many threads.
//!
//! A lookup descends hand over hand: it holds a node's read lock until it has the child's. It runs in the caller's
//! thread and allocates nothing per node. Each worker's table of names has a lock of its own, which is uncontended as
//! long as one worker's changes come from one thread (as in an [`EventPool`](super::pool::EventPool)).
//!
//! # Locks
//! Locks are acquired in this order, never an earlier one while a later one is held:
//! 1. the list of workers (released before the next),
//! 2. a worker's names, for the whole of a change,
//! 3. nodes: at most two at a time, a parent and then its child as the parent's lock shows it,
//! 4. the list of free slots.
//!
//! A link between two nodes changes only under the locks of both, or while one of them is not in the tree. A thread
//! that waits for a node while holding its parent therefore waits along an edge of a tree, and edges of a tree form no
//! cycle. A parent is also locked from below, but only without waiting.
//!
//! # Lifetime of a node
//! A holder of a block keeps its node in the tree, so a worker's own change may release all locks and return to a node
//! that the worker holds. The thread that removes the last holder or the last child of a node removes the node as well,
//! for which it needs the parent's lock. If it has to release the node to wait for that lock, it then checks whether
//! the parent still links to the node, locks the node, and checks whether it is *still* without holders and children. A
//! store through the same node either came before, and the node is not dead, or comes after, and does not find it.
//! Slots may be reused at any time between these checks: a node is unlinked if it is dead under both locks, which is
//! correct whichever thread emptied it.
//!
//! # Accuracy of an answer during changes
//! While a lookup overlaps with changes of a worker, its depth for the worker is
//! - **never less than the smallest true depth** during the call: the walk ends for the worker at a block that it did
//!   not hold at that moment;
//! - **never more than the largest true depth**, unless during this call the worker both lost a block that the walk had
//!   passed and gained one further down *while the first was missing*. That requires a hole: engines drop the end of a
//!   chain first and never continue below a hole. The walk compares members, not sizes of sets, so one worker's loss is
//!   never hidden by another's gain.
//!
//! A store appears block by block from its beginning where nodes exist, then the new rest of it all at once.
//!
//! # Differences from the reference
//! They are those of [`super::radix`]: orphans are refused, two names for one position are one block, a name announced
//! elsewhere moves alone. (During the move the worker holds both positions for a moment.) Slots of nodes are reused,
//! but freed only with the tree.

mod nodes;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hashbrown::HashMap;
use parking_lot::{Mutex, RwLock};

use self::nodes::{Nodes, ROOTS, make_chain, unmake_chain};
use crate::interface::{ConcurrentDesign, LadderStats, Refusal, Scores, WorkerId, check_lengths};
use crate::radix::{ActiveWorkers, NameEnd, Names, NodeId};
use kvatlas_index::BlockHash;

/// Data of one worker: the nodes of the tree that the worker holds, by block hash.
#[derive(Debug, Default)]
struct Member {
    names: Names,
    /// True once the worker was removed from the index: a thread that waited for the lock of this data must look the
    /// worker up again.
    gone: bool,
}

/// A radix tree with one block and one lock per node, for many threads. See the [module](self).
#[derive(Debug)]
pub struct ConcurrentRadixTree {
    nodes: Nodes,
    members: RwLock<HashMap<WorkerId, Arc<Mutex<Member>>>>,
    refused: AtomicU64,
    unknown_removals: AtomicU64,
}

impl Default for ConcurrentRadixTree {
    fn default() -> Self {
        Self::new()
    }
}

/// Test hook, called at points between two locks, where other threads may change the tree. Returns false, except
/// sometimes in tests.
#[inline]
fn pause() -> bool {
    #[cfg(test)]
    return tests::come_between();
    #[cfg(not(test))]
    false
}

/// Root node below which the chains whose first block has the given content hash begin. There are several roots, which
/// share the load of locking.
fn root_of(content: u64) -> NodeId {
    // Content hashes may be small numbers in tests and replays, so the low bits are used.
    (content % u64::from(ROOTS)) as NodeId
}

impl ConcurrentRadixTree {
    /// Creates an empty radix tree.
    #[must_use]
    pub fn new() -> Self {
        Self {
            nodes: Nodes::new(),
            members: RwLock::default(),
            refused: AtomicU64::new(0),
            unknown_removals: AtomicU64::new(0),
        }
    }

    /// Calls `change` with a worker's block hashes and their nodes. An unknown worker is added if `register`; else the
    /// result is `None`.
    fn with<R>(&self, worker: WorkerId, register: bool, change: impl FnOnce(&mut Names) -> R) -> Option<R> {
        loop {
            let known = self.members.read().get(&worker).cloned();
            let member = match known {
                Some(member) => member,
                None if register => Arc::clone(self.members.write().entry(worker).or_default()),
                None => return None,
            };
            let mut member = member.lock();
            if !member.gone {
                return Some(change(&mut member.names));
            }
            // Dropped since: it leaves the list in a moment.
            drop(member);
            std::thread::yield_now();
        }
    }

    fn refuse(&self, refusal: Refusal) -> Refusal {
        self.refused.fetch_add(1, Ordering::Relaxed);
        refusal
    }

    /// Stores blocks as a chain of nodes below the node `at`, which must be a root or held by `worker`. `names`: the
    /// worker's nodes by block hash.
    fn extend(&self, worker: WorkerId, names: &mut Names, mut at: NodeId, blocks: &[BlockHash], contents: &[u64]) {
        // Nodes that lose a name to another position, processed when no lock is held.
        let mut left = Vec::new();
        let mut done = self.join(worker, names, &mut at, blocks, contents, &mut left);
        let mut ids = Vec::new();
        pause();
        while done < blocks.len() {
            // The rest is new: it is made outside the tree, and linked if its place is still the same.
            let contents = &contents[done..];
            ids.clear();
            self.nodes.take(contents.len(), &mut ids);
            make_chain(&self.nodes, &ids, contents, at, worker);
            pause();
            let mut parent = self.nodes.at(at).write();
            if parent.children.get(contents[0]).is_none() {
                parent.children.insert(contents[0], ids[0]);
                drop(parent);
                let named = blocks[done..].iter().zip(&ids);
                left.extend(named.filter_map(|(&name, &node)| names.announce(name, node, true)));
                break;
            }
            // Another worker was faster: join it.
            drop(parent);
            unmake_chain(&self.nodes, &ids);
            done += self.join(worker, names, &mut at, &blocks[done..], contents, &mut left);
        }
        self.leave_all(worker, left.into_iter().filter(|&node| names.lose(node)));
    }

    /// Adds `worker` to the holders of the existing nodes for the leading `blocks` below the node `at`, and sets `at`
    /// to the last of these nodes. Returns the number of these nodes.
    fn join(
        &self,
        worker: WorkerId,
        names: &mut Names,
        at: &mut NodeId,
        blocks: &[BlockHash],
        contents: &[u64],
        left: &mut Vec<NodeId>,
    ) -> usize {
        let above = self.nodes.at(*at).read();
        let Some(mut child) = above.children.get(contents[0]) else { return 0 };
        let mut node = self.nodes.at(child).write();
        drop(above);
        for (done, &name) in blocks.iter().enumerate() {
            let first = node.holders.insert(worker);
            left.extend(names.announce(name, child, first));
            *at = child;
            let Some(next) = contents.get(done + 1).and_then(|&content| node.children.get(content)) else {
                return done + 1;
            };
            child = next;
            // The new lock is taken before the old one is released.
            node = self.nodes.at(child).write();
        }
        blocks.len()
    }

    /// Removes `worker` from the holders of the given nodes, and nodes without holders and children from the tree.
    fn leave_all(&self, worker: WorkerId, nodes: impl IntoIterator<Item = NodeId>) {
        let mut freed = Vec::new();
        for node in nodes {
            self.leave(worker, node, &mut freed);
        }
        self.nodes.give_back(&freed);
    }

    fn leave(&self, worker: WorkerId, mut id: NodeId, freed: &mut Vec<NodeId>) {
        let mut node = self.nodes.at(id).write();
        node.holders.remove(worker);
        while node.is_dead() {
            let (parent, content) = (node.parent, node.content);
            let free_now = if pause() { None } else { self.nodes.at(parent).try_write() };
            let mut above = match free_now {
                Some(above) => above,
                None => {
                    // Another thread holds the parent. Waiting for it is allowed only without other node locks.
                    drop(node);
                    pause();
                    let above = self.nodes.at(parent).write();
                    if above.children.get(content) != Some(id) {
                        return;
                    }
                    node = self.nodes.at(id).write();
                    if !node.is_dead() {
                        return;
                    }
                    above
                }
            };
            *node = nodes::Node::default();
            above.children.remove(content);
            freed.push(id);
            if parent < ROOTS {
                return;
            }
            (id, node) = (parent, above);
        }
    }
}

impl ConcurrentDesign for ConcurrentRadixTree {
    fn store(
        &self,
        worker: WorkerId,
        parent: Option<BlockHash>,
        block_hashes: &[BlockHash],
        content_hashes: &[u64],
    ) -> Result<(), Refusal> {
        check_lengths(block_hashes, content_hashes).map_err(|refusal| self.refuse(refusal))?;
        let Some(&first) = content_hashes.first() else { return Ok(()) };
        if !self.nodes.has_room(block_hashes.len()) {
            return Err(self.refuse(Refusal::Full { what: "it has a node for every other number of 32 bits" }));
        }
        let stored = self.with(worker, parent.is_none(), |names| {
            let at = match parent {
                None => root_of(first),
                Some(parent) => names.get(parent)?,
            };
            self.extend(worker, names, at, block_hashes, content_hashes);
            Some(())
        });
        match (stored.flatten(), parent) {
            (None, Some(parent)) => Err(self.refuse(Refusal::UnknownParent { worker, parent })),
            _ => Ok(()),
        }
    }

    fn remove(&self, worker: WorkerId, block_hashes: &[BlockHash]) {
        let unknown = self.with(worker, false, |names| {
            let mut unknown = 0;
            let ended = block_hashes.iter().filter_map(|&name| match names.end(name) {
                NameEnd::Left(node) => Some(node),
                NameEnd::StillHeld => None,
                NameEnd::Unknown => {
                    unknown += 1;
                    None
                }
            });
            self.leave_all(worker, ended);
            unknown
        });
        let unknown = unknown.unwrap_or(block_hashes.len() as u64);
        if unknown != 0 {
            self.unknown_removals.fetch_add(unknown, Ordering::Relaxed);
        }
    }

    fn clear(&self, worker: WorkerId) {
        self.with(worker, false, |names| self.leave_all(worker, names.clear()));
    }

    fn drop_worker(&self, worker: WorkerId) {
        let Some(member) = self.members.read().get(&worker).cloned() else { return };
        let mut dropped = member.lock();
        if dropped.gone {
            return;
        }
        // The worker stays in the list until all is removed, so that no store for its successor interferes.
        self.leave_all(worker, dropped.names.clear());
        dropped.gone = true;
        drop(dropped);
        self.members.write().remove(&worker);
    }

    fn find(&self, content_hashes: &[u64], scores: &mut Scores) {
        scores.clear();
        let Some((&first, rest)) = content_hashes.split_first() else { return };
        let root = self.nodes.at(root_of(first)).read();
        let Some(first) = root.children.get(first) else { return };
        let mut at = self.nodes.at(first).read();
        drop(root);
        let mut running = ActiveWorkers::new(&at.holders);
        let mut depth = 1;
        for &content in rest {
            let Some(child) = at.children.get(content) else { break };
            let child = self.nodes.at(child).read();
            if !running.step(&at.holders, &child.holders, depth, scores) {
                return;
            }
            at = child;
            depth += 1;
        }
        running.finish(&at.holders, depth, scores);
    }

    fn stats(&self) -> LadderStats {
        let members: Vec<_> = self.members.read().values().cloned().collect();
        LadderStats {
            workers: members.len() as u64,
            blocks: members.iter().map(|member| member.lock().names.len() as u64).sum(),
            entries: self.nodes.live() as u64,
            refused: self.refused.load(Ordering::Relaxed),
            unknown_removals: self.unknown_removals.load(Ordering::Relaxed),
            messages: 0,
        }
    }

    fn holdings(&self) -> Vec<(WorkerId, BlockHash)> {
        let members: Vec<_> =
            self.members.read().iter().map(|(&worker, member)| (worker, Arc::clone(member))).collect();
        let mut holdings = Vec::new();
        for (worker, member) in members {
            holdings.extend(member.lock().names.iter().map(|name| (worker, name)));
        }
        holdings.sort_unstable();
        holdings
    }
}
