//! Copies of a rank's blocks in slices, between which other writers may change the rank. The result is the state of the
//! rank at the moment of the last slice.
//!
//! First the blocks in the rank's runs are copied, run by run, then the other ones (irregular blocks, copies, other
//! tiers), by block hash. By block hash, a rank is a plain map (to a block's parent, content and copies): an entry that
//! was copied stays right until a call mentions its block hash, or moves its block to another kind. A watch records
//! these block hashes. They are looked up again, and so are those that change meanwhile, until few enough are left for
//! one slice. Everything else is unchanged since it was copied.

use hashbrown::{HashMap, HashSet};

use super::lookup::{HeldChain, NAME_STEPS, RUN_STEPS};
use crate::copied::{CopiedBlock, CopiedChain, RankCopy};
use crate::position::Position;
use crate::types::BlockHash;
use crate::writer::holders::Watch;
use crate::writer::holders::workers::Rank;
use crate::writer::state::Writer;

/// Largest number of rounds in which the block hashes that changed during the last round are looked up again. Each
/// round is shorter than the one before, unless changes come as fast as they can be read; then the last round is not
/// interrupted.
const ROUNDS: usize = 16;

/// Result of copying one slice (a limited number) of a rank's blocks.
pub(crate) enum Slice {
    /// Success: all blocks of the rank have been copied.
    Done,
    /// Progress: more slices of the rank's blocks must be copied.
    More,
    /// Failure, because all blocks of the rank have changed; the copy must be started again.
    Again,
}

/// State of a copy of a rank's blocks that is being made in slices, of a limited number of blocks each.
pub(crate) struct LargeCopy {
    worker: Box<str>,
    rank: u32,
    pub(crate) watch: u64,
    device: u32,
    widest: u32,
    /// Runs of blocks still to be copied in which the device had blocks at the start; `wider_runs`: those of the rank's
    /// widest view (set of tiers).
    runs: Vec<u32>,
    wider_runs: Vec<u32>,
    /// Block hashes of the rank that must still be looked up for the copy.
    names: Vec<u64>,
    /// Block hashes of the rank that changed during the copy, and must be looked up (again) at the end.
    touched: HashSet<u64>,
    /// Chains copied from runs of blocks, in one list per slice, as a long list is slow to grow.
    chains: Vec<Vec<Piece>>,
    /// State of the block hashes that were looked up, in one list per slice. This state overrides the chains, and later
    /// entries override earlier ones.
    known: Vec<Vec<(u64, NameState)>>,
    rounds: usize,
}

/// Blocks that a rank has in one run (a list of consecutive blocks).
struct Piece {
    /// Number of blocks from the beginning of the prompt to the first block of the run (a list of consecutive blocks).
    start: u32,
    run: u32,
    chain: HeldChain,
}

/// State of a block hash in a rank: parent, content hash and copies, on the device and on the other tiers; each is None
/// if the rank does not have the block there.
#[derive(Default)]
struct NameState {
    device: Option<(Option<u64>, u64, u32)>,
    elsewhere: Option<(Option<u64>, u64, [u32; 3])>,
}

impl Writer {
    /// Copies a rank's blocks at once, however many they are; the copy is empty if the rank is unknown.
    pub(crate) fn copy_rank(&mut self, worker: &str, rank: u32) -> RankCopy {
        let begun = self.slice_first(worker, rank, usize::MAX, &mut 0);
        // There is no bound that it could come to before it is done.
        begun.map(|(large, _)| large.copy()).unwrap_or_default()
    }

    /// Starts the copy of a rank, and continues if the rank is small; None if the rank is unknown. Adds the steps taken
    /// to `spent`.
    pub(crate) fn slice_first(
        &mut self,
        worker: &str,
        rank: u32,
        steps: usize,
        spent: &mut usize,
    ) -> Option<(LargeCopy, Slice)> {
        let mut large = self.slice_begin(worker, rank, spent)?;
        // A few are in order in no time. Many are brought in order without the lock.
        if (large.runs.len() + large.wider_runs.len() + large.names.len()) * RUN_STEPS > steps {
            return Some((large, Slice::More));
        }
        large.tidy();
        let slice = self.slice_more(&mut large, steps, spent);
        Some((large, slice))
    }

    /// Starts the copy of a rank, without copying blocks yet; None if the rank is unknown. Adds the steps taken to
    /// `spent`.
    fn slice_begin(&mut self, worker: &str, rank: u32, spent: &mut usize) -> Option<LargeCopy> {
        let number = self.workers.rank(worker, rank)?;
        self.finish_clearing(number);
        let books = self.workers.get(number)?;
        let (device, widest) = (books.device, books.widest());
        let runs = self.holders[device as usize].runs.clone();
        let watch = self.watch([device, widest]);
        let mut large = LargeCopy {
            worker: worker.into(),
            rank,
            watch,
            device,
            widest,
            runs,
            wider_runs: Vec::new(),
            names: self.names_not_in_runs(device),
            chains: Vec::new(),
            touched: HashSet::new(),
            known: Vec::new(),
            rounds: 0,
        };
        if widest != device {
            large.wider_runs.clone_from(&self.holders[widest as usize].runs);
            large.names.extend(self.names_not_in_runs(widest));
        }
        // Plain lists of numbers: many a step.
        *spent += (large.runs.len() + large.wider_runs.len() + large.names.len()) / 8;
        Some(large)
    }

    /// Copies more blocks of a rank, until `spent` reaches `steps`.
    pub(crate) fn slice_more(&mut self, large: &mut LargeCopy, steps: usize, spent: &mut usize) -> Slice {
        let Some(touched) = self.take_touched(large.watch) else { return self.slice_end(large, Slice::Again) };
        let of_rank = |writer: &Self| writer.workers.rank(&large.worker, large.rank);
        let Some(rank) = of_rank(self) else { return self.slice_end(large, Slice::Again) };
        large.touched.extend(touched);
        let books = self.workers.get(rank).expect("known");
        if ![books.device, books.widest()].into_iter().all(|holder| self.gather_places(holder, steps, spent)) {
            return Slice::More;
        }
        let books = self.workers.get(rank).expect("known");
        large.chains.push(Vec::new());
        let mut known = Vec::new();
        while *spent < steps {
            if let Some(run) = large.runs.pop() {
                *spent += self.slice_run(large, books, run, false);
            } else if let Some(run) = large.wider_runs.pop() {
                *spent += self.slice_run(large, books, run, true);
            } else {
                break;
            }
        }
        if !large.runs.is_empty() || !large.wider_runs.is_empty() {
            return Slice::More;
        }
        while *spent < steps
            && let Some(name) = large.names.pop()
        {
            *spent += NAME_STEPS;
            known.push((name, self.known(books, large.device, large.widest, name)));
        }
        if !large.names.is_empty() {
            large.known.push(known);
            return Slice::More;
        }
        let touched = std::mem::take(&mut large.touched);
        if *spent + touched.len() * NAME_STEPS > steps && large.rounds < ROUNDS {
            large.names.extend(touched);
            large.rounds += 1;
            large.known.push(known);
            return Slice::More;
        }
        // All that was touched until now, at once: this is the moment.
        for name in touched {
            *spent += NAME_STEPS;
            known.push((name, self.known(books, large.device, large.widest, name)));
        }
        large.known.push(known);
        self.slice_end(large, Slice::Done)
    }

    fn slice_end(&mut self, large: &LargeCopy, slice: Slice) -> Slice {
        self.unwatch(large.watch);
        slice
    }

    /// Copies the blocks of a run (a list of consecutive blocks) that a rank's device has. If `wider`, lists the run's
    /// block hashes that other tiers have instead. Returns the number of steps taken.
    fn slice_run(&self, large: &mut LargeCopy, books: &Rank, run: u32, wider: bool) -> usize {
        let holder = if wider { large.widest } else { large.device };
        // It may be another run under the same number; then all its names are touched.
        if !self.runs.is_live(run) || !self.covers(holder, Position { run, offset: 0 }) {
            return RUN_STEPS;
        }
        let cutoff = self.cutoff(holder, run, 0);
        let Some(chain) = self.chain_in(holder, run, 0, cutoff) else { return RUN_STEPS };
        let mut steps = RUN_STEPS + chain.names.len();
        if wider {
            steps += chain.names.len() * NAME_STEPS;
            large.names.extend(chain.names.iter().filter(|name| books.offloaded.get(**name).is_some()));
            return steps;
        }
        if !books.copies.is_empty() {
            steps += chain.names.len() * NAME_STEPS;
            large.names.extend(chain.names.iter().filter(|name| books.copies.of(**name) > 0));
        }
        if let Some(chains) = large.chains.last_mut() {
            chains.push(Piece { start: self.runs.start(run), run, chain });
        }
        steps
    }

    fn known(&self, books: &Rank, device: u32, widest: u32, name: u64) -> NameState {
        let on_device = self.block(device, name).map(|(parent, content)| (parent, content, books.copies.of(name)));
        let claims = books.offloaded.get(name);
        let elsewhere = claims.and_then(|claims| {
            let (parent, content) = self.block(widest, name)?;
            Some((parent, content, claims))
        });
        NameState { device: on_device, elsewhere }
    }
}

impl LargeCopy {
    /// Sorts the lists of runs of blocks to copy and removes duplicates, without needing the index's lock.
    pub(crate) fn tidy(&mut self) {
        for runs in [&mut self.runs, &mut self.wider_runs] {
            runs.sort_unstable();
            runs.dedup();
        }
    }

    fn take_chains(&mut self) -> Vec<Piece> {
        let mut chains: Vec<_> = std::mem::take(&mut self.chains).into_iter().flatten().collect();
        chains.sort_by_key(|piece| piece.start);
        chains
    }

    /// Builds the copy of the rank from its slices, without needing the index's lock.
    pub(crate) fn copy(mut self) -> RankCopy {
        let pieces = self.take_chains();
        let known: HashMap<u64, NameState> = self.known.into_iter().flatten().collect();
        let plain = |names: &[u64]| {
            let mut plain = Vec::new();
            let mut at = 0;
            for part in names.split(|name| known.contains_key(name)) {
                if !part.is_empty() {
                    plain.push(at..at + part.len());
                }
                at += part.len() + 1;
            }
            plain
        };
        let hashes = |names: Vec<u64>| names.into_iter().map(BlockHash).collect();
        let chain = |Piece { run, chain: HeldChain { parent, names, contents }, .. }| CopiedChain {
            run,
            parent: parent.map(BlockHash),
            plain: plain(&names),
            names: hashes(names),
            contents,
        };
        let chains = pieces.into_iter().map(chain).filter(|chain| !chain.plain.is_empty()).collect();
        let block = |name: u64, (parent, content): (Option<u64>, u64), copies| CopiedBlock {
            name: BlockHash(name),
            parent: parent.map(BlockHash),
            content,
            copies,
        };
        let (mut device, mut elsewhere) = (Vec::new(), Vec::new());
        for (name, it) in &known {
            if let Some((parent, content, extra)) = it.device {
                device.push(block(*name, (parent, content), [extra.saturating_add(1), 0, 0, 0]));
            }
            if let Some((parent, content, [cpu, disk, external])) = it.elsewhere {
                elsewhere.push(block(*name, (parent, content), [0, cpu, disk, external]));
            }
        }
        for blocks in [&mut device, &mut elsewhere] {
            blocks.sort_unstable_by_key(|block: &CopiedBlock| block.name);
        }
        device.append(&mut elsewhere);
        RankCopy { chains, blocks: device }
    }
}

impl Writer {
    /// Starts to record the changes of the rank with these holders (ranks' caches); returns the record's identifier.
    pub(in crate::writer) fn watch(&mut self, holders: [u32; 2]) -> u64 {
        let watches = &mut self.watches;
        watches.last += 1;
        watches.all.push(Watch { id: watches.last, holders, touched: HashSet::new(), over: false });
        watches.last
    }

    /// Stops recording the changes of a rank under this identifier.
    pub(crate) fn unwatch(&mut self, id: u64) {
        if let Some(watch) = self.watches.all.iter().find(|watch| watch.id == id) {
            self.forget_places(watch.holders);
        }
        self.watches.all.retain(|watch| watch.id != id);
        if self.watches.all.is_empty() {
            self.watches.all = Vec::new();
        }
    }

    /// Removes and returns the block hashes of a rank that changed since the last call; None if all of them changed, so
    /// that everything copied is worthless.
    pub(in crate::writer) fn take_touched(&mut self, id: u64) -> Option<HashSet<u64>> {
        let watch = self.watches.all.iter_mut().find(|watch| watch.id == id)?;
        (!watch.over).then(|| std::mem::take(&mut watch.touched))
    }

    /// Records a change of these block hashes of a holder (a rank's cache), if its rank is being copied.
    #[inline]
    pub(in crate::writer) fn touch(&mut self, holder: u32, names: impl IntoIterator<Item = u64>) {
        if !self.watches.all.is_empty() {
            self.note(holder, names);
        }
    }

    #[cold]
    fn note(&mut self, holder: u32, names: impl IntoIterator<Item = u64>) {
        let mut watches: Vec<_> = self.watches.all.iter_mut().filter(|it| it.holders.contains(&holder)).collect();
        if watches.is_empty() {
            return;
        }
        for name in names {
            for watch in &mut watches {
                watch.touched.insert(name);
            }
        }
    }

    /// Records a change of all blocks of a holder (a rank's cache), if its rank is being copied.
    pub(in crate::writer) fn touch_all(&mut self, holder: u32) {
        for watch in self.watches.all.iter_mut().filter(|it| it.holders.contains(&holder)) {
            watch.over = true;
            watch.touched = HashSet::new();
        }
    }
}
