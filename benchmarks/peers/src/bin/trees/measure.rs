//! The operations that are timed: routing a trace, and evicting from a large tree.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

use crate::alloc;
use crate::rng::{Rng, mix};
use crate::subjects::Subject;

/// Requests in order of arrival, with the worker each is sent to.
pub struct Load<K> {
    pub keys: Vec<K>,
    pub tenants: Vec<String>,
}

/// Chooses as routers in front of `workers` engines would: a conversation stays, one in ten requests moves.
pub fn route(requests: &[Vec<u32>], workers: usize, seed: u64) -> Vec<String> {
    let mut rng = Rng::new(seed);
    let home = |ids: &[u32]| mix(u64::from(ids.get(1).copied().unwrap_or(ids[0]))) as usize % workers;
    requests
        .iter()
        .map(|ids| {
            let worker = if rng.unit() < 0.1 { rng.below(workers) } else { home(ids) };
            format!("http://10.0.0.{worker}:8000")
        })
        .collect()
}

/// Microseconds a request: insert into an empty tree, match against the full one, match and insert into an empty one;
/// and the units matched by the last two, to compare.
#[derive(Clone, Copy)]
pub struct Times {
    pub insert: f64,
    pub matching: f64,
    pub both: f64,
    pub matched: [usize; 2],
}

fn timed(requests: usize, threads: usize, work: impl Fn(usize) -> usize + Sync) -> (f64, usize) {
    let next = AtomicUsize::new(0);
    let total = AtomicUsize::new(0);
    let run = || {
        let mut sum = 0;
        loop {
            let at = next.fetch_add(1, Relaxed);
            if at >= requests {
                break;
            }
            sum += work(at);
        }
        total.fetch_add(sum, Relaxed);
    };
    let start = Instant::now();
    if threads == 1 {
        run();
    } else {
        std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(run))));
    }
    (start.elapsed().as_secs_f64() * 1e6 / requests as f64, total.load(Relaxed))
}

pub fn times<S: Subject, K: AsRef<S::Key> + Sync>(load: &Load<K>, threads: usize) -> Times {
    let n = load.keys.len();
    let tree = S::make();
    let (insert, _) = timed(n, threads, |i| {
        tree.insert(load.keys[i].as_ref(), &load.tenants[i]);
        0
    });
    let (matching, full) = timed(n, threads, |i| tree.matched(load.keys[i].as_ref()));
    drop(tree);
    let tree = S::make();
    let (both, found) = timed(n, threads, |i| tree.match_and_insert(load.keys[i].as_ref(), &load.tenants[i]));
    Times { insert, matching, both, matched: [full, found] }
}

/// Bytes of the tree that holds all requests.
pub fn bytes<S: Subject, K: AsRef<S::Key>>(load: &Load<K>) -> i64 {
    alloc::start();
    let tree = S::make();
    load.keys.iter().zip(&load.tenants).for_each(|(key, tenant)| tree.insert(key.as_ref(), tenant));
    let live = alloc::live();
    alloc::stop();
    drop(tree);
    live
}

/// Milliseconds to evict 1 %, then 10 %, of all there is, then one of the tenants to half of what it has.
pub fn evictions<S: Subject, K: AsRef<S::Key>>(load: &Load<K>) -> [f64; 3] {
    let tree = S::make();
    load.keys.iter().zip(&load.tenants).for_each(|(key, tenant)| tree.insert(key.as_ref(), tenant));
    let clock = |work: &dyn Fn()| {
        let start = Instant::now();
        work();
        start.elapsed().as_secs_f64() * 1e3
    };
    let all = tree.total();
    let one = clock(&|| tree.evict_to(all / 100 * 99));
    assert!(tree.total() <= all / 100 * 99 && tree.total() * 100 > all * 95);
    let ten = clock(&|| tree.evict_to(all / 100 * 89));
    assert!(tree.total() <= all / 100 * 89);
    let tenant = &load.tenants[0];
    let half = tree.tenant_size(tenant) / 2;
    let tenant_half = clock(&|| tree.evict_tenant(tenant, half));
    assert!(tree.tenant_size(tenant) <= half);
    [one, ten, tenant_half]
}
