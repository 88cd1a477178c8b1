//! A holder loses blocks.

use smallvec::SmallVec;

use super::Writer;
use crate::runs::Position;

/// Neighbouring positions of one run, `low..=high`.
struct Stretch {
    run: u32,
    low: u32,
    high: u32,
}

/// Stretches looked through for a name that comes twice, before what there is gets done.
const MOST_STRETCHES: usize = 32;

impl Writer {
    /// `holder` holds these blocks no more. Names it does not hold change nothing; `gone` gets the others.
    ///
    /// The order of the names does not matter, and engines differ in it: they are taken leaves first, so that a chain
    /// that goes as a whole leaves no holes behind on the way.
    pub(super) fn del(&mut self, holder: u32, names: &[u64], gone: &mut Vec<u64>) {
        let mut stretches: SmallVec<[Stretch; 4]> = SmallVec::new();
        for &name in names {
            let regular = self.regular_prefix(holder, &[name]) == 1;
            if !regular {
                // Whatever came before it in the list must be done first: it may be the same name.
                self.cut(holder, &mut stretches);
                if self.del_one(holder, name) {
                    gone.push(name);
                }
                continue;
            }
            let next = stretches.last().and_then(|last| self.neighbour(holder, last, name));
            let Some(at) = next.or_else(|| self.find(holder, name)) else { continue };
            let within = |s: &Stretch| s.run == at.run && (s.low..=s.high).contains(&at.offset);
            // A neighbour of the only stretch is not within it.
            if (next.is_none() || stretches.len() > 1) && stretches.iter().any(within) {
                continue; // the name comes twice
            }
            if let (Some(at), Some(last)) = (next, stretches.last_mut()) {
                gone.push(name);
                last.low = last.low.min(at.offset);
                last.high = last.high.max(at.offset);
                continue;
            }
            gone.push(name);
            stretches.push(Stretch { run: at.run, low: at.offset, high: at.offset });
            if stretches.len() > MOST_STRETCHES {
                self.cut(holder, &mut stretches);
            }
        }
        self.cut(holder, &mut stretches);
    }

    /// The block just before or after the stretch, if it has this name. Most removals are one chain in order, either
    /// way: this spares them the table of names.
    #[inline]
    fn neighbour(&self, holder: u32, stretch: &Stretch, name: u64) -> Option<Position> {
        let run = stretch.run;
        let names = match &self.holders[holder as usize].private {
            None => self.runs.get(run).names(),
            Some(private) => private.of_run(run),
        };
        if stretch.low > 0 && names[stretch.low as usize - 1] == name {
            return Some(Position { run, offset: stretch.low - 1 });
        }
        let next = Position { run, offset: stretch.high + 1 };
        (names.get(next.offset as usize) == Some(&name) && self.covers(holder, next)).then_some(next)
    }

    /// Takes the stretches out. A run starts after those it descends from, so whatever hangs off a block goes before it.
    fn cut(&mut self, holder: u32, stretches: &mut SmallVec<[Stretch; 4]>) {
        if stretches.len() > 1 {
            stretches.sort_unstable_by_key(|s| std::cmp::Reverse((self.runs.start(s.run), s.high)));
        }
        for Stretch { run, low, high } in stretches.drain(..) {
            let cutoff = self.cutoff(holder, run);
            if high + 1 == cutoff && !self.holds_child_beyond(holder, run, low) {
                self.lower(holder, run, cutoff, low);
                continue;
            }
            for offset in (low..=high).rev() {
                self.del_regular(holder, Position { run, offset });
            }
        }
    }

    /// Whether `holder` covers a child of the run that hangs after more than `blocks` blocks.
    pub(super) fn holds_child_beyond(&self, holder: u32, run: u32, blocks: u32) -> bool {
        self.runs.any_child_beyond(run, blocks, |child| {
            self.runs.levels(child).first().is_some_and(|level| self.sets.contains(level.set, holder))
        })
    }

    /// Takes one block out, whatever kind it is; returns whether it was held.
    pub(super) fn del_one(&mut self, holder: u32, name: u64) -> bool {
        if self.holders[holder as usize].odd_block(name).is_some() {
            self.del_odd(holder, name);
            return true;
        }
        let Some(at) = self.find(holder, name) else { return false };
        self.del_regular(holder, at);
        true
    }

    /// Takes a regular block out. What it held below becomes odd.
    fn del_regular(&mut self, holder: u32, at: Position) {
        let cutoff = self.cutoff(holder, at.run);
        let is_leaf = at.offset + 1 == cutoff && !self.holds_child_beyond(holder, at.run, at.offset);
        let odd_ones_reachable = self.holders[holder as usize].odd.as_ref().is_some_and(|odd| !odd.at.is_empty());
        if is_leaf && !odd_ones_reachable {
            self.lower(holder, at.run, cutoff, at.offset);
        } else {
            self.detach(holder, at);
        }
    }
}
