//! Plans for tests of the load test: prompts that share beginnings, on workers that evict the oldest blocks.

use std::collections::VecDeque;

use crate::compare::Rng;
use crate::plan::{Columns, Plan};

/// Parameters of a random plan for tests: numbers of prompts, workers and blocks.
#[derive(Clone, Copy)]
pub(crate) struct Mix {
    pub(crate) requests: usize,
    pub(crate) workers: u32,
    /// Capacity of a worker's cache, in blocks.
    pub(crate) cache: usize,
    /// Number of requests between two clears (losses of all blocks) of a worker.
    pub(crate) clears: usize,
}

impl Default for Mix {
    fn default() -> Self {
        Self { requests: 150, workers: 5, cache: 60, clears: 30 }
    }
}

/// Creates a plan from a seed. A block's hash depends on all blocks before it.
pub(crate) fn plan(seed: u64, mix: Mix) -> Plan {
    let mut rng = Rng::new(seed);
    let mut c = Columns {
        worker_count: mix.workers,
        block_size: 16,
        meta: format!("{{\"seed\": {seed}}}"),
        ..Columns::default()
    };
    let mut caches: Vec<VecDeque<u64>> = vec![VecDeque::new(); mix.workers as usize];
    let mut time = 0;
    let push = |c: &mut Columns, time, kind, worker, start: usize, length: usize, parent| {
        c.times.push(time);
        c.kinds.push(kind);
        c.workers.push(worker);
        c.starts.push(start as u64);
        c.lengths.push(length as u32);
        c.parents.push(parent);
    };
    for request in 0..mix.requests {
        time += rng.below(2_000_000) as u64;
        let worker = rng.below(mix.workers as usize) as u32;
        // Eight beginnings, each continued in a few ways.
        let length = 1 + rng.below(12);
        let (family, turn) = (rng.below(8) as u64, rng.below(3) as u64);
        let contents: Vec<u64> = (0..length as u64)
            .map(|at| Rng::new((family << 32) | (at << 8) | if at < 4 { 0 } else { turn }).next())
            .collect();
        let mut name = 0u64;
        let names: Vec<u64> = contents
            .iter()
            .map(|&content| {
                name = Rng::new(name ^ content).next() | 1;
                name
            })
            .collect();
        let start = c.contents.len();
        c.contents.extend(&contents);
        c.names.extend(&names);
        push(&mut c, time, 0, worker, start, length, 0);
        let cache = &mut caches[worker as usize];
        let held = names.iter().take_while(|name| cache.contains(name)).count();
        // Reused blocks are evicted last, the deepest first.
        for &name in names[..held].iter().rev() {
            cache.retain(|&other| other != name);
            cache.push_back(name);
        }
        let new: Vec<u64> = names[held..].iter().copied().filter(|name| !cache.contains(name)).collect();
        let room = (cache.len() + new.len()).saturating_sub(mix.cache).min(cache.len().saturating_sub(held));
        if room > 0 {
            let removed = c.removed.len();
            c.removed.extend(cache.drain(..room));
            push(&mut c, time, 3, worker, removed, room, 0);
        }
        if held < length && !new.is_empty() {
            let (kind, parent) = if held == 0 { (1, 0) } else { (2, names[held - 1]) };
            push(&mut c, time, kind, worker, start + held, length - held, parent);
            for &name in names[held..].iter().rev() {
                cache.retain(|&other| other != name);
                cache.push_back(name);
            }
        }
        if request % mix.clears == mix.clears - 1 {
            caches[worker as usize].clear();
            push(&mut c, time, 4, worker, 0, 0, 0);
        }
    }
    Plan::new(c).unwrap()
}
