//! Operations on sequences of tokens in a radix trie: inserting, matching, and marking as in use.

use super::trie::{NONE, NodeId, ROOT, RadixTrie};
use super::{Error, Tokens};

impl<B> RadixTrie<B> {
    /// Inserts a block for each page of `tokens`, which follow the end of `node` (the root if `None`).
    ///
    /// Pages that exist keep their blocks. Inserted blocks are removed from `blocks`; the blocks left there, for the
    /// first pages, which existed, can be reused by the caller. Returns the end of the sequence. Existing nodes do not
    /// become more recently used; a new leaf is evictable until marked as in use.
    ///
    /// # Errors
    ///
    /// [`Error::Unaligned`], [`Error::BlockCount`], [`Error::Empty`], [`Error::EvictedNode`] and [`Error::Full`];
    /// `blocks` is then unchanged.
    pub fn insert(
        &mut self,
        tokens: &(impl Tokens + ?Sized),
        blocks: &mut Vec<B>,
        node: Option<NodeId>,
    ) -> Result<NodeId, Error> {
        self.insert_from(tokens, blocks.len(), node, |start| blocks.split_off(start)).map(|(end, _)| end)
    }

    /// Inserts tokens like [`Self::insert`], but requests blocks only for the pages that do not exist yet.
    ///
    /// `count`: number of pages; `blocks`: function that gets the number of existing pages and returns the blocks of
    /// the others. Returns the end of the sequence and the number of existing pages.
    ///
    /// # Errors
    ///
    /// Those of [`Self::insert`]; [`Error::BlockCount`] also if `blocks` returns another number of blocks.
    pub fn insert_from(
        &mut self,
        tokens: &(impl Tokens + ?Sized),
        count: usize,
        node: Option<NodeId>,
        blocks: impl FnOnce(usize) -> Vec<B>,
    ) -> Result<(NodeId, usize), Error> {
        let length = tokens.len();
        let start = self.check_insert(length, count, node)?;
        let (node, at) = self.descend(tokens, length, start, |_| {});
        if at == length {
            return Ok((self.name(node), count));
        }
        let known = at / self.page_size;
        let taken = blocks(known);
        if taken.len() != count - known {
            return Err(Error::BlockCount { tokens: length, page_size: self.page_size, blocks: known + taken.len() });
        }
        let mut kept = Vec::with_capacity(length - at);
        tokens.copy(at, length, &mut kept);
        self.blocks += taken.len();
        self.clock += 1;
        let was = (self.nodes[node as usize].stamp, node);
        let key = self.key(node, &kept[..self.page_size]);
        let leaf = self.add(node, key, kept, taken, self.clock);
        self.link_last(node, leaf);
        self.children.insert_unique(key, leaf, |&child| self.nodes[child as usize].key);
        self.order.remove(&was);
        self.order.insert((self.clock, leaf));
        Ok((self.name(leaf), known))
    }

    /// Checks that [`Self::insert`] would accept these numbers of tokens and blocks below a node.
    ///
    /// # Errors
    ///
    /// Those of [`Self::insert`].
    pub fn can_insert(&self, tokens: usize, blocks: usize, node: Option<NodeId>) -> Result<(), Error> {
        self.check_insert(tokens, blocks, node).map(|_| ())
    }

    fn check_insert(&self, tokens: usize, blocks: usize, node: Option<NodeId>) -> Result<u32, Error> {
        if !tokens.is_multiple_of(self.page_size) {
            return Err(Error::Unaligned { tokens, page_size: self.page_size });
        }
        if tokens / self.page_size != blocks {
            return Err(Error::BlockCount { tokens, page_size: self.page_size, blocks });
        }
        if tokens == 0 {
            return Err(Error::Empty);
        }
        // A split and a leaf; NONE is not a valid index.
        if self.vacant.len() < 2 && self.nodes.len() >= NONE as usize - 2 {
            return Err(Error::Full { nodes: self.nodes.len() });
        }
        self.start(node)
    }

    /// Finds the longest cached prefix of `tokens`, in whole pages, below `node` (the root if `None`). Returns its end
    /// and its blocks.
    ///
    /// A match that ends inside a node splits the node, so that a node ends there. A match does not make nodes more
    /// recently used; only creation and release do.
    ///
    /// # Errors
    ///
    /// Those of [`Self::match_prefix_with`].
    pub fn match_prefix(
        &mut self,
        tokens: &(impl Tokens + ?Sized),
        node: Option<NodeId>,
    ) -> Result<(NodeId, Vec<B>), Error>
    where
        B: Clone,
    {
        let mut blocks = Vec::new();
        let node = self.match_prefix_with(tokens, node, |more| blocks.extend_from_slice(more))?;
        Ok((node, blocks))
    }

    /// Finds the longest cached prefix like [`Self::match_prefix`], but passes the blocks of each node to `show`
    /// instead of copying them.
    ///
    /// # Errors
    ///
    /// [`Error::Empty`], [`Error::EvictedNode`], and [`Error::Full`] if a node can no longer be split.
    pub fn match_prefix_with(
        &mut self,
        tokens: &(impl Tokens + ?Sized),
        node: Option<NodeId>,
        show: impl FnMut(&[B]),
    ) -> Result<NodeId, Error> {
        if tokens.is_empty() {
            return Err(Error::Empty);
        }
        if self.vacant.is_empty() && self.nodes.len() >= NONE as usize - 2 {
            return Err(Error::Full { nodes: self.nodes.len() });
        }
        let start = self.start(node)?;
        let (node, _) = self.descend(tokens, tokens.len() - tokens.len() % self.page_size, start, show);
        Ok(self.name(node))
    }

    /// Marks a node and its ancestors as used by a sequence, which protects them from eviction until released. Marking
    /// again has no effect.
    ///
    /// # Errors
    ///
    /// [`Error::EvictedNode`].
    pub fn mark_in_use_by(&mut self, node: NodeId, sequence: i64) -> Result<(), Error> {
        let mut at = self.index(node)?;
        while at != ROOT {
            let node = &mut self.nodes[at as usize];
            if !node.take(sequence) {
                break;
            }
            self.order.remove(&(node.stamp, at));
            at = node.parent;
        }
        Ok(())
    }

    /// Releases a node and its ancestors from a sequence; they become the most recently used.
    ///
    /// Mark the deepest node as a sequence grows, and release once, from the deepest marked node. A mark left on a
    /// deeper node still protects that node, and can still be released.
    ///
    /// # Errors
    ///
    /// [`Error::EvictedNode`], and [`Error::NotInUse`] if the sequence has not marked the node.
    pub fn mark_not_in_use_by(&mut self, node: NodeId, sequence: i64) -> Result<(), Error> {
        let mut at = self.index(node)?;
        if at != ROOT && self.nodes[at as usize].users.binary_search(&sequence).is_err() {
            return Err(Error::NotInUse { sequence });
        }
        self.clock += 1;
        while at != ROOT {
            let node = &mut self.nodes[at as usize];
            node.release(sequence);
            let was = (node.stamp, at);
            node.stamp = self.clock;
            if node.is_leaf() && node.users.is_empty() {
                self.order.remove(&was);
                self.order.insert((self.clock, at));
            }
            at = node.parent;
        }
        Ok(())
    }
}
