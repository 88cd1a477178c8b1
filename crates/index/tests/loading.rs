//! Simulated engines that keep blocks by their own names: every answer about what they can load must be theirs.

use std::collections::HashSet;
use std::num::NonZeroU32;

use kvatlas_index::{
    BlockHash, BlockIndex, Config, EvictionOrder, Loadable, Members, OffloadSettings, SharedPool, Tier,
};
use kvatlas_testing::{Random, mix, seeds};

/// Prompt with the engines' names of its blocks. Connectors' events leave out its salt.
struct Prompt {
    names: Vec<u64>,
    /// Content hashes with the salt, and as connectors' events have them.
    contents: Vec<u64>,
    plain: Vec<u64>,
}

impl Prompt {
    fn new(plain: Vec<u64>, salt: u64) -> Self {
        let mut name = mix(salt);
        let names = plain.iter().map(|content| {
            name = mix(name ^ content);
            name
        });
        let contents = plain.iter().map(|content| if salt == 0 { *content } else { mix(content ^ salt) });
        Self { names: names.collect(), contents: contents.collect(), plain }
    }

    fn blocks(&self, range: std::ops::Range<usize>) -> Vec<BlockHash> {
        self.names[range].iter().map(|name| BlockHash(*name)).collect()
    }

    fn parent(&self, start: usize) -> Option<BlockHash> {
        start.checked_sub(1).map(|before| BlockHash(self.names[before]))
    }
}

/// Engine with what it holds: blocks on its device, and the last blocks of chunks elsewhere.
struct Engine {
    worker: String,
    device: HashSet<u64>,
    host: HashSet<u64>,
    disk: HashSet<u64>,
    may_load: bool,
    resets_keep: bool,
    /// True if the operator has said what resets do.
    is_described: bool,
    /// True if it has been reset since, so that it may hold more than can be known.
    in_doubt: bool,
}

impl Engine {
    fn new(worker: String, may_load: bool) -> Self {
        let (device, host, disk) = Default::default();
        Self { worker, device, host, disk, may_load, resets_keep: false, is_described: false, in_doubt: false }
    }
}

/// Engines, their pool, and the index that hears of both.
struct Fleet {
    index: BlockIndex,
    engines: Vec<Engine>,
    pool: HashSet<u64>,
    chunk: usize,
    /// True if connectors announce chunks by the name of the last block alone.
    placeholders: bool,
    prompts: Vec<Prompt>,
}

type Part = (u32, u32, Tier, bool);

impl Fleet {
    fn new(random: &mut Random) -> Self {
        let index = BlockIndex::new(Config { block_size: 1, count_copies: true }).expect("a block size");
        index.turn_after(*random.pick(&[1, 3, 1024]));
        let chunk = *random.pick(&[1, 1, 2, 3, 4, 8, 16]);
        let chunks = [NonZeroU32::new(chunk as u32); 3];
        let engines: Vec<Engine> = (0..=random.below(4))
            .map(|number| {
                let (is_described, resets_keep) = (random.chance(70), random.chance(50));
                let worker = format!("w{number}");
                let settings = OffloadSettings { chunks, resets_keep: is_described.then_some(resets_keep) };
                index.set_offloading(&worker, settings);
                Engine { resets_keep, is_described, ..Engine::new(worker, random.chance(70)) }
            })
            .collect();
        index.add_pool(folder(&engines, chunk));
        let contents = *random.pick(&[1, 2, 4]);
        let longest = chunk as u64 * 4 + 3;
        let mut prompts: Vec<Prompt> = Vec::new();
        for number in 0..8 {
            let mut plain: Vec<u64> = (0..=random.below(longest)).map(|_| 1 + random.below(contents)).collect();
            if number > 0 && random.chance(60) {
                let other = &prompts[random.index(prompts.len())].plain;
                let shared = random.index(other.len() + 1);
                plain = other[..shared].iter().copied().chain(plain).collect();
            }
            prompts.push(Prompt::new(plain.clone(), 0));
            if random.chance(30) {
                prompts.push(Prompt::new(plain, 7));
            }
        }
        Self { index, engines, pool: HashSet::new(), chunk, placeholders: random.chance(40), prompts }
    }

    /// Chunks of a prompt, as ranges of its blocks.
    fn chunk_of(&self, random: &mut Random, prompt: usize) -> Option<std::ops::Range<usize>> {
        let count = self.prompts[prompt].names.len() / self.chunk;
        let at = (count > 0).then(|| random.index(count))? * self.chunk;
        Some(at..at + self.chunk)
    }

    /// An engine announces a chunk elsewhere than on its device.
    fn announce(&self, engine: usize, tier: Tier, prompt: usize, chunk: std::ops::Range<usize>) {
        let (worker, prompt) = (&*self.engines[engine].worker, &self.prompts[prompt]);
        let names = prompt.blocks(chunk.clone());
        if self.placeholders {
            let unknown = self.index.store_known(worker, 0, tier, &names[names.len() - 1..]);
            assert!(unknown.is_empty(), "a name that was announced before");
        } else {
            let (parent, contents) = (prompt.parent(chunk.start), &prompt.plain[chunk]);
            self.index.store(worker, 0, tier, parent, &names, contents).expect("it has room");
        }
    }

    fn withdraw(&self, engine: usize, tier: Tier, prompt: usize, chunk: std::ops::Range<usize>) {
        let names = self.prompts[prompt].blocks(chunk);
        let names = if self.placeholders { &names[names.len() - 1..] } else { &names };
        self.index.remove(&self.engines[engine].worker, 0, tier, names);
    }

    /// An engine has these blocks of a prompt on its device from now on.
    fn store(&mut self, engine: usize, prompt: usize, range: std::ops::Range<usize>) {
        let (engine, prompt) = (&mut self.engines[engine], &self.prompts[prompt]);
        let new: Vec<usize> = range.filter(|at| engine.device.insert(prompt.names[*at])).collect();
        for stretch in new.chunk_by(|a, b| a + 1 == *b) {
            let range = stretch[0]..stretch[stretch.len() - 1] + 1;
            let (parent, names) = (prompt.parent(range.start), prompt.blocks(range.clone()));
            let contents = &prompt.contents[range];
            self.index.store(&engine.worker, 0, Tier::Gpu, parent, &names, contents).expect("it has room");
        }
    }

    fn step(&mut self, random: &mut Random) {
        let (engine, prompt) = (random.index(self.engines.len()), random.index(self.prompts.len()));
        match random.below(100) {
            0..30 => {
                let end = random.index(self.prompts[prompt].names.len()) + 1;
                self.store(engine, prompt, 0..end);
            }
            30..45 => {
                let name = *random.pick(&self.prompts[prompt].names);
                if self.engines[engine].device.remove(&name) {
                    self.index.remove(&self.engines[engine].worker, 0, Tier::Gpu, &[BlockHash(name)]);
                }
            }
            45..95 => {
                if let Some(chunk) = self.chunk_of(random, prompt) {
                    self.move_chunk(random, engine, prompt, chunk);
                }
            }
            95 | 96 => {
                let it = &mut self.engines[engine];
                it.device.clear();
                it.in_doubt |= !(it.is_described || it.host.is_empty() && it.disk.is_empty());
                if !it.resets_keep {
                    it.host.clear();
                    it.disk.clear();
                }
                self.index.reset(&it.worker, random.chance(50).then_some(0));
            }
            97 | 98 => {
                let it = &mut self.engines[engine];
                (it.device, it.host, it.disk) = Default::default();
                it.in_doubt = false;
                if random.chance(50) {
                    self.index.drop_worker(&it.worker);
                } else {
                    self.index.clear(&it.worker, Some(0), None);
                }
            }
            _ => {
                // The folder is emptied, as one of its members says.
                let Some(member) = self.engines.iter().position(|it| it.may_load) else { return };
                let chunk = self.chunk;
                for prompt in 0..self.prompts.len() {
                    for start in (0..self.prompts[prompt].names.len() / chunk).map(|at| at * chunk) {
                        if self.pool.remove(&self.prompts[prompt].names[start + chunk - 1]) {
                            self.store_again(member);
                            self.withdraw(member, Tier::External, prompt, start..start + chunk);
                        }
                    }
                }
            }
        }
    }

    /// A dropped worker is not known before its next store.
    fn store_again(&mut self, engine: usize) {
        let first = self.prompts[0].names[0];
        if !self.engines[engine].device.contains(&first) {
            self.store(engine, 0, 0..1);
        }
    }

    fn move_chunk(&mut self, random: &mut Random, engine: usize, prompt: usize, chunk: std::ops::Range<usize>) {
        let last = self.prompts[prompt].names[chunk.end - 1];
        let is_on_device =
            self.prompts[prompt].names[chunk.clone()].iter().all(|name| self.engines[engine].device.contains(name));
        let it = &self.engines[engine];
        // Blocks that an engine in doubt has kept are not described again.
        let is_known = is_on_device || !it.in_doubt;
        let (in_host, on_disk, in_pool) = (it.host.contains(&last), it.disk.contains(&last), self.pool.contains(&last));
        match random.below(9) {
            // To host memory: from the device, or from where the engine may load it.
            0..3 if !in_host && is_known && (is_on_device || on_disk || in_pool && it.may_load) => {
                if in_pool && !is_on_device && !on_disk {
                    self.store_again(engine);
                }
                self.announce(engine, Tier::Cpu, prompt, chunk);
                self.engines[engine].host.insert(last);
            }
            3 if !on_disk && in_host && is_known => {
                self.announce(engine, Tier::Disk, prompt, chunk);
                self.engines[engine].disk.insert(last);
            }
            // The same chunk may be announced again in a pool.
            4 if it.may_load && (in_host || is_on_device) && is_known => {
                self.announce(engine, Tier::External, prompt, chunk);
                self.pool.insert(last);
            }
            5 if in_host => {
                self.withdraw(engine, Tier::Cpu, prompt, chunk);
                self.engines[engine].host.remove(&last);
            }
            6 if on_disk => {
                self.withdraw(engine, Tier::Disk, prompt, chunk);
                self.engines[engine].disk.remove(&last);
            }
            7 if in_pool && it.may_load => {
                self.store_again(engine);
                self.withdraw(engine, Tier::External, prompt, chunk);
                self.pool.remove(&last);
            }
            // Pulled from another one's host memory: announced there before it is on the device, where events say all.
            8 if !in_host && self.engines.iter().any(|it| it.host.contains(&last)) => {
                if self.placeholders {
                    self.store(engine, prompt, chunk.clone());
                    self.announce(engine, Tier::Cpu, prompt, chunk);
                } else {
                    self.announce(engine, Tier::Cpu, prompt, chunk.clone());
                    self.store(engine, prompt, chunk);
                }
                self.engines[engine].host.insert(last);
            }
            _ => {}
        }
    }

    /// The engine's own answer.
    fn truth(&self, engine: &Engine, prompt: &Prompt) -> (u32, u32, Vec<Part>) {
        let leading = |held: &dyn Fn(u64) -> bool, chunk: usize| {
            prompt.names.chunks_exact(chunk).take_while(|chunk| held(chunk[chunk.len() - 1])).count() * chunk
        };
        let device = leading(&|name| engine.device.contains(&name), 1);
        let host = leading(&|name| engine.host.contains(&name), self.chunk);
        let mut parts: Vec<Part> = Vec::new();
        let mut add = |start: usize, end: usize, tier: Tier, shared: bool| match parts.last_mut() {
            Some(last) if (last.2, last.3) == (tier, shared) => last.1 = end as u32,
            _ => parts.push((start as u32, end as u32, tier, shared)),
        };
        let mut at = device;
        if device > 0 {
            add(0, device, Tier::Gpu, false);
        }
        loop {
            let end = (at / self.chunk + 1) * self.chunk;
            let Some(&last) = prompt.names.get(end - 1) else { break };
            match () {
                () if engine.host.contains(&last) => add(at, end, Tier::Cpu, false),
                () if engine.disk.contains(&last) => add(at, end, Tier::Disk, false),
                () if engine.may_load && self.pool.contains(&last) => add(at, end, Tier::External, true),
                () => break,
            }
            at = end;
        }
        (device as u32, host as u32, parts)
    }

    /// Compares all answers with the engines' own. Returns how many there were.
    fn check(&self) -> u64 {
        let mut answers = 0;
        assert!(self.index.is_loading_consistent());
        for prompt in &self.prompts {
            let found = self.index.find_loadable(&prompt.contents);
            for engine in &self.engines {
                let (device, host, parts) = self.truth(engine, prompt);
                let Some(it) = found.iter().find(|it| *it.worker == *engine.worker) else {
                    assert!(parts.iter().all(|part| part.2 == Tier::Gpu), "{} is left out", engine.worker);
                    continue;
                };
                answers += 1;
                assert_eq!((it.device, it.may_hold_more), (device, engine.in_doubt));
                if engine.in_doubt {
                    assert!(it.host <= host && it.depth() <= parts.last().map_or(0, |part| part.1));
                } else {
                    assert_eq!((it.host, parts_of(it)), (host, parts), "{}", engine.worker);
                }
                assert!(it.own_depth() <= it.depth() && it.device <= it.own_depth());
            }
        }
        answers
    }

    /// Checks an index that begins with the pool's blocks and without engines. Returns the number of answers.
    fn check_restored(&self) -> u64 {
        let index = BlockIndex::new(Config { block_size: 1, count_copies: true }).expect("a block size");
        index.add_pool(folder(&self.engines, self.chunk));
        for saved in self.index.saved_pools() {
            let held = saved.blocks.iter().filter(|block| block.age.is_some()).count();
            assert_eq!(index.restore_pool(&saved, 0.0), held);
            assert_eq!(index.restore_pool(&saved, 0.0), 0, "it has them already");
        }
        assert!(index.is_loading_consistent());
        let mut answers = 0;
        for engine in self.engines.iter().filter(|it| it.may_load) {
            let empty = Engine::new(engine.worker.clone(), true);
            index.store(&empty.worker, 0, Tier::Gpu, None, &[BlockHash(1)], &[u64::MAX]).expect("it has room");
            for prompt in &self.prompts {
                let found = index.find_loadable(&prompt.contents);
                let it = found.iter().find(|it| *it.worker == *empty.worker);
                answers += 1;
                assert_eq!(it.map_or_else(Vec::new, parts_of), self.truth(&empty, prompt).2, "{}", empty.worker);
            }
        }
        answers
    }
}

/// The pool of those engines that may load.
fn folder(engines: &[Engine], chunk: usize) -> SharedPool {
    let members = engines.iter().filter(|it| it.may_load).map(|it| (&*it.worker).into()).collect();
    SharedPool {
        name: "folder".into(),
        members: Members::Named(members),
        tier: Tier::External,
        chunk: NonZeroU32::new(chunk as u32),
        announces_removals: true,
        lifetime: None,
        room: None,
        evicts: EvictionOrder::Announced,
        follows_store: false,
        from_beginning: false,
    }
}

fn parts_of(found: &Loadable) -> Vec<Part> {
    found.segments.iter().map(|it| (it.start, it.end, it.tier, it.pool.is_some())).collect()
}

#[test]
fn every_answer_is_the_engines_own() {
    let (mut answers, mut restored) = (0, 0);
    for seed in 0..seeds(600) {
        let random = &mut Random(seed);
        let mut fleet = Fleet::new(random);
        for _ in 0..60 {
            (0..=random.below(4)).for_each(|_| fleet.step(random));
            answers += fleet.check();
        }
        restored += fleet.check_restored();
    }
    assert!(answers > 500 * seeds(600), "{answers}");
    assert!(restored > 10 * seeds(600), "{restored}");
}

#[test]
fn a_worker_that_is_gone_leaves_no_chunks_behind() {
    let index = BlockIndex::new(Config { block_size: 1, count_copies: true }).expect("a block size");
    let prompt = Prompt::new(vec![11, 12, 13], 0);
    let depth = || {
        let contents = &prompt.plain;
        index.store("a", 0, Tier::Cpu, None, &prompt.blocks(0..3), contents).unwrap();
        index.find_loadable(contents).first().map_or(0, Loadable::depth)
    };
    index.learn_chunk("a", 0, Tier::Cpu, 4, false);
    assert_eq!(depth(), 0, "a part of a chunk cannot be loaded");
    index.drop_worker("a");
    // Another engine of that name, which announces single blocks.
    assert_eq!(depth(), 3);
}

/// A pool without engines' device blocks, of one-block chunks: what is loadable of a prompt of its own.
fn depth_in_pool(index: &BlockIndex, prompt: &[u64]) -> u32 {
    index.find_loadable(prompt).first().map_or(0, Loadable::depth)
}

#[test]
fn a_pool_keeps_what_was_announced_last_and_what_a_look_finds() {
    let index = BlockIndex::new(Config { block_size: 1, count_copies: true }).expect("a block size");
    let room = std::num::NonZeroU64::new(3);
    let one = NonZeroU32::MIN;
    let pool = SharedPool {
        name: "folder".into(),
        members: Members::All,
        tier: Tier::External,
        chunk: Some(one),
        announces_removals: false,
        lifetime: None,
        room,
        evicts: EvictionOrder::Announced,
        follows_store: false,
        from_beginning: false,
    };
    index.add_pool(pool.clone());
    let names = |prompt: &[u64]| prompt.iter().map(|name| BlockHash(*name)).collect::<Vec<_>>();
    let store = |at: f64, prompt: &[u64]| {
        index.set_time(at);
        index.store("a", 0, Tier::External, None, &names(prompt), prompt).expect("room for it");
    };
    store(1.0, &[1, 2]);
    store(2.0, &[3]);
    assert_eq!(index.pool_sizes(), [("folder".into(), 3)]);
    // The oldest goes, so that nothing is found of its prompt, though its second block is there still.
    store(3.0, &[4]);
    assert_eq!([&[1, 2][..], &[3], &[4]].map(|prompt| depth_in_pool(&index, prompt)), [0, 1, 1]);
    // What is announced again is new.
    store(4.0, &[3]);
    store(5.0, &[5, 6]);
    assert_eq!([&[3][..], &[4], &[5, 6]].map(|prompt| depth_in_pool(&index, prompt)), [1, 0, 2]);
    // Other settings: what was announced last stays.
    index.add_pool(SharedPool { room: std::num::NonZeroU64::new(2), ..pool.clone() });
    assert_eq!([&[3][..], &[5, 6]].map(|prompt| depth_in_pool(&index, prompt)), [0, 2]);
    index.add_pool(SharedPool { room: None, ..pool });
    (10..10_000).for_each(|name| store(6.0, &[name]));
    // A look that began at 6 finds two blocks; what was announced afterwards is not asked for.
    store(7.0, &[7]);
    let found = HashSet::from([5, 12, 77_777]);
    assert_eq!(index.keep_in_pool("folder", &found, 6.0), 1 + 9_989);
    assert_eq!([&[5, 6][..], &[12], &[13], &[7]].map(|prompt| depth_in_pool(&index, prompt)), [1, 1, 0, 1]);
    assert_eq!(index.keep_in_pool("nowhere", &found, 6.0), 0);
}

/// Store of limited size that evicts what was used longest ago, and engines that load from it what they can.
struct LruFleet {
    index: BlockIndex,
    /// Blocks on the device of each engine.
    devices: [HashSet<u64>; 3],
    /// Blocks in the store, the one used longest ago first.
    store: Vec<u64>,
    room: usize,
    prompts: Vec<Prompt>,
}

impl LruFleet {
    fn new(random: &mut Random, evicts: EvictionOrder) -> Self {
        let index = BlockIndex::new(Config { block_size: 1, count_copies: true }).expect("a block size");
        let room = 3 + random.index(12);
        index.add_pool(SharedPool {
            name: "store".into(),
            members: Members::Named(vec!["w0".into(), "w1".into(), "w2".into(), "new".into()]),
            tier: Tier::External,
            chunk: Some(NonZeroU32::MIN),
            announces_removals: false,
            lifetime: None,
            room: std::num::NonZeroU64::new(room as u64),
            evicts,
            follows_store: false,
            from_beginning: false,
        });
        let mut prompts: Vec<Prompt> = Vec::new();
        for _ in 0..8 {
            let mut plain: Vec<u64> = (0..=random.below(8)).map(|_| 1 + random.below(2)).collect();
            if !prompts.is_empty() && random.chance(50) {
                let other = &prompts[random.index(prompts.len())].plain;
                plain = other[..random.index(other.len() + 1)].iter().copied().chain(plain).collect();
            }
            prompts.push(Prompt::new(plain, 0));
        }
        Self { index, devices: Default::default(), store: Vec::new(), room, prompts }
    }

    fn put(&mut self, name: u64) {
        self.store.retain(|it| *it != name);
        self.store.push(name);
        if self.store.len() > self.room {
            self.store.remove(0);
        }
    }

    /// An engine answers a prompt: what the store has of it is loaded, or found when the rest is to be put there.
    fn answer(&mut self, engine: usize, prompt: usize) {
        let worker = format!("w{engine}");
        let names = self.prompts[prompt].names.clone();
        let contents = self.prompts[prompt].contents.clone();
        let new: Vec<usize> = (0..names.len()).filter(|at| self.devices[engine].insert(names[*at])).collect();
        for &at in &new {
            if self.store.contains(&names[at]) {
                self.put(names[at]);
            }
            let (parent, name) = (self.prompts[prompt].parent(at), BlockHash(names[at]));
            self.index.store(&worker, 0, Tier::Gpu, parent, &[name], &[contents[at]]).expect("it has room");
        }
        for &at in &new {
            if !self.store.contains(&names[at]) {
                let (parent, name) = (self.prompts[prompt].parent(at), BlockHash(names[at]));
                self.index.store(&worker, 0, Tier::External, parent, &[name], &[contents[at]]).expect("it has room");
                self.put(names[at]);
            }
        }
    }

    fn step(&mut self, random: &mut Random) {
        let (engine, prompt) = (random.index(3), random.index(self.prompts.len()));
        match random.below(10) {
            0..6 => self.answer(engine, prompt),
            6..9 => {
                let name = *random.pick(&self.prompts[prompt].names);
                if self.devices[engine].remove(&name) {
                    self.index.remove(&format!("w{engine}"), 0, Tier::Gpu, &[BlockHash(name)]);
                }
            }
            _ => {
                self.devices[engine].clear();
                self.index.clear(&format!("w{engine}"), Some(0), None);
            }
        }
    }

    /// Number of prompts for which the index is wrong about the part that an engine with an empty device can load.
    fn wrong(&self) -> usize {
        let wrong = |prompt: &&Prompt| {
            let held = prompt.names.iter().take_while(|name| self.store.contains(name)).count();
            let found = self.index.find_loadable(&prompt.contents);
            let empty = found.iter().find(|it| &*it.worker == "new");
            empty.map_or(0, Loadable::depth) as usize != held
        };
        self.prompts.iter().filter(wrong).count()
    }
}

#[test]
fn a_store_that_evicts_what_was_used_longest_ago_is_known_exactly() {
    let mut wrong = [0; 2];
    for (evicts, wrong) in [EvictionOrder::Used, EvictionOrder::Announced].into_iter().zip(&mut wrong) {
        for seed in 0..seeds(200) {
            let random = &mut Random(seed);
            let mut fleet = LruFleet::new(random, evicts);
            for time in 0..80 {
                fleet.index.set_time(f64::from(time));
                fleet.step(random);
                *wrong += fleet.wrong();
                assert!(fleet.index.is_loading_consistent());
            }
        }
    }
    assert_eq!(wrong[0], 0);
    assert!(wrong[1] > 1_000, "the order of announcements is another: {}", wrong[1]);
}

#[test]
fn loads_that_were_reported_keep_blocks() {
    let index = BlockIndex::new(Config { block_size: 1, count_copies: true }).expect("a block size");
    let pool = SharedPool {
        name: "store".into(),
        members: Members::All,
        tier: Tier::External,
        chunk: Some(NonZeroU32::MIN),
        announces_removals: false,
        lifetime: Some(10.0),
        room: std::num::NonZeroU64::new(3),
        evicts: EvictionOrder::Used,
        follows_store: false,
        from_beginning: false,
    };
    index.add_pool(pool.clone());
    let names = [1, 2, 3, 4].map(BlockHash);
    index.set_time(1.0);
    index.store("a", 0, Tier::External, None, &names[..3], &[1, 2, 3]).expect("room for it");
    index.set_time(9.0);
    assert_eq!(index.use_from_pool("store", &[1, 2, 3], 0), 3);
    assert_eq!(index.use_from_pool("store", &[1, 2], 1), 1);
    assert_eq!((index.use_from_pool("store", &[1], 3), index.use_from_pool("nowhere", &[1], 0)), (0, 0));
    index.set_time(19.0);
    assert_eq!(depth_in_pool(&index, &[1, 2, 3]), 3);
    // The first was used before the others.
    index.store("a", 0, Tier::External, None, &names[3..], &[4]).expect("room for it");
    assert_eq!([&[1][..], &[4]].map(|prompt| depth_in_pool(&index, prompt)), [0, 1]);
    index.add_pool(SharedPool { evicts: EvictionOrder::Announced, ..pool });
    assert_eq!(index.use_from_pool("store", &[4], 0), 0);
}

/// Engines whose store names its blocks itself, some of them before any engine has described them.
#[test]
fn blocks_that_a_store_names_count_once_they_are_described() {
    let mut waited = 0;
    for seed in 0..seeds(300) {
        let random = &mut Random(seed);
        let index = BlockIndex::new(Config { block_size: 1, count_copies: true }).expect("a block size");
        let pool = SharedPool {
            name: "store".into(),
            members: Members::Named(vec!["a".into(), "b".into(), "new".into()]),
            tier: Tier::Cpu,
            chunk: Some(NonZeroU32::MIN),
            announces_removals: true,
            lifetime: None,
            room: None,
            evicts: EvictionOrder::Announced,
            follows_store: true,
            from_beginning: false,
        };
        index.add_pool(pool);
        let prompts: Vec<_> =
            (0..6).map(|_| Prompt::new((0..=random.below(6)).map(|_| 1 + random.below(2)).collect(), 0)).collect();
        let (mut store, mut described) = (HashSet::new(), HashSet::new());
        let mut devices: [HashSet<u64>; 2] = Default::default();
        for _ in 0..80 {
            let (engine, prompt) = (random.index(2), &prompts[random.index(prompts.len())]);
            let worker = ["a", "b"][engine];
            let name = *random.pick(&prompt.names);
            match random.below(12) {
                0..4 => {
                    let counts = index.name_in_pool("store", &[BlockHash(name)]);
                    let is_told = devices.iter().any(|device| device.contains(&name)) || described.contains(&name);
                    assert!(counts.known + counts.placed + counts.waiting == 1 && counts.refused == 0);
                    assert!(!is_told || counts.waiting == 0);
                    waited += counts.waiting;
                    store.insert(name);
                    if counts.waiting == 0 {
                        described.insert(name);
                    }
                }
                4 | 5 => {
                    index.unname_in_pool("store", &[BlockHash(name)]);
                    store.remove(&name);
                    described.remove(&name);
                }
                6 => {
                    store.retain(|_| random.chance(70));
                    described.retain(|name| store.contains(name));
                    index.keep_in_pool("store", &store, f64::INFINITY);
                    let names: Vec<_> = store.iter().copied().map(BlockHash).collect();
                    index.name_in_pool("store", &names);
                }
                7 => {
                    // These events put nothing into the pool, and take nothing out of it.
                    let names = prompt.blocks(0..prompt.names.len());
                    index.store(worker, 0, Tier::Cpu, None, &names, &prompt.contents).expect("it has room");
                    described.extend(prompt.names.iter().filter(|name| store.contains(name)));
                    index.remove(worker, 0, Tier::Cpu, &names[..1]);
                }
                8 => {
                    index.remove(worker, 0, Tier::Gpu, &[BlockHash(name)]);
                    devices[engine].remove(&name);
                }
                _ => {
                    let names = prompt.blocks(0..prompt.names.len());
                    let is_new = |at: &usize| !devices[engine].contains(&prompt.names[*at]);
                    for at in (0..names.len()).filter(is_new) {
                        let (parent, names) = (prompt.parent(at), &names[at..=at]);
                        index.store(worker, 0, Tier::Gpu, parent, names, &prompt.contents[at..=at]).expect("room");
                    }
                    devices[engine].extend(&prompt.names);
                    described.extend(prompt.names.iter().filter(|name| store.contains(name)));
                }
            }
            assert!(index.is_loading_consistent());
            for prompt in &prompts {
                let found = index.find_loadable(&prompt.contents);
                let depth = found.iter().find(|it| &*it.worker == "new").map_or(0, Loadable::depth) as usize;
                let leading = |held: &HashSet<u64>| prompt.names.iter().take_while(|it| held.contains(it)).count();
                assert!(depth >= leading(&described) && depth <= leading(&store), "{depth}");
                assert!(found.iter().flat_map(|it| &it.segments).all(|it| it.is_certain));
            }
        }
        index.set_pool_whole("store", false);
        let is_certain = |found: Vec<Loadable>| found.iter().flat_map(|it| &it.segments).all(|it| it.is_certain);
        let answers = prompts.iter().map(|prompt| index.find_loadable(&prompt.contents));
        for found in answers {
            let has_pool = found.iter().flat_map(|it| &it.segments).any(|it| it.pool.is_some());
            assert_eq!(is_certain(found), !has_pool);
        }
    }
    assert!(waited as u64 > seeds(300), "{waited}");
}
