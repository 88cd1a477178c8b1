//! Comparison of two snapshots: the ranks and blocks in which they differ.

use std::collections::{BTreeMap, BTreeSet};

use hashbrown::HashMap;
use kvatlas_index::snapshot::{Dictionary, SavedBlocks};
use kvatlas_index::{BlockHash, Tier};
use serde::Serialize;

use super::format::{decode, unpack};
use crate::error::Error;
use crate::state::SavedKeyspace;

/// Maximum number of blocks listed for a rank that two snapshots hold differently.
const NAMED: usize = 8;

/// Differences between two snapshots in the blocks held by one rank.
#[derive(Debug, Serialize)]
struct RankComparison {
    model: String,
    routing_group: String,
    worker: String,
    rank: u32,
    /// Number of the rank's last batch in each snapshot; `None` if the snapshot does not have the rank.
    seqs: [Option<u64>; 2],
    /// Number of pairs of a block and a tier that holds it, in each snapshot.
    blocks: [usize; 2],
    /// Number of pairs of a block and a tier that only the first or only the second snapshot has.
    only: [usize; 2],
    /// Number of pairs of a block and a tier that both snapshots have, with different contents or parents.
    other_content: usize,
    /// Number of pairs of a block and a tier that both snapshots have, with different numbers of copies.
    other_copies: usize,
    /// Smallest depth (number of blocks from the start of a prompt) of a differing block; `None` if no differing block
    /// has a complete chain.
    first_depth: Option<usize>,
    /// Blocks in which the two snapshots differ, at most [`NAMED`], those nearest to the start of a prompt first.
    first: Vec<Block>,
}

#[derive(Debug, Serialize)]
struct Block {
    block_hash: u64,
    tier: &'static str,
    depth: Option<usize>,
}

/// Block that one rank holds on one tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct TierBlock {
    parent: Option<BlockHash>,
    content: u64,
    copies: u32,
}

type Blocks = HashMap<(Tier, BlockHash), TierBlock>;
type Key = (String, String, String, u32);

/// Compares two snapshots, each given by a name and its bytes, and describes the differences in JSON.
///
/// # Errors
/// [`Error::Snapshot`] if a snapshot cannot be read; the message contains its name.
pub fn compare(snapshots: [(&str, &[u8]); 2]) -> Result<String, Error> {
    let mut ranks: [BTreeMap<Key, (u64, Blocks)>; 2] = Default::default();
    for ((name, bytes), ranks) in snapshots.into_iter().zip(&mut ranks) {
        let wrong = |what| Error::Snapshot { message: format!("{name}: {what}") };
        let bytes = unpack(bytes, u64::MAX).map_err(wrong)?;
        let snapshot = decode(&bytes).map_err(wrong)?;
        snapshot.keyspaces.into_iter().for_each(|keyspace| add(keyspace, ranks));
    }
    let [ours, theirs] = &ranks;
    let keys: BTreeSet<&Key> = ours.keys().chain(theirs.keys()).collect();
    let all: Vec<_> = keys.into_iter().map(|key| compared(key, [ours.get(key), theirs.get(key)])).collect();
    serde_json::to_string(&all).map_err(|error| Error::Snapshot { message: error.to_string() })
}

fn add(keyspace: SavedKeyspace, ranks: &mut BTreeMap<Key, (u64, Blocks)>) {
    for stream in keyspace.streams {
        for (head, rank) in stream.head.ranks.iter().zip(&stream.ranks) {
            let (model, group) = (keyspace.model.clone(), keyspace.routing_group.clone());
            let key = (model, group, stream.head.worker.clone(), head.rank);
            ranks.insert(key, (head.seq, blocks(&rank.held, &keyspace.dictionary)));
        }
    }
}

fn blocks(held: &SavedBlocks, dictionary: &Dictionary) -> Blocks {
    let mut all = Blocks::new();
    let mut put = |tier, parent: Option<BlockHash>, names: &[BlockHash], contents: &[u64], copies| {
        let parents = std::iter::once(parent).chain(names.iter().copied().map(Some));
        for ((name, content), parent) in names.iter().zip(contents).zip(parents) {
            all.insert((tier, *name), TierBlock { parent, content: *content, copies });
        }
    };
    for piece in &held.pieces {
        let (parent, names, contents) = dictionary.get(*piece);
        put(Tier::Gpu, parent, names, contents, 1);
    }
    for other in &held.others {
        for (tier, copies) in Tier::ALL.into_iter().zip(other.copies).filter(|(_, copies)| *copies > 0) {
            put(tier, other.parent, &other.names, &other.contents, copies);
        }
    }
    all
}

fn compared(key: &Key, sides: [Option<&(u64, Blocks)>; 2]) -> RankComparison {
    let empty = Blocks::new();
    let held = sides.map(|side| side.map_or(&empty, |(_, blocks)| blocks));
    let mut differing: Vec<(usize, (Tier, BlockHash))> = Vec::new();
    let (mut only, mut other_content, mut other_copies) = ([0; 2], 0, 0);
    for (side, (own, other)) in [(held[0], held[1]), (held[1], held[0])].into_iter().enumerate() {
        for (place, it) in own {
            match other.get(place) {
                None => only[side] += 1,
                Some(same) if same == it => continue,
                // Seen from one side is enough.
                Some(_) if side == 1 => continue,
                Some(other) if (other.parent, other.content) != (it.parent, it.content) => other_content += 1,
                Some(_) => other_copies += 1,
            }
            differing.push((side, *place));
        }
    }
    let depths = |(side, (tier, name)): (usize, (Tier, BlockHash))| (depth(held[side], name), tier, name);
    let mut named: Vec<_> = differing.into_iter().map(depths).collect();
    named.sort_by_key(|(depth, tier, name)| (depth.unwrap_or(usize::MAX), *tier, *name));
    let (model, routing_group, worker, rank) = key.clone();
    RankComparison {
        model,
        routing_group,
        worker,
        rank,
        seqs: sides.map(|side| side.map(|(seq, _)| *seq)),
        blocks: held.map(Blocks::len),
        only,
        other_content,
        other_copies,
        first_depth: named.first().and_then(|(depth, ..)| *depth),
        first: named
            .into_iter()
            .take(NAMED)
            .map(|(depth, tier, name)| Block { block_hash: name.0, tier: tier.name(), depth })
            .collect(),
    }
}

/// Counts the blocks of a prompt from its start up to and including the block `name`; `None` if any of these blocks is
/// missing on all tiers.
fn depth(blocks: &Blocks, name: BlockHash) -> Option<usize> {
    let mut at = name;
    // Names may go in a circle, if an engine wants it so.
    for depth in 1..=blocks.len() {
        let held = Tier::ALL.iter().find_map(|tier| blocks.get(&(*tier, at)))?;
        match held.parent {
            None => return Some(depth),
            Some(parent) => at = parent,
        }
    }
    None
}
