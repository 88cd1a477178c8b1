//! Changing a run's levels.

use crate::raw::{Level, Levels, SetWord};
use crate::sets::Sets;

/// The levels after `holder` has gained (or lost, if not `gains`) the positions `from..to`.
///
/// Ends rise and neighbours differ. The sets of the result are new references, those of `levels` stay the caller's.
pub(crate) fn changed(levels: &[Level], holder: u32, from: u32, to: u32, gains: bool, sets: &mut Sets) -> Levels {
    let mut out = Levels::new();
    let mut start = 0;
    for level in levels {
        push(&mut out, start, level.end.min(from), level.set, Change::None, holder, sets);
        let change = if gains { Change::Gain } else { Change::Lose };
        push(&mut out, start.max(from), level.end.min(to), level.set, change, holder, sets);
        push(&mut out, start.max(to), level.end, level.set, Change::None, holder, sets);
        start = level.end;
    }
    if gains {
        // Beyond what anyone held.
        push(&mut out, start.max(from), to, SetWord::EMPTY, Change::Gain, holder, sets);
    }
    while let Some(last) = out.last()
        && last.set.is_empty()
    {
        out.pop();
    }
    out
}

enum Change {
    None,
    Gain,
    Lose,
}

/// Appends positions `start..end` with `set`, changed; joins them to the level before if that has the same set.
fn push(out: &mut Levels, start: u32, end: u32, set: SetWord, change: Change, holder: u32, sets: &mut Sets) {
    if start >= end {
        return;
    }
    let set = match change {
        Change::None => sets.retain(set),
        Change::Gain => sets.with(set, holder),
        Change::Lose => sets.without(set, holder),
    };
    match out.last_mut() {
        Some(last) if last.set == set => {
            last.end = end;
            sets.release(set);
        }
        _ => out.push(Level { end, set }),
    }
}
