//! Comparison of an engine's reports with the router's expectations: of the number of tokens in prompts, and of the
//! number of cached tokens, which the engine's events predict.
//!
//! Sometimes an engine finds fewer blocks of a prompt in its cache than its events announced, though no event announced
//! a removal. There are two explanations. Some engines, for example with draft heads, never use a fixed number of the
//! blocks that they find: this constant shortfall is learnt and then expected. Other engines free blocks without an
//! event: from the reports, the share of the expected blocks that the engine really had is computed, and while the
//! share is below one half, the blocks announced by the engine count only for this share.
//!
//! Callers leave out reports that have another explanation: blocks removed in the meantime, or a different tokenization
//! of the prompt.

use std::collections::VecDeque;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use kvatlas_routing::Belief;
use parking_lot::Mutex;

/// Number of successive reports with the same shortfall of cached blocks after which this shortfall is expected.
const LEARN: u32 = 5;
/// Number of successive reports whose shortfall of cached blocks differs from the learnt shortfall, after which the
/// learnt one is dropped.
const UNLEARN: u32 = 3;
/// Number of recent reports of an engine over which its cached blocks and the expected ones are summed.
const RECENT: usize = 8;
/// Minimum number of reports from which the reliability of an engine's events is judged.
const ENOUGH: usize = 5;
/// Minimum number of blocks of a prompt, held according to events, for a report to count. With fewer blocks, a single
/// block that is dropped or still being stored would decide.
const MUCH: u32 = 2;
/// Largest constant shortfall of cached blocks that is learnt, in blocks. A larger shortfall means that the engine
/// frees blocks without events.
const MOST: u32 = 8;

/// Report of the cached tokens of one prompt: blocks that the engine held according to events, and blocks that it
/// really had cached.
#[derive(Debug, Clone, Copy)]
struct Report {
    held: u32,
    had: u32,
}

/// Estimate of how reliable the blocks announced by a rank's events are, from the engine's reports of cached tokens.
#[derive(Debug, Default)]
pub(crate) struct CacheBelief {
    /// Two numbers: the number of blocks by which the last report of cached blocks fell short of the expectation, and
    /// the number of successive reports with this shortfall.
    lacked: u32,
    times: u32,
    /// Two numbers: the number of blocks by which reports are expected to fall short of the announced blocks, as learnt
    /// from earlier reports, and the number of successive reports with a different shortfall.
    shortfall: u32,
    others: u32,
    recent: VecDeque<Report>,
}

impl CacheBelief {
    /// Records an engine's report on one prompt: of `held` blocks that its events had announced, it had `had` blocks
    /// cached.
    pub(crate) fn note(&mut self, held: u32, had: u32) {
        // Where there was none, nothing says that it lacks no more than always; and where there was more than is held, how
        // much it lacks of that.
        if (1..=held).contains(&had) {
            self.learn(held - had);
        }
        if held < MUCH {
            return;
        }
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(Report { held, had });
    }

    fn learn(&mut self, lacked: u32) {
        self.times = if lacked == self.lacked { self.times + 1 } else { 1 };
        self.lacked = lacked;
        self.others = if lacked == self.shortfall { 0 } else { self.others + 1 };
        if self.times >= LEARN && lacked <= MOST {
            self.shortfall = lacked;
        } else if self.others >= UNLEARN {
            self.shortfall = 0;
        }
    }

    /// Returns two sums over the recent reports: blocks that the engine had cached, and blocks expected to be cached.
    fn sums(&self) -> (u32, u32) {
        let sum = |(all_had, all): (u32, u32), report: &Report| {
            let expected = report.held.saturating_sub(self.shortfall);
            (all_had.saturating_add(report.had.min(expected)), all.saturating_add(expected))
        };
        self.recent.iter().fold((0, 0), sum)
    }

    /// Returns sums over the recent reports if the engine had cached less than half of the expected blocks: number of
    /// cached blocks, number of expected blocks, and number of prompts. None otherwise, or if there are too few
    /// reports.
    pub(crate) fn denied(&self) -> Option<(u32, u32, usize)> {
        let (had, expected) = self.sums();
        let is_denied = self.recent.len() >= ENOUGH && had < expected.div_ceil(2);
        is_denied.then_some((had, expected, self.recent.len()))
    }

    /// Returns the estimated share of the blocks announced by events that the engine really has.
    pub(crate) fn belief(&self) -> Belief {
        let share = self.denied().map_or(1.0, |(had, expected, _)| f64::from(had) / f64::from(expected));
        Belief { shortfall: self.shortfall, share }
    }
}

/// Threshold at which an engine is taken to tokenize differently: the number by which prompts with a different token
/// count outnumber prompts with an equal count.
const OTHER: u8 = 3;

/// Upper limit of the surplus of prompts with a different token count. After this number of successive prompts with an
/// equal count the engine is trusted again.
const MOST_DOUBTS: u8 = 8;

/// Comparison of an engine's token counts of prompts with the router's. A single prompt with different counts proves
/// nothing.
#[derive(Debug, Default)]
pub(crate) struct TokenAgreement {
    /// True while more prompts had a different token count than an equal one. This alone does not mean that the engine
    /// tokenizes differently.
    is_in_doubt: AtomicBool,
    doubt: Mutex<TokenDoubt>,
}

#[derive(Debug, Default)]
struct TokenDoubt {
    /// Number of prompts with a different token count minus prompts with an equal count, from 0 up to a limit.
    prompts: u8,
    is_other: bool,
    last: OtherCount,
}

/// Token counts of one prompt by the engine and by the router, which differ.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OtherCount {
    pub(crate) by_engine: u32,
    pub(crate) by_router: u32,
}

impl TokenAgreement {
    /// Records the comparison of one prompt's token counts; `other` is None if the counts are equal. Returns true or
    /// false if engine and router begin or cease to agree in general, None if nothing changes.
    pub(crate) fn note(&self, other: Option<OtherCount>) -> Option<bool> {
        if other.is_none() && !self.is_in_doubt.load(Relaxed) {
            return None;
        }
        let mut doubt = self.doubt.lock();
        doubt.prompts =
            if other.is_none() { doubt.prompts.saturating_sub(1) } else { (doubt.prompts + 1).min(MOST_DOUBTS) };
        doubt.last = other.unwrap_or(doubt.last);
        self.is_in_doubt.store(doubt.prompts > 0, Relaxed);
        let before = doubt.is_other;
        doubt.is_other = doubt.prompts > 0 && (before || doubt.prompts >= OTHER);
        (doubt.is_other != before).then_some(!doubt.is_other)
    }

    /// Returns the last prompt with different token counts, if the engine tokenizes differently in general; None
    /// otherwise.
    pub(crate) fn other_count(&self) -> Option<OtherCount> {
        if !self.is_in_doubt.load(Relaxed) {
            return None;
        }
        let doubt = self.doubt.lock();
        doubt.is_other.then_some(doubt.last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(reports: impl IntoIterator<Item = (u32, u32)>) -> CacheBelief {
        let mut belief = CacheBelief::default();
        reports.into_iter().for_each(|(held, had)| belief.note(held, had));
        belief
    }

    #[test]
    fn a_constant_shortfall_is_learnt_and_unlearnt() {
        let mut belief = after((3..8).map(|held| (held, held - 1)));
        assert_eq!(belief.belief(), Belief { shortfall: 1, share: 1.0 });
        // One that has a single block has none then: that is no denial, nor the end of it.
        (0..20).for_each(|_| belief.note(1, 0));
        (0..20).for_each(|_| belief.note(9, 8));
        assert_eq!((belief.belief(), belief.denied()), (Belief { shortfall: 1, share: 1.0 }, None));
        (0..2).for_each(|_| belief.note(9, 9));
        assert_eq!(belief.belief().shortfall, 1);
        belief.note(9, 9);
        assert_eq!(belief.belief(), Belief::default());
    }

    #[test]
    fn more_than_is_held_says_nothing_of_what_lacks() {
        let mut belief = after((0..5).map(|_| (9, 8)));
        (0..20).for_each(|_| belief.note(4, 8));
        assert_eq!((belief.belief(), belief.denied()), (Belief { shortfall: 1, share: 1.0 }, None));
    }

    #[test]
    fn shortfalls_that_differ_are_none() {
        let belief = after((0..40).map(|at| (10, 10 - at % 3)));
        assert_eq!(belief.belief(), Belief::default());
        assert_eq!(after((0..4).map(|_| (10, 9))).belief(), Belief::default());
    }

    #[test]
    fn an_engine_that_denies_is_believed_by_its_share_and_again_when_it_agrees() {
        let mut belief = after((0..4).map(|_| (10, 0)));
        assert_eq!(belief.denied(), None);
        belief.note(10, 0);
        assert_eq!(belief.denied(), Some((0, 50, 5)));
        assert_eq!(belief.belief(), Belief { shortfall: 0, share: 0.0 });
        (0..3).for_each(|_| belief.note(10, 10));
        assert_eq!(belief.belief(), Belief { shortfall: 0, share: 30.0 / 80.0 });
        belief.note(10, 10);
        assert_eq!((belief.denied(), belief.belief()), (None, Belief::default()));
    }

    #[test]
    fn what_lacks_always_and_is_much_is_no_shortfall() {
        let belief = after((0..8).map(|_| (100, 25)));
        assert_eq!(belief.belief(), Belief { shortfall: 0, share: 0.25 });
        // What was reported before a shortfall was known is no denial.
        assert_eq!(after((0..5).map(|_| (3, 1))).belief(), Belief { shortfall: 2, share: 1.0 });
    }

    #[test]
    fn prompts_of_which_little_is_held_deny_nothing() {
        assert_eq!(after((0..40).map(|_| (1, 0))).denied(), None);
        assert_eq!(after((0..40).map(|_| (0, 0))).belief(), Belief::default());
    }

    #[test]
    fn one_odd_prompt_is_no_other_tokenizer() {
        let agreement = TokenAgreement::default();
        let other = OtherCount { by_engine: 5, by_router: 4 };
        let note = |is_alike: bool| agreement.note((!is_alike).then_some(other));
        for _ in 0..10 {
            assert_eq!([false, true, true].map(note), [None; 3]);
        }
        assert_eq!(agreement.other_count(), None);
        assert_eq!([false; 3].map(note), [None, None, Some(false)]);
        assert_eq!(agreement.other_count(), Some(other));
        assert_eq!([true, true, false, true, true].map(note), [None, None, None, None, Some(true)]);
        assert_eq!(agreement.other_count(), None);
        for _ in 0..100 {
            note(false);
        }
        assert_eq!((1..20).find(|_| note(true) == Some(true)), Some(MOST_DOUBTS));
    }
}
