//! Registry of the index designs (rungs of the ladder), which are created by name.

use std::io;

use crate::actor::{Actor, ShardedActors};
use crate::block_index::BlockIndexRung;
use crate::concurrent::ConcurrentRadixTree;
use crate::grouped::{GroupOptions, GroupedIndex};
use crate::interface::{ConcurrentDesign, Feed, LocalDesign, RwLocked};
use crate::inverted::InvertedIndex;
use crate::nested::NestedMap;
use crate::pool::EventPool;
use crate::positional::{self, InvalidOption, Layout, PositionalIndexer, Search};
use crate::radix::RadixTree;

/// Options for creating an index of a design. Each design ignores options that it does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Number of threads that apply events, for designs with a pool of threads; 1 to 1,024.
    pub event_threads: usize,
    /// Number of blocks by which the search of the positional designs advances, at least 1.
    pub jump_size: usize,
    /// Number of shards (parts with some of the workers) of the design `radix-sharded`, each with its own thread; 1 to
    /// 1,024.
    pub shards: usize,
    /// Number of workers in a group of the design `grouped`, at least 1.
    pub group_size: usize,
    /// True to correct the design's known errors, where possible.
    pub strict: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { event_threads: 1, jump_size: 32, shards: 2, group_size: 64, strict: false }
    }
}

/// Maximum number of threads of one index.
const MOST_THREADS: usize = 1024;

/// Kind of wrong answers of a design. Each module describes those of its design, with the smallest example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Deviation {
    /// Blocks of equal content at several positions of prompts count as one block.
    Conflation,
    /// A missing block before held blocks is ignored, so that depths (numbers of leading blocks) are too large.
    Holes,
    /// A block whose parent is not held counts as held, or is refused and not kept until the parent comes.
    Orphans,
    /// If a block hash is announced again for another block, the blocks that continue it keep their old position in the
    /// index.
    Renames,
    /// Several block hashes that one worker uses for one block are confused.
    Aliases,
}

impl Deviation {
    /// Name of the kind of errors, the same in every release.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Conflation => "conflation",
            Self::Holes => "holes",
            Self::Orphans => "orphans",
            Self::Renames => "renames",
            Self::Aliases => "aliases",
        }
    }
}

/// An index design in the registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rung {
    /// Name of the design, as passed to [`open`].
    pub name: &'static str,
    /// Short description of the design, for listings.
    pub what: &'static str,
    /// Known errors of the design without the option `strict`.
    pub deviations: &'static [Deviation],
    /// Known errors that remain with the option `strict`, which corrects the others; `None` if the design has no strict
    /// form.
    pub strict: Option<&'static [Deviation]>,
}

impl Rung {
    const fn new(name: &'static str, what: &'static str, deviations: Deviations, strict: Option<Deviations>) -> Self {
        Self { name, what, deviations, strict }
    }
}

use Deviation::{Aliases, Conflation, Holes, Orphans, Renames};

type Deviations = &'static [Deviation];

const NONE: Deviations = &[];
const BY_CONTENT: Deviations = &[Conflation, Orphans, Renames, Aliases];
const BY_PLACE: Deviations = &[Orphans, Renames, Aliases];
const BY_LEAPS: Deviations = &[Conflation, Holes, Orphans, Renames, Aliases];

/// All index designs written in Rust, the lowest rung of the ladder first.
pub const RUNGS: &[Rung] = &[
    Rung::new("dict", "nested dictionary behind one lock, one event thread", BY_CONTENT, Some(NONE)),
    Rung::new("dict-actor", "nested dictionary owned by an actor", BY_CONTENT, Some(NONE)),
    Rung::new("inverted", "content hash to block hash to workers, owned by an actor", BY_CONTENT, Some(NONE)),
    Rung::new("radix", "radix tree owned by an actor", BY_PLACE, None),
    Rung::new("radix-sharded", "radix trees of some of the workers each, owned by actors", BY_PLACE, None),
    Rung::new("radix-concurrent", "radix tree with a lock in each node, pool of event threads", BY_PLACE, None),
    Rung::new("positional", "map by position and content hash, searched in jumps", BY_LEAPS, Some(BY_PLACE)),
    Rung::new("positional-bisect", "the same, a failed jump searched by halves", BY_LEAPS, Some(BY_PLACE)),
    Rung::new("positional-arrays", "the same in jumps, an array by position of maps", BY_LEAPS, Some(BY_PLACE)),
    Rung::new("grouped", "positional maps of groups of workers below a sparse one", BY_LEAPS, Some(BY_PLACE)),
    Rung::new("block-index", "kvatlas.BlockIndex, pool of event threads, answers as levels", NONE, Some(NONE)),
    Rung::new("block-index-scores", "the same, every worker's depth spelled out", NONE, Some(NONE)),
];

/// Reason why an index of a design could not be created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// No design has the given name.
    #[error("unknown rung {name:?}: it is one of {}", names())]
    UnknownRung {
        /// Name that was given to [`open`].
        name: String,
    },
    /// An option has an invalid value.
    #[error("{option} must be {wanted}, got {got}")]
    InvalidOption {
        /// Name of the invalid option.
        option: &'static str,
        /// Description of the option's valid values.
        wanted: &'static str,
        /// Value that was given for the option.
        got: usize,
    },
    /// The design has no strict form, without its known errors.
    #[error("{name} cannot be strict: its errors follow from its design")]
    NeverStrict {
        /// Name of the design without a strict form.
        name: &'static str,
    },
    /// The design refused an option.
    #[error(transparent)]
    Refused(#[from] InvalidOption),
    /// The operating system could not start a thread.
    #[error("the threads of the rung could not be started: {0}")]
    Threads(#[from] io::Error),
}

impl OpenError {
    /// Code of the error, the same in every release.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::UnknownRung { .. } => "unknown_rung",
            Self::InvalidOption { .. } => "out_of_range",
            Self::NeverStrict { .. } => "never_strict",
            Self::Refused(refused) => refused.code(),
            Self::Threads(_) => "not_started",
        }
    }
}

fn names() -> String {
    RUNGS.iter().map(|rung| rung.name).collect::<Vec<_>>().join(", ")
}

/// Creates an empty, running index of a design. `name`: name of one of [`RUNGS`]; the suffix `-strict` sets the option
/// `strict`.
///
/// # Errors
/// [`OpenError`].
pub fn open(name: &str, options: &Options) -> Result<Box<dyn Feed>, OpenError> {
    let rung = |name: &str| RUNGS.iter().find(|rung| rung.name == name);
    let strict = |name: &str| rung(name.strip_suffix("-strict")?).map(|rung| (rung, true));
    let found = rung(name).map(|rung| (rung, options.strict)).or_else(|| strict(name));
    let Some((rung, strict)) = found else { return Err(OpenError::UnknownRung { name: name.to_owned() }) };
    let options = &Options { strict, ..*options };
    if strict && rung.strict.is_none() {
        return Err(OpenError::NeverStrict { name: rung.name });
    }
    check("event_threads", options.event_threads, MOST_THREADS, "from 1 to 1024")?;
    check("shards", options.shards, MOST_THREADS, "from 1 to 1024")?;
    check("jump_size", options.jump_size, usize::MAX, "at least 1")?;
    check("group_size", options.group_size, u32::MAX as usize, "from 1 to 4294967295")?;
    let threads = options.event_threads;
    let leaps = positional::Options { jump_size: options.jump_size, strict, ..positional::Options::default() };
    match rung.name {
        "dict" => pool(RwLocked::new(NestedMap::new(strict)), 1),
        "dict-actor" => actor(NestedMap::new(strict)),
        "inverted" => actor(InvertedIndex::new(strict)),
        "radix" => actor(RadixTree::new()),
        "radix-sharded" => Ok(Box::new(ShardedActors::try_new(options.shards, RadixTree::new)?)),
        "radix-concurrent" => pool(ConcurrentRadixTree::new(), threads),
        "positional" => pool(PositionalIndexer::new(leaps)?, threads),
        "positional-bisect" => {
            pool(PositionalIndexer::new(positional::Options { search: Search::Bisect, ..leaps })?, threads)
        }
        "positional-arrays" => {
            pool(PositionalIndexer::new(positional::Options { layout: Layout::Arrays, ..leaps })?, threads)
        }
        "grouped" => {
            let workers_per_group = options.group_size as u32;
            pool(
                GroupedIndex::new(GroupOptions { workers_per_group, inner: leaps, ..GroupOptions::default() })?,
                threads,
            )
        }
        "block-index" => pool(BlockIndexRung::levels(), threads),
        "block-index-scores" => pool(BlockIndexRung::new(), threads),
        _ => Err(OpenError::UnknownRung { name: name.to_owned() }),
    }
}

fn check(option: &'static str, got: usize, most: usize, wanted: &'static str) -> Result<(), OpenError> {
    if (1..=most).contains(&got) { Ok(()) } else { Err(OpenError::InvalidOption { option, wanted, got }) }
}

fn pool(index: impl ConcurrentDesign, threads: usize) -> Result<Box<dyn Feed>, OpenError> {
    Ok(Box::new(EventPool::try_new(index, threads)?))
}

fn actor(design: impl LocalDesign) -> Result<Box<dyn Feed>, OpenError> {
    Ok(Box::new(Actor::try_new(design)?))
}
