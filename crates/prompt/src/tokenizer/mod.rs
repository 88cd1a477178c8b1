//! Tokenizer for the files of Hugging Face (`tokenizer.json`), exact and fast.
//!
//! Two libraries read `tokenizer.json`. The common library, `tokenizers`, reads all files; engines use it, so its
//! result is the right one. The quick library, `fastokens`, reads most byte-pair encodings and is tens of times as
//! fast, with a cache of words per thread. A tokenizer is opened with both, compared on some texts, and the quick
//! library is used if they agree. With either, [`segments`] caches the tokens of text between special tokens: of a
//! growing conversation, only the new text is tokenized.

mod cuts;
mod segments;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::path::Path;

use crate::allowance::{self, MOST_TOKENS};
use crate::prompt_tokens::{Error, PromptFailure};
use crate::rope::Rope;
use cuts::Cuts;
use segments::{Key, Segments};

/// Minimum length of a text whose tokens are cached, in bytes, with the quick library: shorter texts are tokenized
/// faster than looked up.
const QUICK_TEXT: usize = 4096;
/// Minimum length of a piece between two special tokens whose tokens are cached, in bytes, with the quick library.
const QUICK_PIECE: usize = 256;

/// Length of text that is tokenized at once, in bytes; the deadline is checked after each batch of this length.
const PIECE: usize = 256 << 10;
/// Maximum length of a piece of text that the quick library tokenizes whole, in bytes; of a longer piece only the
/// beginning is tokenized.
const LONGEST_FOR_QUICK: usize = 1 << 20;
/// Maximum length of a piece of text that the common library tokenizes whole, in bytes; of a longer piece only the
/// beginning is tokenized.
const LONGEST_FOR_COMMON: usize = 256 << 10;
/// Number of tokens dropped at the end if only a text's beginning is tokenized, since the following text may change
/// them.
const UNSURE: usize = 64;

/// Converter of text to token ids, with a cache of converted texts.
#[derive(Debug)]
pub(crate) struct Tokenizer {
    engine: Engine,
    /// Special tokens before which texts are cut into separately tokenized pieces; `None` if texts cannot be cut.
    cuts: Option<Cuts>,
    segments: Segments,
    /// Special tokens added before and after every text; `None` if the added tokens depend on the text.
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

/// Tokens of a text, with the positions where the text was cut for tokenizing.
#[derive(Debug, Clone, Default)]
pub(crate) struct TextTokens {
    pub(crate) ids: Rope<u32>,
    /// Positions where the text was cut into pieces: for each, the offset in bytes and the number of tokens before it.
    cuts: Vec<(usize, usize)>,
    /// Reason why the tokens cover only the text's beginning; `None` if they cover the whole text.
    pub(crate) cut: Option<PromptFailure>,
}

impl TextTokens {
    /// Memory of the tokens and of the positions where the text was cut, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.ids.bytes() + self.cuts.capacity() * size_of::<(usize, usize)>()
    }
}

/// Choice of the library that tokenizes texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Library {
    /// The quick library (`fastokens`) if its tokens equal those of the common library, else the common library.
    #[default]
    Best,
    /// The common library (`tokenizers`).
    Common,
}

impl Tokenizer {
    /// Opens a `tokenizer.json`. `cache_bytes`: maximum memory of the cache of tokens, in bytes. Also returns the
    /// reason why the quick library is not used; `None` if it is used.
    pub(crate) fn open(file: &Path, library: Library, cache_bytes: usize) -> Result<(Self, Option<String>), Error> {
        let bad = |message: String| Error::File { path: file.to_owned(), message };
        let mut common = tokenizers::Tokenizer::from_file(file)
            .map_err(|error| bad(error.to_string().lines().next().unwrap_or_default().to_owned()))?;
        // Engines truncate and pad prompts themselves, if at all.
        common.with_truncation(None).map_err(|error| bad(error.to_string()))?;
        common.with_padding(None);
        let cuts = Cuts::of(&common);
        let around = around(&common);
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

    /// Tokenizes a text; `None` if the library fails, which no known text causes.
    pub(crate) fn encode(&self, text: &str, add_special_tokens: bool) -> Option<TextTokens> {
        let (before, after): (&[u32], &[u32]) = match (&self.around, add_special_tokens) {
            (_, false) => (&[], &[]),
            (Some((before, after)), true) => (before, after),
            (None, true) if text.len() > self.longest() => {
                // Tokens added at the end of the text are not among those of its beginning.
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

    /// Tokenizes a text, without special tokens around it, using the known tokens of another text that shares its first
    /// `common` bytes.
    pub(crate) fn encode_next(&self, text: &Rope<u8>, common: usize, known: &TextTokens) -> Option<TextTokens> {
        let Some(places) = self.places(text.len()) else {
            return self.encode(std::str::from_utf8(&text.flat()).ok()?, false);
        };
        // A cut must begin with the same special token in both texts.
        let count = known.cuts.partition_point(|(at, _)| at + places.longest <= common);
        let cuts = &known.cuts[..count];
        let (from, tokens) = cuts.last().copied().unwrap_or_default();
        let rest = String::from_utf8(text.after(from)).ok()?;
        self.encode_on(Vec::new(), PrefixTokens { ids: Some((&known.ids, tokens)), cuts, from }, &rest, places)
    }

    /// Numbers of special tokens added before and after every text; zeros if they depend on the text.
    pub(crate) fn around(&self) -> (usize, usize) {
        self.around.as_ref().map_or((0, 0), |(before, after)| (before.len(), after.len()))
    }

    /// True if texts are tokenized by the quick library (`fastokens`).
    pub(crate) fn is_quick(&self) -> bool {
        matches!(self.engine, Engine::Quick(_))
    }

    /// Returns the special tokens at which to cut a text of `length` bytes; `None` if cutting would not save time.
    fn places(&self, length: usize) -> Option<&Cuts> {
        self.cuts.as_ref().filter(|_| !self.is_quick() || length >= QUICK_TEXT)
    }

    /// Tokenizes the end of a text whose beginning has known tokens. `rest`: text to tokenize; `ids`: list to which the
    /// tokens are appended.
    fn encode_on(&self, ids: Vec<u32>, known: PrefixTokens<'_>, rest: &str, places: &Cuts) -> Option<TextTokens> {
        let before = known.ids.map_or(0, |(_, count)| count);
        let mut made = PartialTokens { ids, cuts: known.cuts.to_vec(), from: known.from, before, cut: None };
        // A run of unknown segments, and the tokens of the known one after it.
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

    /// Tokenizes consecutive pieces of a text in one call of the library, which is faster than a call for each short
    /// piece.
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
        // The first piece may not begin at a cut, and may have no token at all.
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
            // The result may be kept for long.
            if made.ids.capacity() > made.ids.len() / 2 * 3 {
                made.ids.shrink_to_fit();
            }
        } else {
            made.ids.extend_from_slice(&ids);
        }
        Some(())
    }

    /// Tokenizes a text, or the beginning of a long text. Also returns the reason why the rest was left out; `None` if
    /// the whole text was tokenized. The library needs memory of several times the text's length, the common library of
    /// a hundred times.
    fn tokens(&self, text: &str) -> Option<(Vec<u32>, Option<PromptFailure>)> {
        let longest = self.longest();
        if text.len() <= longest {
            return Some((self.engine.encode(text, false)?, None));
        }
        let end = (0..=longest).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        let mut ids = self.engine.encode(&text[..end], false)?;
        // The last tokens might differ if the text continued.
        ids.truncate(ids.len().saturating_sub(UNSURE));
        Some((ids, Some(PromptFailure::TooLong)))
    }

    /// Maximum length of text passed to the tokenizer library at once, in bytes.
    fn longest(&self) -> usize {
        if self.is_quick() { LONGEST_FOR_QUICK } else { LONGEST_FOR_COMMON }
    }

    /// Stores the tokens of a piece of text in the cache. With the quick library (`fastokens`), storing takes a large
    /// part of the time that a later hit saves, so a piece is stored only at its second request.
    fn keep(&self, key: Option<Key>, text: &str, ids: &[u32]) {
        if let Some(key) = key.filter(|key| !self.is_quick() || self.segments.is_asked_again(*key)) {
            self.segments.insert(key, text, ids);
        }
    }

    /// True if the tokens of a text may be stored in the cache: of any text with the common library, of long texts only
    /// with the quick library (`fastokens`).
    fn is_kept(&self, text: &str) -> bool {
        !self.is_quick() || text.len() >= QUICK_PIECE
    }
}

/// Tokens of a text that is being tokenized.
struct PartialTokens {
    ids: Vec<u32>,
    cuts: Vec<(usize, usize)>,
    /// Offset in the text at which the part that is not yet tokenized begins, in bytes.
    from: usize,
    /// Number of tokens before the part that is not yet tokenized.
    before: usize,
    /// Reason why tokenizing stopped early; `None` if it has not stopped.
    cut: Option<PromptFailure>,
}

impl PartialTokens {
    /// True if tokenizing has stopped early, or must stop now because of the deadline.
    fn is_cut(&mut self) -> bool {
        if self.cut.is_none() && self.before + self.ids.len() > MOST_TOKENS {
            self.cut = Some(PromptFailure::TooLong);
        }
        if self.cut.is_none() && allowance::is_late() {
            self.cut = Some(PromptFailure::TookTooLong);
        }
        self.cut.is_some()
    }

    /// Appends `ids`, the tokens of the text's next piece.
    fn push(&mut self, segment: &Range<usize>, ids: &[u32]) {
        self.cut(segment, self.before + self.ids.len());
        self.ids.extend_from_slice(ids);
    }

    /// Records that a piece of the text begins at the start of `segment`, and that `tokens` tokens come before this
    /// piece.
    fn cut(&mut self, segment: &Range<usize>, tokens: usize) {
        if segment.start > 0 {
            self.cuts.push((self.from + segment.start, tokens));
        }
    }
}

/// Known tokens and cut positions of the beginning of a text.
#[derive(Default)]
struct PrefixTokens<'k> {
    /// Known tokens, and the number of them that belong to the beginning of the text.
    ids: Option<(&'k Rope<u32>, usize)>,
    cuts: &'k [(usize, usize)],
    /// Length of the beginning whose tokens are known, in bytes of text.
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

/// Tokenizes a text with the common library (`tokenizers`); `None` if the library fails.
fn plain(library: &tokenizers::Tokenizer, text: &str, add_special_tokens: bool) -> Option<Vec<u32>> {
    library.encode_fast(text, add_special_tokens).ok().map(|encoding| encoding.get_ids().to_vec())
}

/// Opens a tokenizer with the quick library (`fastokens`). Returns an error if the library cannot read the file or its
/// tokens differ from the common library's.
fn quick(file: &Path, common: &tokenizers::Tokenizer) -> Result<fastokens::Tokenizer, String> {
    let added = common.get_added_tokens_decoder();
    if cuts::normalizes(common) && added.values().any(|token| token.normalized) {
        return Err("it has added tokens that match normalized text".to_owned());
    }
    let mut quick = fastokens::Tokenizer::from_file(file).map_err(|error| error.to_string())?;
    quick.set_truncation(None);
    quick.set_padding(None);
    agree(common, &quick)?;
    Ok(quick)
}

/// Sample texts on which tokenizer libraries tend to differ: contractions, numbers, white space of every kind, scripts,
/// combining marks, code.
const TEXTS: &[&str] = &[
    "",
    " ",
    "\n",
    "Hello world! It's 2026, and they'll pay $1,234,567.89 (or 10%).",
    "I'M, we'Re, 'tis 'S 's'S don''t ’s",
    "  two  spaces   three\t\ttabs \n\n\n lines\r\n\r\nend  \n ",
    "a\u{a0}b\u{2003}c\u{3000}d\u{200b}e\u{feff}f\u{85}g\u{b}h",
    "0 12 345 6789 01234 ١٢٣ ４５６ ½ ² ⅷ",
    "Größe ßẞ ñandú Ångström café cafe\u{301} e\u{301}\u{302} ﬁ ǆ İı",
    "漢字かな交じり文。한국어 텍스트, ไทย עברית العربية हिन्दी देवनागरी",
    "😀👩‍👩‍👧‍👦🏳️‍🌈👍🏽 🇩🇪 ♥️",
    "def f(x):\n    return {'a': x[0] ** 2, \"b\": `y` != ~z}  # ...\n\n\n\tif (a&&b)||c{d=e+++f;}//g\n",
    "https://example.org/a_b-c?d=e&f=%20#g user@host.tld C:\\path\\to\\file <tag attr=\"v\">&amp;</tag>",
    "!!!???...---___===***/// :-) ;) <3 =>>= ≠≤≥ «quoted» “quoted” ‹x› – — …",
    "CamelCaseWord snake_case_word SCREAMING_CASE kebab-case x86_64 v1.2.3-rc4 0xDEADBEEF 1e-9",
    "\u{0}\u{1}\u{7f}\u{e000}\u{fffd}\u{10ffff}",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
];

/// Checks that both libraries return the same tokens for all sample texts, and for every added token between words. The
/// error describes the difference.
fn agree(common: &tokenizers::Tokenizer, quick: &fastokens::Tokenizer) -> Result<(), String> {
    let added: Vec<String> = common.get_added_tokens_decoder().into_values().map(|token| token.content).collect();
    let mut whole = TEXTS.join("");
    let mut between = String::from("some words");
    for token in &added {
        between.push_str(token);
        between.push_str(token);
        between.push_str(" and\n ");
        between.push_str(token);
        between.push_str("others ");
    }
    whole.push_str(&between);
    for text in TEXTS.iter().copied().chain([between.as_str(), whole.as_str()]) {
        for special in [false, true] {
            let right = plain(common, text, special).ok_or("the common library fails to tokenize a probe")?;
            let got = quick.encode_with_special_tokens(text, special).map_err(|error| error.to_string())?;
            if right != got {
                let start: String = text.chars().take(40).collect();
                return Err(format!("the fast tokenizer gives other tokens for {start:?}"));
            }
        }
    }
    Ok(())
}

/// Determines the special tokens that a tokenizer adds before and after every text; `None` if they depend on the text.
fn around(library: &tokenizers::Tokenizer) -> Option<(Vec<u32>, Vec<u32>)> {
    let mut found: Option<(Vec<u32>, Vec<u32>)> = None;
    for text in TEXTS {
        let inner = plain(library, text, false)?;
        let outer = plain(library, text, true)?;
        let (before, after) = match &found {
            Some(found) => found.clone(),
            None if inner.is_empty() => continue,
            None => {
                let at = (0..=outer.len().checked_sub(inner.len())?).find(|&at| outer[at..].starts_with(&inner))?;
                (outer[..at].to_vec(), outer[at + inner.len()..].to_vec())
            }
        };
        if outer != [before.as_slice(), &inner, &after].concat() {
            return None;
        }
        found = Some((before, after));
    }
    found
}
