//! A tokenizer of the Hugging Face kind, as quick as can be had exactly.
//!
//! Two libraries read `tokenizer.json`. The common one, `tokenizers`, reads all; it is what engines use and so what is
//! right. `fastokens` reads most byte-pair encodings and is tens of times as quick, with a memory of words by thread. A
//! tokenizer is opened with both, held against each other on [`probes`], and the quick one is kept if they agree.
//! Beside either, [`segments`] remembers the tokens of what stands between special tokens: of a conversation that goes
//! on, only what is new is tokenized.

mod cuts;
mod probes;
mod segments;

use std::ops::Range;
use std::path::Path;

use crate::allowance::{self, MOST_TOKENS};
use crate::error::Error;
use crate::prompt_failure::PromptFailure;
use crate::rope::Rope;
use cuts::Cuts;
use segments::{Key, Segments};

/// Shorter texts take the quick library less time than what it takes to remember them.
const QUICK_TEXT: usize = 4096;
/// Shorter pieces between two special tokens take the quick library less time than what it takes to remember them.
const QUICK_PIECE: usize = 256;

/// Bytes of several pieces that are tokenized at once: between two of these there is a look at the clock.
const PIECE: usize = 256 << 10;
/// Bytes of one piece that are tokenized, with the quick library and with the common one: of a longer one the beginning.
const LONGEST_FOR_QUICK: usize = 1 << 20;
const LONGEST_FOR_COMMON: usize = 256 << 10;
/// Tokens at the end of a beginning that are not taken for those of the text.
const UNSURE: usize = 64;

/// Text to token ids. What was tokenized is remembered.
#[derive(Debug)]
pub(crate) struct Tokenizer {
    engine: Engine,
    /// Places where text can be cut; none if the tokenizer looks across.
    cuts: Option<Cuts>,
    segments: Segments,
    /// Tokens before and after every text where special tokens are added; none if it is not so simple.
    around: Option<(Vec<u32>, Vec<u32>)>,
}

enum Engine {
    Quick(Box<fastokens::Tokenizer>),
    Common(Box<tokenizers::Tokenizer>),
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Quick(_) => "Quick",
            Self::Common(_) => "Common",
        })
    }
}

/// A text's tokens, and where it was cut for them.
#[derive(Debug, Clone, Default)]
pub(crate) struct TextTokens {
    pub(crate) ids: Rope<u32>,
    /// Places in the text at which a special token begins, and how many tokens there are before each.
    cuts: Vec<(usize, usize)>,
    /// The reason why these are only the tokens of the text's beginning, if they are.
    pub(crate) cut: Option<PromptFailure>,
}

impl TextTokens {
    /// Bytes that the tokens and cuts take.
    pub(crate) fn bytes(&self) -> usize {
        self.ids.bytes() + self.cuts.capacity() * size_of::<(usize, usize)>()
    }
}

/// The choice between the two tokenizer libraries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Library {
    /// The quick library where it agrees, else the common one.
    #[default]
    Best,
    /// The common library.
    Common,
}

impl Tokenizer {
    /// Read a `tokenizer.json`. What is remembered takes at most `cache_bytes`. Also says why it is not the quick one.
    pub(crate) fn open(file: &Path, library: Library, cache_bytes: usize) -> Result<(Self, Option<String>), Error> {
        let bad = |message: String| Error::File { path: file.to_owned(), message };
        let mut common = tokenizers::Tokenizer::from_file(file)
            .map_err(|error| bad(error.to_string().lines().next().unwrap_or_default().to_owned()))?;
        // Engines cut and fill up prompts themselves, if at all.
        common.with_truncation(None).map_err(|error| bad(error.to_string()))?;
        common.with_padding(None);
        let cuts = Cuts::of(&common);
        let around = probes::around(&common);
        let quick = if library == Library::Common { Err("it was asked for".to_owned()) } else { quick(file, &common) };
        let (engine, note) = match quick {
            Ok(quick) => (Engine::Quick(Box::new(quick)), None),
            Err(why) => {
                let note = format!("{}: the common tokenizer library is used: {why}", file.display());
                (Engine::Common(Box::new(common)), Some(note))
            }
        };
        Ok((Self { engine, cuts, segments: Segments::new(cache_bytes), around }, note))
    }

    /// The token ids of a text; none if the library fails for it, which it has no reason to.
    pub(crate) fn encode(&self, text: &str, add_special_tokens: bool) -> Option<TextTokens> {
        let (before, after): (&[u32], &[u32]) = match (&self.around, add_special_tokens) {
            (_, false) => (&[], &[]),
            (Some((before, after)), true) => (before, after),
            (None, true) if text.len() > self.longest() => {
                // What is added at its end is not among the tokens of its beginning.
                let cut = Some(PromptFailure::TooLong);
                return Some(TextTokens { cut, ..TextTokens::default() });
            }
            (None, true) => {
                return Some(TextTokens { ids: self.engine.encode(text, true)?.into(), ..TextTokens::default() });
            }
        };
        let mut made = match self.places(text.len()) {
            Some(places) => self.encode_on(before.to_vec(), PrefixTokens::default(), text, places)?,
            None => {
                let (tokens, cut) = self.tokens(text)?;
                let tokens = if before.is_empty() { tokens } else { [before, &tokens].concat() };
                TextTokens { ids: tokens.into(), cuts: Vec::new(), cut }
            }
        };
        if !after.is_empty() && made.cut.is_none() {
            made.ids = made.ids.join_slice(made.ids.len(), after);
        }
        Some(made)
    }

    /// The token ids of a text without special tokens around it, of which so many bytes are the beginning of another
    /// one whose tokens are known.
    pub(crate) fn encode_next(&self, text: &Rope<u8>, common: usize, known: &TextTokens) -> Option<TextTokens> {
        let Some(places) = self.places(text.len()) else {
            return self.encode(std::str::from_utf8(&text.flat()).ok()?, false);
        };
        // What begins at a cut has to be the same special token in both.
        let count = known.cuts.partition_point(|(at, _)| at + places.longest <= common);
        let cuts = &known.cuts[..count];
        let (from, tokens) = cuts.last().copied().unwrap_or_default();
        let rest = String::from_utf8(text.after(from)).ok()?;
        self.encode_on(Vec::new(), PrefixTokens { ids: Some((&known.ids, tokens)), cuts, from }, &rest, places)
    }

    /// Numbers of tokens before and after a text where special tokens are added, if they are known.
    pub(crate) fn around(&self) -> (usize, usize) {
        self.around.as_ref().map_or((0, 0), |(before, after)| (before.len(), after.len()))
    }

    /// True if it is the quick library that makes the tokens.
    pub(crate) fn is_quick(&self) -> bool {
        matches!(self.engine, Engine::Quick(_))
    }

    /// Returns the cuts for a text of this length in bytes, if it is worth cutting.
    fn places(&self, length: usize) -> Option<&Cuts> {
        self.cuts.as_ref().filter(|_| !self.is_quick() || length >= QUICK_TEXT)
    }

    /// The tokens of a text, of which only `rest` is not known. `ids`: new ones before those of `rest`.
    fn encode_on(&self, ids: Vec<u32>, known: PrefixTokens<'_>, rest: &str, places: &Cuts) -> Option<TextTokens> {
        let before = known.ids.map_or(0, |(_, count)| count);
        let mut made = PartialTokens { ids, cuts: known.cuts.to_vec(), from: known.from, before, cut: None };
        // Segments that are not known, one after another, and the tokens of one that is.
        let (mut new, mut found) = (Vec::new(), Vec::new());
        for segment in places.segments(rest) {
            let text = &rest[segment.clone()];
            let begins = new.first().map_or(segment.start, |(first, _): &(Range<usize>, _)| first.start);
            if segment.end - begins > PIECE && !new.is_empty() {
                self.encode_new(rest, &new, places, &mut made)?;
                new.clear();
            }
            if made.cut.is_some() {
                break;
            }
            let key = self.is_kept(text).then(|| self.segments.key(text));
            if key.is_some_and(|key| self.segments.extend(key, text, &mut found)) {
                self.encode_new(rest, &new, places, &mut made)?;
                new.clear();
                made.push(&segment, &found);
                found.clear();
            } else {
                new.push((segment, key));
            }
        }
        self.encode_new(rest, &new, places, &mut made)?;
        let ids = match known.ids {
            Some((known, count)) => known.join_vec(count, made.ids),
            None => made.ids.into(),
        };
        Some(TextTokens { ids, cuts: made.cuts, cut: made.cut })
    }

    /// Tokenize segments that stand one after another: at once, since calls for short texts take longer.
    fn encode_new(
        &self,
        rest: &str,
        segments: &[(Range<usize>, Option<Key>)],
        places: &Cuts,
        made: &mut PartialTokens,
    ) -> Option<()> {
        let ([(first, _), ..], [.., (last, _)]) = (segments, segments) else { return Some(()) };
        if made.is_cut() {
            return Some(());
        }
        let (ids, cut) = self.tokens(&rest[first.start..last.end])?;
        if cut.is_some() {
            made.cut = cut;
            made.ids.extend_from_slice(&ids);
            return Some(());
        }
        // The first piece may begin at no cut, and may come to no token at all.
        let mut starts = vec![0];
        if segments.len() > 1 {
            if places.is_before(&rest[first.start..]) {
                starts.clear();
            }
            starts.extend(places.places(&ids));
        }
        if starts.len() != segments.len() {
            for (segment, key) in segments {
                let ids = self.engine.encode(&rest[segment.clone()], false)?;
                self.keep(*key, &rest[segment.clone()], &ids);
                made.push(segment, &ids);
            }
            return Some(());
        }
        let offset = made.before + made.ids.len();
        let ends = starts[1..].iter().copied().chain([ids.len()]);
        for ((segment, key), (&start, end)) in segments.iter().zip(starts.iter().zip(ends)) {
            self.keep(*key, &rest[segment.clone()], &ids[start..end]);
            made.cut(segment, offset + start);
        }
        if made.ids.is_empty() {
            made.ids = ids;
            // They may be kept for long.
            if made.ids.capacity() > made.ids.len() / 2 * 3 {
                made.ids.shrink_to_fit();
            }
        } else {
            made.ids.extend_from_slice(&ids);
        }
        Some(())
    }

    /// The tokens of a text, or of its beginning and why no others. Memory is several times the length of a text, with the
    /// common library a hundred times.
    fn tokens(&self, text: &str) -> Option<(Vec<u32>, Option<PromptFailure>)> {
        let longest = self.longest();
        if text.len() <= longest {
            return Some((self.engine.encode(text, false)?, None));
        }
        let end = (0..=longest).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        let mut ids = self.engine.encode(&text[..end], false)?;
        // The last ones may be others where the text goes on.
        ids.truncate(ids.len().saturating_sub(UNSURE));
        Some((ids, Some(PromptFailure::TooLong)))
    }

    /// Bytes of a text that the library is given at once, at most.
    fn longest(&self) -> usize {
        if self.is_quick() { LONGEST_FOR_QUICK } else { LONGEST_FOR_COMMON }
    }

    /// Remembers the tokens of a segment. With the quick library that takes a good part of the time that it saves, so only
    /// what comes again is remembered.
    fn keep(&self, key: Option<Key>, text: &str, ids: &[u32]) {
        if let Some(key) = key.filter(|key| !self.is_quick() || self.segments.is_asked_again(*key)) {
            self.segments.insert(key, text, ids);
        }
    }

    /// True if the tokens of a segment are remembered.
    fn is_kept(&self, text: &str) -> bool {
        !self.is_quick() || text.len() >= QUICK_PIECE
    }
}

/// Tokens of a text, as far as they are made.
struct PartialTokens {
    ids: Vec<u32>,
    cuts: Vec<(usize, usize)>,
    /// The place where the rest begins in the text, and how many tokens there are before.
    from: usize,
    before: usize,
    /// The reason why there will be no more.
    cut: Option<PromptFailure>,
}

impl PartialTokens {
    /// True if there will be no more.
    fn is_cut(&mut self) -> bool {
        if self.cut.is_none() && self.before + self.ids.len() > MOST_TOKENS {
            self.cut = Some(PromptFailure::TooLong);
        }
        if self.cut.is_none() && allowance::is_late() {
            self.cut = Some(PromptFailure::TookTooLong);
        }
        self.cut.is_some()
    }

    /// Appends the tokens of the rest's next segment.
    fn push(&mut self, segment: &Range<usize>, ids: &[u32]) {
        self.cut(segment, self.before + self.ids.len());
        self.ids.extend_from_slice(ids);
    }

    /// Notes where a segment begins, and how many tokens there are before it.
    fn cut(&mut self, segment: &Range<usize>, tokens: usize) {
        if segment.start > 0 {
            self.cuts.push((self.from + segment.start, tokens));
        }
    }
}

/// The tokens and cuts that are known for the beginning of a text.
#[derive(Default)]
struct PrefixTokens<'k> {
    /// Tokens, and how many of them are the beginning's.
    ids: Option<(&'k Rope<u32>, usize)>,
    cuts: &'k [(usize, usize)],
    /// The place where the beginning ends.
    from: usize,
}

impl Engine {
    fn encode(&self, text: &str, add_special_tokens: bool) -> Option<Vec<u32>> {
        match self {
            Self::Quick(quick) => quick.encode_with_special_tokens(text, add_special_tokens).ok(),
            Self::Common(common) => plain(common, text, add_special_tokens),
        }
    }
}

/// The ids of the common library.
fn plain(library: &tokenizers::Tokenizer, text: &str, add_special_tokens: bool) -> Option<Vec<u32>> {
    library.encode_fast(text, add_special_tokens).ok().map(|encoding| encoding.get_ids().to_vec())
}

/// The quick library, if it reads the file and agrees with the common one; else why not.
fn quick(file: &Path, common: &tokenizers::Tokenizer) -> Result<fastokens::Tokenizer, String> {
    let added = common.get_added_tokens_decoder();
    if cuts::normalizes(common) && added.values().any(|token| token.normalized) {
        return Err("it has added tokens that match normalized text".to_owned());
    }
    let mut quick = fastokens::Tokenizer::from_file(file).map_err(|error| error.to_string())?;
    quick.set_truncation(None);
    quick.set_padding(None);
    probes::agree(common, &quick)?;
    Ok(quick)
}

#[cfg(test)]
mod tests;
