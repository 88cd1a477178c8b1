//! Cache groups, and which of them decides how long a cached prefix is.
//!
//! Hybrid models keep several groups of layers, each with blocks and events of its own. A prefix can be used as far as
//! every group can serve it. Groups with full attention need all blocks from the first on, which is what an index of
//! prefixes says; a sliding window or a state needs only some, and the events do not say which tokens those belong
//! to. So one group with full attention is indexed, and answers are an upper bound as soon as there is any other.

/// Cache groups of a stream, as far as they are known. Kinds come with stores; removals name the group alone.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    pub(crate) decides: Option<u32>,
    /// Groups that cannot decide.
    pub(crate) others: Vec<u32>,
    /// True if the prefix may be cut shorter by a group that is not indexed.
    pub(crate) several: bool,
}

/// Kinds whose layers attend to the whole prefix.
const WHOLE_PREFIX: [&str; 3] = ["full_attention", "mla_attention", "sink_full_attention"];

/// More groups than any model has: what comes after these is not remembered.
const MOST: usize = 64;

impl Groups {
    /// Notes the group of a store; true if it is the one that decides.
    pub(crate) fn store(&mut self, group: Option<u32>, kind: Option<&str>) -> bool {
        let kind = kind.filter(|&kind| kind != "unknown");
        let whole = kind.map(|kind| WHOLE_PREFIX.contains(&kind));
        let Some(group) = group else {
            // Engines that have only one, and connectors that keep whole blocks.
            self.several |= whole == Some(false);
            return whole != Some(false);
        };
        // Engines name groups before they name kinds; then the first is the one with full attention.
        let can = whole.unwrap_or_else(|| self.decides == Some(group) || group == 0 && !self.others.contains(&group));
        if can && *self.decides.get_or_insert(group) == group {
            return true;
        }
        if !can && !self.others.contains(&group) && self.others.len() < MOST {
            self.others.push(group);
        }
        self.several = true;
        false
    }

    /// True if no group was seen yet that could decide.
    pub(crate) fn only_others(&self) -> bool {
        self.decides.is_none()
    }

    /// True if a removal concerns the group that decides.
    pub(crate) fn remove(&self, group: Option<u32>) -> bool {
        let Some(group) = group else { return true };
        self.decides.map_or(group == 0 && !self.others.contains(&group), |decides| decides == group)
    }
}
