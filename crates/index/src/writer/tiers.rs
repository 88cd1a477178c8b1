//! Tiers: what a rank holds beyond its device memory.
//!
//! A query may count the blocks in device memory, or those down to a tier: a view. Views are nested, and each is a
//! holder of its own, made when the first block comes to its tier; until then the next narrower one answers for it.
//! By name, a view is the device's blocks overlaid by those offloaded to its tiers; the newest announcement of a name
//! says what it means there, and an announcement of it for the device with another content ends the claims of the
//! other tiers on it.

use super::state::Writer;
use super::workers::Claims;
use crate::roster::Member;
use crate::types::Tier;

/// True if these claims make a block part of the view number `view`.
fn reach(claims: Claims, view: usize) -> bool {
    claims[..=view].iter().any(|&copies| copies > 0)
}

impl Writer {
    /// Gives a rank a holder for the view down to a tier, if it has none.
    pub(super) fn add_view(&mut self, rank: u32, tier: Tier) {
        let number = tier as usize - 1;
        let books = self.rank_mut(rank);
        if books.wider[number].is_some() {
            return;
        }
        let narrower = books.narrower(number);
        let holder = self.new_holder();
        for chain in self.chains_of(narrower) {
            self.gain(holder, chain.parent, &chain.names, &chain.contents, &mut Vec::new());
        }
        self.now_view(rank, number, holder);
        self.publish_roster();
    }

    /// A holder answers for a view of a rank, which has what the next narrower one has. To be published: only then may
    /// readers count on it.
    pub(super) fn now_view(&mut self, rank: u32, number: usize, holder: u32) {
        let books = self.rank_mut(rank);
        let (device, before) = (books.device, books.wider);
        books.wider[number] = Some(holder);
        let after = books.wider;
        self.touch_all(device);
        self.set_views(device, before, after);
    }

    /// Says which holder answers for which view. To be published.
    pub(super) fn set_views(&mut self, device: u32, before: [Option<u32>; 3], after: [Option<u32>; 3]) {
        let Some(member) = self.roster.get(device) else { return };
        for gone in before.into_iter().flatten().filter(|holder| !after.contains(&Some(*holder))) {
            self.roster.set(gone, None);
        }
        let (mut holder, mut views) = (device, 1);
        for (number, next) in after.into_iter().enumerate() {
            if let Some(next) = next {
                self.roster.set(holder, Some(Member { views, ..member.clone() }));
                (holder, views) = (next, 0);
            }
            views |= 2 << number;
        }
        self.roster.set(holder, Some(Member { views, ..member }));
    }

    /// Puts what the device just stored in the wider views, too.
    pub(super) fn widen(&mut self, rank: u32, mut parent: Option<u64>, names: &[u64], contents: &[u64]) {
        let books = self.rank_mut(rank);
        if books.wider == [None; 3] {
            return;
        }
        let (views, widest) = (books.views(), books.widest());
        let first = parent;
        for (&name, &content) in names.iter().zip(contents) {
            let claimed = self.rank_mut(rank).offloaded.get(name).is_some();
            if claimed && !self.has_block(widest, parent, name, content) {
                self.rank_mut(rank).offloaded.set(name, [0; 3]);
                self.counters.replaced += 1;
            }
            parent = Some(name);
        }
        for (_, holder) in views {
            self.gain(holder, first, names, contents, &mut Vec::new());
        }
    }

    /// Takes what the device just lost, or is about to, out of the views in which nothing else claims it.
    pub(super) fn narrow(&mut self, rank: u32, names: &[u64]) {
        if self.rank_mut(rank).wider == [None; 3] {
            return;
        }
        for (view, holder) in self.rank_mut(rank).views() {
            let offloaded = &self.rank_mut(rank).offloaded;
            let gone: Vec<u64> =
                names.iter().copied().filter(|&name| !reach(offloaded.get(name).unwrap_or_default(), view)).collect();
            self.lose(holder, &gone, &mut Vec::new());
        }
    }

    /// A rank holds consecutive blocks on a tier other than the device, whose view it has.
    pub(super) fn store_elsewhere(
        &mut self,
        rank: u32,
        tier: Tier,
        mut parent: Option<u64>,
        names: &[u64],
        contents: &[u64],
    ) {
        let slot = tier as usize - 1;
        let books = self.rank_mut(rank);
        let (views, widest) = (books.views(), books.widest());
        for (&name, &content) in names.iter().zip(contents) {
            let same_block = self.has_block(widest, parent, name, content);
            let count_copies = self.count_copies;
            let offloaded = &mut self.rank_mut(rank).offloaded;
            let mut only = [0; 3];
            only[slot] = 1;
            let before = match offloaded.get(name) {
                Some(mut claims) if same_block => {
                    if claims[slot] == 0 || count_copies {
                        claims[slot] = claims[slot].saturating_add(1);
                    }
                    offloaded.set(name, claims)
                }
                Some(before) => {
                    offloaded.set(name, only);
                    self.counters.replaced += 1;
                    self.leave(rank, name, before);
                    [0; 3]
                }
                None => offloaded.set(name, only),
            };
            for &(view, holder) in &views {
                if view >= slot && !reach(before, view) {
                    self.gain(holder, parent, &[name], &[content], &mut Vec::new());
                }
            }
            parent = Some(name);
        }
    }

    /// A rank does not hold these blocks on a tier other than the device any more.
    pub(super) fn remove_elsewhere(&mut self, rank: u32, tier: Tier, names: &[u64]) {
        let slot = tier as usize - 1;
        for &name in names {
            let offloaded = &mut self.rank_mut(rank).offloaded;
            match offloaded.get(name) {
                Some(mut claims) if claims[slot] > 0 => {
                    claims[slot] -= 1;
                    let before = offloaded.set(name, claims);
                    if claims[slot] == 0 {
                        self.leave(rank, name, before);
                    }
                }
                _ => self.counters.unknown_removals += 1,
            }
        }
    }

    /// A rank does not hold these blocks on a tier other than the device any more, whatever the number of copies.
    pub(super) fn clear_names_elsewhere(&mut self, rank: u32, tier: Tier, names: &[u64]) {
        let slot = tier as usize - 1;
        for &name in names {
            let offloaded = &mut self.rank_mut(rank).offloaded;
            if let Some(mut claims) = offloaded.get(name)
                && claims[slot] > 0
            {
                claims[slot] = 0;
                let before = offloaded.set(name, claims);
                self.leave(rank, name, before);
            }
        }
    }

    /// The views in which the claims on a name have ended have what the device has of it, if anything.
    fn leave(&mut self, rank: u32, name: u64, before: Claims) {
        let books = self.rank_mut(rank);
        let now = books.offloaded.get(name).unwrap_or_default();
        let (device, views) = (books.device, books.views());
        for (view, holder) in views {
            if reach(before, view) && !reach(now, view) {
                match self.block(device, name) {
                    Some((parent, content)) => drop(self.gain_one(holder, parent, name, content)),
                    None => drop(self.lose_one(holder, name)),
                }
            }
        }
    }
}
