//! What events leave to be done: a share of it at the end of each.

use super::state::Writer;

impl Writer {
    /// Does an event's share of what is left to do.
    #[inline]
    pub(crate) fn do_share(&mut self) {
        self.see_off();
        self.gather_names();
    }

    /// Does so much of everything, in blocks; returns whether anything is left.
    pub(crate) fn do_some(&mut self, blocks: usize) -> bool {
        let leaves = self.see_off_some(blocks);
        self.gather_some_names(blocks) || leaves
    }
}
