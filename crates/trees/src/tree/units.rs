//! What the tree must know of text or tokens: how to store a run of them, and how to compare one with an input.

use super::path_hash::PathHasher;

/// A place in a buffer. What it means is the buffer's affair; 0 is its beginning.
pub(crate) type Mark = u32;

/// The longest edge, in items. What is longer becomes a chain of nodes.
pub(crate) const LONGEST: usize = 1 << 26;

/// Text (items are bytes of UTF-8, units are characters) or tokens (both are tokens; a step is a page).
pub(crate) trait Units: Send + Sync + 'static {
    /// What inputs are slices of.
    type Item: Copy + Ord + Send + Sync + 'static;
    /// A stored run of items, never changed once made.
    type Buffer: Send + Sync;

    /// Names this kind of units in a snapshot, with the page.
    fn kind(&self) -> (u8, u8);

    /// The key of the first step of `items`, which has one.
    fn key(&self, items: &[Self::Item]) -> u32;

    /// Whole steps of an input: its length in items, cut down.
    fn whole(&self, items: &[Self::Item]) -> usize;

    /// The longest beginning of `items` of at most [`LONGEST`] items and whole steps.
    fn piece<'a>(&self, items: &'a [Self::Item]) -> &'a [Self::Item];

    /// The first step of `items`, to order siblings by.
    fn first_step<'a>(&self, items: &'a [Self::Item]) -> &'a [Self::Item];

    /// Items that are enough to contain the first step.
    fn step_items(&self) -> usize;

    /// Number of units.
    fn count(&self, items: &[Self::Item]) -> usize;

    /// Stores items.
    fn store(&self, items: &[Self::Item]) -> Self::Buffer;

    /// How many items of `input` equal the `length` stored ones from `from` on, in whole steps, and where that ends.
    fn compare(&self, buffer: &Self::Buffer, from: Mark, length: usize, input: &[Self::Item]) -> (usize, Mark);

    /// Reads `length` items from `from` on.
    fn read(&self, buffer: &Self::Buffer, from: Mark, length: usize, out: &mut Vec<Self::Item>);

    /// The place `items` further on.
    fn seek(&self, buffer: &Self::Buffer, from: Mark, items: usize) -> Mark;

    /// A buffer of what lies between two places, and what to take off a mark of the old one to have one of the new.
    fn cut(&self, buffer: &Self::Buffer, from: Mark, to: Mark) -> (Self::Buffer, Mark);

    /// Bytes of a buffer.
    fn bytes(buffer: &Self::Buffer) -> usize;

    /// Bytes that all buffers share.
    fn shared_bytes(&self) -> usize;

    /// Told how many bytes the tree may take in all.
    fn limit_bytes(&self, most: Option<usize>);

    /// Adds items to a path's hash.
    fn hash(hasher: &mut PathHasher, items: &[Self::Item]);

    /// Writes items to a snapshot, and their length before them.
    fn write(items: &[Self::Item], out: &mut Vec<u8>);

    /// Reads them back from the beginning of `bytes`, and takes them off; `None` when they are not sound.
    fn parse(&self, bytes: &mut &[u8]) -> Option<Vec<Self::Item>>;
}
