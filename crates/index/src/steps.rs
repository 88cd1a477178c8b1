//! Counts the steps of walks over what is held, for tests; otherwise nothing.

#[cfg(test)]
thread_local! {
    static STEPS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Counts a step of a walk over ranks, holders, runs, irregular blocks or copies.
#[inline]
pub(crate) fn step() {
    #[cfg(test)]
    STEPS.with(|steps| steps.set(steps.get() + 1));
}

/// The steps of this thread in `work`.
#[cfg(all(test, not(loom)))]
pub(crate) fn steps_of<T>(work: impl FnOnce() -> T) -> (usize, T) {
    let before = STEPS.with(std::cell::Cell::get);
    let result = work();
    (STEPS.with(std::cell::Cell::get) - before, result)
}
