//! A sequence in shared pieces. A sequence that extends another one needs memory only for its new items.

use std::borrow::Cow;
use std::sync::Arc;

/// Maximum number of pieces of a rope; further pieces are joined with others.
const MOST: usize = 24;

/// A sequence of items in immutable pieces, which clones share.
#[derive(Debug, Clone)]
pub(crate) struct Rope<T> {
    pieces: Vec<Piece<T>>,
    length: usize,
}

/// A piece of a rope: the leading items of a shared vector.
#[derive(Debug, Clone)]
struct Piece<T> {
    items: Arc<Vec<T>>,
    length: usize,
}

impl<T> Piece<T> {
    fn get(&self) -> &[T] {
        &self.items[..self.length]
    }
}

impl<T> Default for Rope<T> {
    fn default() -> Self {
        Self { pieces: Vec::new(), length: 0 }
    }
}

impl<T> From<Vec<T>> for Rope<T> {
    fn from(items: Vec<T>) -> Self {
        let length = items.len();
        let pieces = if length == 0 { Vec::new() } else { vec![Piece { items: Arc::new(items), length }] };
        Self { pieces, length }
    }
}

impl<T: Copy + PartialEq> Rope<T> {
    /// Number of items in all pieces of the rope.
    pub(crate) fn len(&self) -> usize {
        self.length
    }

    /// Pieces of the rope, in order.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = &[T]> {
        self.pieces.iter().map(Piece::get)
    }

    /// Returns all items of the rope as one slice; borrowed if the items are contiguous, else copied.
    pub(crate) fn flat(&self) -> Cow<'_, [T]> {
        match self.pieces.as_slice() {
            [] => Cow::Borrowed(&[]),
            [all] => Cow::Borrowed(all.get()),
            _ => Cow::Owned(self.to_vec()),
        }
    }

    /// Copies all items of the rope.
    pub(crate) fn to_vec(&self) -> Vec<T> {
        let mut all = Vec::with_capacity(self.length);
        self.pieces().for_each(|piece| all.extend_from_slice(piece));
        all
    }

    /// Copies the items of the rope from index `from` on.
    pub(crate) fn after(&self, from: usize) -> Vec<T> {
        let mut all = Vec::with_capacity(self.length - from);
        let mut skip = from;
        for piece in self.pieces() {
            let here = skip.min(piece.len());
            skip -= here;
            all.extend_from_slice(&piece[here..]);
        }
        all
    }

    /// Makes a rope of the first `length` items of this rope, followed by a copy of `by`.
    pub(crate) fn join_slice(&self, length: usize, by: &[T]) -> Self {
        self.join_owned(length, || by.to_vec(), by.len())
    }

    /// Makes a rope of the first `length` items of this rope, followed by `by`, which is not copied.
    pub(crate) fn join_vec(&self, length: usize, by: Vec<T>) -> Self {
        let count = by.len();
        self.join_owned(length, || by, count)
    }

    fn join_owned(&self, length: usize, by: impl FnOnce() -> Vec<T>, count: usize) -> Self {
        let mut made = Self { pieces: Vec::with_capacity(self.pieces.len() + 1), length: 0 };
        for piece in &self.pieces {
            let taken = piece.length.min(length - made.length);
            if taken == 0 {
                break;
            }
            // A piece with a small used part is copied, so that the rest can be freed.
            let items = if taken * 2 < piece.items.len() {
                Arc::new(piece.items[..taken].to_vec())
            } else {
                piece.items.clone()
            };
            made.pieces.push(Piece { items, length: taken });
            made.length += taken;
        }
        if count > 0 {
            made.pieces.push(Piece { items: Arc::new(by()), length: count });
            made.length += count;
        }
        if made.pieces.len() > MOST {
            made = made.to_vec().into();
        }
        made
    }

    /// Number of leading items that this rope and the rope `other` have in the same pieces of memory.
    pub(crate) fn shared(&self, other: &Self) -> usize {
        let mut shared = 0;
        for (piece, its) in self.pieces.iter().zip(&other.pieces) {
            if !Arc::ptr_eq(&piece.items, &its.items) {
                break;
            }
            shared += piece.length.min(its.length);
            if piece.length != its.length {
                break;
            }
        }
        shared
    }

    /// Number of leading items of `items` equal to those of the rope from index `from` on.
    pub(crate) fn common(&self, from: usize, items: &[T]) -> usize {
        let (mut skip, mut same) = (from, 0);
        for piece in self.pieces() {
            if skip >= piece.len() {
                skip -= piece.len();
                continue;
            }
            let piece = &piece[skip..];
            skip = 0;
            let here = piece.len().min(items.len() - same);
            let equal = common(&piece[..here], &items[same..same + here]);
            same += equal;
            if equal < here || same == items.len() {
                break;
            }
        }
        same
    }

    /// Memory of the rope's pieces, in bytes; a piece shared with other ropes counts in full.
    pub(crate) fn bytes(&self) -> usize {
        self.pieces.iter().map(|piece| piece.items.capacity() * size_of::<T>() + size_of::<Piece<T>>()).sum()
    }
}

/// Length of the common beginning of two slices, in items.
pub(crate) fn common<T: PartialEq>(left: &[T], right: &[T]) -> usize {
    // Items compared at once: many are compared by one call of the system's library, the last few one by one.
    let mut at = 0;
    for compared in [1024, 64, 8] {
        let pieces = left[at..].chunks_exact(compared).zip(right[at..].chunks_exact(compared));
        at += pieces.take_while(|(left, right)| left == right).count() * compared;
    }
    at + left[at..].iter().zip(&right[at..]).take_while(|(left, right)| left == right).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_one_vector_would_be() {
        let mut state = 1_u64;
        let mut below = |most: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % most
        };
        let mut ropes: Vec<(Rope<u8>, Vec<u8>)> = vec![Default::default()];
        for step in 0..3000 {
            let (rope, right) = &ropes[below(ropes.len())];
            let length = below(right.len() + 1);
            let new: Vec<u8> = (0..below(60)).map(|_| below(3) as u8).collect();
            let rope = if step % 2 == 0 { rope.join_slice(length, &new) } else { rope.join_vec(length, new.clone()) };
            let right = [&right[..length], &new].concat();
            assert_eq!((rope.len(), rope.to_vec()), (right.len(), right.clone()));
            assert_eq!(rope.after(length), right[length..]);
            let (old, _) = &ropes[below(ropes.len())];
            let shared = rope.shared(old);
            assert!(shared <= old.len() && old.common(0, &rope.to_vec()) >= shared);
            assert_eq!(rope.shared(&rope.clone()), rope.len());
            assert_eq!(*rope.flat(), *right);
            assert!(rope.pieces.len() <= MOST && rope.bytes() >= rope.len());
            assert!(rope.pieces.iter().all(|piece| piece.length > 0 && piece.length * 2 >= piece.items.len()));
            let from = below(right.len() + 1);
            let other: Vec<u8> = right[from..].iter().map(|byte| if below(40) == 0 { 9 } else { *byte }).collect();
            let same = other.iter().zip(&right[from..]).take_while(|(a, b)| a == b).count();
            assert_eq!(rope.common(from, &other), same);
            assert_eq!(rope.common(from, &[&right[from..], &[1, 2]].concat()), right.len() - from);
            if ropes.len() < 40 {
                ropes.push((rope, right));
            } else {
                let at = below(40);
                ropes[at] = (rope, right);
            }
        }
    }

    #[test]
    fn beginnings() {
        let text: Vec<u8> = (0..9000_u32).map(|at| (at * at) as u8).collect();
        for at in [0, 1, 1023, 1024, 1025, 5000, 8999] {
            let mut other = text.clone();
            other[at] ^= 1;
            assert_eq!(common(&text, &other), at);
            assert_eq!(common(&text, &text[..at]), at);
        }
    }
}
