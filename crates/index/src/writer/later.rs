//! Work that events leave to be done: a share of it at the end of each.

use super::state::Writer;

impl Writer {
    /// Does an event's share of what is left to do.
    #[inline]
    pub(crate) fn do_share(&mut self) {
        self.see_off();
        self.gather_names();
    }

    /// Does so much of everything, in blocks.
    pub(crate) fn do_some(&mut self, blocks: usize) {
        self.see_off_some(blocks);
        self.gather_some_names(blocks);
    }

    /// True if anything is left to do, or to be freed that no reader can see any more.
    pub(crate) fn has_more_to_do(&self) -> bool {
        !self.leaving.is_empty() || !self.gathering.is_empty() || self.has_garbage()
    }
}
