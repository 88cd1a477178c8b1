//! Events chosen to be as bad as can be, in an index that is full.

use kvatlas_index::{BlockHash, BlockIndex, Config, Tier};
use kvatlas_testing::mix;

use crate::Times;

/// Workers that hold all but what is nasty.
const WORKERS: u64 = 32;
/// Blocks of a chain, and of an event.
const CHAIN: u64 = 256;
/// Number of times that what can be repeated is.
const TIMES: u64 = 10;

struct Setting<'a> {
    index: BlockIndex,
    /// Blocks of each worker.
    each: u64,
    all: &'a mut Times,
}

/// Runs them all, and adds their times to `all`.
pub(crate) fn all(blocks: u64, all: &mut Times) {
    let index = BlockIndex::new(Config::default()).expect("a block size");
    let mut it = Setting { index, each: blocks / WORKERS, all };
    it.fill();
    it.short_runs();
    it.tail_of_a_busy_run();
    it.holes();
    it.orphans();
    it.levels();
    it.second_name();
    it.own_names();
    it.copies();
    it.offloading();
    it.looking();
    it.all_at_once();
}

/// Block hashes that no other worker uses.
fn names(chain: u64, range: std::ops::Range<u64>) -> Vec<BlockHash> {
    range.map(|at| BlockHash(mix(chain << 24 | at))).collect()
}

fn contents(chain: u64, range: std::ops::Range<u64>) -> Vec<u64> {
    range.map(|at| mix(!(chain << 24 | at))).collect()
}

impl Setting<'_> {
    /// `range` of a chain, after what comes before it there, or after another block.
    fn store(&self, worker: &str, chain: u64, range: std::ops::Range<u64>, after: Option<BlockHash>) {
        let before = range.start.checked_sub(1).map(|last| names(chain, last..last + 1)[0]);
        let (names, contents) = (names(chain, range.clone()), contents(chain, range));
        let stored = self.index.store(worker, 0, Tier::Gpu, after.or(before), &names, &contents);
        stored.expect("lists of one length");
    }

    fn remove(&self, worker: &str, chain: u64, range: std::ops::Range<u64>) {
        self.index.remove(worker, 0, Tier::Gpu, &names(chain, range));
    }

    /// The same, in events of a usual size.
    fn store_long(&self, worker: &str, chain: u64, blocks: u64) {
        for from in (0..blocks).step_by(CHAIN as usize) {
            self.store(worker, chain, from..blocks.min(from + CHAIN), None);
        }
    }

    fn tell(&mut self, times: Times) {
        times.tell(self.all);
    }

    fn fill(&mut self) {
        let mut times = Times::new("chains of 256 of one worker after the other");
        for worker in 0..WORKERS {
            let name = format!("w{worker}");
            for chain in 0..self.each / CHAIN {
                times.time("store", || self.store(&name, worker << 20 | chain, 0..CHAIN, None));
            }
        }
        self.tell(times);
    }

    /// As many chains as there can be in as many blocks, the eviction of half, and a clear of the rest.
    fn short_runs(&mut self) {
        const SHORT: u64 = 1 << 38;
        let mut times = Times::new("chains of 3 of one worker");
        for chain in 0..self.each * WORKERS / 6 {
            times.time("store", || self.store("short", SHORT + chain, 0..3, None));
        }
        // Half of its list of runs is out of date.
        for chain in 0..self.each * WORKERS / 12 + 100 {
            times.time("eviction", || self.remove("short", SHORT + chain, 0..3));
        }
        times.time("cleared", || self.index.clear("short", None, None));
        for _ in 0..self.each * WORKERS / 6 / 16 {
            times.time("another's store after the clear", || self.store("other", SHORT, 0..3, None));
        }
        self.tell(times);
    }

    /// Everybody's conversations hang on a run; one worker evicts and stores the end of it.
    fn tail_of_a_busy_run(&mut self) {
        const RUN: u64 = 1 << 30;
        self.store("tail", RUN, 0..64, None);
        let after = names(RUN, 63..64).pop();
        for worker in 0..WORKERS {
            let name = format!("busy-{worker}");
            self.store(&name, RUN, 0..64, None);
            (0..100_000 / WORKERS).for_each(|chain| self.store(&name, RUN + 1 + worker * 10_000 + chain, 0..2, after));
        }
        let mut times = Times::new("tail of a run with 100,000 children");
        for time in 0..TIMES {
            times.time("eviction", || self.remove("tail", RUN, 63..64));
            times.time("store", || self.store("tail", RUN, 63..64, None));
            times.time("another store", || self.store("tail", (1 << 31) + time, 0..2, None));
        }
        self.tell(times);
        let mut times = Times::new("hole above 3,125 chains of a worker");
        times.time("opened", || self.remove("busy-3", RUN, 20..21));
        times.time("filled", || self.store("busy-3", RUN, 20..21, None));
        self.tell(times);
        (0..WORKERS).for_each(|worker| self.index.drop_worker(&format!("busy-{worker}")));
    }

    fn holes(&mut self) {
        const LONG: u64 = 1 << 32;
        self.store_long("deep", LONG, 100_000);
        let mut times = Times::new("hole above 100,000 blocks of one chain");
        for _ in 0..2 {
            times.time("opened", || self.remove("deep", LONG, 10..11));
            times.time("filled", || self.store("deep", LONG, 10..11, None));
        }
        self.tell(times);
        self.index.drop_worker("deep");
    }

    fn orphans(&mut self) {
        const ORPHAN: u64 = 1 << 33;
        let nobody = Some(BlockHash(4));
        let mut times = Times::new("50,000 orphans of one parent");
        for chain in 0..50_000 {
            times.time("store", || self.store("orphans", ORPHAN + chain, 0..1, nobody));
        }
        for chain in 0..50_000 {
            times.time("removal", || self.remove("orphans", ORPHAN + chain, 0..1));
        }
        self.tell(times);
        let mut times = Times::new("chains of 256 without a known parent");
        let chains = self.each / CHAIN;
        for chain in 0..chains {
            times.time("store", || self.store("orphans", ORPHAN + chain, 1..CHAIN, None));
        }
        for chain in 0..chains {
            times.time("beginning comes", || self.store("orphans", ORPHAN + chain, 0..1, None));
        }
        self.tell(times);
        self.index.drop_worker("orphans");
    }

    fn levels(&mut self) {
        const RUN: u64 = 1 << 34;
        for worker in 0..2_000 {
            self.store(&format!("cut-{worker}"), RUN, 0..16 + worker * 8, None);
        }
        let mut times = Times::new("a run that 2,000 workers hold each so far");
        for time in 0..TIMES {
            let (worker, to) = (format!("cut-{}", time * 190), 16 + time * 190 * 8);
            times.time("its end evicted", || self.remove(&worker, RUN, to - 4..to));
            times.time("its end stored", || self.store(&worker, RUN, to - 4..to, None));
        }
        self.tell(times);
        (0..2_000).for_each(|worker| self.index.drop_worker(&format!("cut-{worker}")));
    }

    /// A rank with a second name of a position stores and evicts.
    fn second_name(&mut self) {
        const OTHER: u64 = 1 << 35;
        let mut times = Times::new("a second name, and then usual events");
        let again = &contents(0, 0..1);
        let named = || self.index.store("w0", 0, Tier::Gpu, None, &[BlockHash(1)], again);
        times.time("second name", named).expect("lists of one length");
        for chain in 0..100 {
            times.time("store", || self.store("w0", OTHER + chain, 0..CHAIN, None));
        }
        for chain in 0..100 {
            times.time("eviction", || self.remove("w0", OTHER + chain, 0..CHAIN));
        }
        self.tell(times);
    }

    /// A rank names a block otherwise than others do.
    fn own_names(&mut self) {
        let mut times = Times::new("a name of its own");
        let again = &contents(0, 0..1);
        let named = || self.index.store("w1", 0, Tier::Gpu, None, &[BlockHash(2)], again);
        times.time("store", named).expect("lists of one length");
        for chain in 0..1_000 {
            times.time("store", || self.store("w1", (1 << 36) + chain, 0..CHAIN, None));
        }
        self.tell(times);
    }

    fn copies(&mut self) {
        let mut times = Times::new("a second copy of all");
        for chain in 0..self.each / CHAIN {
            times.time("store", || self.store("w2", 2 << 20 | chain, 0..CHAIN, None));
        }
        times.time("cleared", || self.index.clear("w2", None, None));
        self.tell(times);
    }

    /// Does in parts, between which others have their turn, what takes long for who has much: for w3, and for w1, which
    /// has names of its own.
    fn offloading(&mut self) {
        for (worker, first) in [("w3", 3 << 20), ("w1", 1 << 20)] {
            let chain = |chain: u64| (names(first | chain, 0..CHAIN), contents(first | chain, 0..CHAIN));
            let store = |index: &BlockIndex, tier, at| {
                let (names, contents) = chain(at);
                index.store(worker, 0, tier, None, &names, &contents).expect("lists of one length");
            };
            let other = || drop(self.index.ranks_of("w9"));
            let mut times = Times::new(&format!("tiers of {worker}, begun and cleared: others wait"));
            times.time_others("the first offload", || store(&self.index, Tier::Cpu, 1), other);
            times.time_others("the first block on a third tier", || store(&self.index, Tier::Disk, 2), other);
            let mut offloads = Times::new(&format!("tiers of {worker}"));
            for at in 3..self.each / CHAIN {
                offloads.time("offload", || store(&self.index, Tier::Cpu, at));
            }
            times.time_others("a clear of one", || self.index.clear(worker, None, Some(Tier::Cpu)), other);
            times.time_others("a clear of the device", || self.index.clear(worker, None, Some(Tier::Gpu)), other);
            offloads.time("the last tier cleared", || self.index.clear(worker, None, Some(Tier::Disk)));
            self.tell(times);
            self.tell(offloads);
        }
        for chain in 0..self.each / CHAIN {
            self.store("w3", 3 << 20 | chain, 0..CHAIN, None);
        }
    }

    fn looking(&mut self) {
        let mut times = Times::new("ranks");
        (0..TIMES).for_each(|_| drop(times.time("ranks", || self.index.ranks())));
        self.tell(times);
        let mut times = Times::new("stats and a dump: others wait");
        let other = || drop(self.index.ranks_of("w9"));
        for _ in 0..TIMES {
            times.time_others("stats", || assert!(self.index.stats().blocks > 0), other);
        }
        let dump = || assert!(self.index.dump_in_slices(BlockIndex::SLICE).flatten().count() > 0);
        times.time_others("a dump", dump, other);
        self.tell(times);
    }

    fn all_at_once(&mut self) {
        let mut times = Times::new("workers cleared and dropped");
        times.time("cleared", || self.index.clear("w4", None, None));
        for worker in 5..WORKERS {
            times.time("dropped", || self.index.drop_worker(&format!("w{worker}")));
        }
        self.tell(times);
        let other = || drop(self.index.ranks_of("w9"));
        for name in ["shared names", "names of its own"] {
            let worker = format!("long, {name}");
            if name == "names of its own" {
                // All that it stores is known by other names.
                let names: Vec<_> = (0..100_000).map(|at| BlockHash(mix(at))).collect();
                let contents = contents(1 << 37, 0..100_000);
                let long = || self.index.store("another", 0, Tier::Gpu, None, &names, &contents);
                long().expect("lists of one length");
            }
            let mut times = Times::new(&format!("100,000 blocks, {name}: others wait"));
            times.time_others("a store", || self.store(&worker, 1 << 37, 0..100_000, None), other);
            times.time_others("an eviction", || self.remove(&worker, 1 << 37, 0..100_000), other);
            self.store(&worker, 1 << 37, 0..100_000, None);
            let mut backwards = names(1 << 37, 0..100_000);
            backwards.reverse();
            let evict = || self.index.remove(&worker, 0, Tier::Gpu, &backwards);
            times.time_others("an eviction from the end", evict, other);
            times.tell(self.all);
        }
    }
}
