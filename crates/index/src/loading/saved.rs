//! Blocks of a pool, copied for a snapshot and put back from one: a pool outlives the engines that fill it, and those never
//! announce a chunk twice.

use super::book::{LoadBook, Part};
use super::names::only;

/// Blocks of one pool.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SavedPool {
    /// Name of the pool.
    pub name: Box<str>,
    /// Blocks of the pool, and blocks before them in their prompts that tell their contents, in any order.
    pub blocks: Vec<SavedPoolBlock>,
}

/// A block of a pool: the engines' hash of it, and its contents.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SavedPoolBlock {
    /// Block hash by which the engines call it.
    pub name: u64,
    /// Block hash of the block before it; none at the beginning of a prompt.
    pub parent: Option<u64>,
    /// Content hash.
    pub content: u64,
    /// Prefix hash of all blocks to its end; none if the beginning of the prompt is not known.
    pub prefix: Option<u64>,
    /// Seconds since it was last announced; none if it is not in the pool, but blocks that continue it are.
    pub age: Option<f64>,
}

impl LoadBook {
    /// Copies all pools that have blocks.
    pub(crate) fn saved_pools(&self) -> Vec<SavedPool> {
        let now = self.outside.time();
        let filled = self.pools.iter().filter(|it| !it.seen.is_empty());
        let saved = filled.map(|it| {
            let blocks = it.names.known().map(|(name, known)| SavedPoolBlock {
                name,
                parent: known.block.0,
                content: known.block.1,
                prefix: known.prefix,
                age: it.seen.get(&name).map(|seen| now - seen),
            });
            SavedPool { name: it.pool.name.clone(), blocks: blocks.collect() }
        });
        saved.collect()
    }

    /// Puts blocks back into a pool, as they were `elapsed` seconds ago. Blocks that were announced since then stay as
    /// they are. Returns the number of blocks that were put back: 0 if the pool does not exist.
    pub(crate) fn restore_pool(&mut self, saved: &SavedPool, elapsed: f64) -> usize {
        let Some(number) = self.pools.iter().position(|it| it.pool.name == saved.name) else { return 0 };
        let part = Part::Pool(number as u32);
        let (it, now) = (&mut self.pools[number], self.outside.time());
        let tier = only(it.pool.tier);
        let (mut restored, mut moved, mut named) = (0, Vec::new(), Vec::new());
        let is_new: Vec<_> =
            saved.blocks.iter().filter(|block| it.names.get(block.name).is_none_or(|known| known.on == 0)).collect();
        for block in &is_new {
            let on = if block.age.is_some() { tier } else { 0 };
            moved.extend(it.names.set(block.name, (block.parent, block.content), on));
            if let Some(age) = block.age {
                it.seen.insert(block.name, now - age - elapsed);
                restored += 1;
            }
        }
        for block in &is_new {
            moved.extend(it.names.forget_unused(block.name));
        }
        for block in &is_new {
            let is_unknown = it.names.get(block.name).is_some_and(|known| known.prefix.is_none());
            if is_unknown && block.prefix.is_some() {
                it.names.put(block.name, block.prefix, &mut named);
            }
        }
        moved.into_iter().for_each(|(name, parent)| self.stop_waiting(part, name, parent));
        let mut fresh: Vec<_> = named.into_iter().map(|name| (part, name)).collect();
        is_new.iter().for_each(|block| self.trace(part, block.name, &mut fresh));
        self.settle(fresh);
        self.pools[number].sort_announced();
        self.keep_to_room(number as u32);
        restored
    }
}
