//! Interface of text and tokens to a tree: storing a run (buffer) of items, and comparing it with an input.

use kvatlas_codec::Cursor;

use super::path_hash::PathHasher;

/// A position in a buffer of text or tokens, whose meaning the buffer defines; 0 is its beginning.
pub(crate) type Mark = u32;

/// Maximum length of an edge (the text or tokens of one node), in items (bytes or tokens). A longer input becomes a
/// chain of nodes.
pub(crate) const LONGEST: usize = 1 << 26;

/// A kind of units: text (items are bytes of UTF-8, units are characters) or tokens (both are tokens; a step is a
/// page).
pub(crate) trait Units: Send + Sync + 'static {
    /// Type of an item: a byte of text or a token.
    type Item: Copy + Ord + Send + Sync + 'static;
    /// Type of a stored buffer of items (bytes of text or tokens), never changed after its creation.
    type Buffer: Send + Sync;

    /// Number that stands for text or tokens in a snapshot, and the page size.
    fn kind(&self) -> (u8, u8);

    /// Key of the first step (character or page) of `items` in a node's children. `items` must have a whole step.
    fn key(&self, items: &[Self::Item]) -> u32;

    /// Number of items in the whole steps (characters or pages) of an input.
    fn whole(&self, items: &[Self::Item]) -> usize;

    /// Longest beginning of `items` that has at most [`LONGEST`] items and consists of whole steps (characters or
    /// pages).
    fn piece<'a>(&self, items: &'a [Self::Item]) -> &'a [Self::Item];

    /// First step (character or page) of `items`, by which siblings are ordered.
    fn first_step<'a>(&self, items: &'a [Self::Item]) -> &'a [Self::Item];

    /// Maximum number of items in a step (character or page).
    fn step_items(&self) -> usize;

    /// Number of units (characters or tokens) in `items`.
    fn count(&self, items: &[Self::Item]) -> usize;

    /// Stores items (bytes of text or tokens) in a new buffer.
    fn store(&self, items: &[Self::Item]) -> Self::Buffer;

    /// Compares `input` with `length` items stored in a buffer from position `from` on, in whole steps (characters or
    /// pages). Returns the number of equal items and the position of their end.
    fn compare(&self, buffer: &Self::Buffer, from: Mark, length: usize, input: &[Self::Item]) -> (usize, Mark);

    /// Reads `length` items (bytes of text or tokens) of a buffer from position `from` on, and appends them to `out`.
    fn read(&self, buffer: &Self::Buffer, from: Mark, length: usize, out: &mut Vec<Self::Item>);

    /// Position in a buffer that is `items` items (bytes of text or tokens) after the position `from`.
    fn seek(&self, buffer: &Self::Buffer, from: Mark, items: usize) -> Mark;

    /// Creates a buffer of the items (bytes of text or tokens) between two positions of a buffer. Also returns the
    /// number to subtract from a position in the old buffer to get the position in the new one.
    fn cut(&self, buffer: &Self::Buffer, from: Mark, to: Mark) -> (Self::Buffer, Mark);

    /// Memory of a buffer of text or tokens, in bytes.
    fn bytes(buffer: &Self::Buffer) -> usize;

    /// Memory shared by all buffers of a tree, in bytes.
    fn shared_bytes(&self) -> usize;

    /// Sets the memory limit of the tree, in bytes; `None` for no limit.
    fn limit_bytes(&self, most: Option<usize>);

    /// Appends items (bytes of text or tokens) to the hash of a node's path.
    fn hash(hasher: &mut PathHasher, items: &[Self::Item]);

    /// Writes items (bytes of text or tokens) to a snapshot, after their length.
    fn write(items: &[Self::Item], out: &mut Vec<u8>);

    /// Reads the items (bytes or tokens) of a node's edge from a snapshot, and removes them from `bytes`; `None` if
    /// they are invalid.
    fn parse(&self, bytes: &mut Cursor<'_>) -> Option<Vec<Self::Item>>;
}
