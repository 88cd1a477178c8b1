//! Generator of pseudorandom numbers, and random choices by weight or cost.

use std::cmp::Ordering;

/// Generator of pseudorandom numbers from a seed: `SplitMix64` (Steele, Lea, Flood 2014).
#[derive(Debug, Clone)]
pub struct Draw {
    state: u64,
}

impl Draw {
    /// Creates a generator from a seed; equal seeds give equal sequences.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.state)
    }

    /// Next random integer, at least 0 and below `bound`; 0 if `bound` is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        let wide = u128::from(self.next()) * bound as u128;
        usize::try_from(wide >> 64).unwrap_or(0)
    }

    /// Next random number, at least 0 and below 1.
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Item with the lowest key among candidates' rows, as its row number; a random one of them if several have it.
    /// None if there are no items.
    pub fn lowest<K: PartialOrd>(
        &mut self,
        rows: impl Iterator<Item = usize>,
        key: impl Fn(usize) -> K,
    ) -> Option<usize> {
        let mut best: Option<(usize, K)> = None;
        let mut equal = 1;
        for row in rows {
            let key = key(row);
            let order = best.as_ref().map_or(Some(Ordering::Less), |(_, lowest)| match key.partial_cmp(lowest) {
                // A key that is not a number is better than none, and worse than any other.
                None if lowest.partial_cmp(lowest).is_none() => Some(Ordering::Less),
                order => order,
            });
            equal = if order == Some(Ordering::Equal) { equal + 1 } else { equal };
            match order {
                Some(Ordering::Less) => (best, equal) = (Some((row, key)), 1),
                Some(Ordering::Equal) if self.below(equal) == 0 => best = Some((row, key)),
                _ => {}
            }
        }
        best.map(|(row, _)| row)
    }

    /// Draws an index of `costs`: the one with the lowest cost at temperature 0, otherwise a random one with a
    /// probability proportional to `exp(-(cost - lowest) / (range * temperature))`. 0 if `costs` is empty.
    pub fn soft(&mut self, costs: &[f64], temperature: f64) -> usize {
        let low = costs.iter().copied().fold(f64::INFINITY, f64::min);
        let range = costs.iter().copied().fold(f64::NEG_INFINITY, f64::max) - low;
        if !(temperature > 0.0 && range > 0.0 && range.is_finite()) {
            return self.lowest(0..costs.len(), |at| costs[at]).unwrap_or(0);
        }
        let weights = costs.iter().map(|cost| (-(cost - low) / (range * temperature)).exp());
        self.in_proportion(&weights.collect::<Vec<f64>>())
    }

    /// Draws an index of `weights`, with a probability proportional to the weight. No weight may be negative, and at
    /// least one must be positive.
    pub fn in_proportion(&mut self, weights: &[f64]) -> usize {
        let mut left = self.unit() * weights.iter().sum::<f64>();
        for (at, weight) in weights.iter().enumerate() {
            left -= weight;
            if left < 0.0 {
                return at;
            }
        }
        weights.len().saturating_sub(1)
    }
}

/// Mixes the bits of a number, so that close numbers become unrelated.
pub fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Draws two random items of `rows` and returns the one with the smaller `load`, or the first if both are equal. If
/// there is only one item, returns it.
pub fn better_of_two(draw: &mut Draw, rows: &[usize], load: impl Fn(usize) -> f64) -> usize {
    let one = draw.below(rows.len());
    let Some(&first) = rows.get(one) else { return 0 };
    if rows.len() == 1 {
        return first;
    }
    let other = draw.below(rows.len() - 1);
    let second = rows[other + usize::from(other >= one)];
    if load(second) < load(first) { second } else { first }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equals_are_drawn_about_as_often() {
        let mut draw = Draw::new(1);
        let keys = [f64::NAN, 1.0, 1.0, f64::NAN, 1.0];
        let mut counts = [0; 5];
        for _ in 0..3000 {
            counts[draw.lowest(0..5, |row| keys[row]).unwrap()] += 1;
        }
        assert_eq!((counts[0], counts[3]), (0, 0));
        assert!([1, 2, 4].iter().all(|&row| counts[row] > 850), "{counts:?}");
        assert_eq!(draw.lowest(0..0, |_| 0.0), None);
        assert!(draw.lowest(0..3, |_| f64::NAN).is_some());
    }

    #[test]
    fn temperature_spreads_by_normalised_cost() {
        let mut draw = Draw::new(2);
        // Costs 10, 15, 20: low 10, range 10. At temperature 1 the weights are 1, e^-0.5 = 0.607, e^-1 = 0.368:
        // shares 0.506, 0.307, 0.186.
        let mut counts = [0f64; 3];
        for _ in 0..20_000 {
            counts[draw.soft(&[10.0, 15.0, 20.0], 1.0)] += 1.0 / 20_000.0;
        }
        for (share, expected) in counts.iter().zip([0.506, 0.307, 0.186]) {
            assert!((share - expected).abs() < 0.015, "{counts:?}");
        }
        assert_eq!(draw.soft(&[10.0, 15.0, 9.0], 0.0), 2);
        assert_eq!(draw.soft(&[], 1.0), 0);
    }
}
