//! Began late, against began in time: never a depth too deep, and everything found that was proved.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use kvatlas_adopt::{Chain, Dialect, Form, FrontierState, Outcome, RankAdoption, RankPlace, Scheme};
use kvatlas_fake_engine::cache::Hit;
use kvatlas_fake_engine::{BLOCK_SIZE, Conversations, Kind, Sequence};
use kvatlas_index::reference::ReferenceIndex;
use kvatlas_index::{BlockHash, BlockIndex, Config, Tier, View};
use kvatlas_testing::{Random, seeds};
use kvatlas_wire::{BatchOf, EventOf, Reader, Tally};

const BLOCK: usize = BLOCK_SIZE as usize;
const WORKER: &str = "w";

/// A service in small: one stream, its reader, its late part.
pub(crate) struct Listener {
    pub(crate) index: BlockIndex,
    reader: Reader,
    pub(crate) late: Option<RankAdoption>,
    /// True if the engine may hold more than it has announced here.
    partial: bool,
    schemes: Vec<Scheme>,
    block_size: usize,
}

impl Listener {
    pub(crate) fn new(late: Option<RankAdoption>, block_size: usize) -> Self {
        let config = Config { block_size: block_size as u32, count_copies: true };
        Self {
            index: BlockIndex::new(config).expect("a block size"),
            reader: Reader::new(block_size as u32),
            late,
            partial: true,
            schemes: Scheme::candidates(&["0".into()]),
            block_size,
        }
    }

    pub(crate) fn hear(&mut self, batch: &BatchOf<BlockHash>, time: Duration) {
        let at = RankPlace { index: &self.index, worker: WORKER, rank: 0 };
        if let Some(late) = &mut self.late {
            late.note_batch(batch, &mut self.reader, at);
        }
        let mut tally = Tally::default();
        self.reader.apply(batch, &self.index, WORKER, 0, &mut tally);
        assert_eq!(tally.refused_total(), 0);
        if let Some(late) = &mut self.late {
            late.applied(batch, &self.reader, at, self.partial, || time, &self.schemes);
        }
    }

    /// The service restarts, with a snapshot of all: what it held is there, and what it waited for.
    fn restart(&mut self) {
        let Some(late) = &mut self.late else { return };
        late.tell_salts(&mut self.reader);
        let answered: Vec<BlockHash> = late.answered().collect();
        let kept = late.frontier().kept(usize::MAX, usize::MAX);
        let mut next = RankAdoption::default();
        next.resume(answered, &kept);
        // It would be found again by trying all; that takes a test its time.
        if let Some(dialect) = late.dialect() {
            next.learn(dialect);
        }
        self.late = Some(next);
    }

    pub(crate) fn depth(&self, contents: &[u64]) -> usize {
        self.index.find(contents).depth(View::Device) as usize
    }

    /// Asks for a prompt, and adopts what it makes known.
    pub(crate) fn ask(&mut self, tokens: &[u32], salt: Option<&str>) {
        let Some(late) = &mut self.late else { return };
        let known: Vec<Dialect> = match late.dialect() {
            Some(dialect) => vec![dialect.clone()],
            None => self
                .schemes
                .iter()
                .flat_map(|scheme| scheme.forms().iter().map(|form| Dialect { scheme: scheme.clone(), form: *form }))
                .collect(),
        };
        for dialect in known {
            let chain = chain(tokens, salt, &dialect, self.block_size);
            for &name in &chain.names {
                if late.frontier().proof(name).is_some() {
                    late.learn(&dialect);
                    let at = RankPlace { index: &self.index, worker: WORKER, rank: 0 };
                    let outcome = late.adopt(name, &chain, true, at);
                    assert!(matches!(outcome, Outcome::Blocks(_)), "{outcome:?}");
                }
            }
        }
    }

    /// The engine said what it had of a prompt that was sent at this time.
    pub(crate) fn observe(&mut self, tokens: &[u32], salt: Option<&str>, blocks: usize, sent: Duration) {
        let Some(late) = &mut self.late else { return };
        let Some(dialect) = late.dialect().cloned() else { return };
        let chain = chain(tokens, salt, &dialect, self.block_size);
        let at = RankPlace { index: &self.index, worker: WORKER, rank: 0 };
        late.observe(&chain, blocks, sent, at);
    }
}

pub(crate) fn chain(tokens: &[u32], salt: Option<&str>, dialect: &Dialect, block_size: usize) -> Chain {
    let mut namer = dialect.scheme.namer(salt);
    Chain {
        names: tokens.chunks_exact(block_size).map(|block| namer.next(block).name(dialect.form)).collect(),
        contents: kvatlas_index::hash::content_hashes(tokens, block_size, None, salt),
        salt: salt.map(Into::into),
    }
}

/// Literal account of what has been proved since the start: for each name when it was proved last and when it was
/// removed last, counted in events, and how many announced copies there are.
#[derive(Default)]
struct ProofLog {
    clock: u64,
    proved: HashMap<BlockHash, u64>,
    removed: HashMap<BlockHash, u64>,
    copies: HashMap<BlockHash, u64>,
}

impl ProofLog {
    fn hear(&mut self, batch: &BatchOf<BlockHash>, parents: &HashMap<BlockHash, Option<BlockHash>>) {
        for event in &batch.events {
            self.clock += 1;
            match event {
                EventOf::Stored(stored) => {
                    stored.block_hashes.iter().for_each(|name| *self.copies.entry(*name).or_default() += 1);
                    let up = std::iter::successors(stored.block_hashes.last().copied(), |name| parents[name]);
                    up.for_each(|name| {
                        self.proved.insert(name, self.clock);
                    });
                }
                EventOf::Removed(removed) => {
                    for name in &removed.block_hashes {
                        self.removed.insert(*name, self.clock);
                        let copies = self.copies.entry(*name).or_default();
                        *copies = copies.saturating_sub(1);
                    }
                }
                EventOf::Cleared(_) => *self = Self { clock: self.clock, ..Self::default() },
            }
        }
    }

    fn observe(&mut self, names: &[BlockHash], at: u64) {
        for name in names {
            let proof = self.proved.entry(*name).or_default();
            *proof = at.max(*proof);
        }
    }

    fn depth(&self, names: &[BlockHash]) -> usize {
        let held = |name: &&BlockHash| {
            let proof = self.proved.get(*name).copied().unwrap_or(0);
            self.copies.get(*name).is_some_and(|copies| *copies > 0)
                || proof > self.removed.get(*name).copied().unwrap_or(0)
        };
        names.iter().take_while(held).count()
    }
}

/// Numbers of blocks of prompts that the engine has, and of those of them that are found.
#[derive(Default, Debug)]
pub(crate) struct Shares {
    pub(crate) engine: usize,
    pub(crate) plain: usize,
    pub(crate) stores: usize,
    pub(crate) both: usize,
    pub(crate) answers: usize,
}

fn run(seed: u64, kind: Kind, salts: bool, shares: &mut Shares) {
    let random = &mut Random(seed ^ 0x5eed);
    let form = if kind == Kind::Vllm && random.chance(30) { Form::Digest } else { Form::Integer };
    let dialect = kind.dialect(form);
    let mut engine = Conversations::new(kind, dialect.clone(), seed, 60 + random.index(60), salts);
    let mut whole = ReferenceIndex::new(true);
    let mut parents: HashMap<BlockHash, Option<BlockHash>> = HashMap::new();
    let mut all = Listener::new(None, BLOCK);
    let start = random.index(150);
    let mut listeners: Vec<Listener> = Vec::new();
    let mut proved = [ProofLog::default(), ProofLog::default()];
    let mut told: Vec<(Hit, Duration)> = Vec::new();
    // When batches came, and how many events there were before.
    let mut times: Vec<(Duration, u64)> = Vec::new();
    let mut wrote: HashMap<BlockHash, Sequence> = HashMap::new();
    let mut late_batches = std::collections::VecDeque::new();
    for step in 0..400_u64 {
        let time = Duration::from_millis(100 * step);
        if step as usize == start {
            listeners = vec![
                Listener::new(None, BLOCK),
                Listener::new(Some(RankAdoption::default()), BLOCK),
                Listener::new(Some(RankAdoption::default()), BLOCK),
                Listener::new(Some(RankAdoption::default()), BLOCK),
                // One that restarts now and then; it is asked as the first is, and finds as much.
                Listener::new(Some(RankAdoption::default()), BLOCK),
            ];
        }
        let (hit, batch) = engine.step();
        for sequence in engine.running() {
            let names = sequence.names(&dialect);
            for (i, name) in names.iter().enumerate() {
                parents.insert(*name, i.checked_sub(1).map(|before| names[before]));
                wrote.entry(*name).or_insert_with(|| sequence.clone());
            }
        }
        assert!(engine.is_closed(&parents), "seed {seed}: the engine itself is wrong");
        if !listeners.is_empty() {
            told.extend(hit.map(|hit| (hit, time)));
        }
        late_batches.push_back(batch);
        // Batches arrive later than the answers do, sometimes.
        while late_batches.len() > random.index(3) {
            let Some(batch) = late_batches.pop_front() else { break };
            all.hear(&batch, time);
            feed(&mut whole, &batch, &wrote);
            for listener in &mut listeners {
                listener.hear(&batch, time);
            }
            if !listeners.is_empty() {
                if times.last().is_none_or(|(last, _)| *last < time) {
                    times.push((time, proved[1].clock));
                }
                proved.iter_mut().for_each(|proved| proved.hear(&batch, &parents));
            }
        }
        if let [.., restarting] = &mut listeners[..]
            && random.chance(5)
        {
            restarting.restart();
        }
        if listeners.is_empty() || !random.chance(10) {
            continue;
        }
        // Each once, though it wrote many blocks.
        let asked: BTreeSet<Sequence> = wrote.values().cloned().collect();
        for sequence in &asked {
            for listener in [0, 1, 2, 4] {
                listeners[listener].ask(&sequence.tokens, sequence.salt.as_deref());
            }
        }
        // Answers come back, with what the engine had cached.
        for (hit, sent) in told.drain(..) {
            let names = hit.sequence.names(&dialect);
            let salt = hit.sequence.salt.as_deref();
            let knows = listeners[2]
                .late
                .as_ref()
                .is_some_and(|late| late.dialect().is_some() && late.frontier().moment_at(sent).is_some());
            if let (true, Some((_, clock))) = (knows, times.iter().rfind(|(time, _)| *time <= sent)) {
                proved[1].observe(&names[..hit.blocks], *clock);
            }
            for listener in &mut listeners[2..4] {
                listener.observe(&hit.sequence.tokens, salt, hit.blocks, sent);
            }
        }
        // An answer may say of blocks what is on its way.
        let mut ahead = whole.clone();
        late_batches.iter().for_each(|batch| feed(&mut ahead, &only_stores(batch), &wrote));
        for sequence in asked.iter().chain(engine.past()) {
            let (names, contents) = (sequence.names(&dialect), sequence.contents());
            let expected = whole.find(&contents).by_rank(View::Device).first().map_or(0, |(.., depth)| *depth as usize);
            assert_eq!(all.depth(&contents), expected, "seed {seed}, step {step}: the index itself is wrong");
            let found: Vec<usize> = listeners.iter().map(|listener| listener.depth(&contents)).collect();
            let ahead = ahead.find(&contents).by_rank(View::Device).first().map_or(0, |(.., depth)| *depth as usize);
            for (i, found) in found.iter().enumerate() {
                let expected = if matches!(i, 2 | 3) { ahead } else { expected };
                assert!(
                    *found <= expected,
                    "seed {seed}, step {step}: listener {i} is too deep: {found} of {expected}"
                );
            }
            // Salts are shown once, so of the salted blocks that were announced before the beginning was known some
            // contents are guesses until they are asked for at the right moment.
            if wrote.contains_key(&names[names.len() - 1]) && sequence.salt.is_none() {
                for (i, proved) in [(1, &proved[0]), (2, &proved[1]), (4, &proved[0])] {
                    let proved = proved.depth(&names).min(expected);
                    assert!(found[i] >= proved, "seed {seed}, step {step}: {i}: {} of {proved} found", found[i]);
                }
            }
            let depth = engine.depth(&names).min(expected);
            shares.engine += depth;
            shares.plain += found[0].min(depth);
            shares.stores += found[1].min(depth);
            shares.both += found[2].min(depth);
            shares.answers += found[3].min(depth);
        }
    }
}

fn only_stores(batch: &BatchOf<BlockHash>) -> BatchOf<BlockHash> {
    let events = batch.events.iter().filter(|event| matches!(event, EventOf::Stored(_))).cloned().collect();
    BatchOf { events, ..BatchOf::default() }
}

/// Applies a batch to the reference, as the index with the whole history reads it.
fn feed(whole: &mut ReferenceIndex, batch: &BatchOf<BlockHash>, wrote: &HashMap<BlockHash, Sequence>) {
    for event in &batch.events {
        match event {
            EventOf::Stored(stored) => {
                let salt = wrote[&stored.block_hashes[0]].salt.as_deref();
                let contents = kvatlas_index::hash::content_hashes(&stored.tokens, BLOCK, None, salt);
                whole.store(WORKER, 0, Tier::Gpu, stored.parent, &stored.block_hashes, &contents).expect("one of each");
            }
            EventOf::Removed(removed) => whole.remove(WORKER, 0, Tier::Gpu, &removed.block_hashes),
            EventOf::Cleared(_) => whole.clear(WORKER, Some(0), None),
        }
    }
}

#[test]
fn never_too_deep_and_all_that_was_proved_is_found() {
    for (kind, salts) in [(Kind::Vllm, false), (Kind::Sglang, false), (Kind::Vllm, true), (Kind::Sglang, true)] {
        let mut shares = Shares::default();
        for seed in 0..seeds(2).max(2) {
            run(seed, kind, salts, &mut shares);
        }
        let Shares { engine, plain, stores, both, answers } = shares;
        eprintln!(
            "{kind:?}, salts {salts}: of {engine} blocks {plain} by listening, {stores} by stores, {answers} by \
             answers, {both} by both"
        );
        assert!(plain < stores.min(answers).min(both) && stores.max(both) <= engine, "{shares:?}");
    }
}

#[test]
fn what_is_not_remembered_proves_nothing() {
    // Few removals are remembered: less is found, and never too much.
    let mut worse = 0;
    for seed in 0..seeds(20) {
        let dialect = Kind::Vllm.dialect(Form::Integer);
        let mut engine = Conversations::new(Kind::Vllm, dialect.clone(), seed, 60, false);
        let mut all = Listener::new(None, BLOCK);
        let mut late = [3, 1 << 20].map(|removals| Listener::new(Some(RankAdoption::with_removals(removals)), BLOCK));
        for step in 0..300_u64 {
            let (_, batch) = engine.step();
            all.hear(&batch, Duration::from_millis(step));
            if step > 100 {
                late.iter_mut().for_each(|late| late.hear(&batch, Duration::from_millis(step)));
            }
            if step > 100 && step % 20 == 0 {
                for sequence in engine.past().to_vec() {
                    late.iter_mut().for_each(|late| late.ask(&sequence.tokens, None));
                    let contents = sequence.contents();
                    let [few, many] = [&late[0], &late[1]].map(|late| late.depth(&contents));
                    assert!(few <= all.depth(&contents) && many <= all.depth(&contents));
                    worse += usize::from(few < many);
                }
            }
        }
    }
    assert!(worse > 0);
}

#[test]
fn a_stream_that_is_whole_and_goes_on_proves_nothing_new() {
    for resumes in [false, true] {
        let mut engine = Conversations::new(Kind::Vllm, Kind::Vllm.dialect(Form::Integer), 7, 60, false);
        for _ in 0..100 {
            engine.step();
        }
        let mut late = RankAdoption::default();
        if resumes {
            late.resume([], &FrontierState::default());
        }
        let mut listener = Listener { partial: false, ..Listener::new(Some(late), BLOCK) };
        let is_below = |event: &EventOf<BlockHash>| matches!(event, EventOf::Stored(stored) if stored.parent.is_some());
        let batch = std::iter::repeat_with(|| engine.step().1).find(|batch| batch.events.iter().any(is_below));
        listener.hear(&batch.expect("endless"), Duration::ZERO);
        let late = listener.late.expect("given");
        assert_eq!((late.is_late(), late.frontier().is_empty()), (!resumes, resumes), "resumes: {resumes}");
    }
}
