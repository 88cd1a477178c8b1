//! Changing a run's levels.

use crate::raw::{Level, SetWord};
use crate::sets::Sets;

/// Changes `levels` for a holder that gains the positions `from..to`, or loses them unless `gains`. What it
/// gains goes on from what it has, what it loses is the end of that.
///
/// Ends rise and neighbours differ, before and after. The references of `levels` to sets are the caller's, before and
/// after: a set that stays is not looked at.
pub(crate) fn change(levels: &mut Vec<Level>, holder: u32, from: u32, to: u32, gains: bool, sets: &mut Sets) {
    if gains && levels.last().is_none_or(|last| last.end < to) {
        // Beyond what anyone held.
        levels.push(Level { end: to, set: SetWord::EMPTY });
    }
    let mut at = levels.iter().position(|level| level.end > from).unwrap_or(levels.len());
    let first = at;
    if at < levels.len() && from > at.checked_sub(1).map_or(0, |before| levels[before].end) {
        split(levels, at, from, sets);
        at += 1;
    }
    while at < levels.len() && at.checked_sub(1).map_or(0, |before| levels[before].end) < to {
        if levels[at].end > to {
            split(levels, at, to, sets);
        }
        let old = levels[at].set;
        levels[at].set = if gains { sets.with(old, holder) } else { sets.without(old, holder) };
        sets.release(old);
        at += 1;
    }
    // Only the neighbours of those that changed can be equal now.
    for at in (first..=at.min(levels.len() - 1)).rev() {
        if at > 0 && levels[at - 1].set == levels[at].set {
            sets.release(levels[at].set);
            levels[at - 1].end = levels[at].end;
            levels.remove(at);
        }
    }
    while levels.last().is_some_and(|last| last.set.is_empty()) {
        levels.pop();
    }
}

/// Makes two levels of one, parted at `end`.
fn split(levels: &mut Vec<Level>, at: usize, end: u32, sets: &mut Sets) {
    let set = sets.retain(levels[at].set);
    levels.insert(at, Level { end, set });
}
