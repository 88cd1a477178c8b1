//! Comparisons of an index design with the reference, in the functions whose names begin with `check`.
#![allow(dead_code, reason = "a helper for many files")]

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

use kvatlas_designs::{Change, ConcurrentDesign, Feed, LadderStats, LocalDesign, Refusal, Scores, WorkerId};
use kvatlas_index::reference::ReferenceIndex;
use kvatlas_index::{BlockHash, Event, Tier, View};

use crate::streams::{Random, Stream};

/// Properties of an index design besides exact depths and holdings, for its tests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Promise {
    /// True if the design refuses stores that continue a block which the worker does not hold; false if it keeps the
    /// blocks.
    pub(crate) refuses_orphans: bool,
    /// True if the design has no entries left once every worker was removed.
    pub(crate) tidy: bool,
}

/// Properties of a design that keeps all blocks, and has nothing left in the end.
pub(crate) const EXACT: Promise = Promise { refuses_orphans: false, tidy: true };

/// Applies each stream to a new index and to the reference. Compares all answers on the way and the final holdings, and
/// checks that nothing is left after all workers were removed. A failure is reported with its seed and the shortest
/// stream found.
pub(crate) fn check_local<T: LocalDesign>(
    make: impl Fn() -> T,
    promise: Promise,
    streams: impl IntoIterator<Item = Stream>,
) {
    check(&|| Box::new(OfLocal(make())), promise, streams);
}

/// Compares a concurrent design, used by one thread, with the reference, like [`check_local`].
pub(crate) fn check_concurrent<I: ConcurrentDesign>(
    make: impl Fn() -> I,
    promise: Promise,
    streams: impl IntoIterator<Item = Stream>,
) {
    check(&|| Box::new(OfConcurrent(make())), promise, streams);
}

/// Compares a running index with the reference, like [`check_local`], waiting for all changes before each comparison.
/// Refusals are only counted, so a design that refuses blocks without their parent needs streams without them.
pub(crate) fn check_feed(
    make: impl Fn() -> Box<dyn Feed>,
    promise: Promise,
    streams: impl IntoIterator<Item = Stream>,
) {
    check(&|| Box::new(OfFeed(make())), promise, streams);
}

/// Answer of an index to a query after some changes, sorted by worker, for tests of a single known error.
pub(crate) fn after_local(mut design: impl LocalDesign, changes: &[Change], query: &[u64]) -> Scores {
    for change in changes {
        design.apply(change).unwrap();
    }
    OfLocal(design).found(query)
}

/// Answer of a concurrent index to a query after some changes, sorted by worker, like [`after_local`].
pub(crate) fn after_concurrent(design: impl ConcurrentDesign, changes: &[Change], query: &[u64]) -> Scores {
    for change in changes {
        design.apply(change).unwrap();
    }
    OfConcurrent(design).found(query)
}

/// Answer of the reference to a query after some changes, sorted by worker.
pub(crate) fn truth(changes: &[Change], query: &[u64]) -> Scores {
    let mut oracle = Oracle::new();
    changes.iter().for_each(|change| oracle.apply(change));
    oracle.find(query)
}

/// Creates a store of blocks, given as pairs of block hash and content hash.
pub(crate) fn store(worker: WorkerId, parent: Option<u64>, blocks: &[(u64, u64)]) -> Change {
    let (block_hashes, content_hashes): (Vec<_>, Vec<_>) = blocks.iter().map(|&(n, c)| (BlockHash(n), c)).unzip();
    Change::Store {
        worker,
        parent: parent.map(BlockHash),
        block_hashes: block_hashes.into(),
        content_hashes: content_hashes.into(),
    }
}

/// Creates a removal of blocks, given by block hash.
pub(crate) fn remove(worker: WorkerId, names: &[u64]) -> Change {
    Change::Remove { worker, block_hashes: names.iter().copied().map(BlockHash).collect() }
}

/// Sends a stream from several threads, each the owner of some workers, while others look up; then compares with the
/// reference. No lookup may return a worker twice. If `bounded`, none may return more than the worker held at any time,
/// where the blocks of one change may come and go one by one.
pub(crate) fn check_under_load(feed: &dyn Feed, stream: &Stream, senders: u32, bounded: bool) {
    let mut oracle = Oracle::new();
    stream.changes.iter().for_each(|change| oracle.apply(change));
    let queries: Vec<_> = stream.queries.iter().take(8).collect();
    let mut most = BTreeMap::new();
    if bounded {
        // A worker's depth depends on its own changes alone, so each has a smaller reference of its own.
        let mut alone: BTreeMap<WorkerId, Oracle> = BTreeMap::new();
        for change in stream.changes.iter().flat_map(block_by_block) {
            let own = alone.entry(change.worker()).or_insert_with(Oracle::new);
            own.apply(&change);
            for (at, query) in queries.iter().enumerate() {
                for (worker, depth) in own.find(query) {
                    let most = most.entry((at, worker)).or_insert(0);
                    *most = depth.max(*most);
                }
            }
        }
    }
    let done = AtomicBool::new(false);
    let found_wrong = std::thread::scope(|scope| {
        let looking: Vec<_> = (0..2)
            .map(|reader| {
                let (queries, most, done) = (&queries, &most, &done);
                scope.spawn(move || {
                    let mut random = Random(stream.seed ^ reader);
                    let mut scores = Scores::new();
                    while !done.load(Ordering::Relaxed) {
                        let at = random.index(queries.len());
                        feed.find(queries[at], &mut scores);
                        scores.sort_unstable();
                        if scores.windows(2).any(|two| two[0].0 == two[1].0) {
                            return Some(format!("a worker twice: {scores:?}"));
                        }
                        let most = |worker| most.get(&(at, worker)).copied().unwrap_or(0);
                        if bounded && let Some(over) = scores.iter().find(|&&(worker, depth)| depth > most(worker)) {
                            return Some(format!("{over:?} of {:?}, never more than {}", queries[at], most(over.0)));
                        }
                    }
                    None
                })
            })
            .collect();
        let sending: Vec<_> = (0..senders)
            .map(|sender| {
                let own = stream.changes.iter().filter(move |change| change.worker() % senders == sender);
                scope.spawn(move || own.for_each(|change| feed.send(change.clone())))
            })
            .collect();
        sending.into_iter().for_each(|thread| thread.join().unwrap());
        feed.flush();
        done.store(true, Ordering::Relaxed);
        looking.into_iter().find_map(|thread| thread.join().unwrap())
    });
    assert_eq!(found_wrong, None, "seed {}", stream.seed);
    assert_eq!(feed.applied(), stream.changes.len() as u64);
    assert_eq!(feed.broken(), None);
    let of_feed = OfRef(feed);
    for query in &stream.queries {
        assert_eq!(of_feed.found(query), oracle.find(query), "seed {} query {query:?}", stream.seed);
    }
    assert_eq!(feed.holdings(), oracle.holdings(), "seed {}", stream.seed);
}

/// Divides a change into changes of one block each.
fn block_by_block(change: &Change) -> Vec<Change> {
    match change {
        Change::Store { worker, parent, block_hashes, content_hashes } => {
            let parents =
                std::iter::once(parent.map(|parent| parent.0)).chain(block_hashes.iter().map(|name| Some(name.0)));
            let blocks = block_hashes.iter().zip(content_hashes);
            parents.zip(blocks).map(|(parent, (name, &content))| store(*worker, parent, &[(name.0, content)])).collect()
        }
        Change::Remove { worker, block_hashes } => block_hashes.iter().map(|name| remove(*worker, &[name.0])).collect(),
        other => vec![other.clone()],
    }
}

/// The reference index with workers identified by number.
pub(crate) struct Oracle(ReferenceIndex);

impl Oracle {
    pub(crate) fn new() -> Self {
        Self(ReferenceIndex::new(false))
    }

    pub(crate) fn apply(&mut self, change: &Change) {
        let (tier, rank) = (Tier::Gpu, 0);
        let worker = change.worker().to_string().into_boxed_str();
        let event = match change {
            Change::Store { parent, block_hashes, content_hashes, .. } => Event::Store {
                worker,
                rank,
                tier,
                parent: *parent,
                block_hashes: block_hashes.to_vec(),
                content_hashes: content_hashes.to_vec(),
            },
            Change::Remove { block_hashes, .. } => {
                Event::Remove { worker, rank, tier, block_hashes: block_hashes.to_vec() }
            }
            Change::Clear { .. } => Event::Clear { worker, rank: None, tier: None },
            Change::Drop { .. } => Event::Drop { worker },
        };
        self.0.apply(&event).unwrap();
    }

    /// Answer of the reference to a query, sorted by worker.
    pub(crate) fn find(&self, query: &[u64]) -> Scores {
        let found = self.0.find(query).by_rank(View::Device);
        let mut scores: Scores = found.iter().map(|(worker, _, depth)| (worker.parse().unwrap(), *depth)).collect();
        scores.sort_unstable();
        scores
    }

    pub(crate) fn holdings(&self) -> Vec<(WorkerId, BlockHash)> {
        let mut holdings = Vec::new();
        for event in self.0.dump() {
            let Event::Store { worker, block_hashes, .. } = event else { continue };
            holdings.extend(block_hashes.into_iter().map(|name| (worker.parse().unwrap(), name)));
        }
        holdings.sort_unstable();
        holdings
    }
}

/// Common interface of single-threaded, concurrent and running indexes, for the comparisons.
trait Design {
    fn apply(&mut self, change: &Change) -> Result<(), Refusal>;
    fn find(&self, query: &[u64], scores: &mut Scores);
    fn stats(&self) -> LadderStats;
    fn holdings(&self) -> Vec<(WorkerId, BlockHash)>;

    fn found(&self, query: &[u64]) -> Scores {
        // Not empty: the answer must replace it.
        let mut scores = vec![(9, 9)];
        self.find(query, &mut scores);
        scores.sort_unstable();
        scores
    }
}

macro_rules! design {
    ($($name:ident($inner:ty) $(<$t:ident: $bound:ident>)?: $apply:expr;)*) => {$(
        struct $name $(<$t>)? ($inner);

        impl $(<$t: $bound>)? Design for $name $(<$t>)? {
            fn apply(&mut self, change: &Change) -> Result<(), Refusal> {
                let apply: fn(&mut $inner, &Change) -> Result<(), Refusal> = $apply;
                apply(&mut self.0, change)
            }
            fn find(&self, query: &[u64], scores: &mut Scores) {
                self.0.find(query, scores);
            }
            fn stats(&self) -> LadderStats {
                self.0.stats()
            }
            fn holdings(&self) -> Vec<(WorkerId, BlockHash)> {
                self.0.holdings()
            }
        }
    )*};
}

design! {
    OfLocal(T) <T: LocalDesign>: |design, change| design.apply(change);
    OfConcurrent(T) <T: ConcurrentDesign>: |design, change| design.apply(change);
    OfFeed(Box<dyn Feed>): |feed, change| {
        feed.send(change.clone());
        feed.flush();
        Ok(())
    };
}

struct OfRef<'a>(&'a dyn Feed);

impl Design for OfRef<'_> {
    fn apply(&mut self, change: &Change) -> Result<(), Refusal> {
        self.0.send(change.clone());
        Ok(())
    }
    fn find(&self, query: &[u64], scores: &mut Scores) {
        self.0.find(query, scores);
    }
    fn stats(&self) -> LadderStats {
        self.0.stats()
    }
    fn holdings(&self) -> Vec<(WorkerId, BlockHash)> {
        self.0.holdings()
    }
}

type Make<'a> = &'a dyn Fn() -> Box<dyn Design>;

fn check(make: Make<'_>, promise: Promise, streams: impl IntoIterator<Item = Stream>) {
    let mut checked = 0;
    for stream in streams {
        checked += 1;
        let fails = |changes: &[Change]| {
            catch_unwind(AssertUnwindSafe(|| compare(&mut *make(), promise, &stream, changes)))
                .unwrap_or_else(|_| Err("panicked".to_owned()))
                .err()
        };
        if let Some(what) = fails(&stream.changes) {
            let (changes, what) = shorten(&stream, what, fails);
            let listing: String = changes.iter().map(|change| format!("{change:?}\n")).collect();
            panic!("seed {} of {:?}: {what}\n{listing}", stream.seed, stream.family);
        }
    }
    assert!(checked > 0, "no streams");
}

/// Shortens a failing stream by leaving out ever smaller parts, as long as the stream still fails and belongs to its
/// family.
fn shorten(stream: &Stream, what: String, fails: impl Fn(&[Change]) -> Option<String>) -> (Vec<Change>, String) {
    let (mut changes, mut what) = (stream.changes.clone(), what);
    let mut step = changes.len().div_ceil(2);
    while step > 0 {
        let mut at = 0;
        while at < changes.len() {
            let mut fewer = changes.clone();
            fewer.drain(at..(at + step).min(changes.len()));
            match stream.family.allows(&fewer).then(|| fails(&fewer)).flatten() {
                Some(still) => (changes, what) = (fewer, still),
                None => at += step,
            }
        }
        step /= 2;
    }
    (changes, what)
}

fn compare(design: &mut dyn Design, promise: Promise, stream: &Stream, changes: &[Change]) -> Result<(), String> {
    let mut oracle = Oracle::new();
    let mut refused = 0;
    let mut random = Random(stream.seed);
    // The reference is slow: in long streams only some queries are compared.
    let every = if changes.len() > 24 { 8 } else { 1 };
    for (at, change) in changes.iter().enumerate() {
        match design.apply(change) {
            Ok(()) => oracle.apply(change),
            Err(Refusal::UnknownParent { worker, parent }) if promise.refuses_orphans => {
                let named =
                    matches!(change, Change::Store { worker: w, parent: Some(p), .. } if (*w, *p) == (worker, parent));
                if !named || oracle.holdings().binary_search(&(worker, parent)).is_ok() {
                    return Err(format!("change {at} was refused: worker {worker}, parent {parent:?}"));
                }
                refused += 1;
            }
            Err(refusal) => return Err(format!("change {at} was refused: {refusal}")),
        }
        let last = at + 1 == changes.len();
        if at % every == 0 || last {
            for query in &stream.queries {
                if !last && every > 1 && random.chance(70) {
                    continue;
                }
                let (got, want) = (design.found(query), oracle.find(query));
                if got != want {
                    return Err(format!("after change {at}, query {query:?}: {got:?}, not {want:?}"));
                }
            }
        }
    }
    if !design.found(&[]).is_empty() {
        return Err("the empty query has holders".to_owned());
    }
    if design.holdings() != oracle.holdings() {
        return Err(format!("holds {:?}, not {:?}", design.holdings(), oracle.holdings()));
    }
    let workers = oracle.0.workers();
    let want = LadderStats {
        workers: workers.len() as u64,
        blocks: workers.iter().map(|(_, blocks)| blocks).sum(),
        refused,
        unknown_removals: oracle.0.unknown_removals,
        ..LadderStats::default()
    };
    let got = LadderStats { entries: 0, messages: 0, ..design.stats() };
    if got != want {
        return Err(format!("{got:?}, not {want:?}"));
    }
    for (worker, _) in workers {
        let worker = worker.parse().unwrap();
        design.apply(&Change::Drop { worker }).map_err(|refusal| refusal.to_string())?;
    }
    let left = design.stats();
    if (left.workers, left.blocks) != (0, 0) || promise.tidy && left.entries > 0 || !design.holdings().is_empty() {
        return Err(format!("not empty after all workers were dropped: {left:?}"));
    }
    Ok(())
}
