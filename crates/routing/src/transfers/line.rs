//! Time of a transfer in seconds: a floor, and more for each token.
//!
//! Published floors of two fleets that run the same code differ by a factor of 65, so they have to be learnt from
//! samples. Some samples are far off, as other traffic shared the link, or a prompt waited longer than foreseen. The
//! fit uses medians, which are still right when a quarter of the samples is far off.

use std::collections::VecDeque;

/// Number of samples that are kept, the newest ones.
const KEPT: usize = 24;
/// Number of samples from which on both floor and seconds per token are fitted. With fewer, only the floor is: seconds
/// per token follow from a model's size and a link, but nothing else foretells a floor.
const ENOUGH: usize = 6;
/// Factor by which the lengths of samples must differ for both to be fitted.
const SPREAD: f64 = 1.5;
/// Seconds after which a sample is dropped.
const FORGOTTEN: f64 = 1_800.0;

/// Time of a transfer in seconds, by its number of tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Line {
    /// Seconds that a transfer takes besides those for its tokens.
    pub floor: f64,
    /// Seconds for each token.
    pub token: f64,
}

impl Line {
    /// Seconds to move this number of tokens.
    #[must_use]
    #[inline]
    pub fn seconds(&self, tokens: f64) -> f64 {
        self.floor + self.token * tokens
    }
}

/// A line that is fitted to samples.
#[derive(Debug, Clone, Default)]
pub(crate) struct LearntLine {
    /// Samples, the oldest first: when they were taken, tokens, seconds.
    samples: VecDeque<(f64, f64, f64)>,
    line: Option<Line>,
}

impl LearntLine {
    /// The number of samples.
    pub(crate) fn samples(&self) -> usize {
        self.samples.len()
    }

    /// The line, if there have been samples lately.
    #[inline]
    pub(crate) fn line(&self, now: f64) -> Option<Line> {
        let line = self.line?;
        self.samples.back().filter(|(at, ..)| now - at < FORGOTTEN).map(|_| line)
    }

    /// Learns that `tokens` took `seconds`. `prior`: what was expected without any sample.
    pub(crate) fn add(&mut self, tokens: f64, seconds: f64, prior: Line, now: f64) {
        self.samples.retain(|(at, ..)| now - at < FORGOTTEN);
        if self.samples.len() == KEPT {
            self.samples.pop_front();
        }
        self.samples.push_back((now, tokens, seconds));
        self.line = Some(self.fit(prior));
    }

    /// Forgets all samples.
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

    /// The median slope between two samples, and the median of what is left (Theil and Sen).
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

/// The median; 0 of none.
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
