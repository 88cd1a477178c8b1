//! A consistency check of a context, for tests.

use super::context::Context;
use crate::prefix_table::entries::NONE;
use crate::prefix_table::sets::{EMPTY, NAMED, OTHER};

impl Context {
    /// Panics unless every stored count equals a recount.
    pub(crate) fn recount(&self) {
        let live = |set: u32| set != EMPTY;
        let mut references = vec![0; self.sets.references().len()];
        let mut holders = std::collections::BTreeSet::new();
        let (mut entries, mut others) = (0, 0);
        for (at, entry) in self.entries.all.iter().enumerate().filter(|(_, entry)| live(entry.pods)) {
            entries += 1;
            references[entry.pods as usize] += 1;
            assert!(std::ptr::eq(self.entries.find(entry.prefix).unwrap(), entry));
            assert_eq!(entry.name().is_some(), self.sets.any(entry.pods, NAMED));
            if let Some((name, _)) = entry.name() {
                assert!(self.entries.named(name).any(|found| found as usize == at));
            }
            let mut by_other = std::collections::BTreeSet::new();
            let mut other = entry.others;
            while other != NONE {
                let found = &self.entries.others[other as usize];
                others += 1;
                references[found.pods as usize] += 1;
                assert!(live(found.pods) && found.entry as usize == at);
                assert!(self.entries.others_of(found.engine).any(|at| at == other));
                by_other.extend(self.sets.members(found.pods).iter().map(|member| member.pod()));
                other = found.next;
            }
            for member in self.sets.members(entry.pods) {
                assert!(member.ways() != 0);
                assert_eq!(member.ways() & OTHER != 0, by_other.remove(&member.pod()));
                holders.insert(member.pod());
            }
            assert!(by_other.is_empty());
        }
        assert_eq!((entries, others), (self.len(), self.other_names()));
        assert_eq!(references[1..], self.sets.references()[1..]);
        assert_eq!(references[1..].iter().filter(|&&count| count > 0).count(), self.sets.len());
        assert_eq!(holders.len(), self.pods.len());
        assert!(self.copies.iter().all(|(&(pod, name), &copies)| copies > 0 && !self.meant(pod, name).is_empty()));
    }
}
