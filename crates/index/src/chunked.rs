//! A long list that grows without being moved.
//!
//! What a `Vec` has is copied when it grows: tens of milliseconds for a list of a million runs, unless the allocator can move
//! it by its pages. This is a list of lists of 4,096; only the first of these is ever moved. An element is one look farther
//! away, at a list that is short enough to stay in the cache.

use std::ops::{Index, IndexMut};

const BITS: usize = 12;
const CHUNK: usize = 1 << BITS;

/// List in chunks: growing moves no element.
pub(crate) struct ChunkedList<T> {
    /// Chunks, all full but the last.
    chunks: Vec<Vec<T>>,
    /// Room of all chunks, in elements.
    room: usize,
}

impl<T> Default for ChunkedList<T> {
    fn default() -> Self {
        Self { chunks: Vec::new(), room: 0 }
    }
}

impl<T> ChunkedList<T> {
    pub(crate) fn len(&self) -> usize {
        self.chunks.last().map_or(0, |last| (self.chunks.len() - 1) * CHUNK + last.len())
    }

    pub(crate) fn bytes(&self) -> usize {
        self.room * size_of::<T>() + self.chunks.capacity() * size_of::<Vec<T>>()
    }

    #[inline]
    pub(crate) fn get(&self, at: usize) -> Option<&T> {
        self.chunks.get(at >> BITS)?.get(at % CHUNK)
    }

    #[cfg(test)]
    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.chunks.iter().flatten()
    }

    /// Up to `count` elements from `at` on.
    pub(crate) fn some_from(&self, at: usize, count: usize) -> impl Iterator<Item = &T> {
        let (first, skipped) = (at >> BITS, at % CHUNK);
        self.chunks.get(first..).into_iter().flatten().flatten().skip(skipped).take(count)
    }

    pub(crate) fn push(&mut self, it: T) {
        if self.chunks.last().is_none_or(|last| last.len() == CHUNK) {
            // The first begins small.
            let room = if self.chunks.is_empty() { 0 } else { CHUNK };
            self.chunks.push(Vec::with_capacity(room));
            self.room += room;
        }
        let Some(last) = self.chunks.last_mut() else { return };
        if last.len() == last.capacity() {
            let more = (last.len() / 4 + 16).min(CHUNK - last.len());
            last.reserve_exact(more);
            self.room += more;
        }
        last.push(it);
    }

    pub(crate) fn pop(&mut self) -> Option<T> {
        let last = self.chunks.last_mut()?;
        let it = last.pop();
        if last.is_empty() {
            self.room -= last.capacity();
            self.chunks.pop();
        }
        it
    }
}

impl<T> Index<usize> for ChunkedList<T> {
    type Output = T;

    #[inline]
    fn index(&self, at: usize) -> &T {
        &self.chunks[at >> BITS][at % CHUNK]
    }
}

impl<T> IndexMut<usize> for ChunkedList<T> {
    #[inline]
    fn index_mut(&mut self, at: usize) -> &mut T {
        &mut self.chunks[at >> BITS][at % CHUNK]
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn is_a_list() {
        let (mut chunked, mut list) = (ChunkedList::default(), Vec::new());
        let is_right = |chunked: &ChunkedList<usize>, list: &[usize]| {
            assert_eq!((chunked.len(), chunked.get(list.len())), (list.len(), None));
            assert!(chunked.iter().eq(list));
            let room: usize = chunked.chunks.iter().map(Vec::capacity).sum();
            assert_eq!(chunked.room, room);
            assert!(room <= list.len() + list.len() / 4 + CHUNK);
        };
        for at in 0..3 * CHUNK + 7 {
            chunked.push(at);
            list.push(at);
            if at % 1_000 == 0 {
                is_right(&chunked, &list);
            }
        }
        chunked[CHUNK] = 5;
        list[CHUNK] = 5;
        for (at, count) in [(0, 3), (CHUNK - 1, 2), (CHUNK, 2 * CHUNK), (3 * CHUNK, 100), (4 * CHUNK, 1)] {
            assert!(chunked.some_from(at, count).eq(list.iter().skip(at).take(count)));
        }
        assert_eq!((chunked[CHUNK], chunked.get(2 * CHUNK)), (5, Some(&(2 * CHUNK))));
        while let Some(last) = list.pop() {
            assert_eq!(chunked.pop(), Some(last));
            if last % 1_000 == 0 {
                is_right(&chunked, &list);
            }
        }
        assert_eq!((chunked.pop(), chunked.bytes()), (None, chunked.chunks.capacity() * size_of::<Vec<usize>>()));
    }
}
