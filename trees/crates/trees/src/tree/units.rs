//! The interface of text and of tokens to the tree: storing a run of them, and comparing one with an input.

use kvatlas_codec::Cursor;

use super::path_hash::PathHasher;

/// A place in a buffer. Its meaning is the buffer's affair; 0 is its beginning.
pub(crate) type Mark = u32;

/// The longest edge, in items. A longer one becomes a chain of nodes.
pub(crate) const LONGEST: usize = 1 << 26;

/// Text (items are bytes of UTF-8, units are characters) or tokens (both are tokens; a step is a page).
pub(crate) trait Units: Send + Sync + 'static {
    /// The type whose slices are inputs.
    type Item: Copy + Ord + Send + Sync + 'static;
    /// A stored run of items, never changed once made.
    type Buffer: Send + Sync;

    /// The code of this kind of units in a snapshot, and the page.
    fn kind(&self) -> (u8, u8);

    /// The key of the first step of `items`, which has one.
    fn key(&self, items: &[Self::Item]) -> u32;

    /// Number of items in the whole steps of an input.
    fn whole(&self, items: &[Self::Item]) -> usize;

    /// The longest beginning of `items` of at most [`LONGEST`] items and whole steps.
    fn piece<'a>(&self, items: &'a [Self::Item]) -> &'a [Self::Item];

    /// The first step of `items`, to order siblings by.
    fn first_step<'a>(&self, items: &'a [Self::Item]) -> &'a [Self::Item];

    /// Items that are enough to contain the first step.
    fn step_items(&self) -> usize;

    /// Number of units in `items`.
    fn count(&self, items: &[Self::Item]) -> usize;

    /// Stores items.
    fn store(&self, items: &[Self::Item]) -> Self::Buffer;

    /// Compares `input` with the `length` stored items from `from` on, in whole steps. Returns the number of equal
    /// items and their end.
    fn compare(&self, buffer: &Self::Buffer, from: Mark, length: usize, input: &[Self::Item]) -> (usize, Mark);

    /// Reads `length` items from `from` on.
    fn read(&self, buffer: &Self::Buffer, from: Mark, length: usize, out: &mut Vec<Self::Item>);

    /// The place `items` further on.
    fn seek(&self, buffer: &Self::Buffer, from: Mark, items: usize) -> Mark;

    /// Makes a buffer of what lies between two places. Returns with it the number to take off a mark of the old one to
    /// have one of the new.
    fn cut(&self, buffer: &Self::Buffer, from: Mark, to: Mark) -> (Self::Buffer, Mark);

    /// Number of bytes of a buffer.
    fn bytes(buffer: &Self::Buffer) -> usize;

    /// Number of bytes that all buffers share.
    fn shared_bytes(&self) -> usize;

    /// Sets how many bytes the tree may take in all.
    fn limit_bytes(&self, most: Option<usize>);

    /// Adds items to a path's hash.
    fn hash(hasher: &mut PathHasher, items: &[Self::Item]);

    /// Writes items to a snapshot, and their length before them.
    fn write(items: &[Self::Item], out: &mut Vec<u8>);

    /// Reads the items of a snapshot from the beginning of `bytes`, and takes them off; `None` when they are not sound.
    fn parse(&self, bytes: &mut Cursor<'_>) -> Option<Vec<Self::Item>>;
}
