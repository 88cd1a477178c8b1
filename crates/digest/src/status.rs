//! Status of each site, the trust in it, which is the share of its claims that were true, and counts of the index of
//! sites.
//!
//! A claim is the minimum number of blocks that a site has by its digest. The site's exact answer, or the cached tokens
//! reported by one of its engines, shows how many of them it *kept*. Trust is the share of the claimed blocks that was
//! kept, over about the last [`MEMORY`] answers; a new site begins with a little credit. Below [`DOUBTED`], a site's
//! claims are left out of answers until the share is above [`BELIEVED`] again. Probes measure it: one in
//! [`PROBE_EVERY`] of the answers in which the site would have been the best.
//!
//! So a site that claims everything is asked in vain some ten times, and then once in [`PROBE_EVERY`] times. Honest
//! sites fall slightly short when blocks are removed between a digest and a query.

use std::time::Duration;

/// Counts since the index of sites was created, and present sizes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Number of sites.
    pub sites: u64,
    /// Number of different marks (prefix hashes) over all sites.
    pub marks: u64,
    /// Number of different sets of two or more sites that have a mark in common.
    pub sets: u64,
    /// Allocated memory, in bytes.
    pub bytes: u64,
    /// Number of digests that were applied, including whole ones.
    pub applied: u64,
    /// Number of whole digests that were applied.
    pub whole: u64,
    /// Number of digests that had already been applied before.
    pub repeated: u64,
    /// Number of digests that could not be used.
    pub refused: u64,
    /// Number of digests after which a whole one was requested.
    pub whole_wanted: u64,
    /// Number of sites that were removed.
    pub forgotten: u64,
    /// Number of times that a site became doubted, as it had claimed more than it had.
    pub doubted: u64,
    /// Number of claims that were compared with the real holdings.
    pub compared: u64,
    /// Number of claims that exceeded the real holdings.
    pub short: u64,
    /// Number of comparisons in which a site really had more blocks than the bounds allowed.
    pub beyond: u64,
    /// Number of prompts looked up.
    pub answers: u64,
    /// Number of claims of doubted sites that were left out of answers.
    pub left_out: u64,
    /// Number of suggested probes of doubted sites.
    pub probes: u64,
}

impl Counts {
    /// All counts, with the names of their fields.
    #[must_use]
    pub fn named(&self) -> [(&'static str, u64); 17] {
        [
            ("sites", self.sites),
            ("marks", self.marks),
            ("sets", self.sets),
            ("bytes", self.bytes),
            ("applied", self.applied),
            ("whole", self.whole),
            ("repeated", self.repeated),
            ("refused", self.refused),
            ("whole_wanted", self.whole_wanted),
            ("forgotten", self.forgotten),
            ("doubted", self.doubted),
            ("compared", self.compared),
            ("short", self.short),
            ("beyond", self.beyond),
            ("answers", self.answers),
            ("left_out", self.left_out),
            ("probes", self.probes),
        ]
    }
}

/// State of a site, which decides whether its claims count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// The site is known: its bounds are used.
    Known,
    /// The site was silent for too long, or one of its digests is missing: it may hold any blocks.
    Unknown,
    /// The site claimed more than it had too often: it may hold any blocks.
    Doubted,
}

/// Status of one site.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct SiteStatus {
    /// Name of the site.
    pub site: String,
    /// State of the site.
    pub state: State,
    /// Time since the site's last digest.
    pub age: Duration,
    /// Identifier of the life of the site's publisher.
    pub life: u64,
    /// Number of the site's last digest.
    pub seq: u64,
    /// Number of the site's marks (prefix hashes).
    pub marks: u64,
    /// Number of bytes of the site's digests so far.
    pub bytes: u64,
    /// Share of the site's claimed blocks that it really had, from 0 to 1.
    pub trust: f64,
    /// Number of the site's claims that were compared with the real holdings.
    pub compared: u64,
    /// Number of the site's claims that exceeded the real holdings.
    pub short: u64,
}

/// Number of later answers after which the weight of an answer in the trust is 1/e of a new answer's.
const MEMORY: f64 = 16.0;
/// Credit of a new site, in units of `grain` kept blocks.
const CREDIT: f64 = 4.0;
/// Trust below which a site becomes doubted.
const DOUBTED: f64 = 0.5;
/// Trust from which on a doubted site counts again.
const BELIEVED: f64 = 0.75;
/// Number of answers in which a doubted site would have been the best, per probe of the site.
pub(crate) const PROBE_EVERY: u32 = 32;

/// Source of the knowledge of a site's real holdings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proof {
    /// The answer of the site's exact index.
    Answer,
    /// The report of one of the site's engines, in its answer to a request.
    Engine,
}

/// Record of how many of its claimed blocks a site really had.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Trust {
    claimed: f64,
    kept: f64,
    doubted: bool,
    /// Number of answers that were compared with the site's claims.
    pub(crate) compared: u64,
    /// Number of compared answers in which the site had fewer blocks than claimed.
    pub(crate) short: u64,
}

impl Trust {
    /// Compares a site's claim to hold at least `claimed` blocks with the real number, `was`. True if the site becomes
    /// doubted.
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

    /// Share of the claimed blocks that the site really had, from 0 to 1.
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
