//! A compressing code for pairs of bytes: common pairs of a tree's text have codes of one byte, nearly all others of
//! two.
//!
//! Text is most of a tree's memory. Codes over longer contexts compress better but are too slow: an insert may take
//! well under a nanosecond per byte. With this code a pair is one table lookup, and the next pair depends on it only
//! for its output position. Texts with equal beginnings have equal codes, so an input is compared with stored code pair
//! by pair, without decoding.
//!
//! ```text
//!   0..ONE            one byte:    a common pair
//!   ONE..ESCAPE, x    two bytes:   one of the next (ESCAPE - ONE) * 256 pairs
//!   ESCAPE, a, b      three bytes: any pair
//! ```

/// Number of byte pairs of text whose code (compressed form) has one byte.
const ONE: usize = 224;
const ESCAPE: usize = 255;
/// Number of byte pairs of text whose code (compressed form) has two bytes.
const TWO: usize = (ESCAPE - ONE) * 256;
/// Number of bytes that must follow the first byte of a pair's code (compressed form), so that the code can be read as
/// one word.
pub(super) const PAD: usize = 4;
/// Number of byte pairs that are compared between two checks of the result.
const STRIDE: usize = 16;
/// Length of text that is compressed and then compared in compressed form, in bytes; this is the faster way as long as
/// everything is equal.
const CHUNK: usize = 512;

pub(super) struct PairCode {
    /// Code (compressed form) of each byte pair in the low bytes, and the code's length in the top byte.
    codes: Box<[u32]>,
    one: [[u8; 2]; ONE],
    two: Box<[[u8; 2]]>,
}

fn index(pair: [u8; 2]) -> usize {
    usize::from(u16::from_le_bytes(pair))
}

impl PairCode {
    /// Creates a code, which compresses byte pairs, for the frequencies of byte pairs in a sample of text.
    pub(super) fn learn(sample: &[u8]) -> Self {
        let mut pairs = vec![0u32; 1 << 16];
        let mut bytes = [0u64; 256];
        for window in sample.windows(2) {
            pairs[index([window[0], window[1]])] += 1;
        }
        for &byte in sample {
            bytes[usize::from(byte)] += 1;
        }
        // A pair missing from the sample is as likely as its bytes are.
        let mut order: Vec<u16> = (0..=u16::MAX).collect();
        let rank = |pair: &u16| {
            let [a, b] = pair.to_le_bytes();
            let likely = bytes[usize::from(a)] * bytes[usize::from(b)];
            (std::cmp::Reverse((pairs[usize::from(*pair)], likely)), *pair)
        };
        order.select_nth_unstable_by_key(ONE + TWO, rank);
        order[..ONE + TWO].sort_unstable_by_key(rank);
        let mut codes: Vec<u32> = (0..1u32 << 16).map(|pair| ESCAPE as u32 | pair << 8 | 3 << 24).collect();
        let mut one = [[0; 2]; ONE];
        let mut two = vec![[0; 2]; TWO].into_boxed_slice();
        for (at, &pair) in order[..ONE].iter().enumerate() {
            one[at] = pair.to_le_bytes();
            codes[usize::from(pair)] = at as u32 | 1 << 24;
        }
        for (at, &pair) in order[ONE..ONE + TWO].iter().enumerate() {
            two[at] = pair.to_le_bytes();
            codes[usize::from(pair)] = (ONE + at / 256) as u32 | (at as u32 % 256) << 8 | 2 << 24;
        }
        Self { codes: codes.into_boxed_slice(), one, two }
    }

    pub(super) fn bytes(&self) -> usize {
        size_of::<Self>() + self.codes.len() * 4 + self.two.len() * 2
    }

    /// Encodes `text` into `out`, which has at least 3/2 of its length and [`PAD`] bytes more. Returns the length of
    /// the code. An odd last byte is encoded with a zero after it.
    pub(super) fn encode(&self, text: &[u8], out: &mut [u8]) -> usize {
        let codes: &[u32; 1 << 16] = match self.codes.as_ref().try_into() {
            Ok(codes) => codes,
            Err(_) => return 0,
        };
        let mut at = 0;
        let mut put = |pair: [u8; 2]| {
            let code = codes[index(pair)];
            out[at..at + PAD].copy_from_slice(&code.to_le_bytes());
            at += (code >> 24) as usize;
        };
        let (pairs, odd) = text.as_chunks::<2>();
        for &pair in pairs {
            put(pair);
        }
        if let &[last] = odd {
            put([last, 0]);
        }
        at
    }

    /// Decodes the byte pair whose code (compressed form) begins at index `at`. Also returns the length of its code, in
    /// bytes.
    #[inline]
    pub(super) fn decode(&self, code: &[u8], at: usize) -> ([u8; 2], usize) {
        let first = usize::from(code[at]);
        if first < ONE {
            (self.one[first], 1)
        } else if first < ESCAPE {
            (self.two[(first - ONE) * 256 + usize::from(code[at + 1])], 2)
        } else {
            ([code[at + 1], code[at + 2]], 3)
        }
    }

    /// Length of a byte pair's code (compressed form) whose first byte is `first`, in bytes.
    #[inline]
    pub(super) fn length(first: u8) -> usize {
        1 + usize::from(usize::from(first) >= ONE) + usize::from(usize::from(first) == ESCAPE)
    }

    /// Compares `text` with the compressed text `code` from position `at` on, except for a rest of less than two
    /// strides of [`STRIDE`] byte pairs. Returns the number of equal bytes, a multiple of a stride; the position of
    /// their end in the code; and an earlier position near that end, as pair of text and code.
    pub(super) fn strides(&self, code: &[u8], mut at: usize, text: &[u8]) -> (usize, usize, (usize, usize)) {
        const MASKS: [u32; 4] = [0, 0xff, 0xffff, 0xff_ffff];
        let mut equal = 0;
        let mut before = (0, at);
        let codes: &[u32; 1 << 16] = match self.codes.as_ref().try_into() {
            Ok(codes) => codes,
            Err(_) => return (0, at, before),
        };
        let mut made = [0; CHUNK / 2 * 3 + PAD];
        for chunk in text.as_chunks::<CHUNK>().0 {
            let length = self.encode(chunk, &mut made);
            if code.get(at..at + length) != Some(&made[..length]) {
                break;
            }
            before = (equal, at);
            equal += CHUNK;
            at += length;
        }
        for stride in text[equal..].as_chunks::<{ 2 * STRIDE }>().0 {
            let Some(stored) = code.get(at..at + 3 * STRIDE + PAD) else { break };
            let (mut here, mut unequal) = (0, 0);
            for pair in stride.as_chunks::<2>().0 {
                let wanted = codes[index(*pair)];
                let length = (wanted >> 24) as usize & 3;
                let mut word = [0; 4];
                word.copy_from_slice(&stored[here..here + 4]);
                unequal |= (u32::from_le_bytes(word) ^ wanted) & MASKS[length];
                here += length;
            }
            if unequal != 0 {
                break;
            }
            before = (equal, at);
            equal += 2 * STRIDE;
            at += here;
        }
        (equal, at, before)
    }
}

#[cfg(test)]
mod tests {
    use super::{PAD, PairCode};

    #[test]
    fn every_pair_comes_back_and_common_text_gets_shorter() {
        let sample = "the quick brown fox, naïve and 静か, jumps over 13 lazy dogs. ".repeat(50);
        let code = PairCode::learn(sample.as_bytes());
        let all: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).chain([7]).collect();
        for text in [sample.as_bytes(), &all] {
            let mut out = vec![0; text.len() * 3 / 2 + 2 + PAD];
            let length = code.encode(text, &mut out);
            let (mut at, mut back) = (0, Vec::new());
            while at < length {
                let (pair, used) = code.decode(&out, at);
                assert_eq!(PairCode::length(out[at]), used);
                back.extend(pair);
                at += used;
            }
            assert_eq!(at, length);
            assert_eq!(&back[..text.len()], text);
            if text.len() == sample.len() {
                assert!(length * 100 <= text.len() * 52, "{length} of {}", text.len());
            }
        }
    }

    #[test]
    fn strides_end_where_texts_part() {
        let text: Vec<u8> = "abcdefghij klmnop qrstuvw".repeat(20).into_bytes();
        let code = PairCode::learn(&text);
        let mut out = vec![0; text.len() * 2 + PAD];
        let length = code.encode(&text, &mut out);
        for part in 0..text.len() {
            let mut other = text.clone();
            other[part] ^= 1;
            let (equal, at, before) = code.strides(&out[..length + PAD], 0, &other);
            assert!(equal <= part && equal % 32 == 0);
            assert!(part - equal < 32 || length - at < 64, "{equal} of {part}");
            assert!(before.0 <= equal && before.1 <= at);
        }
    }
}
