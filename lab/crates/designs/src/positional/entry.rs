//! The entry at one (position, content hash): one or several prefixes, each with the workers that hold it.

use hashbrown::HashMap;

use super::member_set::MemberSet;

/// The prefixes under which one content is held at one position, each with its holders.
///
/// With a single prefix a lookup may trust it without a comparison: the *lazy* hash. After several prefixes the entry
/// stays a map until it is empty, so that prefixes stay separated once they were.
#[derive(Debug)]
pub(crate) enum Entry {
    Single(u64, MemberSet),
    Multi(Box<HashMap<u64, MemberSet>>),
}

/// The effects of an insertion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Insertion {
    /// True if the member is new.
    pub(crate) fresh: bool,
    /// True if the prefix had no holder before.
    pub(crate) first: bool,
}

/// The effects of a removal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Removal {
    /// True if the prefix has no holder left.
    pub(crate) last: bool,
    /// True if the entry has no holder left.
    pub(crate) empty: bool,
}

impl Entry {
    pub(crate) fn new(prefix: u64, member: u32) -> Self {
        Self::Single(prefix, MemberSet::of(member))
    }

    /// The members that hold the content under `prefix`.
    pub(crate) fn under(&self, prefix: u64) -> Option<&MemberSet> {
        match self {
            Self::Single(known, set) => (*known == prefix).then_some(set),
            Self::Multi(sets) => sets.get(&prefix),
        }
    }

    pub(crate) fn insert(&mut self, prefix: u64, member: u32) -> Insertion {
        match self {
            Self::Single(known, set) if *known == prefix => Insertion { fresh: set.insert(member), first: false },
            Self::Single(known, set) => {
                let sets = [(*known, std::mem::take(set)), (prefix, MemberSet::of(member))];
                *self = Self::Multi(Box::new(HashMap::from_iter(sets)));
                Insertion { fresh: true, first: true }
            }
            Self::Multi(sets) => {
                let mut first = false;
                let set = sets.entry(prefix).or_insert_with(|| {
                    first = true;
                    MemberSet::default()
                });
                Insertion { fresh: set.insert(member), first }
            }
        }
    }

    /// Removes a member from a prefix; `None` if it was not a member.
    pub(crate) fn remove(&mut self, prefix: u64, member: u32) -> Option<Removal> {
        match self {
            Self::Single(known, set) => {
                if *known != prefix || !set.remove(member) {
                    return None;
                }
                Some(Removal { last: set.is_empty(), empty: set.is_empty() })
            }
            Self::Multi(sets) => {
                let set = sets.get_mut(&prefix)?;
                if !set.remove(member) {
                    return None;
                }
                let last = set.is_empty();
                if last {
                    sets.remove(&prefix);
                    if sets.capacity() > 64 && sets.len() < sets.capacity() / 8 {
                        sets.shrink_to(2 * sets.len());
                    }
                }
                Some(Removal { last, empty: sets.is_empty() })
            }
        }
    }
}
