//! An answer of the index, as much of it as decisions need.

use std::sync::Arc;

use kvatlas_index::{Match, OwnedMatch, View};

/// An answer of the index.
pub trait Lookup {
    /// Calls `f` with each worker and rank that holds any of the query, and its depth in blocks.
    fn for_each<'m>(&'m self, view: View, f: &mut dyn FnMut(&'m Arc<str>, u32, u32));
    /// True if all views are alike.
    fn is_plain(&self) -> bool;
}

impl Lookup for Match<'_> {
    fn for_each<'m>(&'m self, view: View, f: &mut dyn FnMut(&'m Arc<str>, u32, u32)) {
        Match::for_each(self, view, f);
    }

    fn is_plain(&self) -> bool {
        Match::is_plain(self)
    }
}

impl Lookup for OwnedMatch {
    fn for_each<'m>(&'m self, view: View, f: &mut dyn FnMut(&'m Arc<str>, u32, u32)) {
        OwnedMatch::for_each(self, view, f);
    }

    fn is_plain(&self) -> bool {
        OwnedMatch::is_plain(self)
    }
}
