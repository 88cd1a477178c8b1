//! Estimates of workers' speed, from the time until first tokens and between later tokens. The estimates are robust:
//! outliers are clipped or ignored, and a worker with few samples counts as about as fast as the fleet.

/// Weight of the fleet's mean speed in a worker's estimate, as a number of samples.
const FLEET_WEIGHT: f64 = 3.0;
/// Lower limit of the weight of a new sample of a worker's speed in the mean, so that old samples are forgotten.
const SLOWEST: f64 = 0.08;
/// Number of a worker's first speed samples, whose median is the estimate. Each later sample counts as at most twice
/// and at least half of the estimate.
const FIRST: usize = 5;
/// Number of a worker's own speed samples below which the worker counts as at most `FEW_MOST` times faster or slower
/// than the fleet. A worker that compiles its kernels during its first prompt is only slow at that time.
const FEW: f64 = 3.0;
const FEW_MOST: f64 = 4.0;
/// Factor by which a later sample must differ from the estimate to be ignored. After `FIRST` ignored samples in a row,
/// the worker's speed is taken to have changed, and the estimate starts anew.
const STRAY: f64 = 8.0;
/// Upper limit of a worker's prompt tokens per second: 16 of the fastest GPUs reach a quarter of this rate with small
/// models.
const MOST_RATE: f64 = 2e6;
/// Smallest number of prompt tokens in a sample of the prefill rate: with fewer, fixed costs dominate its duration.
const LEAST_TOKENS: f64 = 384.0;
/// Shortest duration of a sample of the prefill rate, in seconds.
const LEAST_SECONDS: f64 = 1e-3;

/// Geometric mean of samples in which old samples lose weight; at first, the median.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RunningMean {
    log: f64,
    samples: f64,
    /// Logarithms of the first samples in the mean, in ascending order.
    first: [f64; FIRST],
    /// Number of consecutive samples ignored as outliers: positive if they were too high, negative if too low.
    strays: i8,
}

impl RunningMean {
    pub(crate) fn new(start: f64) -> Self {
        Self { log: start.ln(), samples: 0.0, first: [f64::INFINITY; FIRST], strays: 0 }
    }

    /// Adds a sample to the mean; returns false if the sample was ignored as an outlier. `down`: factor by which the
    /// mean moves faster to samples below it than to samples above it; 1 for a plain mean.
    fn add(&mut self, sample: f64, down: f64) -> bool {
        if self.is_stray(sample.ln() - self.log) {
            return false;
        }
        self.samples += 1.0;
        let nth = self.samples as usize;
        if nth <= FIRST {
            self.first[nth - 1] = sample.ln();
            self.first.sort_unstable_by(f64::total_cmp);
            let (low, high) = (self.first[(nth - 1) / 2], self.first[nth / 2]);
            self.log = if down > 1.0 { low } else { f64::midpoint(low, high) };
            return true;
        }
        let far = sample.ln() - self.log;
        let share = (1.0 / self.samples).max(SLOWEST);
        let most = std::f64::consts::LN_2;
        let share = if far < 0.0 { (share * down).min(1.0) } else { share };
        self.log += far.clamp(-most, most) * share;
        true
    }

    /// True if a sample must be ignored as an outlier. `far`: logarithm of the sample relative to the estimate.
    fn is_stray(&mut self, far: f64) -> bool {
        if (self.samples as usize) < FIRST || far.abs() <= STRAY.ln() {
            self.strays = 0;
            return false;
        }
        let one = if far > 0.0 { 1 } else { -1 };
        self.strays = if self.strays.signum() == one { self.strays + one } else { one };
        if usize::from(self.strays.unsigned_abs()) < FIRST {
            return true;
        }
        *self = Self::new(self.log.exp());
        false
    }

    /// Estimate for a worker: its own mean speed combined with the fleet's, each weighted by its number of samples.
    fn beside(&self, fleet: &Self) -> f64 {
        let own = self.samples.min(1.0 / SLOWEST);
        let other = if fleet.samples > 0.0 || own == 0.0 { FLEET_WEIGHT } else { 0.0 };
        let most = if own < FEW { FEW_MOST.ln() } else { f64::INFINITY };
        let log = fleet.log + (self.log - fleet.log).clamp(-most, most);
        ((own * log + other * fleet.log) / (own + other)).exp()
    }
}

/// Mean speed of all workers of the fleet: prefill rate and time between tokens.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FleetSpeed {
    rate: RunningMean,
    step: RunningMean,
    /// Number of samples of the fleet's speed since the speeds of all workers were last updated.
    pub(crate) fresh: u32,
    /// Number of speed samples that were ignored as outliers.
    pub(crate) left_out: u64,
}

impl FleetSpeed {
    pub(crate) fn new(rate: f64, step: f64) -> Self {
        Self { rate: RunningMean::new(rate), step: RunningMean::new(step), fresh: 0, left_out: 0 }
    }

    /// True if one more sample changes the estimates only a little, because there are many samples already.
    pub(crate) fn is_settled(&self) -> bool {
        [&self.rate, &self.step].iter().all(|it| it.samples == 0.0 || it.samples > 1.0 / SLOWEST)
    }
}

/// Estimated speed of one worker: prefill rate and time between tokens.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Speed {
    rate: RunningMean,
    step: RunningMean,
    /// Time, in seconds, at which the worker began to compute the `done` tokens.
    since: f64,
    done: f64,
    /// True if the number of tokens that the worker computes for a prompt is known. Otherwise the time until the first
    /// token says nothing about the worker's speed.
    is_measured: bool,
}

impl Speed {
    pub(crate) fn new(fleet: &FleetSpeed) -> Self {
        let none = |learnt: &RunningMean| RunningMean::new(learnt.log.exp());
        Self { rate: none(&fleet.rate), step: none(&fleet.step), since: f64::NAN, done: 0.0, is_measured: true }
    }

    /// Records whether the number of tokens that the worker computes for a prompt is known. If it becomes unknown, the
    /// prefill rates of the worker and of the fleet are reset to `start`, in tokens per second, and only the worker's
    /// own reports change its rate from then on.
    pub(crate) fn set_measured(&mut self, is_measured: bool, start: f64, fleet: &mut FleetSpeed) {
        if self.is_measured && !is_measured {
            fleet.rate = RunningMean::new(start);
            self.rate = RunningMean::new(start);
        }
        self.is_measured = is_measured;
    }

    /// Records that a prompt was sent to an idle worker, which computes no other prompt.
    pub(crate) fn begins(&mut self, now: f64) {
        self.since = now;
        self.done = 0.0;
    }

    /// Updates the prefill rate with `tokens` prompt tokens that were computed when a first token arrived. `more`: true
    /// if other prompts are waiting. Returns true if the estimate changed.
    pub(crate) fn learn_prefill(&mut self, tokens: f64, more: bool, now: f64, fleet: &mut FleetSpeed) -> bool {
        self.done += tokens;
        let seconds = now - self.since;
        let good = self.is_measured && self.done >= LEAST_TOKENS && seconds >= LEAST_SECONDS;
        if good {
            self.learn(self.done / seconds, fleet);
        }
        if good || !more {
            self.begins(now);
        }
        good
    }

    /// Updates the prefill rate with a prompt that was sent at the time `sent` and whose answer arrived all at once.
    /// The time of its first token is unknown, so the sample is a lower bound and can only raise the rate. Returns true
    /// if the estimate changed.
    pub(crate) fn came_whole(&mut self, tokens: f64, sent: f64, now: f64, fleet: &mut FleetSpeed) -> bool {
        if sent >= self.since {
            self.done += tokens;
        }
        let seconds = now - self.since;
        let rate = self.done / seconds;
        let is_enough = self.done >= LEAST_TOKENS && seconds >= LEAST_SECONDS;
        let quicker = self.is_measured && is_enough && rate > self.rate(fleet);
        if quicker {
            self.learn(rate, fleet);
        }
        quicker
    }

    /// Updates the prefill rate with a worker's report that it computed `tokens` tokens of a prompt in `seconds`; used
    /// if the number of tokens computed is not known otherwise. The time includes earlier prompts, so the sample is a
    /// lower bound and can only raise the rate. Returns true if the estimate changed.
    pub(crate) fn learn_told(&mut self, tokens: f64, seconds: f64, fleet: &mut FleetSpeed) -> bool {
        let rate = (tokens / seconds).min(MOST_RATE);
        let quicker = !self.is_measured && tokens >= LEAST_TOKENS && rate > self.rate(fleet);
        if quicker {
            self.learn(rate, fleet);
        }
        quicker
    }

    fn learn(&mut self, rate: f64, fleet: &mut FleetSpeed) {
        if rate > MOST_RATE || !self.rate.add(rate, 1.0) {
            fleet.left_out += 1;
            return;
        }
        fleet.rate.add(rate, 1.0);
        fleet.fresh += 1;
    }

    /// Discards the current measurement of the prefill rate, because a prompt left the queue without a first token.
    pub(crate) fn spoilt(&mut self, now: f64) {
        self.begins(now);
    }

    /// Updates the time between tokens with a request that received a token every `seconds`. Low values weigh more, as
    /// high ones include the prefill of other prompts.
    pub(crate) fn learn_step(&mut self, seconds: f64, fleet: &mut FleetSpeed) {
        if seconds.is_finite() && seconds > 1e-6 {
            if self.step.add(seconds, 4.0) {
                fleet.step.add(seconds, 4.0);
                fleet.fresh += 1;
            } else {
                fleet.left_out += 1;
            }
        }
    }

    pub(crate) fn rate(&self, fleet: &FleetSpeed) -> f64 {
        self.rate.beside(&fleet.rate)
    }

    pub(crate) fn step(&self, fleet: &FleetSpeed) -> f64 {
        self.step.beside(&fleet.step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accidents_are_left_out_and_changes_are_learnt() {
        let mut fleet = FleetSpeed::new(8000.0, 0.02);
        let mut speed = Speed::new(&fleet);
        let mut now = 0.0;
        let mut sample = |speed: &mut Speed, fleet: &mut FleetSpeed, rate: f64| {
            speed.begins(now);
            now += 4000.0 / rate;
            speed.learn_prefill(4000.0, false, now, fleet);
            speed.rate(fleet)
        };
        for _ in 0..20 {
            sample(&mut speed, &mut fleet, 4000.0);
        }
        for rate in [1e6, 1e6, 100.0, 1e6, 3e6, 100.0, 100.0] {
            let learnt = sample(&mut speed, &mut fleet, rate);
            assert!((learnt / 4000.0 - 1.0).abs() < 1e-9, "{learnt}");
        }
        assert_eq!(fleet.left_out, 7);
        // It is no accident any more.
        for _ in 0..20 {
            sample(&mut speed, &mut fleet, 100.0);
        }
        let learnt = speed.rate(&fleet);
        assert!((learnt / 100.0 - 1.0).abs() < 0.5, "{learnt}");
    }

    #[test]
    fn what_cannot_be_measured_is_forgotten_and_not_learnt() {
        let mut fleet = FleetSpeed::new(8000.0, 0.02);
        let mut speed = Speed::new(&fleet);
        let prompt = |speed: &mut Speed, fleet: &mut FleetSpeed| {
            speed.begins(0.0);
            let learnt = speed.learn_prefill(4000.0, false, 0.01, fleet);
            speed.begins(0.0);
            learnt | speed.came_whole(4000.0, 0.0, 0.005, fleet)
        };
        assert!(prompt(&mut speed, &mut fleet) && speed.rate(&fleet) > 80_000.0);
        speed.set_measured(false, 8000.0, &mut fleet);
        assert!(!prompt(&mut speed, &mut fleet));
        let rates = [speed.rate(&fleet), Speed::new(&fleet).rate(&fleet)];
        assert!(rates.iter().all(|rate| (rate / 8000.0 - 1.0).abs() < 1e-9), "{rates:?}");
        // The worker's own reports still teach its rate, but only a higher one.
        assert!(!speed.learn_told(383.0, 0.01, &mut fleet) && !speed.learn_told(4000.0, 1.0, &mut fleet));
        let rates = [0.04, 0.02, 0.0].map(|seconds| {
            assert!(speed.learn_told(4000.0, seconds, &mut fleet));
            speed.rate(&fleet)
        });
        assert!((rates[0] / 100_000.0 - 1.0).abs() < 1e-9 && rates[2] <= MOST_RATE, "{rates:?}");
        speed.set_measured(true, 8000.0, &mut fleet);
        assert!(!speed.learn_told(4000.0, 0.001, &mut fleet));
        assert!(prompt(&mut speed, &mut fleet) && speed.rate(&fleet) > 80_000.0);
    }
}
