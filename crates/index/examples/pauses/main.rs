//! Pauses: how long one event holds the writer, as a histogram for each workload at millions of held blocks, and for
//! events that were chosen to be as bad as can be. Names the longest.
//!
//! `cargo run --release -p kvatlas-index --features jemalloc --example pauses [-- --blocks 10000000] [--only NAME]`
//!
//! With jemalloc, as what is released has it (on Linux on x86-64; elsewhere leave that out). The system's allocator takes up
//! to some ten milliseconds now and then, to give back memory or to put together what is free.
//!
//! Every event is timed alone, in the thread that applies it, by the processor time of that thread: what others on the
//! machine took of the wall clock is none of the index's doing. The same by the wall clock stands beside the longest. Of what
//! is made in parts, the time is shown that another thread waits meanwhile who wants to change something: by the wall clock.

mod nasty;

use std::collections::VecDeque;
use std::thread;
use std::time::{Duration, Instant};

use kvatlas_index::{BlockHash, BlockIndex, Config, Tier};
use kvatlas_testing::{Random, mix};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

#[cfg(all(feature = "jemalloc", target_os = "linux", target_arch = "x86_64"))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// The workloads: `blocks` held by all engines together.
fn shapes(blocks: u64) -> [Shape; 4] {
    let shape = |name, engines, copies, own_names| Shape { name, engines, copies, own_names, blocks };
    [
        shape("one copy", 32, 1, false),
        shape("32 copies", 1_000, 32, false),
        shape("32 copies, own names", 1_000, 32, true),
        shape("100 copies", 10_000, 100, false),
    ]
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let after = |flag: &str| arguments.iter().position(|a| a == flag).and_then(|at| arguments.get(at + 1));
    let Ok(blocks) = after("--blocks").map_or(Ok(10_000_000), |text| text.parse()) else {
        eprintln!("--blocks: a whole number");
        std::process::exit(2);
    };
    let wanted = |name: &str| after("--only").is_none_or(|only| only == name);
    let mut all = Times::new("all events");
    eprintln!("{}", Times::heading());
    for shape in shapes(blocks).into_iter().filter(|shape| wanted(shape.name)) {
        let index = BlockIndex::new(Config::default()).expect("a block size");
        let mut fleet = Fleet::new(&shape);
        let mut times = Times::new(&format!("{}: filling", shape.name));
        while !fleet.is_full() {
            fleet.request(&index, &mut times);
        }
        times.tell(&mut all);
        let mut times = Times::new(&format!("{}: full", shape.name));
        (0..200_000 / u64::from(shape.copies)).for_each(|_| fleet.request(&index, &mut times));
        times.tell(&mut all);
    }
    if wanted("nasty") {
        nasty::all(blocks, &mut all);
    }
    all.clone().tell(&mut all);
}

/// Events longer than these many nanoseconds are counted.
const LIMITS: [u64; 5] = [1_000, 10_000, 100_000, 1_000_000, 10_000_000];

/// The longest event.
#[derive(Clone, Default)]
struct Longest {
    processor: u64,
    wall: u64,
    what: String,
}

/// Times that the events of one kind took.
#[derive(Clone)]
pub(crate) struct Times {
    name: String,
    nanoseconds: Vec<u64>,
    longest: Longest,
    /// True if these are times that others waited.
    are_waits: bool,
    /// Time that reading the clock takes.
    clock: u64,
}

fn processor_time() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

impl Times {
    pub(crate) fn new(name: &str) -> Self {
        let mut clock: Vec<u64> = (0..1_001).map(|_| processor_time().abs_diff(processor_time())).collect();
        clock.sort_unstable();
        Self {
            name: name.to_owned(),
            nanoseconds: Vec::new(),
            longest: Longest::default(),
            are_waits: false,
            clock: clock[500],
        }
    }

    /// Times one event.
    pub(crate) fn time<T>(&mut self, what: &str, event: impl FnOnce() -> T) -> T {
        let (wall, processor) = (Instant::now(), processor_time());
        let result = event();
        let processor = processor_time().abs_diff(processor).saturating_sub(self.clock);
        let wall = wall.elapsed();
        self.nanoseconds.push(processor);
        if processor > self.longest.processor {
            let wall = wall.as_nanos() as u64;
            self.longest = Longest { processor, wall, what: format!("{what}, number {}", self.nanoseconds.len()) };
        }
        result
    }

    /// Times how long others wait who want to change something during a long event: by the wall clock, as waiting takes no
    /// processor. Each has a processor to itself, if there are two: what is to be seen is not who waits for one.
    pub(crate) fn time_others(&mut self, what: &str, event: impl FnOnce() + Send, other: impl Fn()) {
        self.are_waits = true;
        let before = sched_getaffinity(None).expect("a set of processors");
        let mut processors = (0..CpuSet::MAX_CPU).filter(|at| before.is_set(*at));
        let (first, second) = (processors.next(), processors.next());
        let go_to = |processor: Option<usize>| {
            let Some(processor) = processor else { return };
            let mut set = CpuSet::new();
            set.set(processor);
            sched_setaffinity(None, &set).expect("one that is there");
        };
        thread::scope(|scope| {
            let event = scope.spawn(move || {
                go_to(second);
                event();
            });
            go_to(first);
            while !event.is_finished() {
                let start = Instant::now();
                other();
                let wall = start.elapsed().as_nanos() as u64;
                self.nanoseconds.push(wall);
                if wall > self.longest.processor {
                    let what = format!("another during {what}, number {}", self.nanoseconds.len());
                    self.longest = Longest { processor: wall, wall, what };
                }
            }
        });
        sched_setaffinity(None, &before).expect("those from before");
    }

    pub(crate) fn heading() -> String {
        format!(
            "{:<44} {:>9} {:>8} {:>8} {:>8} {:>9} | {:>8} {:>7} {:>6} {:>5} {:>5} | longest",
            "us", "events", "p50", "p99", "p99.99", "longest", ">1", ">10", ">100", ">1000", ">10^4"
        )
    }

    /// Prints a line, and adds all to `sum`.
    pub(crate) fn tell(mut self, sum: &mut Self) {
        if self.nanoseconds.is_empty() {
            return;
        }
        self.nanoseconds.sort_unstable();
        let n = self.nanoseconds.len();
        let at = |share: f64| micros(self.nanoseconds[((n as f64 * share) as usize).min(n - 1)]);
        let over = LIMITS.map(|limit| n - self.nanoseconds.partition_point(|&time| time <= limit));
        let Longest { processor, wall, what } = &self.longest;
        eprintln!(
            "{:<44} {n:>9} {:>8.1} {:>8.1} {:>8.1} {:>9.1} | {:>8} {:>7} {:>6} {:>5} {:>5} | {what} ({:.1} by the wall)",
            self.name,
            at(0.5),
            at(0.99),
            at(0.9999),
            micros(*processor),
            over[0],
            over[1],
            over[2],
            over[3],
            over[4],
            micros(*wall)
        );
        if *processor > sum.longest.processor {
            sum.longest = self.longest.clone();
            sum.longest.what = format!("{}: {}", self.name, sum.longest.what);
        }
        // Those who had nothing to wait for are as many as there was time for: they are no events.
        if !self.are_waits {
            sum.nanoseconds.append(&mut self.nanoseconds);
        }
    }
}

fn micros(nanoseconds: u64) -> f64 {
    Duration::from_nanos(nanoseconds).as_secs_f64() * 1e6
}

/// Blocks of the prompt that all conversations of a group begin with.
const SYSTEM: u64 = 8;
/// Number of groups.
const GROUPS: u64 = 64;

/// A fleet.
pub(crate) struct Shape {
    pub(crate) name: &'static str,
    pub(crate) engines: u64,
    /// Engines that each conversation is on.
    pub(crate) copies: u32,
    /// True if every engine has block hashes of its own.
    pub(crate) own_names: bool,
    /// Blocks that all hold together.
    pub(crate) blocks: u64,
}

/// One engine's part of a conversation.
struct CachedPart {
    conversation: u64,
    blocks: u64,
}

struct Engine {
    name: String,
    salt: u64,
    /// Least recently used first.
    held: VecDeque<CachedPart>,
    blocks: u64,
    room: u64,
    is_full: bool,
}

/// Engines at work.
pub(crate) struct Fleet {
    engines: Vec<Engine>,
    copies: u64,
    /// Conversations that go on: number and length.
    conversations: Vec<(u64, u64)>,
    next: u64,
    /// Engines that have had to evict.
    full: usize,
    random: Random,
}

/// The content of a block.
pub(crate) fn content(conversation: u64, at: u64) -> u64 {
    if at < SYSTEM { mix(((conversation % GROUPS) << 8) | at) } else { mix(mix(conversation + GROUPS) ^ at) }
}

fn name(salt: u64, conversation: u64, at: u64) -> BlockHash {
    BlockHash(mix(content(conversation, at) ^ salt))
}

impl Fleet {
    pub(crate) fn new(shape: &Shape) -> Self {
        let engine = |i: u64| Engine {
            name: format!("engine-{i}"),
            salt: if shape.own_names { mix(i + 1) } else { 5 },
            held: VecDeque::new(),
            blocks: 0,
            room: shape.blocks / shape.engines,
            is_full: false,
        };
        Self {
            engines: (0..shape.engines).map(engine).collect(),
            copies: shape.copies.into(),
            conversations: Vec::new(),
            next: 0,
            full: 0,
            random: Random(7),
        }
    }

    /// True if nearly all engines are full.
    pub(crate) fn is_full(&self) -> bool {
        self.full * 20 >= self.engines.len() * 19
    }

    /// A request, on every engine of its conversation.
    pub(crate) fn request(&mut self, index: &BlockIndex, times: &mut Times) {
        let random = &mut self.random;
        let most = 64.max(self.engines.len());
        if self.conversations.len() < most || random.chance(20) {
            if self.conversations.len() >= most {
                let at = random.index(self.conversations.len());
                self.conversations.swap_remove(at);
            }
            self.conversations.push((self.next, SYSTEM));
            self.next += 1;
        }
        let at = random.index(self.conversations.len());
        let (conversation, length) = &mut self.conversations[at];
        *length += 4 + random.below(60);
        let (conversation, length) = (*conversation, *length);
        let most = self.engines.len() as u64;
        for copy in 0..self.copies {
            let engine = mix(mix(conversation) ^ copy) % most;
            let engine = &mut self.engines[engine as usize];
            let was_full = engine.is_full;
            engine.serve(conversation, length, index, times);
            self.full += usize::from(engine.is_full && !was_full);
        }
    }
}

impl Engine {
    fn serve(&mut self, conversation: u64, length: u64, index: &BlockIndex, times: &mut Times) {
        let at = self.held.iter().rev().take(256).position(|held| held.conversation == conversation);
        let held = at.and_then(|at| self.held.remove(self.held.len() - 1 - at));
        let from = held.map_or(0, |held| held.blocks);
        let new = length - from;
        while self.blocks + new > self.room {
            self.is_full = true;
            let Some(oldest) = self.held.front_mut() else { break };
            let least = if oldest.blocks > SYSTEM { SYSTEM } else { 0 };
            let to = oldest.blocks.saturating_sub(self.blocks + new - self.room).max(least);
            let gone: Vec<_> = (to..oldest.blocks)
                .rev()
                .filter(|&at| at >= SYSTEM)
                .map(|at| name(self.salt, oldest.conversation, at))
                .collect();
            self.blocks -= oldest.blocks - to;
            oldest.blocks = to;
            if to <= SYSTEM {
                self.held.pop_front();
            }
            if !gone.is_empty() {
                times.time("eviction", || index.remove(&self.name, 0, Tier::Gpu, &gone));
            }
        }
        let names: Vec<_> = (from..length).map(|at| name(self.salt, conversation, at)).collect();
        let contents: Vec<_> = (from..length).map(|at| content(conversation, at)).collect();
        let parent = from.checked_sub(1).map(|at| name(self.salt, conversation, at));
        // The system prompt is announced when it is new, not as another copy.
        times
            .time("store", || index.store_once(&self.name, 0, Tier::Gpu, parent, &names, &contents))
            .expect("lists of one length");
        self.blocks += new;
        self.held.push_back(CachedPart { conversation, blocks: length });
    }
}
