//! The tokens of a call, 32 or 64 bits wide, read in place without a copy of the whole prompt.

/// A sequence of tokens; a trie stores 32 bits of each.
pub trait Tokens {
    /// Number of tokens.
    fn len(&self) -> usize;

    /// The token at a position below [`Tokens::len`].
    fn at(&self, position: usize) -> u32;

    /// True if there are no tokens.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of tokens from `start` on that equal the beginning of `kept`.
    fn common(&self, start: usize, kept: &[u32]) -> usize;

    /// Appends the tokens from `start` to before `end` to `kept`.
    fn copy(&self, start: usize, end: usize, kept: &mut Vec<u32>);
}

/// Tokens compared before the first difference is located: the loop over them has no branch, so it vectorizes.
const STRIDE: usize = 32;

fn common<T: Copy>(tokens: &[T], kept: &[u32], equal: impl Fn(T, u32) -> bool) -> usize {
    let length = tokens.len().min(kept.len());
    let (tokens, kept) = (&tokens[..length], &kept[..length]);
    let strides = tokens.chunks_exact(STRIDE).zip(kept.chunks_exact(STRIDE));
    let same = strides.take_while(|(a, b)| a.iter().zip(*b).fold(true, |all, (&a, &b)| all & equal(a, b))).count();
    let start = same * STRIDE;
    let rest = tokens[start..].iter().zip(&kept[start..]);
    start + rest.take_while(|&(&a, &b)| equal(a, b)).count()
}

impl Tokens for [u32] {
    fn len(&self) -> usize {
        self.len()
    }

    #[inline]
    fn at(&self, position: usize) -> u32 {
        self[position]
    }

    fn common(&self, start: usize, kept: &[u32]) -> usize {
        common(&self[start..], kept, |a, b| a == b)
    }

    fn copy(&self, start: usize, end: usize, kept: &mut Vec<u32>) {
        kept.extend_from_slice(&self[start..end]);
    }
}

/// Tokens in 64-bit integers.
///
/// The caller ensures that each is below 2^32; otherwise only the low half is stored.
#[derive(Debug, Clone, Copy)]
pub struct WideTokens<'a>(pub &'a [u64]);

impl Tokens for WideTokens<'_> {
    fn len(&self) -> usize {
        self.0.len()
    }

    #[inline]
    fn at(&self, position: usize) -> u32 {
        self.0[position] as u32
    }

    fn common(&self, start: usize, kept: &[u32]) -> usize {
        common(&self.0[start..], kept, |a, b| a == u64::from(b))
    }

    fn copy(&self, start: usize, end: usize, kept: &mut Vec<u32>) {
        kept.extend(self.0[start..end].iter().map(|&token| token as u32));
    }
}
