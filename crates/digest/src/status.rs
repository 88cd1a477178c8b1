//! The status of each site, and counts over all sites.

use std::time::Duration;

/// Counts since the index was made, and present sizes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Number of sites.
    pub sites: u64,
    /// Number of different marks of all sites.
    pub marks: u64,
    /// Number of different sets of more than one site.
    pub sets: u64,
    /// Allocated memory, in bytes.
    pub bytes: u64,
    /// Digests applied, including whole ones.
    pub applied: u64,
    /// Whole digests applied.
    pub whole: u64,
    /// Digests received again.
    pub repeated: u64,
    /// Digests refused.
    pub refused: u64,
    /// Digests answered with a request for a whole one.
    pub whole_wanted: u64,
    /// Sites removed.
    pub forgotten: u64,
    /// Times that a site became doubted.
    pub doubted: u64,
    /// Claims compared with the real depth.
    pub compared: u64,
    /// Claims that exceeded the real depth.
    pub short: u64,
    /// Real depths above the upper bound.
    pub beyond: u64,
    /// Prompts looked up.
    pub answers: u64,
    /// Claims of doubted sites left out of answers.
    pub left_out: u64,
    /// Probes of doubted sites suggested in answers.
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

/// The state of a site: whether its bounds are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// The site's bounds are used.
    Known,
    /// The site has no recent digest, or one is missing: it may hold anything.
    Unknown,
    /// The site claimed more than it had, too often: it may hold anything.
    Doubted,
}

/// The status of a site.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct SiteStatus {
    /// Name of the site.
    pub site: String,
    /// State of the site: whether its bounds are used.
    pub state: State,
    /// Time since the site's last digest.
    pub age: Duration,
    /// Number of the publisher's life.
    pub life: u64,
    /// Number of the site's last digest.
    pub seq: u64,
    /// Number of the site's marks.
    pub marks: u64,
    /// Bytes of the site's digests so far.
    pub bytes: u64,
    /// Share of its claims that the site kept, from 0 to 1.
    pub trust: f64,
    /// Claims compared with the real depth.
    pub compared: u64,
    /// Claims that exceeded the real depth.
    pub short: u64,
}
