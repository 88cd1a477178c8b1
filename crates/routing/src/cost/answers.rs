//! An estimate of how long answers are, and how much of one that has begun is still to come.

/// Answers that are kept in mind.
const MOST: usize = 1_024;
/// Number of new answers after which the sums are made again, and the part of all answers that they have to be: to sort
/// them costs more the more there are.
const FRESH: usize = 16;
const FRESH_PART: usize = 16;
/// Answers of an average length still to come that each estimate is mixed with: the longest of those seen says little.
const MEMORYLESS: f64 = 8.0;
/// Tokens of answers that are taken for granted at first.
const FIRST: [f64; 4] = [64.0, 128.0, 256.0, 512.0];

/// The lengths of the last answers, in tokens.
#[derive(Debug)]
pub(super) struct Answers {
    /// Lengths in the order in which they came, from `next` on.
    lengths: Vec<f64>,
    next: usize,
    fresh: usize,
    sorted: Vec<f64>,
    /// Sums of each of `sorted` and all longer ones; one more for none.
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
    /// An answer had so many tokens.
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
        let enough = FRESH.max(self.lengths.len() / FRESH_PART);
        if self.fresh >= enough || self.lengths.len() < 4 * FRESH {
            self.sum();
        }
    }

    /// Tokens of an answer, on average.
    pub(super) fn mean(&self) -> f64 {
        self.sums[0] / self.sorted.len() as f64
    }

    /// Tokens still to come of an answer that has so many: what the longer ones of the past had beyond that, on average.
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
