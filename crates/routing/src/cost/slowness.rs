//! Estimate of an engine's slowdown: how the time between tokens grows with the number of requests that it runs.
//!
//! Each step of an engine makes one token of every running answer, and reads the KV of all their tokens. The duration
//! of a step depends on the engine, so it is learnt for the fleet: a linear regression of the time between an answer's
//! tokens, relative to the engine's mean, on the load meanwhile.

/// Factor by which an answer's time between tokens must differ from the engine's mean to be ignored as an outlier.
const STRAY: f64 = 3.0;
/// Factor by which the weight of earlier samples of answers' speeds shrinks with each new sample.
const KEPT: f64 = 1.0 - 1.0 / 1_024.0;
/// Units in which load is measured (requests, tokens), so that both have similar magnitudes in the regression.
const UNITS: [f64; 2] = [16.0, 200_000.0];
/// Weight of the initial assumption that load does not slow an engine, as a number of samples.
const PRIOR: f64 = 1.6;
/// Prior estimate: relative growth of an engine's step (one token of every running answer) by one more request, and the
/// weight of this estimate, which equals 64 samples whose loads are two requests from the mean.
const EXPECTED: (f64, f64) = (0.01, 1.0);
/// Lower limit of an engine's step time without load, relative to the mean: it is extrapolated beyond the samples.
const LEAST: f64 = 0.2;

/// Load of an engine: the number of its running requests, and of their tokens.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Load {
    pub(super) requests: f64,
    /// Number of tokens of the running requests' prompts and answers.
    pub(super) tokens: f64,
}

/// Linear regression of an engine's step time on its load: sums over the samples, and the resulting slopes.
#[derive(Debug, Clone, Default)]
pub(super) struct Slowness {
    weight: f64,
    /// Sums over the samples: loads of an engine (`x`), relative times between tokens (`y`), and their products.
    x: [f64; 2],
    y: f64,
    xx: f64,
    xz: f64,
    zz: f64,
    xy: f64,
    zy: f64,
    /// Relative growth of a step's duration by each running request and by each of their tokens, compared with no load.
    slopes: [f64; 2],
}

impl Slowness {
    /// Adds an answer as a sample. `times`: its time between tokens, as a multiple of the engine's mean.
    pub(super) fn add(&mut self, load: Load, times: f64) {
        if !(1.0 / STRAY..=STRAY).contains(&times) {
            return;
        }
        let (x, z) = (load.requests / UNITS[0], load.tokens / UNITS[1]);
        let sum = |sum: &mut f64, value: f64| *sum = *sum * KEPT + value;
        sum(&mut self.weight, 1.0);
        sum(&mut self.x[0], x);
        sum(&mut self.x[1], z);
        sum(&mut self.y, times);
        sum(&mut self.xx, x * x);
        sum(&mut self.xz, x * z);
        sum(&mut self.zz, z * z);
        sum(&mut self.xy, x * times);
        sum(&mut self.zy, z * times);
        self.fit();
    }

    fn fit(&mut self) {
        let (mean_x, mean_z) = (self.x[0] / self.weight, self.x[1] / self.weight);
        let xx = self.xx - mean_x * self.x[0] + PRIOR;
        let xz = self.xz - mean_x * self.x[1];
        let zz = self.zz - mean_z * self.x[1] + PRIOR;
        let (xy, zy) = (self.xy - mean_x * self.y, self.zy - mean_z * self.y);
        let area = xx * zz - xz * xz;
        let (mut a, mut b) = ((xy * zz - zy * xz) / area, (zy * xx - xy * xz) / area);
        // Load makes no engine faster: if one of the two seems to, the other explains it alone.
        if a < 0.0 {
            (a, b) = (0.0, (zy / zz).max(0.0));
        } else if b < 0.0 {
            (a, b) = ((xy / xx).max(0.0), 0.0);
        }
        let empty = (self.y / self.weight - a * mean_x - b * mean_z).max(LEAST);
        self.slopes = [a / empty / UNITS[0], b / empty / UNITS[1]];
    }

    /// Mean number of requests that ran at an engine, over all samples.
    pub(super) fn usual_requests(&self) -> f64 {
        self.x[0] / self.weight.max(1.0) * UNITS[0]
    }

    /// Relative growth of an engine's step time by one more average request: a mix of the learnt value and a prior, as
    /// samples at a single load teach nothing.
    pub(super) fn of_one_more(&self) -> f64 {
        let (each, weight) = EXPECTED;
        let mean = self.x[0] / self.weight.max(1.0);
        let known = (self.xx - mean * self.x[0]).max(0.0);
        (self.learnt() * known + each * weight) / (known + weight)
    }

    /// Relative growth of an engine's step time by one more average request, computed from the samples alone.
    fn learnt(&self) -> f64 {
        let usual = Load { requests: self.usual_requests(), tokens: self.x[1] / self.weight.max(1.0) * UNITS[1] };
        let each = usual.tokens / usual.requests.max(1.0);
        (self.slopes[0] + self.slopes[1] * each) / self.of(usual)
    }

    /// Step time of an engine under a load, relative to its step time without load.
    fn of(&self, load: Load) -> f64 {
        1.0 + self.slopes[0] * load.requests + self.slopes[1] * load.tokens
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slopes_are_learnt_from_what_is_usual() {
        let mut slowness = Slowness::default();
        assert_eq!(slowness.learnt(), 0.0);
        let truth = |load: Load| 1.0 + 0.01 * load.requests + 1e-6 * load.tokens;
        let loads = |nth: u32| Load { requests: f64::from(nth % 32), tokens: f64::from(nth * 37 % 40) * 10_000.0 };
        let usual = (0..1_280).map(|nth| truth(loads(nth))).sum::<f64>() / 1_280.0;
        for nth in 0..8_000 {
            slowness.add(loads(nth), truth(loads(nth)) / usual);
            // Accidents.
            slowness.add(loads(nth), 50.0);
            slowness.add(loads(nth), f64::NAN);
        }
        for nth in 0..100 {
            let (is, should) = (slowness.of(loads(nth)), truth(loads(nth)));
            assert!((is / should - 1.0).abs() < 0.02, "{is}, not {should}");
        }
        // 15.5 requests of 12,600 tokens, usually.
        let more = slowness.learnt();
        assert!((more - (0.01 + 0.0126) / usual).abs() < 0.001, "{more}");
    }

    #[test]
    fn samples_at_one_load_do_not_say_that_load_makes_no_difference() {
        let mut slowness = Slowness::default();
        for _ in 0..2_000 {
            slowness.add(Load { requests: 20.0, tokens: 0.0 }, 1.0);
        }
        assert!((slowness.of_one_more() - 0.01).abs() < 1e-6, "{}", slowness.of_one_more());
        for nth in 0..2_000 {
            slowness.add(Load { requests: f64::from(nth % 40), tokens: 0.0 }, 1.0);
        }
        assert!(slowness.of_one_more() < 1e-3, "{}", slowness.of_one_more());
    }

    #[test]
    fn a_few_samples_say_little_and_load_makes_nobody_faster() {
        let mut slowness = Slowness::default();
        slowness.add(Load { requests: 0.0, tokens: 0.0 }, 0.5);
        slowness.add(Load { requests: 16.0, tokens: 0.0 }, 1.5);
        let load = Load { requests: 16.0, tokens: 0.0 };
        assert!(slowness.of(load) < 1.4, "{}", slowness.of(load));
        let mut slowness = Slowness::default();
        for nth in 0..200 {
            let requests = f64::from(nth % 10);
            slowness.add(Load { requests, tokens: 0.0 }, 1.5 - requests / 10.0);
        }
        assert_eq!(slowness.learnt(), 0.0);
    }
}
