//! The demand on one worker: how many requests come, how much of its cache each takes, and for how long.

/// Seconds over which arrivals are counted.
const ARRIVALS: f64 = 60.0;
/// Seconds over which it is averaged what a request takes.
const SHARES: f64 = 600.0;

/// Running sums of one worker, each of them fading.
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
    /// A request comes that takes this share of the cache from all others; `NAN`: nobody knows.
    pub(super) fn comes(&mut self, share: f64, now: f64) {
        *self = self.at(now);
        self.arrivals += 1.0;
        if share.is_finite() {
            self.requests += 1.0;
            self.share += share;
            self.square += share * share;
        }
    }

    /// A request has ended that took its share for so many seconds.
    pub(super) fn goes(&mut self, seconds: f64, now: f64) {
        *self = self.at(now);
        self.ended += 1.0;
        self.residence += seconds;
    }

    /// The sums as they have faded until then.
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

/// The demand on a worker, on average over some.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Average {
    /// Requests a second.
    pub(super) rate: f64,
    /// The share of a cache that a request takes, and its square.
    pub(super) share: f64,
    pub(super) square: f64,
    /// Seconds for which it takes it.
    pub(super) residence: f64,
}

impl Average {
    /// Averages over workers, each with the seconds since it joined. `None`: nothing is known yet.
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
        // The one that joined a minute ago counts for less than a minute.
        let joined = Average::of(workers.iter().zip([1e9, 60.0]), 599.0).unwrap();
        assert!(joined.rate > average.rate);
    }
}
