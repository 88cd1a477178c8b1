//! Text in a tree: items are bytes, units are characters, and a step is one character.
//!
//! A tree's first text is stored as it is. Once there is enough text for its frequencies, a code for pairs of bytes is
//! created, and later text is encoded (`pair_code.rs`). A new code is created when the texts have changed and the old
//! code no longer compresses well; buffers keep the code with which they were encoded.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use kvatlas_codec::{Cursor, put_varint};
use parking_lot::{Mutex, RwLock};

use super::pair_code::{PAD, PairCode};
use super::path_hash::PathHasher;
use super::units::{LONGEST, Mark, Units};

/// Length of the sample of text from whose frequencies a code (a compression of byte pairs) is created, in bytes.
const SAMPLE: usize = 96 << 10;
/// Length in bytes below which texts are stored without compression, since they are a small part of the memory.
const SHORT: usize = 48;
/// Bytes of text encoded with a code (a compression of text by pairs of characters) before its compression is measured;
/// a bad code is replaced.
const REVIEW: u64 = 8 << 20;

/// Memory limit of a tree, in bytes, below which the tree compresses no text, since the tables of a code need 280 KB.
const WORTH_A_CODE: usize = 4 << 20;

#[derive(Default)]
pub(crate) struct Text {
    codes: RwLock<Codes>,
    sample: Mutex<Vec<u8>>,
    sampling: AtomicBool,
    small: AtomicBool,
    /// Number of bytes of text compressed with the current code since its compression was last measured. The next field
    /// is the number of bytes after compression.
    given: AtomicU64,
    made: AtomicU64,
}

#[derive(Default)]
struct Codes {
    current: Option<Arc<PairCode>>,
    /// Earlier codes (compressions of byte pairs) that stored texts may still use.
    old: Vec<Weak<PairCode>>,
}

impl Codes {
    fn replace(&mut self, code: Option<Arc<PairCode>>) {
        self.old.retain(|old| old.strong_count() > 0);
        self.old.extend(self.current.take().map(|code| Arc::downgrade(&code)));
        self.current = code;
    }
}

pub(crate) struct TextBuffer {
    /// Code with which `bytes` (with padding) is encoded; a mark is then twice the position of a pair's code, plus one
    /// for the second byte of the pair. `None` if `bytes` is the text itself, and a mark is a number of bytes.
    code: Option<Arc<PairCode>>,
    bytes: Box<[u8]>,
}

impl Text {
    pub(crate) fn new() -> Self {
        Self { sampling: AtomicBool::new(true), ..Self::default() }
    }

    /// Adds text to the sample, and creates a code (a compression of byte pairs) when the sample is large enough.
    fn sample(&self, text: &[u8]) {
        let mut sample = self.sample.lock();
        if !self.sampling.load(Relaxed) {
            return;
        }
        // Parts of many texts represent the traffic better than one long text.
        let room = (SAMPLE - sample.len()).min(SAMPLE / 8);
        sample.extend_from_slice(&text[..text.len().min(room)]);
        if sample.len() == SAMPLE {
            self.codes.write().replace(Some(Arc::new(PairCode::learn(&sample))));
            *sample = Vec::new();
            self.given.store(0, Relaxed);
            self.made.store(0, Relaxed);
            self.sampling.store(false, Relaxed);
        }
    }

    fn review(&self, given: usize, made: usize) {
        self.made.fetch_add(made as u64, Relaxed);
        let given = self.given.fetch_add(given as u64, Relaxed) + given as u64;
        if given < REVIEW {
            return;
        }
        // Encoded to more than three quarters: no code of this kind helps, or the text has changed.
        let poor = self.made.swap(0, Relaxed) * 4 > given * 3;
        self.given.store(0, Relaxed);
        if poor && !self.small.load(Relaxed) {
            self.sampling.store(true, Relaxed);
        }
    }
}

thread_local! {
    /// Buffer of each thread into which texts are compressed before the length of the result is known.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Maximum size of the buffer for compressing texts that a thread keeps, in bytes.
const KEPT_SCRATCH: usize = 1 << 20;

fn continues(byte: u8) -> bool {
    byte & 0xc0 == 0x80
}

fn common(a: &[u8], b: &[u8]) -> usize {
    const WIDE: usize = 64;
    let (wide_a, wide_b) = (a.as_chunks::<WIDE>().0, b.as_chunks::<WIDE>().0);
    let same = wide_a.iter().zip(wide_b).take_while(|(x, y)| x == y).count() * WIDE;
    same + a[same..].iter().zip(&b[same..]).take_while(|(x, y)| x == y).count()
}

/// Reduces a number of equal bytes to whole characters, if a character is equal only in its first bytes.
fn whole_characters(mut equal: usize, input: &[u8]) -> usize {
    while equal > 0 && input.get(equal).is_some_and(|&b| continues(b)) {
        equal -= 1;
    }
    equal
}

/// Moves a position in compressed text forward by `items` bytes of the original text. Returns the new position.
fn walk(code: &[u8], from: Mark, items: usize) -> Mark {
    let odd = from as usize & 1;
    let mut at = from as usize >> 1;
    // Counted from the beginning of the pair that it starts in.
    let items = items + odd;
    for _ in 0..items / 2 {
        at += PairCode::length(code[at]);
    }
    (at << 1 | items & 1) as Mark
}

impl Units for Text {
    type Item = u8;
    type Buffer = TextBuffer;

    fn kind(&self) -> (u8, u8) {
        (b'S', 1)
    }

    fn key(&self, items: &[u8]) -> u32 {
        self.first_step(items).iter().fold(0, |key, &byte| key << 8 | u32::from(byte))
    }

    fn whole(&self, items: &[u8]) -> usize {
        items.len()
    }

    fn piece<'a>(&self, items: &'a [u8]) -> &'a [u8] {
        if items.len() <= LONGEST { items } else { &items[..whole_characters(LONGEST, items)] }
    }

    fn first_step<'a>(&self, items: &'a [u8]) -> &'a [u8] {
        let more = items.iter().skip(1).take_while(|&&b| continues(b)).count();
        &items[..items.len().min(1 + more)]
    }

    fn step_items(&self) -> usize {
        4
    }

    fn count(&self, items: &[u8]) -> usize {
        // Sums in bytes, so that whole vectors are added at once.
        items.chunks(128).map(|part| usize::from(part.iter().map(|&b| u8::from(!continues(b))).sum::<u8>())).sum()
    }

    fn store(&self, items: &[u8]) -> TextBuffer {
        let plain = || TextBuffer { code: None, bytes: items.into() };
        if items.len() < SHORT {
            return plain();
        }
        if self.sampling.load(Relaxed) {
            self.sample(items);
        }
        let Some(code) = self.codes.read().current.clone() else { return plain() };
        SCRATCH.with_borrow_mut(|scratch| {
            let room = items.len() + items.len() / 2 + 2 + PAD;
            if scratch.len() < room {
                scratch.resize(room, 0);
            }
            let length = code.encode(items, scratch);
            self.review(items.len(), length);
            let buffer = if length + PAD < items.len() {
                scratch[length..length + PAD].fill(0);
                TextBuffer { code: Some(code), bytes: scratch[..length + PAD].into() }
            } else {
                plain()
            };
            if scratch.len() > KEPT_SCRATCH {
                *scratch = Vec::new();
            }
            buffer
        })
    }

    fn compare(&self, buffer: &TextBuffer, from: Mark, length: usize, input: &[u8]) -> (usize, Mark) {
        let most = length.min(input.len());
        let Some(code) = &buffer.code else {
            let stored = &buffer.bytes[from as usize..from as usize + length];
            let equal = whole_characters(common(stored, &input[..most]), input);
            return (equal, from + equal as Mark);
        };
        let bytes = &buffer.bytes;
        let (mut at, mut equal) = (from as usize >> 1, 0);
        // Where to begin again if characters must be given back.
        let mut before = (0, from);
        if from & 1 == 1 && most > 0 {
            let (pair, used) = code.decode(bytes, at);
            if pair[1] != input[0] {
                return (0, from);
            }
            (at, equal) = (at + used, 1);
        }
        let (same, end, back) = code.strides(bytes, at, &input[equal..most]);
        if same > 0 {
            before = (equal + back.0, (back.1 as Mark) << 1);
            (at, equal) = (end, equal + same);
        }
        while equal < most {
            let (pair, used) = code.decode(bytes, at);
            if pair[0] != input[equal] {
                break;
            }
            equal += 1;
            if equal == most || pair[1] != input[equal] {
                break;
            }
            equal += 1;
            at += used;
        }
        let equal = whole_characters(equal, input);
        if equal < before.0 {
            before = (0, from);
        }
        (equal, walk(bytes, before.1, equal - before.0))
    }

    fn read(&self, buffer: &TextBuffer, from: Mark, length: usize, out: &mut Vec<u8>) {
        let Some(code) = &buffer.code else {
            out.extend_from_slice(&buffer.bytes[from as usize..from as usize + length]);
            return;
        };
        let mut at = from as usize >> 1;
        let end = out.len() + length;
        out.reserve(length + 1);
        if from & 1 == 1 && length > 0 {
            let (pair, used) = code.decode(&buffer.bytes, at);
            out.push(pair[1]);
            at += used;
        }
        while out.len() < end {
            let (pair, used) = code.decode(&buffer.bytes, at);
            out.extend_from_slice(&pair);
            at += used;
        }
        out.truncate(end);
    }

    fn seek(&self, buffer: &TextBuffer, from: Mark, items: usize) -> Mark {
        match &buffer.code {
            None => from + items as Mark,
            Some(_) => walk(&buffer.bytes, from, items),
        }
    }

    fn cut(&self, buffer: &TextBuffer, from: Mark, to: Mark) -> (TextBuffer, Mark) {
        match &buffer.code {
            None => (TextBuffer { code: None, bytes: buffer.bytes[from as usize..to as usize].into() }, from),
            Some(code) => {
                let (start, mut end) = (from as usize >> 1, to as usize >> 1);
                if to & 1 == 1 {
                    end += PairCode::length(buffer.bytes[end]);
                }
                let mut bytes = Vec::with_capacity(end - start + PAD);
                bytes.extend_from_slice(&buffer.bytes[start..end]);
                bytes.extend_from_slice(&[0; PAD]);
                (TextBuffer { code: Some(code.clone()), bytes: bytes.into() }, (start as Mark) << 1)
            }
        }
    }

    fn bytes(buffer: &TextBuffer) -> usize {
        buffer.bytes.len()
    }

    fn shared_bytes(&self) -> usize {
        // Not both locks at once: a thread that samples takes them in the other order.
        let sample = self.sample.lock().capacity();
        let codes = self.codes.read();
        let old = codes.old.iter().filter_map(Weak::upgrade).map(|code| code.bytes()).sum::<usize>();
        codes.current.as_ref().map_or(0, |code| code.bytes()) + old + sample
    }

    fn limit_bytes(&self, most: Option<usize>) {
        let mut sample = self.sample.lock();
        let small = most.is_some_and(|most| most < WORTH_A_CODE);
        self.small.store(small, Relaxed);
        if small {
            self.sampling.store(false, Relaxed);
            *sample = Vec::new();
            self.codes.write().replace(None);
        } else if self.codes.read().current.is_none() {
            self.sampling.store(true, Relaxed);
        }
    }

    fn hash(hasher: &mut PathHasher, items: &[u8]) {
        hasher.update_bytes(items);
    }

    fn write(items: &[u8], out: &mut Vec<u8>) {
        put_varint(out, items.len() as u64);
        out.extend_from_slice(items);
    }

    fn parse(&self, bytes: &mut Cursor<'_>) -> Option<Vec<u8>> {
        bytes.text().map(|text| text.as_bytes().to_vec()).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::{SAMPLE, Text};
    use crate::tree::units::Units;

    /// Compares, reads and cuts encoded texts that differ from any place on, starting at any place.
    #[test]
    fn compares_reads_and_cuts_as_plain_text_does() {
        let units = Text::new();
        let words = ["the ", "naïve ", "静かな", "fox, ", "🙂", "12", "ß", "ing "];
        let mut state = 7u64;
        let mut next = |n: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize % n
        };
        let mut text = |n: usize| (0..n).map(|_| words[next(8)]).collect::<String>();
        let plain = text(40);
        let first = units.store(plain.as_bytes());
        assert!(first.code.is_none());
        while units.codes.read().current.is_none() {
            drop(units.store(text(SAMPLE / 20).as_bytes()));
        }
        let coded_text = text(60);
        let coded = units.store(coded_text.as_bytes());
        assert!(coded.code.is_some() && coded.bytes.len() * 3 < coded_text.len() * 2);
        for (stored, buffer) in [(plain, first), (coded_text, coded)] {
            let bounds: Vec<usize> = (0..=stored.len()).filter(|&i| stored.is_char_boundary(i)).collect();
            for &from in bounds.iter().step_by(3) {
                let mark = units.seek(&buffer, 0, from);
                for &to in bounds.iter().filter(|&&to| to >= from).step_by(5) {
                    let end = units.seek(&buffer, mark, to - from);
                    let mut out = Vec::new();
                    units.read(&buffer, mark, to - from, &mut out);
                    assert_eq!(out, &stored.as_bytes()[from..to]);
                    assert_eq!(units.compare(&buffer, mark, to - from, &out), (to - from, end));
                    let (short, less) = units.cut(&buffer, mark, end);
                    let mut again = Vec::new();
                    units.read(&short, mark - less, to - from, &mut again);
                    assert_eq!(out, again);
                    for &part in bounds.iter().filter(|&&p| p >= from && p < to).step_by(4) {
                        for other in ["x", "ö", "静", "🙃", "é", ""] {
                            let input = format!("{}{other}", &stored[from..part]);
                            let wanted: usize = input
                                .chars()
                                .zip(stored[from..to].chars())
                                .take_while(|(a, b)| a == b)
                                .map(|(a, _)| a.len_utf8())
                                .sum();
                            let (equal, at) = units.compare(&buffer, mark, to - from, input.as_bytes());
                            assert_eq!(equal, wanted, "{input:?} in {:?}", &stored[from..to]);
                            assert_eq!(at, units.seek(&buffer, mark, equal));
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn counts_characters() {
        let units = Text::new();
        for text in ["", "abc", "naïve", "静かな海", "🙂🙂", &"aé静🙂".repeat(300)] {
            assert_eq!(units.count(text.as_bytes()), text.chars().count());
        }
    }
}
