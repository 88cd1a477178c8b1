//! Estimate of the number of tokens of an answer, and of the tokens still to come of an answer that has begun.

/// Largest number of answers whose lengths are remembered.
const MOST: usize = 1_024;
/// Number of new answers after which the sorted lengths and their sums are computed again.
const FRESH: usize = 16;
/// Weight of the mean length in each estimate, as a number of answers: the longest answers seen so far say little about
/// the remaining length of even longer ones.
const MEMORYLESS: f64 = 8.0;
/// Lengths of answers, in tokens, that are assumed as long as no answer has ended.
const FIRST: [f64; 4] = [64.0, 128.0, 256.0, 512.0];

/// Lengths of the last answers, in tokens.
#[derive(Debug)]
pub(super) struct Answers {
    /// Lengths of the last answers in order of arrival, in tokens, in a ring buffer whose oldest entry is at index
    /// `next`.
    lengths: Vec<f64>,
    next: usize,
    fresh: usize,
    sorted: Vec<f64>,
    /// Suffix sums of the lengths of answers: for each length in `sorted`, the sum of this length and all longer ones,
    /// and 0 at the end.
    sums: Vec<f64>,
}

impl Default for Answers {
    fn default() -> Self {
        let mut answers = Self { lengths: FIRST.to_vec(), next: 0, fresh: 0, sorted: Vec::new(), sums: Vec::new() };
        answers.sum();
        answers
    }
}

impl Answers {
    /// Adds the length of an answer, in tokens, to the last ones.
    pub(super) fn add(&mut self, tokens: f64) {
        if !tokens.is_finite() || tokens < 0.0 {
            return;
        }
        if self.lengths.len() < MOST {
            self.lengths.push(tokens);
        } else {
            self.lengths[self.next] = tokens;
            self.next = (self.next + 1) % MOST;
        }
        self.fresh += 1;
        if self.fresh >= FRESH || self.lengths.len() < 4 * FRESH {
            self.sum();
        }
    }

    /// Mean length of an answer, in tokens.
    pub(super) fn mean(&self) -> f64 {
        self.sums[0] / self.sorted.len() as f64
    }

    /// Expected number of further tokens of an answer that has `tokens` tokens: the mean of the further tokens that
    /// earlier, longer answers had beyond this length.
    pub(super) fn left(&self, tokens: f64) -> f64 {
        let shorter = self.sorted.partition_point(|length| *length <= tokens);
        let longer = (self.sorted.len() - shorter) as f64;
        ((self.sums[shorter] - longer * tokens + MEMORYLESS * self.mean()) / (longer + MEMORYLESS)).max(1.0)
    }

    fn sum(&mut self) {
        self.fresh = 0;
        self.sorted.clone_from(&self.lengths);
        self.sorted.sort_unstable_by(f64::total_cmp);
        self.sums.clear();
        self.sums.resize(self.sorted.len() + 1, 0.0);
        for at in (0..self.sorted.len()).rev() {
            self.sums[at] = self.sums[at + 1] + self.sorted[at];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_depends_on_how_long_it_has_been_already() {
        let mut answers = Answers::default();
        assert!((answers.mean() - 240.0).abs() < 1e-9);
        for _ in 0..MOST {
            answers.add(10.0);
            answers.add(1_000.0);
        }
        assert!((answers.mean() - 505.0).abs() < 1e-9, "{}", answers.mean());
        // At 20 tokens only the long ones are left: 980 more, and a little of the mean. At the beginning it is the mean.
        assert!((answers.left(0.0) - 505.0).abs() < 1e-9);
        assert!((answers.left(20.0) - (512.0 * 980.0 + 8.0 * 505.0) / 520.0).abs() < 1e-9);
        // Longer than any: as if it began.
        assert!((answers.left(5_000.0) - 505.0).abs() < 1e-9);
        answers.add(f64::NAN);
        assert!(answers.left(f64::INFINITY).is_finite() || answers.left(f64::INFINITY) >= 1.0);
    }
}
