//! Random streams of events with everything that can go wrong in them, and the comparison with the reference.
#![allow(unreachable_pub, dead_code, reason = "several tests share this, none uses all of it")]

use std::collections::HashMap;

use kvatlas_index::reference::ReferenceIndex;
use kvatlas_index::{BlockHash, BlockIndex, Config, Error, Event, RankHandle, Tier, View};

use kvatlas_testing::{Random, mix};

/// Kind of fleet that a stream comes from.
struct Fleet {
    workers: u64,
    ranks: u64,
    offloads: bool,
    /// True if engines name blocks alike.
    same_names: bool,
    /// Percent of blocks with a random name out of few, of parents that are any name at all.
    chaos: u64,
    /// Different contents a block can have.
    contents: u64,
    longest: u64,
    /// Prompts that are in use at a time.
    prompts: usize,
}

/// A stream, and what to ask.
pub struct Plan {
    pub config: Config,
    pub events: Vec<Event>,
    pub queries: Vec<Vec<u64>>,
    /// Number of blocks below a hole from which on they go together.
    pub branch_from: u64,
    /// Number of blocks of an event after which others have their turn.
    pub turn_after: usize,
    /// A rank of more blocks gets names of its own in steps.
    pub own_names_at_once: u64,
}

/// The stream of a seed: `length` events.
pub fn plan(seed: u64, length: usize) -> Plan {
    let random = &mut Random(seed);
    // Now and then so much that what takes steps takes several.
    let large = random.chance(6);
    let fleet = Fleet {
        workers: *random.pick(&[1, 2, 3, 5, 8, 80, 300]),
        ranks: *random.pick(&[1, 1, 2]),
        offloads: random.chance(30),
        same_names: random.chance(60),
        chaos: *random.pick(&[0, 0, 5, 30, 100]),
        contents: *random.pick(&[1, 2, 3, 1 << 40]),
        longest: if large { 200 } else { *random.pick(&[3, 12, 40]) },
        prompts: if large { 100 } else { 24 },
    };
    let config = Config { block_size: 1, count_copies: random.chance(70) };
    let mut prompts: Vec<Vec<u64>> = Vec::new();
    let mut events = Vec::new();
    while events.len() < length {
        if prompts.len() < 4 || random.chance(if fleet.prompts > 24 { 70 } else { 20 }) {
            prompts.push(prompt(random, &fleet, &prompts));
        }
        if prompts.len() > fleet.prompts {
            prompts.remove(0);
        }
        event(random, &fleet, &prompts, &mut events);
    }
    let mut queries = prompts;
    queries.truncate(24);
    let prompts = queries.clone();
    for _ in 0..4 {
        queries.push(prompt(random, &fleet, &prompts));
    }
    let branch_from = *random.pick(&[1, 1, 3, 16, 1000]);
    let turn_after = *random.pick(&[1, 2, 5, 1024, 1024]);
    let own_names_at_once = *random.pick(&[0, 0, 10, 1024]);
    Plan { config, events, queries, branch_from, turn_after, own_names_at_once }
}

/// A prompt that shares its beginning with another, as most do.
fn prompt(random: &mut Random, fleet: &Fleet, others: &[Vec<u64>]) -> Vec<u64> {
    let mut prompt = Vec::new();
    if !others.is_empty() && random.chance(80) {
        let other = random.pick(others);
        prompt.extend_from_slice(&other[..random.below(other.len() as u64 + 1) as usize]);
    }
    let more = random.below(fleet.longest);
    prompt.extend((0..more).map(|_| random.below(fleet.contents) + 1));
    prompt
}

/// Names that `worker` gives to the blocks of a prompt.
fn names(random: &mut Random, fleet: &Fleet, worker: u64, prompt: &[u64]) -> Vec<BlockHash> {
    let own = if fleet.same_names { 0 } else { worker };
    let mut chain = own;
    let mut name = |content: &u64| {
        chain = mix(chain ^ content.wrapping_mul(31));
        if random.chance(fleet.chaos) { BlockHash(random.below(8)) } else { BlockHash(chain) }
    };
    prompt.iter().map(&mut name).collect()
}

fn event(random: &mut Random, fleet: &Fleet, prompts: &[Vec<u64>], events: &mut Vec<Event>) {
    let number = random.below(fleet.workers);
    let worker: Box<str> = format!("w{number}").into();
    let rank = random.below(fleet.ranks) as u32;
    let tier = if fleet.offloads && random.chance(40) { *random.pick(&Tier::ALL) } else { Tier::Gpu };
    let prompt = random.pick(prompts);
    let all = names(random, fleet, number, prompt);
    let from = if random.chance(60) { 0 } else { random.below(prompt.len() as u64 + 1) as usize };
    let to = from + random.below((prompt.len() - from) as u64 + 1) as usize;
    match random.below(100) {
        0..=1 => events.push(Event::Clear {
            worker,
            rank: random.chance(50).then_some(rank),
            tier: random.chance(50).then_some(tier),
        }),
        2 => events.push(Event::Drop { worker }),
        3..=60 => {
            let parent = match from {
                _ if random.chance(fleet.chaos / 4) => Some(BlockHash(random.below(8))),
                0 => None,
                _ => Some(all[from - 1]),
            };
            let block_hashes = all[from..to].to_vec();
            events.push(Event::Store {
                worker,
                rank,
                tier,
                parent,
                block_hashes,
                content_hashes: prompt[from..to].to_vec(),
            });
        }
        _ => {
            let mut block_hashes = all[from..to].to_vec();
            match random.below(4) {
                0 => block_hashes.reverse(),
                1 => block_hashes.retain(|_| random.chance(40)),
                2 => {
                    for i in (1..block_hashes.len()).rev() {
                        block_hashes.swap(i, random.below(i as u64 + 1) as usize);
                    }
                }
                _ => {}
            }
            if random.chance(10)
                && let Some(&twice) = block_hashes.first()
            {
                block_hashes.push(twice);
            }
            events.push(Event::Remove { worker, rank, tier, block_hashes });
        }
    }
}

/// Place where the index and the reference part.
pub struct Difference {
    pub events: Vec<Event>,
    pub what: String,
}

impl Difference {
    /// The events, one a line.
    pub fn listing(&self) -> String {
        self.events.iter().map(|event| format!("{event:?}\n")).collect()
    }
}

/// Handles of the ranks, each kept from its rank's first event to the end, however often the rank goes and comes.
type Handles = HashMap<(Box<str>, u32), RankHandle>;

/// Applies every other event by the handle of its rank, the rest by name.
fn apply(index: &BlockIndex, handles: &mut Handles, number: usize, event: &Event) -> Result<(), Error> {
    let (Event::Store { worker, rank, .. } | Event::Remove { worker, rank, .. }) = event else {
        return index.apply(event);
    };
    if mix(number as u64).is_multiple_of(2) {
        return index.apply(event);
    }
    let handle = handles.entry((worker.clone(), *rank)).or_insert_with(|| RankHandle::new(worker, *rank));
    match event {
        Event::Store { tier, parent, block_hashes, content_hashes, .. } => {
            index.changes().store(handle, *tier, *parent, block_hashes, content_hashes)
        }
        Event::Remove { tier, block_hashes, .. } => {
            index.changes().remove(handle, *tier, block_hashes);
            Ok(())
        }
        Event::Clear { .. } | Event::Drop { .. } => unreachable!("seen to above"),
    }
}

/// Runs a stream through both; `thorough`: with a dump and its replay now and then, too.
pub fn compare(plan: &Plan, events: &[Event], thorough: bool) -> Result<(), String> {
    let index = BlockIndex::new(plan.config).map_err(|e| e.to_string())?;
    index.branch_from(plan.branch_from);
    index.turn_after(plan.turn_after);
    index.own_names_at_once(plan.own_names_at_once);
    let mut reference = ReferenceIndex::new(plan.config.count_copies);
    let mut handles = Handles::new();
    for (i, event) in events.iter().enumerate() {
        apply(&index, &mut handles, i, event).map_err(|e| e.to_string())?;
        reference.apply(event).map_err(|e| e.to_string())?;
        let every = if events.len() > 64 { 16 } else { 1 };
        if i % every == 0 || i + 1 == events.len() {
            answers(plan, &index, &reference).map_err(|e| format!("after event {i}: {e}"))?;
        }
        if thorough && (i % 97 == 96 || i + 1 == events.len()) {
            let copy = BlockIndex::new(plan.config).map_err(|e| e.to_string())?;
            for event in index.dump() {
                copy.apply(&event).map_err(|e| e.to_string())?;
            }
            answers(plan, &copy, &reference).map_err(|e| format!("dump after event {i}: {e}"))?;
            if sorted(index.dump()) != sorted(copy.dump()) {
                return Err(format!("dump after event {i}: its replay has another dump"));
            }
        }
    }
    let stats = index.stats();
    if (stats.replaced, stats.unknown_removals) != (reference.replaced, reference.unknown_removals) {
        return Err(format!(
            "replaced {} unknown {}, not {} {}",
            stats.replaced, stats.unknown_removals, reference.replaced, reference.unknown_removals
        ));
    }
    let blocks: u64 = index.workers().iter().map(|(_, blocks)| blocks).sum();
    if blocks != stats.blocks || index.workers() != reference_workers(&reference) {
        return Err(format!("holds {:?}, not {:?}", index.workers(), reference_workers(&reference)));
    }
    for (worker, _) in index.workers() {
        index.drop_worker(&worker);
    }
    let stats = index.stats();
    if (stats.workers, stats.positions, stats.runs, stats.sets, stats.blocks) != (0, 0, 0, 0, 0) || stats.bytes > 20_000
    {
        return Err(format!("not empty after all workers were dropped: {stats:?}"));
    }
    Ok(())
}

fn reference_workers(reference: &ReferenceIndex) -> Vec<(Box<str>, u64)> {
    let mut workers = reference.workers();
    workers.sort();
    workers
}

pub fn sorted(events: Vec<Event>) -> Vec<String> {
    let mut blocks = Vec::new();
    for event in events {
        if let Event::Store { worker, rank, tier, parent, block_hashes, content_hashes } = event {
            let mut parent = parent;
            for (name, content) in block_hashes.into_iter().zip(content_hashes) {
                blocks.push(format!("{worker} {rank} {tier} {parent:?} {name:?} {content}"));
                parent = Some(name);
            }
        }
    }
    blocks.sort();
    blocks
}

fn answers(plan: &Plan, index: &BlockIndex, reference: &ReferenceIndex) -> Result<(), String> {
    for query in &plan.queries {
        let found = index.find(query);
        let expected = reference.find(query);
        for view in View::ALL {
            let mut want = expected.by_rank(view);
            want.sort();
            let kept = found.to_owned();
            for mut got in [found.by_rank(view), kept.by_rank(view)] {
                got.sort();
                if !got.iter().copied().eq(want.iter().map(|(worker, rank, depth)| (worker, *rank, *depth))) {
                    return Err(format!("query {query:?} {view:?}: {got:?}, not {want:?}"));
                }
            }
            let mut want = expected.scores(view);
            want.sort();
            let mut numbered = vec![(7, 7)];
            found.scores_into(view, &mut numbered);
            let named = numbered.iter().map(|&(number, depth)| (found.worker(number).expect("a worker"), depth));
            let levels = kept.levels(view);
            let one_by_one = levels.iter().flat_map(|(depth, workers)| workers.iter().map(|worker| (*worker, *depth)));
            let all = [found.scores(view), kept.scores(view), named.collect(), one_by_one.collect()];
            for mut got in all.into_iter().chain([found.best(view, usize::MAX, None)]) {
                if !got.is_sorted_by(|(_, deeper), (_, depth)| deeper >= depth) {
                    return Err(format!("query {query:?} {view:?}: not deepest first: {got:?}"));
                }
                got.sort();
                if !got.iter().copied().eq(want.iter().map(|(worker, depth)| (worker, *depth))) {
                    return Err(format!("query {query:?} {view:?} scores: {got:?}, not {want:?}"));
                }
            }
            if found.depth(view) != expected.depth(view) {
                return Err(format!("query {query:?} {view:?}: depth {}", found.depth(view)));
            }
        }
    }
    Ok(())
}

/// Compares; a difference comes with the smallest stream found that shows it.
pub fn check(plan: &Plan, thorough: bool) -> Result<(), Box<Difference>> {
    let fails = |events: &[Event]| {
        std::panic::catch_unwind(|| compare(plan, events, thorough))
            .unwrap_or_else(|_| Err("panicked".to_owned()))
            .err()
    };
    let Some(mut what) = fails(&plan.events) else { return Ok(()) };
    let mut events = plan.events.clone();
    // Leave out ever smaller stretches for as long as it still fails.
    let mut step = events.len().div_ceil(2);
    while step > 0 {
        let mut at = 0;
        while at < events.len() {
            let mut fewer = events.clone();
            fewer.drain(at..(at + step).min(events.len()));
            match fails(&fewer) {
                Some(still) => (events, what) = (fewer, still),
                None => at += step,
            }
        }
        step /= 2;
    }
    Err(Box::new(Difference { events, what }))
}
