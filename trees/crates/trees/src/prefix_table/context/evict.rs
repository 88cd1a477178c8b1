//! Eviction of entries because of their age, or because there are too many.

use super::ways::Context;
use crate::prefix_table::entries::NONE;
use crate::prefix_table::sets::{EMPTY, NAMED};

impl Context {
    /// The prefixes that nobody has stored, added or matched since; to be looked at again by [`Self::evict`].
    pub(crate) fn older(&self, since: u32) -> Vec<u64> {
        let old = self.entries.all.iter().filter(|entry| entry.pods != EMPTY && entry.seen() < since);
        old.map(|entry| entry.prefix).collect()
    }

    /// Evicts those of the prefixes that are still there and still that old.
    pub(crate) fn evict(&mut self, prefixes: &[u64], since: u32) -> usize {
        let mut evicted = 0;
        for &prefix in prefixes {
            if let Some(at) = self.entries.place(prefix)
                && self.entries.all[at as usize].seen() < since
            {
                self.evict_one(at);
                evicted += 1;
            }
        }
        self.give_back();
        evicted
    }

    /// Makes room if there are more entries than may be: the longest unseen go, of those seen together the deepest.
    ///
    /// Choosing them looks at all entries, so an eighth of what may be goes at once; that is O(1) for each added.
    pub(super) fn enforce(&mut self, most: usize) -> usize {
        if self.len() <= most {
            return 0;
        }
        let goes = self.len() - (most - most / 8);
        let all = self.entries.all.iter().enumerate().filter(|(_, entry)| entry.pods != EMPTY);
        let rank = |seen: u32, depth: u32| u64::from(seen) << 32 | u64::from(u32::MAX - depth);
        let mut oldest: Vec<_> = all.map(|(at, entry)| (rank(entry.seen(), entry.depth()), at as u32)).collect();
        if goes < oldest.len() {
            oldest.select_nth_unstable(goes);
            oldest.truncate(goes);
        }
        oldest.iter().for_each(|&(_, at)| self.evict_one(at));
        self.give_back();
        oldest.len()
    }

    fn evict_one(&mut self, at: u32) {
        let entry = &self.entries.all[at as usize];
        let (set, mut other, name) = (entry.pods, entry.others, entry.name());
        if let Some((name, _)) = name {
            if !self.copies.is_empty() {
                for member in self.sets.members(set).iter().filter(|member| member.ways() & NAMED != 0) {
                    self.copies.remove(&(member.pod(), name));
                }
            }
            self.entries.clear_name(at);
        }
        while other != NONE {
            let found = &self.entries.others[other as usize];
            let (pods, next) = (found.pods, found.next);
            if !self.copies.is_empty() {
                for member in self.sets.members(pods) {
                    self.copies.remove(&(member.pod(), found.engine));
                }
            }
            self.entries.others[other as usize].pods = EMPTY;
            self.entries.remove_other(other);
            self.sets.release(pods, &mut self.pods);
            other = next;
        }
        self.entries.all[at as usize].pods = EMPTY;
        self.entries.remove(at);
        self.sets.release(set, &mut self.pods);
    }
}
