//! Prompts on their way to workers, as a trie: blocks of a prompt just sent count as held until the engine's events
//! announce them.
//!
//! Each node of the trie is a run, a list of consecutive content hashes that is never split. A prompt that diverges
//! after `fork` blocks of a run continues in another run, found by (run, fork, next hash). An entry of a run says that
//! a worker will hold the run's first `end` blocks, for a given request, and until when. An entry is removed when its
//! request fails, when the index shows as many blocks, or when it expires, whichever comes first.
//!
//! The same runs count the blocks that each worker's requests use until they end. Blocks that several requests use
//! count once, and cannot be evicted from the worker's cache meanwhile.

use hashbrown::HashMap;

use super::DueNumbers;
use crate::time::Time;

const NO_RUN: u32 = u32::MAX;

/// Prompts on their way to workers, and the blocks that the requests at each worker use.
#[derive(Debug, Default)]
pub(crate) struct SentPrompts {
    runs: Vec<Run>,
    free: Vec<u32>,
    children: HashMap<(u32, u32, u64), u32>,
    due: DueNumbers,
    /// Length of the queue of expiry times, `due`, above which the items of entries that no longer exist are removed
    /// from it.
    due_most: usize,
    blocks: usize,
    most: usize,
    dropped: u64,
}

/// Number of a worker's requests that use exactly the first `end` blocks of a run (a list of consecutive blocks). The
/// entries of a run are sorted by worker and end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct BlockUse {
    worker: u32,
    end: u32,
    requests: u32,
}

#[derive(Debug, Default)]
struct Run {
    parent: u32,
    fork: u32,
    /// Number of the prompt's blocks before this run (a list of consecutive blocks).
    before: u32,
    children: u32,
    hashes: Vec<u64>,
    entries: Vec<Entry>,
    uses: Vec<BlockUse>,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    worker: u32,
    /// Number of first blocks of the run (a list of consecutive blocks) that the entry of a request on its way covers.
    end: u32,
    owner: u64,
    until: f64,
}

/// End of a stored prompt: its last run (a list of consecutive blocks), and the number of its blocks in that run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Leaf {
    run: u32,
    end: u32,
}

/// Result of inserting a prompt into the store of prompts on their way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Insertion {
    /// End of the stored prompt: its last run (a list of consecutive blocks) and the number of its blocks there. None
    /// if the prompt was not stored, because it has no blocks or the store is full.
    pub(crate) leaf: Option<Leaf>,
    /// Number of the prompt's leading blocks that were stored.
    pub(crate) depth: u32,
    /// Number of the prompt's leading blocks that no other request of the worker uses.
    pub(crate) own: u32,
}

impl SentPrompts {
    /// Creates a store for at most `most` blocks; prompts beyond this limit are counted but not stored.
    pub(crate) fn new(most: usize) -> Self {
        Self { most, ..Self::default() }
    }

    pub(crate) fn blocks(&self) -> usize {
        self.blocks
    }

    pub(crate) fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Adds a prompt with these blocks, on its way to `worker` for the request `owner`, which uses the blocks until
    /// [`SentPrompts::release`]. The blocks count as on their way until the time `until`, in seconds.
    pub(crate) fn insert(&mut self, hashes: &[u64], worker: u32, owner: u64, until: f64) -> Insertion {
        if hashes.is_empty() {
            return Insertion::default();
        }
        if self.due.len() > self.due_most {
            self.compact();
        }
        let (mut at, mut fork, mut rest, mut before, mut own) = (NO_RUN, 0, hashes, 0, 0);
        loop {
            let here = Leaf { run: at, end: fork };
            let Some(&first) = rest.first() else { return Insertion { leaf: Some(here), depth: before, own } };
            let Some(&next) = self.children.get(&(at, fork, first)) else { break };
            let run = &mut self.runs[next as usize];
            let alike = common(&run.hashes, rest);
            run.add(Entry { worker, end: alike, owner, until });
            own += run.begin_use(worker, alike);
            self.due.push(Time(until), next);
            (at, fork, before) = (next, alike, before + alike);
            rest = &rest[alike as usize..];
        }
        if self.blocks + rest.len() > self.most {
            self.dropped += 1;
            return Insertion { leaf: (at != NO_RUN).then_some(Leaf { run: at, end: fork }), depth: before, own };
        }
        self.blocks += rest.len();
        let mut run = Run { parent: at, fork, before, hashes: rest.to_vec(), ..Run::default() };
        let end = rest.len() as u32;
        run.add(Entry { worker, end, owner, until });
        own += run.begin_use(worker, end);
        let new = if let Some(free) = self.free.pop() {
            self.runs[free as usize] = run;
            free
        } else {
            self.runs.push(run);
            (self.runs.len() - 1) as u32
        };
        self.children.insert((at, fork, rest[0]), new);
        if let Some(parent) = self.runs.get_mut(at as usize) {
            parent.children += 1;
        }
        self.due.push(Time(until), new);
        Insertion { leaf: Some(Leaf { run: new, end }), depth: before + end, own }
    }

    /// Content hashes of a stored prompt, given by its end `leaf` (a run of blocks, and the number of the prompt's
    /// blocks in it).
    pub(crate) fn prompt(&self, leaf: Leaf) -> Vec<u64> {
        let (mut at, mut end, mut parts) = (leaf.run, leaf.end, Vec::new());
        while let Some(run) = self.runs.get(at as usize) {
            parts.push(&run.hashes[..(end as usize).min(run.hashes.len())]);
            (at, end) = (run.parent, run.fork);
        }
        parts.into_iter().rev().flatten().copied().collect()
    }

    /// Ends the use of a prompt's blocks by a request of `worker`; returns the number of blocks that no request at this
    /// worker uses any longer. `leaf`: end of the stored prompt.
    pub(crate) fn release(&mut self, leaf: Leaf, worker: u32) -> u32 {
        let (mut at, mut end, mut freed) = (leaf.run, leaf.end, 0);
        while let Some(run) = self.runs.get_mut(at as usize) {
            freed += run.end_use(worker, end);
            (at, end) = (run.parent, run.fork);
        }
        self.prune(leaf.run);
        freed
    }

    /// Calls `found(worker, depth)` with the number of leading blocks of a prompt that are on their way to a worker,
    /// and `used(worker, depth)` with the number of those that requests at the worker use. Each may be called several
    /// times for a worker, with rising depths. `held(worker)` returns the depth in the index, whose blocks are no
    /// longer on their way.
    pub(crate) fn find(
        &mut self,
        hashes: &[u64],
        now: f64,
        held: impl Fn(u32) -> u32,
        mut found: impl FnMut(u32, u32),
        mut used: impl FnMut(u32, u32),
    ) {
        if self.children.is_empty() {
            return;
        }
        let (mut at, mut fork, mut rest) = (NO_RUN, 0, hashes);
        while let Some(&first) = rest.first()
            && let Some(&next) = self.children.get(&(at, fork, first))
        {
            let run = &mut self.runs[next as usize];
            let alike = common(&run.hashes, rest);
            let before = run.before;
            // A run without entries stays until `expire` comes by.
            run.entries.retain(|entry| {
                if entry.until <= now || held(entry.worker) >= before + entry.end {
                    return false;
                }
                found(entry.worker, before + entry.end.min(alike));
                true
            });
            for its in &run.uses {
                used(its.worker, before + its.end.min(alike));
            }
            (at, fork) = (next, alike);
            rest = &rest[alike as usize..];
        }
    }

    /// Changes the expiry time of the entries of a request, by which its blocks count as on their way to a worker.
    pub(crate) fn until(&mut self, leaf: Leaf, owner: u64, until: f64) {
        self.climb(leaf, |run| {
            for entry in run.entries.iter_mut().filter(|entry| entry.owner == owner) {
                entry.until = until;
            }
        });
        let mut at = leaf.run;
        while let Some(run) = self.runs.get(at as usize) {
            self.due.push(Time(until), at);
            at = run.parent;
        }
    }

    /// Removes the entries, by which blocks count as on their way, of a request whose prompt will not be computed at
    /// its worker.
    pub(crate) fn forget(&mut self, leaf: Leaf, owner: u64) {
        self.climb(leaf, |run| run.entries.retain(|entry| entry.owner != owner));
        self.prune(leaf.run);
    }

    /// Removes, from the store of prompts on their way, all blocks on their way to a worker and all blocks that its
    /// requests use.
    pub(crate) fn forget_worker(&mut self, worker: u32) {
        for run in &mut self.runs {
            run.entries.retain(|entry| entry.worker != worker);
            run.uses.retain(|its| its.worker != worker);
        }
        for run in 0..self.runs.len() as u32 {
            self.prune(run);
        }
    }

    /// Removes entries of blocks on their way that expire at the time `now` or before.
    pub(crate) fn expire(&mut self, now: f64) {
        while let Some(run) = self.due.pop(now) {
            self.runs[run as usize].entries.retain(|entry| entry.until > now);
            self.prune(run);
        }
    }

    /// Removes outdated items from the queue of expiry times `due`: those whose entries no longer exist or expire
    /// earlier than queued.
    fn compact(&mut self) {
        for run in 0..self.runs.len() as u32 {
            self.prune(run);
        }
        let times = |(at, run): (usize, &Run)| -> Vec<_> {
            run.entries.iter().map(|entry| (Time(entry.until), at as u32)).collect()
        };
        self.due = self.runs.iter().enumerate().flat_map(times).collect();
        self.due_most = 2 * self.due.len() + 1024;
    }

    fn climb(&mut self, leaf: Leaf, mut each: impl FnMut(&mut Run)) {
        let mut at = leaf.run;
        while let Some(run) = self.runs.get_mut(at as usize) {
            each(run);
            at = run.parent;
        }
    }

    /// Frees a run (a list of consecutive blocks) if it has no entries, no used blocks and no continuations, and then
    /// its parent runs by the same rule.
    fn prune(&mut self, mut at: u32) {
        while let Some(run) = self.runs.get_mut(at as usize)
            && run.entries.is_empty()
            && run.uses.is_empty()
            && run.children == 0
            && let Some(&first) = run.hashes.first()
        {
            let (parent, fork) = (run.parent, run.fork);
            self.blocks -= run.hashes.len();
            run.hashes = Vec::new();
            self.children.remove(&(parent, fork, first));
            self.free.push(at);
            if let Some(above) = self.runs.get_mut(parent as usize) {
                above.children -= 1;
            }
            at = parent;
        }
    }
}

impl Run {
    /// Adds an entry (blocks of a run on their way to a worker), unless the worker has one that covers as many blocks
    /// for as long. Removes entries that the new one covers.
    fn add(&mut self, new: Entry) {
        let covers = |a: &Entry, b: &Entry| a.worker == b.worker && a.end >= b.end && a.until >= b.until;
        if self.entries.iter().any(|entry| covers(entry, &new)) {
            return;
        }
        self.entries.retain(|entry| !covers(&new, entry));
        self.entries.push(new);
    }

    /// Records a request of a worker that uses the first `end` blocks of the run (a list of consecutive blocks).
    /// Returns the number of these blocks that no other request at this worker used before.
    fn begin_use(&mut self, worker: u32, end: u32) -> u32 {
        let before = self.most_used(worker);
        let at = self.uses.partition_point(|its| (its.worker, its.end) < (worker, end));
        match self.uses.get_mut(at) {
            Some(its) if (its.worker, its.end) == (worker, end) => its.requests += 1,
            _ => self.uses.insert(at, BlockUse { worker, end, requests: 1 }),
        }
        end.saturating_sub(before)
    }

    /// Removes a request of a worker that used the first `end` blocks of the run (a list of consecutive blocks).
    /// Returns the number of these blocks that no request at this worker uses any longer.
    fn end_use(&mut self, worker: u32, end: u32) -> u32 {
        let Ok(at) = self.uses.binary_search_by_key(&(worker, end), |its| (its.worker, its.end)) else { return 0 };
        self.uses[at].requests -= 1;
        if self.uses[at].requests > 0 {
            return 0;
        }
        self.uses.remove(at);
        end.saturating_sub(self.most_used(worker))
    }

    /// Largest number of leading blocks of the run (a list of consecutive blocks) that a request of the worker uses.
    fn most_used(&self, worker: u32) -> u32 {
        let after = self.uses.partition_point(|its| its.worker <= worker);
        let last = after.checked_sub(1).and_then(|last| self.uses.get(last));
        last.filter(|its| its.worker == worker).map_or(0, |its| its.end)
    }
}

fn common(a: &[u64], b: &[u64]) -> u32 {
    const STEP: usize = 8;
    // One test for eight of them, without a call: most prompts are thousands of blocks long.
    let differ = |(a, b): (&[u64], &[u64])| a.iter().zip(b).fold(0, |bits, (a, b)| bits | (a ^ b)) != 0;
    let length = a.len().min(b.len());
    let chunks = a[..length].chunks_exact(STEP).zip(b[..length].chunks_exact(STEP));
    let start = STEP * chunks.take_while(|pair| !differ(*pair)).count();
    let rest = a[start..length].iter().zip(&b[start..length]).take_while(|(a, b)| a == b).count();
    (start + rest) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_of_what_is_over_do_not_pile_up() {
        let mut way = SentPrompts::new(1 << 20);
        let mut prompts = 0;
        for number in 0..50_000_u64 {
            let now = number as f64 * 1e-3;
            let hashes = [1, 2, number % 1_000, number];
            let (worker, hashes) = ((number % 4) as u32, hashes);
            let leaf = way.insert(&hashes, worker, number, now + 300.0).leaf.unwrap();
            way.release(leaf, worker);
            way.until(leaf, number, now + 0.1);
            way.expire(now);
            prompts = prompts.max(way.runs.len());
            assert!(way.due.len() < 8_192, "{} at {number}", way.due.len());
        }
        assert!(prompts < 2_048, "{prompts}");
        way.expire(1e3);
        assert_eq!((way.blocks(), way.children.len(), way.due.len()), (0, 0, 0));
    }

    #[test]
    fn blocks_that_several_use_count_once_until_the_last_has_ended() {
        let mut way = SentPrompts::new(1 << 20);
        let mut take = |hashes: &[u64], worker, owner| way.insert(hashes, worker, owner, 1.0);
        let one = take(&[1, 2, 3, 4], 0, 1);
        let two = take(&[1, 2, 5], 0, 2);
        let three = take(&[1, 2], 0, 3);
        let other = take(&[1, 2, 3, 4, 6], 1, 4);
        assert_eq!([one, two, three, other].map(|its| (its.depth, its.own)), [(4, 4), (3, 1), (2, 0), (5, 5)]);
        let used = |way: &mut SentPrompts, hashes: &[u64]| {
            let mut most = [0; 2];
            way.find(
                hashes,
                2.0,
                |_| 0,
                |_, _| (),
                |worker, depth| most[worker as usize] = most[worker as usize].max(depth),
            );
            most
        };
        assert_eq!(used(&mut way, &[1, 2, 3, 9]), [3, 3]);
        assert_eq!(used(&mut way, &[1, 2, 5, 7]), [3, 2]);
        // Blocks in use stay in use long after their time is over.
        way.expire(9.0);
        assert_eq!(way.release(one.leaf.unwrap(), 0), 2);
        assert_eq!(used(&mut way, &[1, 2, 3, 4]), [2, 4]);
        assert_eq!((way.release(two.leaf.unwrap(), 0), way.release(three.leaf.unwrap(), 0)), (1, 2));
        assert_eq!(used(&mut way, &[1, 2, 3, 4]), [0, 4]);
        way.forget_worker(1);
        assert_eq!((way.blocks(), way.children.len()), (0, 0));
    }
}
