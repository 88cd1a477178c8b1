//! Trust: the share of a site's claims that proved true.
//!
//! A claim (the lower bound for a prompt) is compared with the site's own answer, or with an engine's report of its
//! cached blocks. The smaller of the two numbers was *kept*. Trust is the share of claimed blocks that was kept, over
//! about the last [`MEMORY`] comparisons; a new site begins with a little credit. Below [`DOUBTED`] a site's claims are
//! left out of answers until the share is above [`BELIEVED`] again, which is tested by single probes: one in
//! [`PROBE_EVERY`] of the answers in which the site would have been the best.
//!
//! A site that claims everything therefore wastes about ten requests, and then one in [`PROBE_EVERY`]. Honest sites
//! fall short a little, when blocks are evicted between a digest and a request.

/// Number of comparisons after which an old one has 1/e of a new one's weight.
const MEMORY: f64 = 16.0;
/// Credit of a new site, in grains of kept claims.
const CREDIT: f64 = 4.0;
const DOUBTED: f64 = 0.5;
const BELIEVED: f64 = 0.75;
/// Number of answers in which a doubted site would have been the best, per probe of it.
pub(crate) const PROBE_EVERY: u32 = 32;

/// The source of a site's real depth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proof {
    /// The site's exact index, when asked.
    Answer,
    /// An engine of the site, in its answer to the request.
    Engine,
}

/// A record of kept and claimed blocks.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Trust {
    claimed: f64,
    kept: f64,
    doubted: bool,
    /// Number of comparisons.
    pub(crate) compared: u64,
    /// Number of comparisons with less than was claimed.
    pub(crate) short: u64,
}

impl Trust {
    /// Compares a claim with the real depth. True if the site becomes doubted by it.
    pub(crate) fn compare(&mut self, claimed: u32, was: u32, grain: u32) -> bool {
        if claimed == 0 {
            return false;
        }
        let kept = claimed.min(was);
        let fade = 1.0 - 1.0 / MEMORY;
        self.claimed = self.claimed * fade + f64::from(claimed);
        self.kept = self.kept * fade + f64::from(kept);
        self.compared += 1;
        self.short += u64::from(kept < claimed);
        let before = self.doubted;
        let share = self.share(grain);
        self.doubted = if self.doubted { share < BELIEVED } else { share < DOUBTED };
        self.doubted && !before
    }

    /// Share of the claimed blocks that was kept, from 0 to 1.
    pub(crate) fn share(&self, grain: u32) -> f64 {
        let credit = CREDIT * f64::from(grain);
        (self.kept + credit) / (self.claimed + credit)
    }

    pub(crate) fn is_doubted(&self) -> bool {
        self.doubted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_liar_is_doubted_soon_and_believed_again_when_it_is_honest() {
        let mut trust = Trust::default();
        let lies = (1..).find(|_| trust.compare(32, 0, 32)).unwrap();
        assert!((2..=10).contains(&lies), "{lies}");
        let truths = (1..).find(|_| !trust.is_doubted() || (trust.compare(32, 40, 32), false).1).unwrap();
        assert!((2..=64).contains(&truths), "{truths}");
        assert_eq!((trust.compared, trust.short), (lies + truths - 1, lies));
    }

    #[test]
    fn falling_a_little_short_is_no_lie() {
        let mut trust = Trust::default();
        assert!((0..10_000).all(|at| !trust.compare(64, if at % 10 == 0 { 0 } else { 64 }, 32)));
        assert!(trust.share(32) > 0.7);
        assert!(!trust.compare(0, 0, 32));
    }
}
