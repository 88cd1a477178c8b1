//! A holder loses blocks.

use smallvec::SmallVec;

use super::state::Writer;
use crate::position::{NO_NAME, Position};

/// Neighbouring positions of one run, `low..=high`.
#[derive(Clone, Copy)]
struct Stretch {
    run: u32,
    low: u32,
    high: u32,
    /// How far the holder covers the run.
    cutoff: u32,
}

/// Stretches looked through for a name that comes twice, before what there is gets done.
const MOST_STRETCHES: usize = 32;

impl Writer {
    /// `holder` holds these blocks no more. Names it does not hold change nothing; `gone` gets the others.
    ///
    /// The order of the names does not matter, and engines differ in it: they are taken leaves first, so that a chain
    /// that goes as a whole leaves no holes behind on the way.
    pub(super) fn lose(&mut self, holder: u32, names: &[u64], gone: &mut Vec<u64>) {
        let mut stretches: SmallVec<[Stretch; 4]> = SmallVec::new();
        for &name in names {
            let regular = self.regular_prefix(holder, &[name]) == 1;
            if !regular {
                // Whatever came before it in the list must be done first: it may be the same name.
                self.cut(holder, &mut stretches);
                if self.lose_one(holder, name) {
                    gone.push(name);
                }
                continue;
            }
            let next = stretches.last().and_then(|last| self.neighbour(holder, last, name));
            let next_or_resumed = next.or_else(|| if stretches.is_empty() { self.resumed(holder, name) } else { None });
            let Some(at) = next_or_resumed.or_else(|| self.find(holder, name)) else { continue };
            if self.is_irregular_in(holder, at.run) {
                self.cut(holder, &mut stretches);
                if self.lose_one(holder, name) {
                    gone.push(name);
                }
                continue;
            }
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
            let cutoff = self.cutoff(holder, at.run, at.offset);
            stretches.push(Stretch { run: at.run, low: at.offset, high: at.offset, cutoff });
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
        let next = stretch.high + 1;
        (next < stretch.cutoff && names[next as usize] == name).then_some(Position { run, offset: next })
    }

    /// The last block the holder has of the run that it lost blocks of last, if it has this name: eviction goes on
    /// where it stopped.
    #[inline]
    fn resumed(&self, holder: u32, name: u64) -> Option<Position> {
        let it = &self.holders[holder as usize];
        let at = it.resume?;
        let is_it = self.runs.is_live(at.run)
            && it.private.is_none()
            && self.runs.get(at.run).names().get(at.offset as usize) == Some(&name)
            && name != NO_NAME
            && self.covers(holder, at)
            && !it.covers_irregularly(at);
        is_it.then_some(at)
    }

    /// Takes the stretches out. A run starts after those it descends from, so whatever hangs off a block goes before it.
    fn cut(&mut self, holder: u32, stretches: &mut SmallVec<[Stretch; 4]>) {
        if stretches.len() > 1 {
            stretches.sort_unstable_by_key(|s| std::cmp::Reverse((self.runs.start(s.run), s.high)));
        }
        for &Stretch { run, low, high, .. } in stretches.iter() {
            let cutoff = self.cutoff(holder, run, high);
            if high + 1 == cutoff && !self.holds_child_beyond(holder, run, low) {
                self.lower(holder, run, cutoff, low);
                continue;
            }
            for offset in (low..=high).rev() {
                self.lose_regular(holder, Position { run, offset });
            }
        }
        if let Some(last) = stretches.last() {
            let resume = last.low.checked_sub(1).map(|offset| Position { run: last.run, offset });
            self.holders[holder as usize].resume = resume;
        }
        stretches.clear();
    }

    /// Whether `holder` covers a child of the run that hangs after more than `blocks` blocks.
    ///
    /// A busy run has thousands of children, and is often evicted block by block: what was seen is remembered until
    /// the holder enters a run.
    pub(super) fn holds_child_beyond(&mut self, holder: u32, run: u32, blocks: u32) -> bool {
        let most = match self.holders[holder as usize].childless {
            Some((seen, beyond)) if seen == run => beyond,
            _ => u32::MAX,
        };
        let holds = self.runs.counts_beyond(run, holder, blocks)
            || self.runs.any_child_beyond(run, blocks, most, |child| {
                self.runs.levels(child).first().is_some_and(|level| self.sets.contains(level.set, holder))
            });
        if !holds {
            self.holders[holder as usize].childless = Some((run, blocks.min(most)));
        }
        holds
    }

    /// Takes one block out, whatever kind it is; returns whether it was held.
    pub(super) fn lose_one(&mut self, holder: u32, name: u64) -> bool {
        if self.holders[holder as usize].irregular_block(name).is_some() {
            self.detach_irregular(holder, name);
            return true;
        }
        let Some(at) = self.find(holder, name) else { return false };
        self.lose_regular(holder, at);
        true
    }

    /// Takes a regular block out. What it held below becomes irregular.
    fn lose_regular(&mut self, holder: u32, at: Position) {
        let cutoff = self.cutoff(holder, at.run, at.offset);
        let is_leaf = at.offset + 1 == cutoff && !self.holds_child_beyond(holder, at.run, at.offset);
        let is_plain = match &self.holders[holder as usize].irregular {
            None => true,
            Some(irregular) => !irregular.is_in(at.run) && !irregular.continues(self.name_of(holder, at)),
        };
        if is_leaf && is_plain {
            self.lower(holder, at.run, cutoff, at.offset);
        } else {
            self.detach(holder, at);
        }
    }
}
