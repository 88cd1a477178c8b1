//! Blocks of a store whose objects are all there.
//!
//! A block is several objects, one for each rank of the engines ([`kvatlas_wire::store`]). Which ones shows in the keys:
//! the shards of all keys with the same base and cache group. An engine loads a block only if it finds all of them.

use std::collections::{HashMap, HashSet};

use kvatlas_index::BlockHash;
use kvatlas_wire::store::{KeyForm, Medium, ObjectKey, StoreEvent};

/// Maximum number of shards of one base: bits in a mask.
const MOST_SHARDS: usize = u64::BITS as usize;

/// Shards of a block that a store has, as masks, by what is known of the medium of each.
#[derive(Clone, Copy, Default)]
struct Copies {
    memory: u64,
    other: u64,
    /// Shards in the last list of keys, whose media no event has told.
    listed: u64,
}

impl Copies {
    fn all(self) -> u64 {
        self.memory | self.other | self.listed
    }
}

/// Namespace of keys, such as those of one model, with the shards that were seen in it.
struct Base {
    name: Box<str>,
    form: KeyForm,
    shards: Vec<Box<str>>,
    /// Cache groups, each with the mask of its shards.
    groups: Vec<(Box<str>, u64)>,
    /// True if the last list of keys, or an event since, has a key of this base.
    is_present: bool,
}

impl Base {
    /// Bit of a shard, and true if the shard is new; `None` if there are too many.
    fn bit(&mut self, key: &ObjectKey<'_>) -> Option<(u64, bool)> {
        if let Some(at) = self.shards.iter().position(|shard| **shard == *key.shard) {
            return Some((1 << at, false));
        }
        if self.shards.len() == MOST_SHARDS {
            return None;
        }
        let bit = 1 << self.shards.len();
        self.shards.push(key.shard.into());
        match self.groups.iter_mut().find(|(group, _)| **group == *key.group) {
            Some((_, mask)) => *mask |= bit,
            None => self.groups.push((key.group.into(), bit)),
        }
        Some((bit, true))
    }

    /// True if a block with these shards can be loaded. `wanted`: number of objects in each group; `None` for all that
    /// were seen.
    fn is_whole(&self, copies: Copies, wanted: Option<u32>) -> bool {
        let all = copies.all();
        let mut used = self.groups.iter().map(|(_, mask)| *mask).filter(|mask| all & mask != 0);
        all != 0 && used.all(|mask| wanted.map_or(all & mask == mask, |wanted| (all & mask).count_ones() >= wanted))
    }

    fn has_model(&self, model: &str) -> bool {
        match self.form {
            KeyForm::Vllm => {
                let last = model.rsplit('/').next().unwrap_or(model);
                self.name.split('@').any(|part| part == last)
            }
            KeyForm::Sglang => {
                let dashed = model.replace('/', "-");
                self.name.strip_suffix(&*dashed).is_some_and(|tag| tag.is_empty() || tag.ends_with('_'))
            }
        }
    }
}

/// Namespace of keys that an index's blocks have in a store.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum BaseChoice {
    /// The base with this number.
    Base(u32),
    /// The store has no key of the index's blocks.
    Empty,
    /// Several bases may be meant, or none of them fits; these are there.
    Unclear(Vec<Box<str>>),
}

/// Number of blocks that events have changed, and those whose state is now another.
#[derive(Default)]
pub(super) struct ChangedBlocks {
    /// Blocks that can be loaded from now on, or again, by base.
    pub(super) whole: Vec<(u32, BlockHash)>,
    /// Blocks with a missing object now, by base.
    pub(super) broken: Vec<(u32, BlockHash)>,
    /// True if all objects were removed.
    pub(super) is_cleared: bool,
    /// Number of events whose keys have no known form, or too many shards.
    pub(super) unread: u64,
}

/// Objects of a store, by block.
#[derive(Default)]
pub(super) struct Objects {
    bases: Vec<Base>,
    by_name: HashMap<Box<str>, u32>,
    blocks: HashMap<(u32, BlockHash), Copies>,
    wanted: Option<u32>,
}

impl Objects {
    /// Creates a store without objects. `wanted`: number of objects that a block is in each of its cache groups; `None`
    /// for as many as the keys show.
    pub(super) fn new(wanted: Option<u32>) -> Self {
        Self { wanted, ..Self::default() }
    }

    /// Number of the base of a key, bit of its shard, and true if the shard is new.
    fn place(&mut self, key: &ObjectKey<'_>) -> Option<(u32, u64, bool)> {
        let number = if let Some(number) = self.by_name.get(key.base) {
            *number
        } else {
            let number = self.bases.len() as u32;
            self.by_name.insert(key.base.into(), number);
            let (shards, groups) = (Vec::new(), Vec::new());
            self.bases.push(Base { name: key.base.into(), form: key.form, shards, groups, is_present: true });
            number
        };
        let base = &mut self.bases[number as usize];
        let (bit, is_new) = base.bit(key)?;
        base.is_present = true;
        Some((number, bit, is_new))
    }

    /// Replaces all objects by those of a list of keys, one in a line. Media that events have told stay known. Returns the
    /// number of keys that have no known form, or too many shards.
    pub(super) fn replace(&mut self, keys: &[u8]) -> u64 {
        let before = std::mem::take(&mut self.blocks);
        self.bases.iter_mut().for_each(|base| base.is_present = false);
        let mut unread = 0;
        for line in keys.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            let key = std::str::from_utf8(line).ok().and_then(ObjectKey::parse);
            let Some((key, (base, bit, _))) = key.and_then(|key| Some((key, self.place(&key)?))) else {
                unread += 1;
                continue;
            };
            let copies = self.blocks.entry((base, key.block)).or_default();
            match before.get(&(base, key.block)) {
                Some(known) if (known.memory | known.other) & bit != 0 => {
                    copies.memory |= known.memory & bit;
                    copies.other |= known.other & bit;
                }
                _ => copies.listed |= bit,
            }
        }
        // What is gone altogether may come back from engines with other ranks.
        for base in self.bases.iter_mut().filter(|base| !base.is_present) {
            base.shards.clear();
            base.groups.clear();
        }
        unread
    }

    /// Applies events of the store, in their order.
    pub(super) fn apply(&mut self, events: &[StoreEvent<'_>]) -> ChangedBlocks {
        let mut changed = ChangedBlocks::default();
        let mut touched: HashSet<(u32, BlockHash)> = HashSet::new();
        for event in events {
            let (key, medium, is_stored) = match *event {
                StoreEvent::Stored { key, medium } => (key, medium, true),
                StoreEvent::Removed { key, medium } => (key, medium, false),
                StoreEvent::Cleared => {
                    changed.is_cleared = true;
                    touched.clear();
                    self.blocks.clear();
                    continue;
                }
            };
            let place = ObjectKey::parse(key).and_then(|key| Some((key, self.place(&key)?)));
            let Some((key, (base, bit, is_new))) = place else {
                changed.unread += 1;
                continue;
            };
            if is_new {
                // Blocks that were whole without it are not.
                touched.extend(self.blocks.keys().filter(|(its, _)| *its == base));
            }
            let copies = self.blocks.entry((base, key.block)).or_default();
            copies.listed &= !bit;
            match (is_stored, medium) {
                (true, None | Some(Medium::Memory)) => copies.memory |= bit,
                (true, Some(Medium::Other)) => copies.other |= bit,
                (false, Some(Medium::Memory)) => copies.memory &= !bit,
                (false, Some(Medium::Other)) => copies.other &= !bit,
                (false, None) => (copies.memory, copies.other) = (copies.memory & !bit, copies.other & !bit),
            }
            if copies.all() == 0 {
                self.blocks.remove(&(base, key.block));
            }
            touched.insert((base, key.block));
        }
        for (base, block) in touched {
            let copies = self.blocks.get(&(base, block)).copied().unwrap_or_default();
            let is_whole = self.bases[base as usize].is_whole(copies, self.wanted);
            if is_whole { &mut changed.whole } else { &mut changed.broken }.push((base, block));
        }
        changed
    }

    /// Forgets all objects, and keeps which shards blocks have.
    pub(super) fn forget_blocks(&mut self) {
        self.blocks = HashMap::new();
    }

    /// Blocks of a base whose objects are all there, in any order.
    pub(super) fn whole_blocks(&self, base: u32) -> Vec<BlockHash> {
        let of = self.blocks.iter().filter(|((its, _), _)| *its == base);
        let whole = of.filter(|(_, copies)| self.bases[base as usize].is_whole(**copies, self.wanted));
        whole.map(|((_, block), _)| *block).collect()
    }

    /// Number of blocks of all bases, and the number of those whose objects are all there.
    pub(super) fn counts(&self) -> (usize, usize) {
        let whole = |((base, _), copies): &(&(u32, BlockHash), &Copies)| {
            self.bases[*base as usize].is_whole(**copies, self.wanted)
        };
        (self.blocks.len(), self.blocks.iter().filter(whole).count())
    }

    /// True if any key is SGLang's.
    pub(super) fn has_sglang(&self) -> bool {
        self.bases.iter().any(|base| base.is_present && base.form == KeyForm::Sglang)
    }

    /// Base of the keys that the blocks of a model have. `prefix`: the base, if it is configured; `is_sole`: true if the
    /// model is the only one that is followed.
    pub(super) fn base_of(&self, model: &str, prefix: Option<&str>, is_sole: bool) -> BaseChoice {
        let present = || (0..).zip(&self.bases).filter(|(_, base)| base.is_present);
        let matching: Vec<u32> = match prefix {
            Some(prefix) => present().filter(|(_, base)| *base.name == *prefix).map(|(number, _)| number).collect(),
            None => present().filter(|(_, base)| base.has_model(model)).map(|(number, _)| number).collect(),
        };
        let all: Vec<_> = present().collect();
        match (&*matching, &*all) {
            (_, []) => BaseChoice::Empty,
            ([sole], _) => BaseChoice::Base(*sole),
            ([], [(sole, _)]) if prefix.is_none() && is_sole => BaseChoice::Base(*sole),
            _ => BaseChoice::Unclear(all.into_iter().map(|(_, base)| base.name.clone()).take(8).collect()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(base: &str, shard: u32, group: u32, block: u64) -> String {
        format!("{base}@tp_rank:{shard}@pcp0@dcp0@pp_rank:0@group:{group}@{block:064x}")
    }

    fn list(keys: &[String]) -> Vec<u8> {
        keys.iter().flat_map(|key| format!("{key}\n").into_bytes()).collect()
    }

    fn sorted(mut blocks: Vec<BlockHash>) -> Vec<u64> {
        blocks.sort_unstable();
        blocks.into_iter().map(|block| block.0).collect()
    }

    #[test]
    fn a_block_is_whole_with_the_objects_of_all_ranks_of_its_groups() {
        let mut objects = Objects::new(None);
        let keys = [
            key("m", 0, 0, 1),
            key("m", 1, 0, 1),
            key("m", 0, 0, 2),
            key("m", 0, 1, 3),
            key("m", 1, 1, 3),
            key("m", 0, 0, 4),
            key("m", 1, 0, 4),
            key("m", 0, 1, 4),
            "something else".to_owned(),
        ];
        assert_eq!(objects.replace(&list(&keys)), 1);
        assert_eq!(sorted(objects.whole_blocks(0)), [1, 3]);
        assert_eq!(objects.counts(), (4, 2));
        // Another rank shows: all that lack its object are broken.
        let stored = |key| StoreEvent::Stored { key, medium: Some(Medium::Memory) };
        let removed = |key| StoreEvent::Removed { key, medium: Some(Medium::Memory) };
        let (other, last) = (key("m", 2, 0, 2), key("m", 1, 0, 2));
        let changed = objects.apply(&[stored(&other), stored(&last), removed("?")]);
        let blocks = |of: Vec<(u32, BlockHash)>| sorted(of.into_iter().map(|(_, block)| block).collect());
        assert_eq!((blocks(changed.whole), blocks(changed.broken), changed.unread), (vec![2, 3], vec![1, 4], 1));
        // On two media: removed from both.
        let on_disk = |key| StoreEvent::Stored { key, medium: Some(Medium::Other) };
        assert_eq!(blocks(objects.apply(&[on_disk(&last), removed(&last)]).whole), [2]);
        let gone = objects.apply(&[StoreEvent::Removed { key: &last, medium: Some(Medium::Other) }]);
        assert_eq!(blocks(gone.broken), [2]);
        // Engines with one rank less, after the store was emptied.
        assert_eq!(objects.replace(b""), 0);
        assert_eq!(objects.replace(&list(&keys[..2])), 0);
        assert_eq!(sorted(objects.whole_blocks(0)), [1]);
        let cleared = objects.apply(&[stored(&other), StoreEvent::Cleared]);
        assert!(cleared.is_cleared && cleared.whole.is_empty() && objects.counts() == (0, 0));
        // As many as the operator says.
        let mut told = Objects::new(Some(2));
        told.replace(&list(&keys[..3]));
        assert_eq!(sorted(told.whole_blocks(0)), [1]);
    }

    #[test]
    fn keys_are_those_of_the_model_or_of_the_prefix() {
        let mut objects = Objects::new(None);
        assert_eq!(objects.base_of("org/m", None, true), BaseChoice::Empty);
        let digest = "0".repeat(64);
        objects.replace(&list(&[key("m", 0, 0, 1)]));
        assert_eq!(objects.base_of("org/m", None, true), BaseChoice::Base(0));
        assert_eq!(objects.base_of("served", None, true), BaseChoice::Base(0));
        assert_eq!(objects.base_of("served", None, false), BaseChoice::Unclear(vec!["m".into()]));
        assert_eq!(objects.base_of("m", Some("other"), true), BaseChoice::Unclear(vec!["m".into()]));
        objects.replace(&list(&[key("m", 0, 0, 1), key("prod@m", 0, 0, 1), format!("tag_org-n_{digest}_0_k")]));
        assert!(matches!(objects.base_of("org/m", None, false), BaseChoice::Unclear(_)));
        assert_eq!(objects.base_of("org/m", Some("prod@m"), false), BaseChoice::Base(1));
        assert_eq!(objects.base_of("org/n", None, false), BaseChoice::Base(2));
        assert!(objects.has_sglang());
        assert_eq!(objects.replace(b""), 0);
        assert_eq!(objects.base_of("org/m", Some("prod@m"), false), BaseChoice::Empty);
    }

    #[test]
    fn too_many_shards_are_left_out() {
        let mut objects = Objects::new(None);
        let keys: Vec<String> = (0..70).map(|shard| key("m", shard, 0, 1)).collect();
        assert_eq!(objects.replace(&list(&keys)), 6);
        assert_eq!(sorted(objects.whole_blocks(0)), [1]);
    }
}
