//! Demand on one worker: the rate of requests, the share of the cache that each occupies, and for how long; and the
//! price of cache space: the seconds by which later requests will wait longer for space because of one request.
//!
//! ```text
//! price = rate * held * P * own / used * residence
//! ```
//! While the request holds its blocks, `rate * held` others come to the worker. Each finds no space with the
//! probability `P`, and then waits for the time in which the cache becomes free (`residence`); the request causes the
//! fraction `own / used` of this wait. In a cache that is far from full the price is 0.
//!
//! The share of the cache in use when the next request comes is assumed to lie between the present share and the mean
//! share, with the variance of a sum of independent arrivals. `P` is the probability that no space is left for another
//! request.

/// Time constant of the exponential decay of the count of arriving requests, in seconds.
const ARRIVALS: f64 = 60.0;
/// Time constant of the exponential decay in the averages of requests' cache shares and durations, in seconds.
const SHARES: f64 = 600.0;

/// Exponentially decaying sums over the requests of one worker: their number, cache shares and durations.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Demand {
    at: f64,
    arrivals: f64,
    requests: f64,
    share: f64,
    square: f64,
    ended: f64,
    residence: f64,
}

impl Demand {
    /// Adds a request that arrives. `share`: share of the cache that it occupies alone; NaN if unknown.
    pub(super) fn comes(&mut self, share: f64, now: f64) {
        *self = self.at(now);
        self.arrivals += 1.0;
        if share.is_finite() {
            self.requests += 1.0;
            self.share += share;
            self.square += share * share;
        }
    }

    /// Adds a request that has ended. `seconds`: time for which it occupied the cache.
    pub(super) fn goes(&mut self, seconds: f64, now: f64) {
        *self = self.at(now);
        self.ended += 1.0;
        self.residence += seconds;
    }

    /// Copy of these sums over a worker's requests, decayed to the time `now`.
    fn at(&self, now: f64) -> Self {
        let passed = (now - self.at).max(0.0);
        let share = (-passed / SHARES).exp();
        Self {
            at: now.max(self.at),
            arrivals: self.arrivals * (-passed / ARRIVALS).exp(),
            requests: self.requests * share,
            share: self.share * share,
            square: self.square * share,
            ended: self.ended * share,
            residence: self.residence * share,
        }
    }
}

/// Mean demand on one worker, averaged over several workers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Average {
    /// Number of requests that come to a worker per second.
    pub(super) rate: f64,
    /// Mean share of a cache that a request occupies; `square`: mean of the square of this share.
    pub(super) share: f64,
    pub(super) square: f64,
    /// Mean time that a request occupies its KV blocks, in seconds.
    pub(super) residence: f64,
}

impl Average {
    /// Averages the demand over workers, each given with the seconds since it joined. None until a request has come and
    /// ended.
    pub(super) fn of<'a>(workers: impl Iterator<Item = (&'a Demand, f64)>, now: f64) -> Option<Self> {
        let (mut sum, mut seconds) = (Demand::default(), 0.0);
        for (demand, age) in workers {
            let demand = demand.at(now);
            sum.arrivals += demand.arrivals;
            sum.requests += demand.requests;
            sum.share += demand.share;
            sum.square += demand.square;
            sum.ended += demand.ended;
            sum.residence += demand.residence;
            // Who has just joined was not there to be counted at.
            seconds += ARRIVALS * (1.0 - (-age.max(0.0) / ARRIVALS).exp());
        }
        let known = sum.requests > 0.0 && sum.ended > 0.0 && seconds > 0.0;
        known.then(|| Self {
            rate: sum.arrivals / seconds,
            share: sum.share / sum.requests,
            square: sum.square / sum.requests,
            residence: sum.residence / sum.ended,
        })
    }
}

/// Fraction of the blocks now in use that is still in use half a `residence` (a request's mean time in the cache)
/// later: `exp(-1/2)`.
const KEPT: f64 = 0.606_530_659_712_633_4;
/// Number of standard deviations above which a probability counts as 0.
const FAR: f64 = 5.0;

/// Part of the price of cache space that is equal for all candidates of a decision.
#[derive(Debug, Clone, Copy)]
pub(super) struct Prices {
    rate: f64,
    residence: f64,
    /// Mean share of a cache that is in use. `next`: share of a cache that one more request occupies.
    usual: f64,
    next: f64,
    deviation: f64,
}

impl Prices {
    pub(super) fn new(average: &Average) -> Self {
        let load = average.rate * average.residence;
        let variance = load * average.square * (1.0 - KEPT * KEPT);
        Self {
            rate: average.rate,
            residence: average.residence,
            usual: load * average.share,
            next: average.share,
            deviation: variance.max(1e-9).sqrt(),
        }
    }

    /// Price of cache space in seconds. `used`: share of the cache in use without this request; `own`: share that this
    /// request occupies, for `held` seconds.
    pub(super) fn of(&self, used: f64, own: f64, held: f64) -> f64 {
        let filled = (used + own) * KEPT + self.usual * (1.0 - KEPT);
        let far = (1.0 - self.next - filled) / self.deviation;
        if far.is_nan() || far >= FAR || own <= 0.0 {
            return 0.0;
        }
        self.rate * held * above(far) * (own / (used + own).max(1e-3)).min(1.0) * self.residence
    }
}

/// Probability that a normally distributed variable is more than `deviations` standard deviations above its mean, with
/// an error below 0.0002.
fn above(deviations: f64) -> f64 {
    let x = deviations;
    1.0 / (1.0 + (1.5976 * x + 0.070_56 * x * x * x).exp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn averages_are_over_all_and_fade() {
        let mut workers = [Demand::default(); 2];
        assert_eq!(Average::of(workers.iter().map(|demand| (demand, 600.0)), 0.0), None);
        for second in 0..600 {
            workers[0].comes(0.1, f64::from(second));
            workers[0].goes(5.0, f64::from(second));
        }
        workers[1].comes(0.5, 599.0);
        let average = Average::of(workers.iter().map(|demand| (demand, 1e9)), 599.0).unwrap();
        // One a second at one of two.
        assert!((average.rate - 0.5).abs() < 0.02, "{average:?}");
        assert!(average.share > 0.1 && average.share < 0.11, "{average:?}");
        assert!((average.residence - 5.0).abs() < 1e-9, "{average:?}");
        let later = Average::of(workers.iter().map(|demand| (demand, 1e9)), 659.0).unwrap();
        assert!((later.rate / average.rate - (-1.0_f64).exp()).abs() < 1e-9, "{later:?}");
        // The worker that joined a minute ago counts for less than a minute.
        let joined = Average::of(workers.iter().zip([1e9, 60.0]), 599.0).unwrap();
        assert!(joined.rate > average.rate);
    }

    fn prices(rate: f64) -> Prices {
        Prices::new(&Average { rate, share: 0.2, square: 0.04, residence: 20.0 })
    }

    #[test]
    fn chances_are_those_of_a_normal_variable() {
        for (x, chance) in [(0.0, 0.5), (1.0, 0.158_655), (2.0, 0.022_75), (-1.0, 0.841_345)] {
            assert!((above(x) - chance).abs() < 2e-4, "{x}: {}", above(x));
        }
    }

    #[test]
    fn room_costs_where_it_is_scarce_and_somebody_comes() {
        let of = |rate, used, own| prices(rate).of(used, own, 10.0);
        // One a tenth of a second: 2 at a time, 0.4 of the cache. Full: 1 comes meanwhile, and waits for this one's half.
        let full = of(0.1, 1.0, 1.0);
        assert!(
            (full - 0.1 * 10.0 * 0.5 * 20.0 * above((0.8 - 2.0 * KEPT - 0.4 * (1.0 - KEPT)) / prices(0.1).deviation))
                .abs()
                < 1e-9
        );
        assert!(full > 5.0, "{full}");
        // The more is in use, the more room costs: next to nothing in an empty cache, and where no requests come.
        assert!(of(0.1, 0.9, 0.2) > of(0.1, 0.6, 0.2) && of(0.1, 0.6, 0.2) > of(0.1, 0.3, 0.2));
        assert!(of(0.001, 0.0, 0.05) < 1e-3);
        // A request that takes no room costs nothing, and neither does one with unknown values.
        assert_eq!([of(0.1, 0.9, 0.0), of(0.1, f64::NAN, 0.1), of(0.1, 0.5, f64::NAN)], [0.0; 3]);
    }
}
