//! Status of each site, and counts of the index of sites.

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
    /// Digests that were taken in, whole ones included.
    pub applied: u64,
    /// Whole digests applied.
    pub whole: u64,
    /// Digests that had been taken in before.
    pub repeated: u64,
    /// Digests refused.
    pub refused: u64,
    /// Digests after which a whole one was requested.
    pub whole_wanted: u64,
    /// Sites removed.
    pub forgotten: u64,
    /// Number of times that a site became doubted.
    pub doubted: u64,
    /// Claims that were compared with the real holdings.
    pub compared: u64,
    /// Claims that exceeded the real holdings.
    pub short: u64,
    /// Answers with more blocks than the bounds allowed.
    pub beyond: u64,
    /// Prompts looked up.
    pub answers: u64,
    /// Claims of doubted sites left out of answers.
    pub left_out: u64,
    /// Suggested probes of doubted sites.
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
    /// The site's bounds are used.
    Known,
    /// The site was silent for too long, or a digest of it is missing: it may hold any blocks.
    Unknown,
    /// The site claimed more than it had too often: it may hold any blocks.
    Doubted,
}

/// Status of a site.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct SiteStatus {
    /// Name of the site.
    pub site: String,
    /// State of the site.
    pub state: State,
    /// Time since the site's last digest.
    pub age: Duration,
    /// Life of its publisher.
    pub life: u64,
    /// Number of the site's last digest.
    pub seq: u64,
    /// Number of its marks.
    pub marks: u64,
    /// Bytes of the site's digests so far.
    pub bytes: u64,
    /// Share of its claims that the site kept, from 0 to 1.
    pub trust: f64,
    /// Claims that were compared with the real holdings.
    pub compared: u64,
    /// Claims that exceeded the real holdings.
    pub short: u64,
}
