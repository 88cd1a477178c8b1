//! The interface of text and tokens to the tree: storing a run of items, and comparing it with an input.

use kvatlas_codec::Cursor;

use super::path_hash::PathHasher;

/// A position in a buffer, interpreted by the buffer; 0 is its beginning.
pub(crate) type Mark = u32;

/// The longest edge, in items. A longer one becomes a chain of nodes.
pub(crate) const LONGEST: usize = 1 << 26;

/// A kind of units: text (items are bytes of UTF-8, units are characters) or tokens (both are tokens; a step is a
/// page).
pub(crate) trait Units: Send + Sync + 'static {
    /// The type whose slices are inputs.
    type Item: Copy + Ord + Send + Sync + 'static;
    /// A stored run of items, never changed once made.
    type Buffer: Send + Sync;

    /// The number of this kind in a snapshot, and the page size.
    fn kind(&self) -> (u8, u8);

    /// The key of the first step of `items`, which must have one.
    fn key(&self, items: &[Self::Item]) -> u32;

    /// Number of items in the whole steps of an input.
    fn whole(&self, items: &[Self::Item]) -> usize;

    /// The longest beginning of `items` with at most [`LONGEST`] items and whole steps.
    fn piece<'a>(&self, items: &'a [Self::Item]) -> &'a [Self::Item];

    /// The first step of `items`, by which siblings are ordered.
    fn first_step<'a>(&self, items: &'a [Self::Item]) -> &'a [Self::Item];

    /// Number of items that always contain the first step.
    fn step_items(&self) -> usize;

    /// Number of units in `items`.
    fn count(&self, items: &[Self::Item]) -> usize;

    /// Stores items.
    fn store(&self, items: &[Self::Item]) -> Self::Buffer;

    /// Compares `input` with the `length` stored items from `from` on, in whole steps. Returns the number of equal
    /// items and the position of their end.
    fn compare(&self, buffer: &Self::Buffer, from: Mark, length: usize, input: &[Self::Item]) -> (usize, Mark);

    /// Reads `length` items from `from` on.
    fn read(&self, buffer: &Self::Buffer, from: Mark, length: usize, out: &mut Vec<Self::Item>);

    /// The position `items` items further on.
    fn seek(&self, buffer: &Self::Buffer, from: Mark, items: usize) -> Mark;

    /// Makes a buffer of the items between two positions. Also returns the number to subtract from a mark of the old
    /// buffer to get one of the new.
    fn cut(&self, buffer: &Self::Buffer, from: Mark, to: Mark) -> (Self::Buffer, Mark);

    /// Number of bytes of a buffer.
    fn bytes(buffer: &Self::Buffer) -> usize;

    /// Number of bytes shared by all buffers.
    fn shared_bytes(&self) -> usize;

    /// Sets the memory budget of the tree, in bytes.
    fn limit_bytes(&self, most: Option<usize>);

    /// Appends items to a path's hash.
    fn hash(hasher: &mut PathHasher, items: &[Self::Item]);

    /// Writes items to a snapshot, after their length.
    fn write(items: &[Self::Item], out: &mut Vec<u8>);

    /// Reads the items of a snapshot from the beginning of `bytes`, and consumes them; `None` if they are invalid.
    fn parse(&self, bytes: &mut Cursor<'_>) -> Option<Vec<Self::Item>>;
}
