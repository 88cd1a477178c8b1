//! Reusable memory for the numbers of queries.

use std::cell::Cell;

/// Most elements of the memory that a thread keeps between queries.
const KEPT: usize = 1 << 18;

/// Memory for the numbers of a query, reused by the thread's next query.
#[derive(Default)]
pub(crate) struct Scratch {
    pub(super) tokens: Vec<u32>,
    pub(super) hashes: Vec<u64>,
    /// Content hashes of the tokens of one query.
    pub(super) content: Vec<u64>,
}

thread_local! {
    static SCRATCH: Cell<Scratch> = Cell::default();
}

impl Scratch {
    /// Calls `work` with the thread's scratch memory, emptied; a nested call gets a new one.
    pub(crate) fn with<T>(work: impl FnOnce(&mut Self) -> T) -> T {
        let mut scratch = SCRATCH.take();
        let done = work(&mut scratch);
        let Self { tokens, hashes, content } = &mut scratch;
        tokens.clear();
        tokens.shrink_to(KEPT);
        for numbers in [hashes, content] {
            numbers.clear();
            numbers.shrink_to(KEPT);
        }
        SCRATCH.set(scratch);
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_not_kept_for_ever() {
        Scratch::with(|scratch| scratch.tokens.resize(KEPT * 4, 0));
        Scratch::with(|scratch| assert!(scratch.tokens.is_empty() && scratch.tokens.capacity() <= KEPT));
    }
}
