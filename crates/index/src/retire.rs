//! Garbage of the index: memory and numbers that the writer has unlinked, and must keep as long as a reader may still
//! use them.

use crate::raw::{Children, Readers, RetiredList, Run, SetBox, SharedBox, SpilledLevels};
use crate::roster::Roster;

/// Memory or number that the writer has unlinked and keeps until no reader can use it. Numbers of runs of blocks and
/// holders (ranks' caches) are included, as a reader may be about to look one up.
#[allow(dead_code, reason = "most are here to be dropped in time")]
pub(crate) enum Garbage {
    Run(Run),
    Levels(SpilledLevels),
    Set(SetBox),
    Children(SharedBox<Children>),
    Roster(SharedBox<Roster>),
    RunId(u32),
    HolderId(u32),
}

impl Garbage {
    fn bytes(&self) -> usize {
        match self {
            Self::Run(run) => run.bytes(),
            Self::Levels(levels) => levels.bytes(),
            Self::Children(children) => children.bytes(),
            Self::Set(set) => set.bytes(),
            Self::Roster(_) => 4096,
            Self::RunId(_) | Self::HolderId(_) => size_of::<Self>(),
        }
    }
}

/// Bytes of new garbage (unlinked memory) at which the writer checks if some of the garbage can be freed. A check costs
/// about as much as storing a block, and more if readers are counted in many places.
const ENOUGH: usize = 16 << 10;
/// Bytes of new garbage (unlinked memory) at which the writer checks in any case if some of the garbage can be freed,
/// even if there are few items.
const MUCH: usize = 256 << 10;

/// Number of changes after which the writer checks again if the readers have finished that kept garbage from being
/// freed.
const MOST_QUESTIONS: u32 = 64;
/// Largest number of items of garbage (unlinked memory and numbers) freed in one step.
const AT_ONCE: usize = 512;

/// Garbage (unlinked memory and numbers) with the counts that decide when the writer frees it.
pub(crate) struct Trash {
    retired: RetiredList<Garbage>,
    /// Bytes of garbage (unlinked memory) added since the last check if garbage can be freed.
    fresh_bytes: usize,
    fresh: usize,
    /// Number of reader counters that a check of the garbage (unlinked memory) reads. The writer waits for at least as
    /// many new items between two checks.
    places: usize,
    /// Total bytes of the garbage, the memory that is unlinked and not yet freed.
    bytes: usize,
    /// Number of calls of `is_full` since the last check for garbage to free, if that check could not free everything;
    /// None otherwise.
    asked: Option<u32>,
}

impl Trash {
    pub(crate) fn new(readers: &Readers) -> Self {
        Self { retired: RetiredList::new(), fresh_bytes: 0, fresh: 0, places: readers.places(), bytes: 0, asked: None }
    }

    #[inline]
    pub(crate) fn push(&mut self, garbage: Garbage) {
        let bytes = garbage.bytes();
        self.fresh_bytes += bytes;
        self.fresh += 1;
        self.bytes += bytes + size_of::<Garbage>();
        self.retired.push(garbage);
    }

    /// True if it is time to check which garbage (unlinked memory and numbers) can be freed.
    #[inline]
    pub(crate) fn is_full(&mut self) -> bool {
        // What a reader kept from going must not wait for more garbage to come.
        let waited = self.asked.as_mut().is_some_and(|asked| {
            *asked += 1;
            *asked >= MOST_QUESTIONS
        });
        waited || self.fresh_bytes >= ENOUGH && self.fresh >= self.places || self.fresh_bytes >= MUCH
    }

    /// True if there is garbage (unlinked memory or numbers) that no reader can use any longer.
    pub(crate) fn is_ready(&self) -> bool {
        self.retired.is_ready()
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// True if the total of bytes equals the sum over all items of garbage, for tests.
    #[cfg(test)]
    pub(crate) fn is_counted(&self) -> bool {
        self.bytes == self.retired.iter().map(|g| g.bytes() + size_of::<Garbage>()).sum::<usize>()
    }

    /// Passes items of garbage that no reader can use any longer to `reuse`, up to a fixed number per call.
    pub(crate) fn empty(&mut self, readers: &Readers, mut reuse: impl FnMut(Garbage)) {
        self.fresh_bytes = 0;
        self.fresh = 0;
        let mut freed = 0;
        let left = self.retired.advance(readers, AT_ONCE, |garbage| {
            freed += garbage.bytes() + size_of::<Garbage>();
            reuse(garbage);
        });
        self.bytes -= freed;
        // Items that no reader can hold are freed further at the next check.
        self.asked = left.then_some(if self.retired.is_ready() { MOST_QUESTIONS } else { 0 });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::raw::{SwapCell, WriterToken};
    use crate::stats::steps_of;

    /// Checks that, with many counters of readers, the checks of garbage take about as many steps as there are items of
    /// garbage.
    #[test]
    fn looks_go_to_no_more_places_than_things_are_thrown_away() {
        let readers = Readers::new(32);
        let mut trash = Trash::new(&readers);
        let mut token = WriterToken::of(&readers);
        let published = SwapCell::new(Roster::default(), &token);
        let (mut freed, mut most) = (0, 0);
        const THINGS: usize = 10_000;
        let (steps, ()) = steps_of(|| {
            for _ in 0..THINGS {
                trash.push(Garbage::Roster(published.replace(Roster::default(), &mut token)));
                if trash.is_full() {
                    trash.empty(&readers, |_| freed += 1);
                }
                most = most.max(trash.bytes());
            }
        });
        assert!((THINGS / 2..=3 * THINGS).contains(&steps), "{steps} steps");
        assert!(freed > THINGS * 9 / 10 && most < 2 * MUCH, "{freed} freed, {most} bytes at most");
    }
}
