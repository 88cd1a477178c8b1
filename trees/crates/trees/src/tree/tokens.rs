//! Tokens in a tree, in compressed form: items and units are tokens, and a step is a page of tokens.
//!
//! Token ids of current vocabularies have 17 or 18 bits. Blocks of 128 tokens are stored as their low halves of 16
//! bits, and each further bit as a row of 128 bits; an incomplete block, or a block with more than 20 bits, is stored
//! unpacked. Within a block tokens are arranged so that packing, unpacking and comparing are the same few shifts in all
//! lanes of a vector: low halves share words with those half a block further on, and bit `8 q + b` of word `w` of a row
//! belongs to token `16 b + 4 q + w`.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use kvatlas_codec::{Cursor, put_varint};

use super::TreeError;
use super::path_hash::PathHasher;
use super::units::{LONGEST, Mark, Units};

const BLOCK: usize = 128;
/// Number of words for the low halves of the tokens of a block (tokens that are packed together): each word has two
/// tokens half a block apart.
const LOW: usize = BLOCK / 2;
/// Number of tokens that are processed in parallel, by vector instructions.
const LANES: usize = 16;
/// Number of words in a row of bits: one bit for each token of a block (tokens that are packed together).
const ROW: usize = BLOCK / 32;
/// Maximum number of rows of bits (one bit of each token) beyond the low halves in a packed block of tokens; with more,
/// packing saves too little.
const ROWS: u32 = 4;

#[derive(Debug)]
pub(crate) struct Tokens {
    page: usize,
    /// Largest number of rows of bits (one bit of each token, beyond the low halves) that a buffer has needed so far.
    rows: AtomicU32,
}

pub(crate) struct TokenBuffer {
    /// Number of packed blocks of tokens in the buffer; the tokens after them are unpacked.
    blocks: u32,
    rows: u32,
    words: Box<[u32]>,
}

impl TokenBuffer {
    fn block_words(&self) -> usize {
        LOW + ROW * self.rows as usize
    }

    fn block(&self, block: usize) -> &[u32] {
        let size = self.block_words();
        &self.words[block * size..][..size]
    }

    fn unpack(&self, block: usize, out: &mut [u32; BLOCK]) {
        let words = self.block(block);
        match self.rows {
            0 => unpack::<0>(words, out),
            1 => unpack::<1>(words, out),
            2 => unpack::<2>(words, out),
            3 => unpack::<3>(words, out),
            _ => unpack::<4>(words, out),
        }
    }

    /// True if a packed block of this buffer consists of the given tokens.
    fn equals(&self, block: usize, tokens: &[u32; BLOCK]) -> bool {
        let words = self.block(block);
        match self.rows {
            0 => equals::<0>(words, tokens),
            1 => equals::<1>(words, tokens),
            2 => equals::<2>(words, tokens),
            3 => equals::<3>(words, tokens),
            _ => equals::<4>(words, tokens),
        }
    }

    /// Calls `with` on the stored tokens from index `from` on, part by part, until `with` returns false.
    fn parts(&self, from: usize, length: usize, mut with: impl FnMut(&[u32]) -> bool) {
        let packed = self.blocks as usize * BLOCK;
        let (mut at, end) = (from, from + length);
        let mut tokens = [0; BLOCK];
        while at < end.min(packed) {
            self.unpack(at / BLOCK, &mut tokens);
            let part = &tokens[at % BLOCK..(end - (at - at % BLOCK)).min(BLOCK)];
            at += part.len();
            if !with(part) {
                return;
            }
        }
        if at < end {
            let loose = &self.words[self.blocks as usize * self.block_words()..];
            with(&loose[at - packed..end - packed]);
        }
    }
}

/// Calls `with` on each pair of tokens of a packed block that are half a block apart, with the index and the token of
/// each. The number `R` of rows of bits (one bit of each token) is a constant and the loops are plain, so that the
/// compiler produces a few vector instructions.
#[inline(always)]
fn each_pair<const R: usize>(words: &[u32], mut with: impl FnMut(usize, usize, u32, u32)) {
    let Some((low, rows)) = words.split_at_checked(LOW) else { return };
    let Ok(low) = <&[[u32; LANES]; LOW / LANES]>::try_from(low.as_chunks().0) else { return };
    // In each lane the bits of its tokens, the first at bit 16.
    let mut bits = [[0u32; LANES]; R];
    for (bits, row) in bits.iter_mut().zip(rows.as_chunks::<ROW>().0) {
        for lane in 0..LANES {
            bits[lane] = (row[lane % ROW] >> (lane / ROW * 8)) << 16;
        }
    }
    for (at, halves) in low.iter().enumerate() {
        for lane in 0..LANES {
            let (mut first, mut second) = (halves[lane] & 0xffff, halves[lane] >> 16);
            for (row, bits) in bits.iter_mut().enumerate() {
                first |= (bits[lane] & 0x1_0000) << row;
                second |= ((bits[lane] >> 4) & 0x1_0000) << row;
                bits[lane] >>= 1;
            }
            with(at, lane, first, second);
        }
    }
}

fn unpack<const R: usize>(words: &[u32], out: &mut [u32; BLOCK]) {
    let (firsts, seconds) = out.split_at_mut(LOW);
    let (firsts, seconds) = (firsts.as_chunks_mut::<LANES>().0, seconds.as_chunks_mut::<LANES>().0);
    each_pair::<R>(words, |at, lane, first, second| {
        firsts[at][lane] = first;
        seconds[at][lane] = second;
    });
}

fn equals<const R: usize>(words: &[u32], tokens: &[u32; BLOCK]) -> bool {
    let tokens = tokens.as_chunks::<LANES>().0;
    let mut unequal = [0; LANES];
    each_pair::<R>(words, |at, lane, first, second| {
        unequal[lane] |= (first ^ tokens[at][lane]) | (second ^ tokens[at + LOW / LANES][lane]);
    });
    unequal.iter().fold(0, |any, lane| any | lane) == 0
}

/// Packs blocks of tokens (their low halves, and `R` rows that each contain one further bit of each token), and returns
/// the union of all their bits. Bits beyond `R` rows are lost: the caller then has to pack again with more rows.
fn pack<const R: usize>(blocks: &[[u32; BLOCK]], words: &mut Vec<u32>) -> u32 {
    let mut all = [0u32; LANES];
    for block in blocks {
        let (first, second) = block.split_at(LOW);
        words.extend(first.iter().zip(second).map(|(first, second)| first & 0xffff | second << 16));
        let mut rows = [[0u32; LANES]; R];
        for tokens in block.as_chunks::<LANES>().0.iter().rev() {
            for lane in 0..LANES {
                all[lane] |= tokens[lane];
            }
            for (row, bits) in rows.iter_mut().enumerate() {
                // The highest row is all that remains of a token that fits.
                let mask = if row + 1 == R { !0 } else { 1 };
                for lane in 0..LANES {
                    bits[lane] = bits[lane] << 1 | (tokens[lane] >> (16 + row)) & mask;
                }
            }
        }
        for bits in rows {
            let mut row = [0; ROW];
            for lane in 0..LANES {
                row[lane % ROW] |= bits[lane] << (lane / ROW * 8);
            }
            words.extend_from_slice(&row);
        }
    }
    all.iter().fold(0, |all, bits| all | bits)
}

fn rows_of(bits: u32) -> u32 {
    (32 - bits.leading_zeros()).saturating_sub(16)
}

fn common(a: &[u32], b: &[u32]) -> usize {
    const WIDE: usize = 32;
    let (wide_a, wide_b) = (a.as_chunks::<WIDE>().0, b.as_chunks::<WIDE>().0);
    let differ = |x: &[u32; WIDE], y: &[u32; WIDE]| x.iter().zip(y).fold(0, |d, (p, q)| d | (p ^ q)) != 0;
    let same = wide_a.iter().zip(wide_b).take_while(|(x, y)| !differ(x, y)).count() * WIDE;
    same + a[same..].iter().zip(&b[same..]).take_while(|(x, y)| x == y).count()
}

impl Tokens {
    pub(crate) fn new(page: usize) -> Result<Self, TreeError> {
        if page.is_power_of_two() && page <= 128 { Ok(Self::of(page)) } else { Err(TreeError::PageSize { got: page }) }
    }

    /// Creates the units of a tree of tokens with pages of `page` tokens, a power of two up to 128.
    pub(crate) const fn of(page: usize) -> Self {
        assert!(page.is_power_of_two() && page <= 128);
        Self { page, rows: AtomicU32::new(0) }
    }

    pub(crate) fn page(&self) -> usize {
        self.page
    }

    fn down(&self, length: usize) -> usize {
        length & !(self.page - 1)
    }
}

impl Units for Tokens {
    type Item = u32;
    type Buffer = TokenBuffer;

    fn kind(&self) -> (u8, u8) {
        (b'T', self.page as u8)
    }

    fn key(&self, items: &[u32]) -> u32 {
        if self.page == 1 {
            return items.first().copied().unwrap_or(0);
        }
        let mix =
            |hash: u64, &token: &u32| (hash.rotate_left(5) ^ u64::from(token)).wrapping_mul(0x517c_c1b7_2722_0a95);
        (items[..items.len().min(self.page)].iter().fold(0, mix) >> 32) as u32
    }

    fn whole(&self, items: &[u32]) -> usize {
        self.down(items.len())
    }

    fn piece<'a>(&self, items: &'a [u32]) -> &'a [u32] {
        &items[..items.len().min(LONGEST)]
    }

    fn first_step<'a>(&self, items: &'a [u32]) -> &'a [u32] {
        &items[..items.len().min(self.page)]
    }

    fn step_items(&self) -> usize {
        self.page
    }

    fn count(&self, items: &[u32]) -> usize {
        items.len()
    }

    fn store(&self, items: &[u32]) -> TokenBuffer {
        let plain = || TokenBuffer { blocks: 0, rows: 0, words: items.into() };
        let (blocks, loose) = items.as_chunks::<BLOCK>();
        // As many rows as the tree has needed before: nearly always enough, and it saves a pass over all tokens.
        let mut rows = self.rows.load(Relaxed);
        if blocks.is_empty() {
            return plain();
        }
        loop {
            let size = LOW + ROW * rows as usize;
            let mut words = Vec::with_capacity(blocks.len() * size + loose.len());
            let bits = match rows {
                0 => pack::<0>(blocks, &mut words),
                1 => pack::<1>(blocks, &mut words),
                2 => pack::<2>(blocks, &mut words),
                3 => pack::<3>(blocks, &mut words),
                _ => pack::<4>(blocks, &mut words),
            };
            let needed = rows_of(bits);
            if needed <= rows {
                words.extend_from_slice(loose);
                return TokenBuffer { blocks: blocks.len() as u32, rows, words: words.into_boxed_slice() };
            }
            if needed > ROWS {
                return plain();
            }
            rows = self.rows.fetch_max(needed, Relaxed).max(needed);
        }
    }

    fn compare(&self, buffer: &TokenBuffer, from: Mark, length: usize, input: &[u32]) -> (usize, Mark) {
        let (from, most) = (from as usize, length.min(input.len()));
        let mut equal = 0;
        // Up to the first whole block, whole blocks without unpacking, and the rest.
        let ahead = (from.next_multiple_of(BLOCK) - from).min(most);
        let mut compare = |upto: usize| {
            let start = equal;
            buffer.parts(from + start, upto - start, |part| {
                let same = common(part, &input[equal..]);
                equal += same;
                same == part.len()
            });
            equal
        };
        let mut same = compare(ahead);
        if same == ahead && ahead < most {
            let first = (from + same) / BLOCK;
            let blocks = (buffer.blocks as usize).saturating_sub(first).min((most - same) / BLOCK);
            let inputs = input[same..].as_chunks::<BLOCK>().0.iter().take(blocks);
            same += inputs.enumerate().take_while(|(at, tokens)| buffer.equals(first + at, tokens)).count() * BLOCK;
            equal = same;
            buffer.parts(from + same, most - same, |part| {
                let same = common(part, &input[equal..]);
                equal += same;
                same == part.len()
            });
        }
        let equal = self.down(equal);
        (equal, (from + equal) as Mark)
    }

    fn read(&self, buffer: &TokenBuffer, from: Mark, length: usize, out: &mut Vec<u32>) {
        buffer.parts(from as usize, length, |part| {
            out.extend_from_slice(part);
            true
        });
    }

    fn seek(&self, _: &TokenBuffer, from: Mark, items: usize) -> Mark {
        from + items as Mark
    }

    fn cut(&self, buffer: &TokenBuffer, from: Mark, to: Mark) -> (TokenBuffer, Mark) {
        let mut tokens = Vec::with_capacity((to - from) as usize);
        self.read(buffer, from, (to - from) as usize, &mut tokens);
        (self.store(&tokens), from)
    }

    fn bytes(buffer: &TokenBuffer) -> usize {
        buffer.words.len() * 4
    }

    fn shared_bytes(&self) -> usize {
        0
    }

    fn limit_bytes(&self, _: Option<usize>) {}

    fn hash(hasher: &mut PathHasher, items: &[u32]) {
        hasher.update_tokens(items);
    }

    fn write(items: &[u32], out: &mut Vec<u8>) {
        put_varint(out, items.len() as u64);
        for &token in items {
            put_varint(out, u64::from(token));
        }
    }

    fn parse(&self, bytes: &mut Cursor<'_>) -> Option<Vec<u32>> {
        // A token takes at least a byte.
        let length = bytes.count(1).ok()?;
        if !length.is_multiple_of(self.page) {
            return None;
        }
        (0..length).map(|_| bytes.small().ok()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::Tokens;
    use crate::tree::units::Units;

    #[test]
    fn any_width_comes_back_and_compares() {
        for page in [1, 2, 16, 128] {
            let units = Tokens::new(page).unwrap();
            for bits in [1, 16, 17, 18, 20, 21, 32] {
                let tokens: Vec<u32> =
                    (0..700u32).map(|i| (i.wrapping_mul(0x9e37_79b9) ^ 0x8000_0000) >> (32 - bits)).collect();
                let buffer = units.store(&tokens);
                if bits == 17 {
                    assert!(Tokens::bytes(&buffer) * 3 < tokens.len() * 4 * 2);
                }
                for from in (0..700).step_by(page.max(37) / page * page) {
                    let mut out = Vec::new();
                    units.read(&buffer, from as u32, 700 - from, &mut out);
                    assert_eq!(out, &tokens[from..]);
                    for part in (from..700).step_by(29) {
                        let mut input = tokens[from..].to_vec();
                        input[part - from] ^= 1;
                        let wanted = (part - from) / page * page;
                        assert_eq!(
                            units.compare(&buffer, from as u32, 700 - from, &input),
                            (wanted, (from + wanted) as u32)
                        );
                        let (short, less) = units.cut(&buffer, from as u32, part as u32);
                        let mut again = Vec::new();
                        units.read(&short, from as u32 - less, part - from, &mut again);
                        assert_eq!(again, &tokens[from..part]);
                    }
                }
            }
        }
        assert!(Tokens::new(0).is_err() && Tokens::new(3).is_err() && Tokens::new(256).is_err());
    }
}
