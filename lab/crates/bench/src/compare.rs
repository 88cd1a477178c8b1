//! Comparison of an index, after a load test, with the plan of events that was applied to it: its holdings and its
//! answers.
//!
//! There are three comparisons. Holdings: every pair of worker and block hash. Depths: lookups of the plan are
//! repeated, and the answers for many workers compared with chains walked in the plan's own data. Reference: the same
//! for a few workers and lookups against [`ReferenceIndex`], the specification, which gets only those workers' events:
//! it visits every block of a worker at every step, so there is time for few only.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hashbrown::{HashMap, HashSet};
use kvatlas_designs::{Change, Scores, WorkerId};
use kvatlas_index::reference::ReferenceIndex;
use kvatlas_index::{BlockHash, Tier, View};
use serde::Serialize;

use crate::error::Error;
use crate::options::Options;
use crate::plan::{Kind, Op, Plan};
use crate::subject::Subject;
use crate::truth::Truth;

/// Maximum number of blocks, in total, held by the workers whose answers are compared with the truth. The chains of
/// these blocks need 40 bytes of memory per block.
const WATCHED_BLOCKS: usize = 4_000_000;
/// Number of workers whose events are applied to the reference index.
const REFERENCE_WORKERS: usize = 4;
/// Number of lookups, out of four that are repeated for the comparison, that are from the last quarter of the plan,
/// whose blocks are mostly still held.
const LATE: usize = 3;
/// Maximum number of errors found by the comparison whose descriptions are reported.
const EXAMPLES: usize = 8;

/// Results of comparing an index, after a load test, with the blocks that its workers must hold according to the plan
/// (the list of operations), and the errors found.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Comparison {
    /// Comparison of the blocks that workers hold according to the index and to the plan; `None` if the index cannot
    /// list them.
    pub holdings: Option<Holdings>,
    /// Comparison of the depths in the index's answers with depths found by following parents through the blocks of the
    /// plan's events.
    pub depths: Depths,
    /// Comparison of the depths in the index's answers with those of the reference index.
    pub reference: Depths,
    /// Number of errors in all comparisons.
    pub wrong: u64,
    /// Descriptions of the first few errors.
    pub examples: Vec<String>,
    /// Duration of the comparisons, in seconds.
    pub seconds: f64,
}

/// Counts from comparing which worker holds which blocks at the end of a load test: according to the index, and
/// according to the events of the plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Holdings {
    /// Number of pairs of a worker and a block that it holds at the end of the plan; all of them were looked for in the
    /// index.
    pub compared: u64,
    /// Number of pairs of worker and block that are held according to the plan, but not the index.
    pub missing: u64,
    /// Number of pairs of worker and block that are held according to the index, but not the plan.
    pub extra: u64,
}

/// Counts from comparing depths (numbers of a query's leading blocks that a worker holds) in the index's answers with
/// the correct ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Depths {
    /// Number of the plan's lookups that were repeated for the comparison.
    pub queries: u64,
    /// Number of workers whose depths were compared for each lookup.
    pub workers: u64,
    /// Number of depths compared: lookups × workers.
    pub compared: u64,
    /// Number of compared depths (numbers of leading blocks held) whose correct value is not 0.
    pub nonzero: u64,
    /// Number of compared depths (numbers of leading blocks held) for which the index's answer was wrong.
    pub wrong: u64,
}

impl Comparison {
    /// True if everything that was compared with the plan was right; `None` if nothing was compared that an empty index
    /// would get wrong. `asked`: true if the plan has lookups, so that right holdings alone do not suffice.
    #[must_use]
    pub fn agrees(&self, asked: bool) -> Option<bool> {
        let held = self.holdings.map_or(0, |holdings| holdings.compared);
        let found = self.depths.nonzero + self.reference.nonzero;
        match self.wrong {
            1.. => Some(false),
            0 if found > 0 || (!asked && held > 0) => Some(true),
            0 => None,
        }
    }

    /// Sentence that states how many errors the comparison found, for a report.
    pub(crate) fn words(&self) -> String {
        let held = self.holdings.map_or_else(String::new, |Holdings { compared, missing, extra }| {
            format!("{missing} of {compared} held blocks missing, {extra} held that should not be; ")
        });
        let (answers, compared) =
            (self.depths.wrong + self.reference.wrong, self.depths.compared + self.reference.compared);
        let example = self.examples.first().map_or_else(String::new, |first| format!("; {first}"));
        format!("wrong: {held}{answers} of {compared} depths wrong{example}")
    }

    fn example(&mut self, words: impl FnOnce() -> String) {
        if self.examples.len() < EXAMPLES {
            self.examples.push(words());
        }
    }
}

pub(crate) fn compare<S: Subject>(
    plan: &Plan,
    subject: &S,
    options: &Options,
    interrupt: &AtomicBool,
) -> Result<Comparison, Error> {
    let start = Instant::now();
    let budget = Duration::try_from_secs_f64(options.check_seconds).unwrap_or(Duration::MAX);
    let truth = Truth::new(plan);
    let mut result = Comparison::default();
    let going = || if interrupt.load(Ordering::Relaxed) { Err(Error::Interrupted) } else { Ok(()) };
    going()?;
    if let Some(held) = subject.holdings() {
        holdings(&truth, held, &mut result);
    }
    going()?;
    let samples = samples(plan, options);
    depths(plan, subject, &truth, &samples, budget, options.seed, &mut result, &going)?;
    reference(plan, subject, &truth, &samples, budget, &mut result, &going)?;
    let held = result.holdings.unwrap_or_default();
    result.wrong = held.missing + held.extra + result.depths.wrong + result.reference.wrong;
    result.seconds = start.elapsed().as_secs_f64();
    Ok(result)
}

fn holdings(truth: &Truth, mut held: Vec<(WorkerId, BlockHash)>, result: &mut Comparison) {
    held.sort_unstable();
    let expected = truth.holdings();
    let mut count = Holdings { compared: expected.len() as u64, ..Holdings::default() };
    let (mut expected, mut held) = (expected.into_iter().peekable(), held.into_iter().peekable());
    loop {
        let (wanted, got) = (expected.peek().copied(), held.peek().copied());
        match (wanted, got) {
            (None, None) => break,
            (Some(wanted), got) if got.is_none_or(|got| wanted < got) => {
                count.missing += 1;
                result.example(|| format!("worker {} should hold block {:#018x}", wanted.0, wanted.1.0));
                expected.next();
            }
            (wanted, Some(got)) if wanted.is_none_or(|wanted| got < wanted) => {
                count.extra += 1;
                result.example(|| format!("worker {} should not hold block {:#018x}, or not twice", got.0, got.1.0));
                held.next();
            }
            _ => {
                expected.next();
                held.next();
            }
        }
    }
    result.holdings = Some(count);
}

/// A lookup of the plan that is repeated for the comparison.
struct Sample<'p> {
    op: usize,
    worker: WorkerId,
    contents: &'p [u64],
}

/// Chooses the lookups to repeat, without duplicates: mostly from the last quarter of the plan, some from all of it.
fn samples<'p>(plan: &'p Plan, options: &Options) -> Vec<Sample<'p>> {
    let kinds = &plan.columns().kinds;
    let lookups: Vec<usize> = (0..plan.len()).filter(|&op| kinds[op] == Kind::Lookup as u8).collect();
    let mut rng = Rng::new(options.seed);
    let mut seen = HashSet::new();
    let mut samples = Vec::new();
    let late = lookups.len() - lookups.len().div_ceil(4);
    // Duplicates are left out, so a few more are drawn than needed.
    for draw in 0..options.samples.min(lookups.len()).saturating_mul(3) {
        if samples.len() == options.samples || lookups.is_empty() {
            break;
        }
        let from = if draw % 4 < LATE { late } else { 0 };
        let op = lookups[from + rng.below(lookups.len() - from)];
        if let Op::Lookup { worker, contents } = plan.op(op)
            && seen.insert(op)
        {
            samples.push(Sample { op, worker, contents });
        }
    }
    samples
}

/// Chooses the workers whose depths are compared, up to a total number of blocks: first those of the repeated lookups
/// (`samples`), then others.
fn watched(truth: &Truth, samples: &[Sample<'_>], workers: u32, seed: u64) -> Vec<WorkerId> {
    let mut rng = Rng::new(seed ^ 0x776f_726b_6572);
    let mut others: Vec<WorkerId> = (0..workers).collect();
    for at in (1..others.len()).rev() {
        others.swap(at, rng.below(at + 1));
    }
    let mut chosen = BTreeSet::new();
    let mut blocks = 0;
    for worker in samples.iter().map(|sample| sample.worker).chain(others) {
        if chosen.contains(&worker) {
            continue;
        }
        blocks += truth.blocks(worker);
        if blocks > WATCHED_BLOCKS && !chosen.is_empty() {
            break;
        }
        chosen.insert(worker);
    }
    chosen.into_iter().collect()
}

/// Looks up a prompt in the index, and returns the depth of each worker. An invalid answer (a worker twice, an unknown
/// worker) is reported as an error of its own.
fn answers<S: Subject>(
    plan: &Plan,
    subject: &S,
    sample: &Sample<'_>,
    scores: &mut Scores,
) -> (HashMap<WorkerId, u32>, Vec<String>) {
    let mut trouble = Vec::new();
    if let Err(said) = subject.answer(sample.contents, scores) {
        scores.clear();
        trouble.push(format!("lookup {}: {said}", sample.op));
    }
    let mut answers = HashMap::with_capacity(scores.len());
    for &(worker, depth) in &*scores {
        if worker >= plan.columns().worker_count {
            trouble.push(format!("lookup {}: there is no worker {worker}, with depth {depth}", sample.op));
        } else if answers.insert(worker, depth).is_some() {
            trouble.push(format!("lookup {}: worker {worker} is answered twice", sample.op));
        }
    }
    (answers, trouble)
}

#[expect(clippy::too_many_arguments, reason = "what is compared, with what, and how long")]
fn depths<S: Subject>(
    plan: &Plan,
    subject: &S,
    truth: &Truth,
    samples: &[Sample<'_>],
    budget: Duration,
    seed: u64,
    result: &mut Comparison,
    going: &impl Fn() -> Result<(), Error>,
) -> Result<(), Error> {
    let start = Instant::now();
    let workers = watched(truth, samples, plan.columns().worker_count, seed);
    let chains = truth.chains(&workers);
    let mut count = Depths { workers: workers.len() as u64, ..Depths::default() };
    let mut scores = Scores::new();
    for sample in samples {
        // The first is always compared.
        if count.queries > 0 && start.elapsed() > budget {
            break;
        }
        going()?;
        let (answers, trouble) = answers(plan, subject, sample, &mut scores);
        count.wrong += trouble.len() as u64;
        for words in trouble {
            result.example(|| words);
        }
        count.queries += 1;
        for &worker in &workers {
            let right = chains.depth(worker, sample.contents);
            judge(&mut count, result, sample, worker, answers.get(&worker).copied().unwrap_or(0), right);
        }
    }
    result.depths = count;
    Ok(())
}

fn judge(count: &mut Depths, result: &mut Comparison, sample: &Sample<'_>, worker: WorkerId, got: u32, right: u32) {
    count.compared += 1;
    count.nonzero += u64::from(right > 0);
    if got != right {
        count.wrong += 1;
        result.example(|| format!("lookup {}: worker {worker} has depth {got}, should be {right}", sample.op));
    }
}

fn reference<S: Subject>(
    plan: &Plan,
    subject: &S,
    truth: &Truth,
    samples: &[Sample<'_>],
    budget: Duration,
    result: &mut Comparison,
    going: &impl Fn() -> Result<(), Error>,
) -> Result<(), Error> {
    let start = Instant::now();
    // Workers of the sampled lookups with blocks: others mostly have depth 0.
    let mut told: Vec<(WorkerId, String)> = Vec::new();
    for sample in samples {
        if told.len() < REFERENCE_WORKERS
            && truth.blocks(sample.worker) > 0
            && told.iter().all(|(worker, _)| *worker != sample.worker)
        {
            told.push((sample.worker, sample.worker.to_string()));
        }
    }
    // Engines of a plan announce a block once, however many copies they have.
    let mut index = ReferenceIndex::new(false);
    for (at, op) in plan.ops().enumerate() {
        if at % 4_096 == 0 {
            going()?;
        }
        if let Some((_, name)) = told.iter().find(|(worker, _)| *worker == op.worker())
            && let Some(change) = op.change()
        {
            tell(&mut index, name, &change);
        }
    }
    let mut count = Depths { workers: told.len() as u64, ..Depths::default() };
    let mut scores = Scores::new();
    let is_told = |sample: &&Sample<'_>| told.iter().any(|(worker, _)| *worker == sample.worker);
    let (theirs, others): (Vec<&Sample<'_>>, Vec<&Sample<'_>>) = samples.iter().partition(is_told);
    for sample in theirs.into_iter().chain(others) {
        if told.is_empty() || count.queries > 0 && start.elapsed() > budget {
            break;
        }
        going()?;
        let (answers, _) = answers(plan, subject, sample, &mut scores);
        let found = index.find(sample.contents).scores(View::Device);
        count.queries += 1;
        for (worker, name) in &told {
            let right = found.iter().find(|(found, _)| **found == **name).map_or(0, |&(_, depth)| depth);
            judge(&mut count, result, sample, *worker, answers.get(worker).copied().unwrap_or(0), right);
        }
    }
    result.reference = count;
    Ok(())
}

fn tell(index: &mut ReferenceIndex, worker: &str, change: &Change) {
    match change {
        Change::Store { parent, block_hashes, content_hashes, .. } => {
            // A plan's stores have equally long lists, so they cannot be refused.
            let _ = index.store(worker, 0, Tier::Gpu, *parent, block_hashes, content_hashes);
        }
        Change::Remove { block_hashes, .. } => index.remove(worker, 0, Tier::Gpu, block_hashes),
        Change::Clear { .. } => index.clear(worker, None, None),
        Change::Drop { .. } => index.drop_worker(worker),
    }
}

/// Generator of random numbers (SplitMix64), which gives equal numbers on every machine.
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// Returns a random number below `bound`, which must not be 0.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next()) * bound as u128) >> 64) as usize
    }
}
