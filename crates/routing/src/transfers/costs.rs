//! Costs of transfers of blocks: of each worker's loads from its host memory and from disks or pools, and of pulls
//! between each pair of workers.
//!
//! A worker or pair with few samples has the costs of the fleet, and the fleet initially has those of published
//! measurements. A cost is a linear function: a fixed number of seconds, plus seconds per token.
//!
//! Published fixed costs of two fleets that run the same code differ by a factor of 65, so they have to be learnt from
//! samples. Some samples are outliers, as other traffic shared the link, or a prompt waited longer than predicted. The
//! fit uses medians, which are still right when a quarter of the samples are outliers.

use std::collections::VecDeque;

/// Number of samples of transfers (loads or pulls of blocks) that a worker, or a pair of workers, needs for costs of
/// its own; until then, those of the fleet are used.
const OWN: usize = 3;
/// Weight of a new sample in the mean additional duration of the first pull by a pair of workers.
const FIRST_SHARE: f64 = 0.3;
/// Upper limit of a sample of the first pull by a pair of workers, as a multiple of the present estimate.
const FIRST_MOST: f64 = 8.0;

/// Kind of a transfer of blocks to a worker, by the place from which the blocks come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Load of blocks from a worker's own host memory.
    Host,
    /// Load of blocks from a worker's disks or from pools (stores shared by engines).
    Far,
    /// Pull of blocks from the host memory of another worker.
    Pull,
}

impl Kind {
    pub(crate) const ALL: [Self; 3] = [Self::Host, Self::Far, Self::Pull];

    /// Name of the kind of transfer, as one word.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Far => "far",
            Self::Pull => "pull",
        }
    }
}

/// Measured cost of a kind of transfer (load or pull of blocks) to a worker, for display to operators.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct CostedTransfer {
    pub(crate) kind: Kind,
    pub(crate) worker: u32,
    /// Worker from which blocks are pulled; None for loads.
    pub(crate) source: Option<u32>,
    pub(crate) line: Line,
    pub(crate) samples: usize,
    /// Seconds for which pulls of blocks by the pair of workers remain suspended; 0 if they are not suspended.
    pub(crate) out: f64,
}

/// Costs of transfers (loads and pulls of blocks) by [`Kind`] that are assumed before any are measured, and additional
/// seconds for the first pull of a pair of workers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Priors {
    pub(crate) lines: [Line; 3],
    pub(crate) first: f64,
}

/// Costs of transfers (loads and pulls of blocks) in the fleet as a whole, and of loads by each worker.
#[derive(Debug)]
pub(crate) struct Costs {
    priors: [Line; 3],
    fleet: [LearntLine; 3],
    /// Current costs of the fleet by kind of transfer: measured, or else the initial ones; recomputed from time to
    /// time.
    lines: [Line; 3],
    /// Measurements of each worker's loads, indexed by the worker's number: from host memory, and from disks or pools.
    own: Vec<[LearntLine; 2]>,
    /// Current costs of each worker's loads; None without enough samples; recomputed from time to time.
    own_lines: Vec<[Option<Line>; 2]>,
    /// Additional seconds that the first pull of blocks by a pair of workers takes.
    first: f64,
    /// Lower bound of the costs of pulling blocks, over all pairs of workers.
    least_pull: Line,
}

impl Costs {
    pub(crate) fn new(priors: Priors) -> Self {
        Self {
            priors: priors.lines,
            fleet: Default::default(),
            lines: priors.lines,
            own: Vec::new(),
            own_lines: Vec::new(),
            first: priors.first,
            least_pull: priors.lines[Kind::Pull as usize],
        }
    }

    /// Cost of a kind of transfer (load or pull of blocks) in the fleet, for workers or pairs of workers without enough
    /// samples.
    #[inline]
    pub(crate) fn of_fleet(&self, kind: Kind) -> Line {
        self.lines[kind as usize]
    }

    /// Cost of loading blocks by a worker from its host memory, or from disks or pools.
    #[inline]
    pub(crate) fn of_worker(&self, kind: Kind, worker: u32) -> Line {
        self.own_lines.get(worker as usize).and_then(|own| own[kind as usize]).unwrap_or(self.of_fleet(kind))
    }

    /// Cost of pulls by a pair of workers: `line`, its own cost if it has enough samples, or else the cost in the
    /// fleet.
    #[inline]
    pub(crate) fn of_pair(&self, line: Option<Line>) -> Line {
        line.unwrap_or(self.of_fleet(Kind::Pull))
    }

    /// Lower bound of the costs of pulling blocks, over all pairs of workers.
    #[inline]
    pub(crate) fn least_pull(&self) -> Line {
        self.least_pull
    }

    /// Lowers [`Costs::least_pull`], the lower bound of all costs of pulls, if the cost for a pair of workers is below
    /// it.
    pub(crate) fn note_pull(&mut self, line: Option<Line>) {
        if let Some(line) = line {
            self.least_pull.floor = self.least_pull.floor.min(line.floor);
            self.least_pull.token = self.least_pull.token.min(line.token);
        }
    }

    /// Removes outdated samples of transfers and recomputes the current costs. [`Costs::note_pull`] must be called
    /// again for all pairs of workers.
    pub(crate) fn look(&mut self, now: f64) {
        for (line, (learnt, prior)) in self.lines.iter_mut().zip(self.fleet.iter().zip(self.priors)) {
            *line = learnt.line(now).unwrap_or(prior);
        }
        for (lines, own) in self.own_lines.iter_mut().zip(&self.own) {
            *lines = [known(&own[0], now), known(&own[1], now)];
        }
        self.least_pull = self.of_fleet(Kind::Pull);
    }

    /// Additional seconds that the first pull of blocks by a pair of workers takes.
    pub(crate) fn first(&self) -> f64 {
        self.first
    }

    /// Updates the additional duration of first pulls. `longer`: seconds by which the first pull by a pair of workers
    /// took longer than later ones are expected to take.
    pub(crate) fn learn_first(&mut self, longer: f64) {
        let most = self.first * FIRST_MOST;
        self.first += (longer.clamp(0.0, most.max(1e-3)) - self.first) * FIRST_SHARE;
    }

    /// Updates the cost of pulls by a pair of workers with a sample: number of tokens, and seconds.
    pub(crate) fn learn_pull(&mut self, pair: &mut LearntLine, (tokens, seconds): (f64, f64), now: f64) {
        self.learn_of_fleet(Kind::Pull, tokens, seconds, now);
        pair.add(tokens, seconds, self.of_fleet(Kind::Pull), now);
    }

    /// Updates the cost of loads by a worker from one of its own tiers with a sample: number of tokens, and seconds.
    pub(crate) fn learn_load(&mut self, kind: Kind, worker: u32, (tokens, seconds): (f64, f64), now: f64) {
        self.learn_of_fleet(kind, tokens, seconds, now);
        let at = worker as usize;
        if self.own.len() <= at {
            self.own.resize_with(at + 1, Default::default);
            self.own_lines.resize(at + 1, [None; 2]);
        }
        let prior = self.of_fleet(kind);
        if let Some(own) = self.own[at].get_mut(kind as usize) {
            own.add(tokens, seconds, prior, now);
            self.own_lines[at][kind as usize] = known(own, now);
        }
    }

    fn learn_of_fleet(&mut self, kind: Kind, tokens: f64, seconds: f64, now: f64) {
        let at = kind as usize;
        self.fleet[at].add(tokens, seconds, self.priors[at], now);
        self.lines[at] = self.fleet[at].line(now).unwrap_or(self.priors[at]);
        if kind == Kind::Pull {
            self.note_pull(Some(self.lines[at]));
        }
    }

    /// Removes the transfer costs of a worker that has left.
    pub(crate) fn left(&mut self, worker: u32) {
        if let Some(own) = self.own.get_mut(worker as usize) {
            *own = Default::default();
            self.own_lines[worker as usize] = [None; 2];
        }
    }

    /// Costs of loads by each worker for which there are samples.
    pub(crate) fn shown(&self) -> impl Iterator<Item = CostedTransfer> {
        let rows = self.own.iter().enumerate().flat_map(|(worker, own)| {
            [Kind::Host, Kind::Far].into_iter().zip(own).map(move |(kind, own)| (worker as u32, kind, own))
        });
        rows.filter(|(.., own)| own.samples() > 0).map(move |(worker, kind, own)| CostedTransfer {
            kind,
            worker,
            source: None,
            line: self.of_worker(kind, worker),
            samples: own.samples(),
            out: 0.0,
        })
    }
}

/// Measured cost of transfers by a worker or a pair of workers; None without enough samples.
pub(super) fn known(own: &LearntLine, now: f64) -> Option<Line> {
    (own.samples() >= OWN).then(|| own.line(now)).flatten()
}

/// Number of samples of transfers (loads and pulls of blocks) that are kept; newer ones replace the oldest.
const KEPT: usize = 24;
/// Number of samples of transfers needed to fit both the fixed cost and the seconds per token. With fewer, only the
/// fixed cost is fitted: seconds per token follow from a model's size and a link, while a fixed cost can only be
/// measured.
const ENOUGH: usize = 6;
/// Factor by which the shortest and the longest sample must differ in tokens for both the fixed cost and the seconds
/// per token to be fitted.
const SPREAD: f64 = 1.5;
/// Seconds after which a sample of a transfer is removed.
const FORGOTTEN: f64 = 1_800.0;

/// Duration of a transfer in seconds, as a linear function of its number of tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Line {
    /// Fixed part of a transfer's duration, in seconds.
    pub floor: f64,
    /// Seconds for each transferred token, in addition to the fixed part.
    pub token: f64,
}

impl Line {
    /// Expected duration of a transfer of this number of tokens, in seconds.
    #[must_use]
    #[inline]
    pub fn seconds(&self, tokens: f64) -> f64 {
        self.floor + self.token * tokens
    }
}

/// Duration of transfers (loads or pulls of blocks) as a linear function of the tokens, fitted to samples.
#[derive(Debug, Clone, Default)]
pub(crate) struct LearntLine {
    /// Samples, the oldest first: time in seconds, number of tokens, duration in seconds.
    samples: VecDeque<(f64, f64, f64)>,
    line: Option<Line>,
}

impl LearntLine {
    /// Number of samples of transfers (loads or pulls of blocks) to which the linear function is fitted.
    pub(crate) fn samples(&self) -> usize {
        self.samples.len()
    }

    /// Linear function for the duration of transfers, fitted to the samples; None without recent samples.
    #[inline]
    pub(crate) fn line(&self, now: f64) -> Option<Line> {
        let line = self.line?;
        self.samples.back().filter(|(at, ..)| now - at < FORGOTTEN).map(|_| line)
    }

    /// Adds a sample of a transfer: `tokens` tokens took `seconds`. `prior`: linear function assumed without samples.
    pub(crate) fn add(&mut self, tokens: f64, seconds: f64, prior: Line, now: f64) {
        self.samples.retain(|(at, ..)| now - at < FORGOTTEN);
        if self.samples.len() == KEPT {
            self.samples.pop_front();
        }
        self.samples.push_back((now, tokens, seconds));
        self.line = Some(self.fit(prior));
    }

    /// Forgets all samples of transfers (loads or pulls of blocks).
    pub(crate) fn forget(&mut self) {
        *self = Self::default();
    }

    fn fit(&self, prior: Line) -> Line {
        let samples = &self.samples;
        let tokens = || samples.iter().map(|(_, tokens, _)| *tokens);
        let (least, most) = (tokens().fold(f64::INFINITY, f64::min), tokens().fold(0.0, f64::max));
        if samples.len() >= ENOUGH && most >= SPREAD * least {
            return self.fit_both();
        }
        let share = samples.len() as f64 / (samples.len() + 1) as f64;
        let excess = median(samples.iter().map(|(_, tokens, seconds)| seconds - prior.seconds(*tokens)));
        let floor = prior.floor + share * excess;
        if floor >= 0.0 {
            return Line { floor, token: prior.token };
        }
        let times = median(samples.iter().map(|(_, tokens, seconds)| seconds / prior.seconds(*tokens)));
        let times = times.max(1e-3).powf(share);
        Line { floor: prior.floor * times, token: prior.token * times }
    }

    /// Fits the fixed cost and the seconds per token (Theil and Sen): the median slope between two samples, and the
    /// median of the remainders as fixed cost.
    fn fit_both(&self) -> Line {
        let samples = &self.samples;
        let pairs =
            samples.iter().enumerate().flat_map(|(at, one)| samples.iter().skip(at + 1).map(move |it| (one, it)));
        let slopes = pairs.filter(|(a, b)| a.1 != b.1).map(|(a, b)| (b.2 - a.2) / (b.1 - a.1));
        let token = median(slopes).max(0.0);
        let floor = median(samples.iter().map(|(_, tokens, seconds)| seconds - token * tokens));
        if floor >= 0.0 {
            return Line { floor, token };
        }
        Line { floor: 0.0, token: median(samples.iter().map(|(_, tokens, seconds)| seconds / tokens)) }
    }
}

/// Median of the values; 0 if there are none.
fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    if values.is_empty() {
        return 0.0;
    }
    let at = values.len() / 2;
    *values.select_nth_unstable_by(at, f64::total_cmp).1
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRIOR: Line = Line { floor: 0.0255, token: 4.07e-6 };

    fn learnt(real: Line, samples: impl Iterator<Item = (f64, f64)>) -> Line {
        let mut learnt = LearntLine::default();
        for (at, (tokens, times)) in samples.enumerate() {
            learnt.add(tokens, real.seconds(tokens) * times, PRIOR, at as f64);
        }
        learnt.line(100.0).unwrap()
    }

    fn close(line: Line, real: Line, share: f64) {
        for tokens in [8_000.0, 30_000.0, 90_000.0] {
            let off = line.seconds(tokens) / real.seconds(tokens);
            assert!((off - 1.0).abs() < share, "{tokens}: {line:?} for {real:?}");
        }
    }

    #[test]
    fn floors_that_are_far_off_are_learnt_from_few_samples() {
        // Wide expert parallelism: published floors are 1.3 to 1.8 s.
        let real = Line { floor: 1.66, token: 6.1e-6 };
        let lengths = [8e3, 12e3, 20e3, 34e3, 50e3, 68e3, 98e3];
        close(learnt(real, lengths.into_iter().take(3).map(|tokens| (tokens, 1.0))), real, 0.3);
        close(learnt(real, lengths.into_iter().map(|tokens| (tokens, 1.0))), real, 0.01);
    }

    #[test]
    fn a_quarter_of_accidents_does_little() {
        let real = Line { floor: 0.2, token: 3e-5 };
        let samples = (0..24).map(|at| (8e3 + 4e3 * f64::from(at * 7 % 24), if at % 4 == 3 { 20.0 } else { 1.0 }));
        close(learnt(real, samples), real, 0.25);
    }

    #[test]
    fn what_is_quicker_than_expected_is_learnt_too() {
        let real = Line { floor: 0.001, token: 1e-6 };
        let line = learnt(real, [(8e3, 1.0); 20].into_iter());
        assert!((line.seconds(8e3) / real.seconds(8e3) - 1.0).abs() < 0.2, "{line:?}");
        close(learnt(real, (1..20).map(|at| (8e3 * f64::from(at), 1.0))), real, 0.01);
    }

    #[test]
    fn what_is_old_is_forgotten() {
        let mut learnt = LearntLine::default();
        learnt.add(8e3, 9.0, PRIOR, 0.0);
        assert!(learnt.line(10.0).is_some());
        assert_eq!(learnt.line(FORGOTTEN), None);
        learnt.add(8e3, 0.058, PRIOR, FORGOTTEN + 1.0);
        assert!((learnt.line(FORGOTTEN + 2.0).unwrap().floor - PRIOR.floor).abs() < 1e-3);
    }
}
