//! The registry of rungs by name.

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

/// Options for making a rung; each rung ignores options it does not use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Number of threads that apply events, for rungs with a pool; 1 to 1,024.
    pub event_threads: usize,
    /// Number of blocks that the positional rungs jump, at least 1.
    pub jump_size: usize,
    /// Number of actors of `radix-sharded`; 1 to 1,024.
    pub shards: usize,
    /// Number of workers in a group of `grouped`; at least 1.
    pub group_size: usize,
    /// True to correct the known deviations, where possible.
    pub strict: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { event_threads: 1, jump_size: 32, shards: 2, group_size: 64, strict: false }
    }
}

/// Most threads of one rung.
const MOST_THREADS: usize = 1024;

/// A kind of error of a design. Each module describes its own, with the smallest example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Deviation {
    /// One content at several places of prompts counts as one.
    Conflation,
    /// A missing block before held blocks is not noticed.
    Holes,
    /// A block whose parent is not held is counted, or refused for good.
    Orphans,
    /// A name that changes its meaning leaves the blocks that continue it behind.
    Renames,
    /// Several names of one worker for one block are mixed up.
    Aliases,
}

impl Deviation {
    /// The deviation's name, the same in every release.
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

/// An entry of the registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rung {
    /// The name that [`open`] takes.
    pub name: &'static str,
    /// A description of the rung.
    pub what: &'static str,
    /// The deviations of the rung, strict or not.
    pub deviations: &'static [Deviation],
    /// The deviations of the strict form; `None` if there is none.
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

/// All rungs written in Rust, lowest first.
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

/// The reason why a rung could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The name is unknown.
    #[error("unknown rung {name:?}: it is one of {}", names())]
    UnknownRung {
        /// The given name.
        name: String,
    },
    /// An option has an invalid value.
    #[error("{option} must be {wanted}, got {got}")]
    InvalidOption {
        /// The option's name.
        option: &'static str,
        /// The valid values.
        wanted: &'static str,
        /// The given value.
        got: usize,
    },
    /// The rung has no strict form.
    #[error("{name} cannot be strict: its errors follow from its design")]
    NeverStrict {
        /// The rung's name.
        name: &'static str,
    },
    /// The design refused an option.
    #[error(transparent)]
    Refused(#[from] InvalidOption),
    /// The system could not start a thread.
    #[error("the threads of the rung could not be started: {0}")]
    Threads(#[from] io::Error),
}

impl OpenError {
    /// The error's code, the same in every release.
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

/// Makes an empty, running rung. `name`: one of [`RUNGS`]; the suffix `-strict` makes it strict whatever the options
/// say.
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
