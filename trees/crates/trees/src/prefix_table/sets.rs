//! Pods by number, and sets of pods, each stored once and referenced by a small number.
//!
//! In a fleet, few different sets of pods hold thousands of prefixes each, so equal sets share one object. A member is
//! a pod with the ways in which it holds a prefix. A change of one member is one lookup of the changed set, or none
//! while the same change is repeated for prefix after prefix, as in an event. A pod's number is freed when the pod
//! holds nothing.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use hashbrown::{HashMap, HashTable};
use smallvec::SmallVec;

/// Way (a bit) in which a pod holds a prefix: the pod announced the prefix by the block hash stored in its entry.
pub(super) const NAMED: u32 = 1;
/// Way (a bit) in which a pod holds a prefix: the pod announced the prefix by an extra block hash, beyond the one in
/// its entry.
pub(super) const OTHER: u32 = 2;
/// Way (a bit) in which a pod holds a prefix: the router sent a prompt with the prefix to the pod, which is expected to
/// hold it.
pub(super) const ADDED: u32 = 4;
const WAYS: u32 = 3;

/// Number of the set that contains no pods.
pub(super) const EMPTY: u32 = 0;

/// A pod, and the ways in which it holds a prefix, as bits: announced by block hash, or added by the router.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Member(u32);

impl Member {
    pub(super) fn pod(self) -> u32 {
        self.0 >> WAYS
    }

    pub(super) fn ways(self) -> u32 {
        self.0 & ((1 << WAYS) - 1)
    }
}

#[derive(Debug, Default)]
struct Set {
    /// Pods in the set, in increasing order, each with the ways in which it holds the prefix.
    members: Box<[Member]>,
    hash: u64,
    references: u32,
    /// Union of the ways (bits: announced by block hash, or added by the router) in which the pods of the set hold a
    /// prefix.
    ways: u32,
}

/// All sets of pods that hold a prefix, by number; equal sets are stored once.
#[derive(Debug)]
pub(super) struct Sets {
    sets: Vec<Set>,
    vacant: Vec<u32>,
    by_members: HashTable<u32>,
    state: RandomState,
    /// Arguments and result of the last change of a set of pods: the old set, the pod, its new ways of holding the
    /// prefix, and the new set.
    last: Option<(u32, u32, u32, u32)>,
}

/// Interface of a counter of the sets that contain each pod, called when a pod joins or leaves a set.
pub(super) trait Watch {
    fn joined(&mut self, pod: u32);
    fn left(&mut self, pod: u32);
}

impl Default for Sets {
    fn default() -> Self {
        Self {
            sets: vec![Set::default()],
            vacant: Vec::new(),
            by_members: HashTable::new(),
            state: RandomState::new(),
            last: None,
        }
    }
}

impl Sets {
    pub(super) fn members(&self, set: u32) -> &[Member] {
        &self.sets[set as usize].members
    }

    /// Ways in which a pod of a set holds the prefix, as bits (announced by block hash, or added by the router); 0 if
    /// the pod is not in the set.
    pub(super) fn ways(&self, set: u32, pod: u32) -> u32 {
        let members = self.members(set);
        members.binary_search_by_key(&pod, |member| member.pod()).map_or(0, |at| members[at].ways())
    }

    /// True if any pod of the set holds the prefix in the way `way`, a bit: announced by block hash, or added by the
    /// router.
    pub(super) fn any(&self, set: u32, way: u32) -> bool {
        self.sets[set as usize].ways & way != 0
    }

    /// Number of sets of pods in use, without the empty set.
    pub(super) fn len(&self) -> usize {
        self.by_members.len()
    }

    /// Memory of all sets of pods, in bytes.
    pub(super) fn bytes(&self) -> usize {
        let members: usize = self.sets.iter().map(|set| size_of_val::<[Member]>(&set.members)).sum();
        members
            + self.sets.capacity() * size_of::<Set>()
            + self.by_members.allocation_size()
            + self.vacant.capacity() * 4
    }

    /// Exchanges a reference to a set of pods for a reference to the set in which the pod has the given ways of holding
    /// a prefix (as bits); 0 removes the pod.
    #[inline]
    pub(super) fn change(&mut self, set: u32, pod: u32, ways: u32, watch: &mut impl Watch) -> u32 {
        let to = match self.last {
            Some((from, whose, to_ways, to)) if (from, whose, to_ways) == (set, pod, ways) => to,
            _ => self.changed(set, pod, ways, watch),
        };
        self.hold(to);
        self.release(set, watch);
        to
    }

    fn changed(&mut self, set: u32, pod: u32, ways: u32, watch: &mut impl Watch) -> u32 {
        let mut members: SmallVec<[Member; 32]> = SmallVec::from_slice(self.members(set));
        let member = Member(pod << WAYS | ways);
        match (members.binary_search_by_key(&pod, |member| member.pod()), ways) {
            (Ok(at), 0) => _ = members.remove(at),
            (Ok(at), _) => members[at] = member,
            (Err(_), 0) => {}
            (Err(at), _) => members.insert(at, member),
        }
        let to = self.intern(&members, watch);
        self.last = Some((set, pod, ways, to));
        to
    }

    fn intern(&mut self, members: &[Member], watch: &mut impl Watch) -> u32 {
        if members.is_empty() {
            return EMPTY;
        }
        let hash = self.state.hash_one(members);
        let found = self.by_members.find(hash, |&set| &*self.sets[set as usize].members == members);
        if let Some(&found) = found {
            return found;
        }
        members.iter().for_each(|member| watch.joined(member.pod()));
        let ways = members.iter().fold(0, |all, member| all | member.ways());
        let set = Set { members: members.into(), hash, references: 0, ways };
        let index = match self.vacant.pop() {
            Some(index) => {
                self.sets[index as usize] = set;
                index
            }
            None => {
                self.sets.push(set);
                (self.sets.len() - 1) as u32
            }
        };
        self.by_members.insert_unique(hash, index, |&set| self.sets[set as usize].hash);
        index
    }

    fn hold(&mut self, set: u32) {
        if set != EMPTY {
            self.sets[set as usize].references += 1;
        }
    }

    /// Releases one reference to a set of pods; a set without references is removed.
    pub(super) fn release(&mut self, set: u32, watch: &mut impl Watch) {
        if set == EMPTY {
            return;
        }
        let found = &mut self.sets[set as usize];
        found.references -= 1;
        if found.references > 0 {
            return;
        }
        let gone = std::mem::take(found);
        if let Ok(entry) = self.by_members.find_entry(gone.hash, |&other| other == set) {
            entry.remove();
        }
        self.vacant.push(set);
        self.last = None;
        gone.members.iter().for_each(|member| watch.left(member.pod()));
    }

    /// Number of references to each set of pods, by the set's number.
    #[cfg(test)]
    pub(super) fn references(&self) -> Vec<u32> {
        self.sets.iter().map(|set| set.references).collect()
    }
}

#[derive(Debug, Default)]
pub(super) struct Pods {
    numbers: HashMap<Arc<str>, u32>,
    /// Name of each pod and number of its uses (mainly sets that contain it), by the pod's number; `None` for an unused
    /// number.
    pods: Vec<(Option<Arc<str>>, u32)>,
    vacant: Vec<u32>,
}

impl Pods {
    pub(super) fn find(&self, name: &str) -> Option<u32> {
        self.numbers.get(name).copied()
    }

    /// Returns the number of a pod, a new one if the pod is unknown. The number stays valid at least until
    /// [`Watch::left`] is called.
    pub(super) fn hold(&mut self, name: &str) -> u32 {
        let pod = match self.find(name) {
            Some(pod) => pod,
            None => self.add(name),
        };
        self.joined(pod);
        pod
    }

    fn add(&mut self, name: &str) -> u32 {
        let name: Arc<str> = name.into();
        let pod = self.vacant.pop().unwrap_or_else(|| {
            self.pods.push((None, 0));
            (self.pods.len() - 1) as u32
        });
        self.pods[pod as usize].0 = Some(name.clone());
        self.numbers.insert(name, pod);
        pod
    }

    pub(super) fn name(&self, pod: u32) -> Option<&Arc<str>> {
        self.pods[pod as usize].0.as_ref()
    }

    pub(super) fn len(&self) -> usize {
        self.numbers.len()
    }

    pub(super) fn bytes(&self) -> usize {
        let names: usize = self.numbers.keys().map(|name| name.len() + 16).sum();
        names + self.numbers.allocation_size() + self.pods.capacity() * size_of::<(Option<Arc<str>>, u32)>()
    }
}

impl Watch for Pods {
    fn joined(&mut self, pod: u32) {
        self.pods[pod as usize].1 += 1;
    }

    fn left(&mut self, pod: u32) {
        let (name, uses) = &mut self.pods[pod as usize];
        *uses -= 1;
        if *uses == 0
            && let Some(name) = name.take()
        {
            self.numbers.remove(&name);
            self.vacant.push(pod);
        }
    }
}
