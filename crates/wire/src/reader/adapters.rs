//! Digests of adapters' weights, where the engine shows them among the keys of blocks: whether it does at all, which tells
//! a digest from a salt where one event cannot, and whether an adapter's changed.

use hashbrown::HashMap;

use crate::event::StoredOf;
use crate::reader::Tally;

/// Adapters whose digests are remembered.
const MOST: usize = 1024;

#[derive(Debug, Default)]
pub(crate) struct Adapters {
    /// True if the engine shows digests; none while no event with an adapter has told.
    shows_digests: Option<bool>,
    /// The digest of each adapter, by its name.
    digests: HashMap<Box<str>, Box<str>>,
    /// True if an adapter came to have another digest.
    changed: bool,
}

impl Adapters {
    /// Returns the salt that a store shows, and notes the digest of its adapter.
    pub(crate) fn salt_of<'a, N>(&mut self, it: &'a StoredOf<N>, tally: &mut Tally) -> Option<&'a str> {
        let salt = it.salt.as_deref();
        let Some(name) = it.lora.as_deref() else { return salt };
        let Some(digest) = &it.adapter_digest else {
            // A digest would be shown beside the name in each block.
            if it.parent.is_some() || it.block_hashes.len() > 1 {
                self.shows_digests.get_or_insert(false);
            }
            return salt;
        };
        if !digest.is_sure && self.shows_digests == Some(false) {
            return salt.or(Some(&digest.text));
        }
        tally.adapter_digests += 1;
        tally.unsure_keys += u64::from(!digest.is_sure && self.shows_digests.is_none());
        if digest.is_sure {
            self.shows_digests = Some(true);
        }
        match self.digests.get(name) {
            Some(known) if *known == digest.text => {}
            Some(_) => self.changed = true,
            None if self.digests.len() >= MOST => {}
            None => drop(self.digests.insert(name.into(), digest.text.clone())),
        }
        salt
    }

    /// True if an adapter was loaded anew: the blocks of the one before have the same name and the same tokens.
    pub(crate) fn has_changed(&self) -> bool {
        self.changed
    }
}
