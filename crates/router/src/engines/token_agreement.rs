//! Agreement of an engine and the router on how many tokens prompts have.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use parking_lot::Mutex;

/// Prompts that are counted differently, beyond those that are counted alike, from which on the engine makes other tokens.
const OTHER: u8 = 3;

/// Prompts in a row that must be counted alike until it does not any more, at most.
const MOST: u8 = 8;

/// A comparison of the numbers of tokens that an engine and the router count in prompts. A single prompt may be odd.
#[derive(Debug, Default)]
pub(crate) struct TokenAgreement {
    /// True if some prompt was counted differently and not enough others alike since.
    is_in_doubt: AtomicBool,
    doubt: Mutex<TokenDoubt>,
}

#[derive(Debug, Default)]
struct TokenDoubt {
    /// Prompts that were counted differently, beyond those counted alike.
    prompts: u8,
    is_other: bool,
    last: OtherCount,
}

/// Tokens of a prompt that the engine and the router counted differently.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OtherCount {
    pub(crate) by_engine: u32,
    pub(crate) by_router: u32,
}

impl TokenAgreement {
    /// Notes a prompt whose tokens both have counted; none if they counted it alike. Returns whether they agree in general
    /// if that changes.
    pub(crate) fn note(&self, other: Option<OtherCount>) -> Option<bool> {
        if other.is_none() && !self.is_in_doubt.load(Relaxed) {
            return None;
        }
        let mut doubt = self.doubt.lock();
        doubt.prompts = if other.is_none() { doubt.prompts.saturating_sub(1) } else { (doubt.prompts + 1).min(MOST) };
        doubt.last = other.unwrap_or(doubt.last);
        self.is_in_doubt.store(doubt.prompts > 0, Relaxed);
        let before = doubt.is_other;
        doubt.is_other = doubt.prompts > 0 && (before || doubt.prompts >= OTHER);
        (doubt.is_other != before).then_some(!doubt.is_other)
    }

    /// The last prompt that was counted differently, if the engine makes other tokens of prompts in general.
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
        assert_eq!((1..20).find(|_| note(true) == Some(true)), Some(MOST));
    }
}
