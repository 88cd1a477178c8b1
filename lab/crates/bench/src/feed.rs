//! A rung of the ladder under test.

use kvatlas_designs::{Change, Feed, LadderStats, Scores, WorkerId};
use kvatlas_index::BlockHash;

use crate::subject::{Counts, Subject};

/// Any [`Feed`] under test: its own threads apply; lookups are inline, or wherever the design puts them, and timed with
/// the answer in the design's own form ([`Feed::answer`]).
pub struct FeedSubject(pub Box<dyn Feed>);

impl From<LadderStats> for Counts {
    fn from(stats: LadderStats) -> Self {
        Self {
            refused_stores: Some(stats.refused),
            unknown_removals: Some(stats.unknown_removals),
            messages: Some(stats.messages),
            workers: Some(stats.workers),
            blocks: Some(stats.blocks),
            entries: Some(stats.entries),
            errors: 0,
            first_error: None,
        }
    }
}

impl Subject for FeedSubject {
    type Message = Change;
    type Query = Box<[u64]>;
    type Lane = Scores;

    fn message(&self, change: Change) -> Change {
        change
    }

    fn query(&self, contents: &[u64]) -> Box<[u64]> {
        contents.into()
    }

    fn lane(&self) -> Scores {
        Scores::new()
    }

    fn send(&self, message: Change) {
        self.0.send(message);
    }

    fn applied(&self) -> u64 {
        self.0.applied()
    }

    fn flush(&self) {
        self.0.flush();
    }

    fn lookup(&self, scores: &mut Scores, query: &Box<[u64]>) {
        std::hint::black_box(self.0.answer(query, scores));
        std::hint::black_box(&*scores);
    }

    fn answer(&self, contents: &[u64], scores: &mut Scores) -> Result<(), String> {
        self.0.find(contents, scores);
        Ok(())
    }

    fn holdings(&self) -> Option<Vec<(WorkerId, BlockHash)>> {
        Some(self.0.holdings())
    }

    fn counts(&self) -> Counts {
        let broken = self.0.broken();
        Counts { errors: u64::from(broken.is_some()), first_error: broken, ..self.0.stats().into() }
    }
}
