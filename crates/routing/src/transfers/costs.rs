//! Costs of transfers: of each worker from its host memory and from its disks and pools, and of each pair of workers.
//!
//! A worker or pair with few samples counts as the fleet does, and the fleet as published measurements do.

use crate::transfers::line::{LearntLine, Line};

/// Number of samples from which on a worker or pair has costs of its own.
const OWN: usize = 3;
/// Weight of the newest first pull of a pair.
const FIRST_SHARE: f64 = 0.3;
/// Factor that limits what one first pull counts for: at most this many times what first pulls took so far.
const FIRST_MOST: f64 = 8.0;

/// The kind of a transfer: the place that blocks come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A load from a worker's own host memory.
    Host,
    /// A load from its disks or from pools.
    Far,
    /// A pull from the host memory of another worker.
    Pull,
}

impl Kind {
    pub(crate) const ALL: [Self; 3] = [Self::Host, Self::Far, Self::Pull];

    /// The kind in a word.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Far => "far",
            Self::Pull => "pull",
        }
    }
}

/// A cost that was learnt, as it is shown to operators.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct CostedTransfer {
    pub(crate) kind: Kind,
    pub(crate) worker: u32,
    /// The worker pulled from.
    pub(crate) source: Option<u32>,
    pub(crate) line: Line,
    pub(crate) samples: usize,
    /// Seconds until the pair may pull again; 0 if it may.
    pub(crate) out: f64,
}

/// Costs that transfers are taken to have until they are learnt, by [`Kind`], and seconds more for the first pull of a pair.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Priors {
    pub(crate) lines: [Line; 3],
    pub(crate) first: f64,
}

/// The fleet's costs, and those of workers' own tiers.
#[derive(Debug)]
pub(crate) struct Costs {
    priors: [Line; 3],
    fleet: [LearntLine; 3],
    /// Costs that the fleet has shown, or else the priors, as of a moment ago.
    lines: [Line; 3],
    /// By number of the worker: host memory, and what is further away.
    own: Vec<[LearntLine; 2]>,
    /// Costs that these have shown, where that is enough, as of a moment ago.
    own_lines: Vec<[Option<Line>; 2]>,
    /// Seconds that the first pull of a pair takes longer.
    first: f64,
    /// A line that no pair's line is below.
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

    /// The cost of a kind for a worker or pair without costs of its own.
    #[inline]
    pub(crate) fn of_fleet(&self, kind: Kind) -> Line {
        self.lines[kind as usize]
    }

    /// The cost of a load by a worker from a tier of its own.
    #[inline]
    pub(crate) fn of_worker(&self, kind: Kind, worker: u32) -> Line {
        self.own_lines.get(worker as usize).and_then(|own| own[kind as usize]).unwrap_or(self.of_fleet(kind))
    }

    /// The cost of a pull by a pair; `line`: what is known of the pair itself.
    #[inline]
    pub(crate) fn of_pair(&self, line: Option<Line>) -> Line {
        line.unwrap_or(self.of_fleet(Kind::Pull))
    }

    /// A line that no pair's pulls are below.
    #[inline]
    pub(crate) fn least_pull(&self) -> Line {
        self.least_pull
    }

    /// Notes the line of a pair, if it has one, for [`Costs::least_pull`].
    pub(crate) fn note_pull(&mut self, line: Option<Line>) {
        if let Some(line) = line {
            self.least_pull.floor = self.least_pull.floor.min(line.floor);
            self.least_pull.token = self.least_pull.token.min(line.token);
        }
    }

    /// Forgets what is old. The lines of pairs are to be noted again.
    pub(crate) fn look(&mut self, now: f64) {
        for (line, (learnt, prior)) in self.lines.iter_mut().zip(self.fleet.iter().zip(self.priors)) {
            *line = learnt.line(now).unwrap_or(prior);
        }
        for (lines, own) in self.own_lines.iter_mut().zip(&self.own) {
            *lines = [known(&own[0], now), known(&own[1], now)];
        }
        self.least_pull = self.of_fleet(Kind::Pull);
    }

    /// Additional seconds of a pair's first pull.
    pub(crate) fn first(&self) -> f64 {
        self.first
    }

    /// Learns from the first pull of a pair. `longer`: the seconds by which it took longer than later ones should.
    pub(crate) fn learn_first(&mut self, longer: f64) {
        let most = self.first * FIRST_MOST;
        self.first += (longer.clamp(0.0, most.max(1e-3)) - self.first) * FIRST_SHARE;
    }

    /// Learns from a pull by a pair.
    pub(crate) fn learn_pull(&mut self, pair: &mut LearntLine, (tokens, seconds): (f64, f64), now: f64) {
        self.learn_of_fleet(Kind::Pull, tokens, seconds, now);
        pair.add(tokens, seconds, self.of_fleet(Kind::Pull), now);
    }

    /// Learns from a load by a worker from a tier of its own.
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

    /// Forgets the costs of a worker that has left.
    pub(crate) fn left(&mut self, worker: u32) {
        if let Some(own) = self.own.get_mut(worker as usize) {
            *own = Default::default();
            self.own_lines[worker as usize] = [None; 2];
        }
    }

    /// The costs of loads of all workers that have samples.
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

/// Returns the cost that a worker or a pair has shown, if its samples are enough.
pub(super) fn known(own: &LearntLine, now: f64) -> Option<Line> {
    (own.samples() >= OWN).then(|| own.line(now)).flatten()
}
