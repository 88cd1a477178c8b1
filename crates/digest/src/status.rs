//! The status of sites: how each of them does, and the counts of all.

use std::time::Duration;

/// Counts since the index was made, and sizes now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Number of sites.
    pub sites: u64,
    /// Different marks of all sites.
    pub marks: u64,
    /// Different sets of more than one site.
    pub sets: u64,
    /// Memory of all this, as allocated.
    pub bytes: u64,
    /// Digests that were taken in; those that were whole are among them.
    pub applied: u64,
    /// Whole digests that were taken in.
    pub whole: u64,
    /// Digests that were known already.
    pub repeated: u64,
    /// Digests that could not be used.
    pub refused: u64,
    /// Digests in place of which a whole one was asked for.
    pub whole_wanted: u64,
    /// Sites that were forgotten.
    pub forgotten: u64,
    /// Times that a site came to be doubted.
    pub doubted: u64,
    /// Claims that were compared with what there was.
    pub compared: u64,
    /// Compared claims of which less was there.
    pub short: u64,
    /// Answers of sites that had more than the bounds said.
    pub beyond: u64,
    /// Prompts looked up.
    pub answers: u64,
    /// Claims of doubted sites that were left out of answers.
    pub left_out: u64,
    /// Questions to doubted sites that answers suggested.
    pub probes: u64,
}

impl Counts {
    /// All of them, by the names of the fields.
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

/// State of a site: how much its word counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// The site's bounds are used.
    Known,
    /// The site was not heard for too long, or a digest of it is missing: it may hold anything.
    Unknown,
    /// The site claimed more than it had, too often: it may hold anything.
    Doubted,
}

/// Status of a site, as far as it is known.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct SiteStatus {
    /// Name of the site.
    pub site: String,
    /// State: how much the site's word counts.
    pub state: State,
    /// Time since the site's last digest.
    pub age: Duration,
    /// One life of its publisher.
    pub life: u64,
    /// Number of the site's last digest.
    pub seq: u64,
    /// Marks that it has.
    pub marks: u64,
    /// Bytes of its digests so far.
    pub bytes: u64,
    /// Share of its claims that the site kept, from 0 to 1.
    pub trust: f64,
    /// Claims that were compared with what there was.
    pub compared: u64,
    /// Compared claims of which less was there.
    pub short: u64,
}
