//! Status of each site, including the trust in its digests, and counts of the index of sites.
//!
//! A site *claims* the minimum number of blocks of a prompt that its digest shows. The site's exact index, or the
//! cached tokens reported by one of its engines, later shows how many of them it really had (*kept*). Trust is the
//! share of the claimed blocks that were kept, over about the last [`MEMORY`] comparisons; a new site begins with some
//! credit. If trust falls below [`DOUBTED`], the site's claims are left out of answers until trust is above
//! [`BELIEVED`] again. Trust is measured meanwhile by probes: the site is asked in one of [`PROBE_EVERY`] of the
//! lookups in which it would have been the best.
//!
//! So a site that falsely claims every block is asked in vain about ten times, and then once in [`PROBE_EVERY`] times.
//! Honest sites fall slightly short when blocks are removed between a digest and a lookup.

use std::time::Duration;

/// Counts of digests and lookups since the index of sites was created, and its present sizes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Number of sites in the index.
    pub sites: u64,
    /// Number of different marks (prefix hashes in digests) over all sites.
    pub marks: u64,
    /// Number of different sets of two or more sites that share a mark (prefix hash).
    pub sets: u64,
    /// Memory allocated by the index of sites, in bytes.
    pub bytes: u64,
    /// Number of digests that were applied, including whole ones.
    pub applied: u64,
    /// Number of whole digests that were applied.
    pub whole: u64,
    /// Number of digests that were ignored because they had already been applied.
    pub repeated: u64,
    /// Number of digests that were rejected because they could not be used.
    pub refused: u64,
    /// Number of digests that could not be applied, so that a whole digest was requested.
    pub whole_wanted: u64,
    /// Number of sites that were removed from the index.
    pub forgotten: u64,
    /// Number of times that a site became doubted, because it had claimed more blocks than it had.
    pub doubted: u64,
    /// Number of claims (lower bounds on the blocks that a site holds) that were compared with the blocks that the site
    /// really had.
    pub compared: u64,
    /// Number of compared claims that exceeded the blocks that the site really had.
    pub short: u64,
    /// Number of comparisons in which a site really had more blocks than its upper bound.
    pub beyond: u64,
    /// Number of prompts that were looked up in the index of sites.
    pub answers: u64,
    /// Number of times that the claim of a doubted site (its lower bound for a prompt's blocks) was left out of an
    /// answer although it would have been the best.
    pub left_out: u64,
    /// Number of suggested probes, queries for the blocks that a doubted site really holds.
    pub probes: u64,
}

impl Counts {
    /// Names and values of all counts of the index of sites.
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

/// State of a site, which determines if its claims (bounds on the blocks that it holds) count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Site with usable bounds on the number of a prompt's blocks that it holds.
    Known,
    /// Site that may hold any blocks, because it sent no digest for too long, or one of its digests is missing.
    Unknown,
    /// Site that may hold any blocks, because it too often claimed more blocks than it had.
    Doubted,
}

/// Status of one site: its last digest, its marks (prefix hashes), and the trust in its claims.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct SiteStatus {
    /// Name of the site.
    pub site: String,
    /// State of the site, which says if its bounds on held blocks count.
    pub state: State,
    /// Time since the site's last digest.
    pub age: Duration,
    /// Identifier of the life of the site's publisher, the time from one restart to the next.
    pub life: u64,
    /// Sequence number of the site's last digest.
    pub seq: u64,
    /// Number of the site's marks, the prefix hashes in its digests.
    pub marks: u64,
    /// Total size of the site's digests so far, in bytes.
    pub bytes: u64,
    /// Share of the blocks claimed by the site's digests that it really had, from 0 to 1.
    pub trust: f64,
    /// Number of the site's claims that were compared with the blocks that it really had.
    pub compared: u64,
    /// Number of the site's compared claims that exceeded the blocks that it really had.
    pub short: u64,
}

/// Number of comparisons of claimed with real blocks after which the weight of an earlier comparison in a site's trust
/// has fallen to about 1/e.
const MEMORY: f64 = 16.0;
/// Number of true claims, each of holding `grain` blocks, that a new site is credited with in its trust.
const CREDIT: f64 = 4.0;
/// Trust (share of a site's claimed blocks that it really had) below which the site becomes doubted.
const DOUBTED: f64 = 0.5;
/// Trust (share of a site's claimed blocks that it really had) that a doubted site must exceed for its claims to count
/// again.
const BELIEVED: f64 = 0.75;
/// Number of lookups in which a doubted site would have been the best, for each probe of the site.
pub(crate) const PROBE_EVERY: u32 = 32;

/// Source of the knowledge which blocks a site really has: its index or an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proof {
    /// Answer of the site's exact index to a query for the prompt.
    Answer,
    /// Number of cached tokens that one of the site's engines reported for a request.
    Engine,
}

/// Comparison of the blocks that a site claimed with those that it really had.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Trust {
    claimed: f64,
    kept: f64,
    doubted: bool,
    /// Number of comparisons of the site's claims.
    pub(crate) compared: u64,
    /// Number of comparisons in which the site had fewer blocks than it claimed.
    pub(crate) short: u64,
}

impl Trust {
    /// Compares a site's claim to hold at least `claimed` blocks with the real number, `was`. Returns true if the site
    /// becomes doubted by this.
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
