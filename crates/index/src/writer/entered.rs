//! The list of the runs that a holder has entered: some that it has left go from it in steps.
//!
//! To tell which entries are out of date is a look at each run, which takes long for who is in many. So when half of a long
//! list is out of date it is gone through from its beginning, a few entries whenever a run is entered or left, and what is
//! right moves up. Until the end, the entries that have moved stand in both places: the list may say a run twice anyway.

use super::list_cleanup::ListCleanup;
use super::state::Writer;
use crate::position::Position;
use crate::steps::step;

/// A list of at most so many entries is put right at once.
const FEW: usize = 1 << 9;
/// Entries looked at for each run that is entered or left.
const PACE: usize = 4;

impl Writer {
    /// A holder has entered or left a run: does a share of putting its list right, if it is time for that.
    #[inline]
    pub(super) fn tidy_runs(&mut self, holder: u32) {
        let it = &self.holders[holder as usize];
        if it.tidying.is_some() || it.runs.len() > 2 * it.entered as usize + 64 {
            self.tidy_some_runs(holder);
        }
    }

    #[cold]
    fn tidy_some_runs(&mut self, holder: u32) {
        if self.holders[holder as usize].runs.len() <= FEW {
            return self.compact_runs(holder);
        }
        let numbers = self.runs.numbers();
        let it = &mut self.holders[holder as usize];
        let mut runs = std::mem::take(&mut it.runs);
        let tidying = it.tidying.take();
        let begin = || Box::new(ListCleanup { next: 0, kept: 0, seen: vec![0; numbers / 64 + 1] });
        let mut tidying = tidying.unwrap_or_else(begin);
        for _ in 0..PACE {
            let Some(&run) = runs.get(tidying.next) else {
                runs.truncate(tidying.kept);
                runs.shrink_to_fit();
                self.holders[holder as usize].runs = runs;
                return;
            };
            step();
            tidying.next += 1;
            if self.is_in(holder, run) && tidying.is_first(run) {
                runs[tidying.kept] = run;
                tidying.kept += 1;
            }
        }
        let it = &mut self.holders[holder as usize];
        (it.runs, it.tidying) = (runs, Some(tidying));
    }

    /// Forgets the runs that a holder has left from its list of runs entered, and says none twice.
    pub(super) fn compact_runs(&mut self, holder: u32) {
        let it = &mut self.holders[holder as usize];
        it.tidying = None;
        let mut runs = std::mem::take(&mut it.runs);
        runs.sort_unstable();
        runs.dedup();
        runs.retain(|&run| self.is_in(holder, run));
        runs.shrink_to_fit();
        self.holders[holder as usize].runs = runs;
    }

    /// True if a run of this number is there, and `holder` in it.
    fn is_in(&self, holder: u32, run: u32) -> bool {
        self.runs.is_live(run) && self.covers(holder, Position { run, offset: 0 })
    }
}
