//! Watches: what a dump that lets go of the lock between two looks has to hear about.
//!
//! A dump copies a large rank piece by piece. By name, a rank is a plain map (of a block's parent, content and copies):
//! what was copied of a name stays right until a call mentions that name, or moves its block from one place to look
//! at to another. Those names are noted here, and looked up again at the end, all at one moment.

use hashbrown::HashSet;

use super::state::Writer;
use super::watches::Watch;

impl Writer {
    /// Notes from now on what happens to the rank of these holders. Returns a number for the watch.
    pub(super) fn watch(&mut self, holders: [u32; 2]) -> u64 {
        let watches = &mut self.watches;
        watches.last += 1;
        watches.all.push(Watch { id: watches.last, holders, touched: HashSet::new(), over: false });
        watches.last
    }

    /// Ends a watch.
    pub(crate) fn unwatch(&mut self, id: u64) {
        if let Some(watch) = self.watches.all.iter().find(|watch| watch.id == id) {
            self.forget_places(watch.holders);
        }
        self.watches.all.retain(|watch| watch.id != id);
        if self.watches.all.is_empty() {
            self.watches.all = Vec::new();
        }
    }

    /// The names noted since the last look, or none if all that was copied is void.
    pub(super) fn take_touched(&mut self, id: u64) -> Option<HashSet<u64>> {
        let watch = self.watches.all.iter_mut().find(|watch| watch.id == id)?;
        (!watch.over).then(|| std::mem::take(&mut watch.touched))
    }

    /// Something happens to these names of a holder.
    #[inline]
    pub(super) fn touch(&mut self, holder: u32, names: impl IntoIterator<Item = u64>) {
        if !self.watches.all.is_empty() {
            self.note(holder, names);
        }
    }

    #[cold]
    fn note(&mut self, holder: u32, names: impl IntoIterator<Item = u64>) {
        let mut watches: Vec<_> = self.watches.all.iter_mut().filter(|it| it.holders.contains(&holder)).collect();
        if watches.is_empty() {
            return;
        }
        for name in names {
            for watch in &mut watches {
                watch.touched.insert(name);
            }
        }
    }

    /// Something happens to all that a holder has.
    pub(super) fn touch_all(&mut self, holder: u32) {
        for watch in self.watches.all.iter_mut().filter(|it| it.holders.contains(&holder)) {
            watch.over = true;
            watch.touched = HashSet::new();
        }
    }
}
