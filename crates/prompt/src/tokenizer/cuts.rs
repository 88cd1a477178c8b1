//! Cuts: positions where a text can be divided so that its parts, tokenized separately, have the same tokens as the
//! whole.
//!
//! The common library, `tokenizers`, first takes the added tokens out of a text, the longest at the leftmost position;
//! everything else (normalizers, pre-tokenizers, the model) then processes each piece between added tokens separately.
//! A text can therefore be cut before an added token if the token is always found there:
//!
//! - the token is matched in the original text (not in normalized text, if that differs), and takes no white space beside it
//!   (`lstrip`, `rstrip`);
//! - no other added token, nor the same one, can begin before the token ends and overlap it;
//! - no added token depends on its neighbours (`single_word`).
//!
//! The cut is before the token and not after it, so that no later piece counts as the first: some pre-tokenizers
//! (`Metaspace` with `prepend_scheme: first`) treat the beginning of the text differently.
//!
//! When several pieces are tokenized at once, the output is divided at the tokens that begin pieces. Their number must
//! equal the number of cuts, since a model may also produce one of these tokens from other text.

use std::ops::Range;

use aho_corasick::{AhoCorasick, FindIter, MatchKind};

/// Special tokens before which texts can be cut into pieces that are tokenized separately.
#[derive(Debug)]
pub(super) struct Cuts {
    tokens: AhoCorasick,
    /// Bit set of the ids of the tokens before which texts are cut.
    pub(super) ids: Box<[u64]>,
    /// Lowest id of the tokens before which texts are cut.
    lowest: u32,
    /// Highest id of the tokens before which texts are cut.
    highest: u32,
    /// Length of the longest text of a token before which texts are cut, in bytes.
    pub(super) longest: usize,
}

impl Cuts {
    /// Finds the added tokens of a tokenizer before which texts can be cut; `None` if there are none.
    pub(super) fn of(library: &tokenizers::Tokenizer) -> Option<Self> {
        let normalizes = normalizes(library);
        let added = library.get_added_tokens_decoder();
        if added.values().any(|token| token.single_word) {
            return None;
        }
        let all: Vec<&str> =
            added.values().map(|token| token.content.as_str()).filter(|text| !text.is_empty()).collect();
        let safe: Vec<(u32, &str)> = added
            .iter()
            .filter(|(_, token)| !(token.lstrip || token.rstrip || token.normalized && normalizes))
            .map(|(id, token)| (*id, token.content.as_str()))
            .filter(|(_, text)| !text.is_empty() && all.iter().all(|other| apart(text, other)))
            .collect();
        Self::at(&safe)
    }

    fn at(tokens: &[(u32, &str)]) -> Option<Self> {
        let longest = tokens.iter().map(|(_, text)| text.len()).max()?;
        let lowest = tokens.iter().map(|(id, _)| *id).min()?;
        let highest = tokens.iter().map(|(id, _)| *id).max()?;
        let mut ids = vec![0; highest as usize / 64 + 1].into_boxed_slice();
        tokens.iter().for_each(|(id, _)| ids[*id as usize / 64] |= 1 << (id % 64));
        let texts = tokens.iter().map(|(_, text)| text);
        let tokens = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(texts).ok()?;
        Some(Self { tokens, ids, lowest, highest, longest })
    }

    /// Iterates over the ranges of the pieces into which a text is cut before special tokens, in order. Together the
    /// pieces cover the text.
    pub(super) fn segments<'t>(&'t self, text: &'t str) -> impl Iterator<Item = Range<usize>> {
        Pieces { length: text.len(), from: 0, found: self.tokens.find_iter(text), done: text.is_empty() }
    }

    /// True if a text begins with a token before which texts are cut.
    pub(super) fn is_before(&self, text: &str) -> bool {
        let beginning = &text.as_bytes()[..text.len().min(self.longest)];
        self.tokens.find(beginning).is_some_and(|found| found.start() == 0)
    }

    /// Indexes, in a list of token ids, of the tokens before which texts are cut.
    pub(super) fn places(&self, ids: &[u32]) -> impl Iterator<Item = usize> {
        /// Number of ids compared at once. Most groups of 64 ids contain no token before which texts are cut, and the
        /// ids of these tokens are mostly adjacent numbers.
        const RUN: usize = 64;
        let span = self.highest - self.lowest;
        let may_be_cut = move |any, id: &u32| any | (id.wrapping_sub(self.lowest) <= span);
        let is_cut = |id: u32| self.ids.get(id as usize / 64).is_some_and(|bits| bits >> (id % 64) & 1 == 1);
        let runs = ids.chunks(RUN).enumerate().filter(move |(_, run)| run.iter().fold(false, may_be_cut));
        runs.flat_map(move |(number, run)| {
            let cuts = run.iter().enumerate().filter(move |(_, id)| is_cut(**id));
            cuts.map(move |(at, _)| number * RUN + at)
        })
    }
}

/// True if two tokens cannot overlap in any text, except as the same token at the same position.
fn apart(token: &str, other: &str) -> bool {
    let overlaps = |first: &str, second: &str| {
        (1..first.len()).filter(|&at| first.is_char_boundary(at)).any(|at| second.starts_with(&first[at..]))
    };
    (token == other || (!token.contains(other) && !other.contains(token)))
        && !overlaps(token, other)
        && !overlaps(other, token)
}

struct Pieces<'t> {
    length: usize,
    from: usize,
    found: FindIter<'t, 't>,
    done: bool,
}

impl Iterator for Pieces<'_> {
    type Item = Range<usize>;

    fn next(&mut self) -> Option<Range<usize>> {
        if self.done {
            return None;
        }
        let next = self.found.by_ref().map(|found| found.start()).find(|&start| start > self.from);
        self.done = next.is_none();
        let piece = self.from..next.unwrap_or(self.length);
        self.from = piece.end;
        Some(piece)
    }
}

/// True if a tokenizer normalizes text before tokenizing. An empty list of normalizers, which some tokenizers have,
/// changes nothing.
pub(super) fn normalizes(common: &tokenizers::Tokenizer) -> bool {
    common.get_normalizer().is_some_and(|normalizer| {
        let json = serde_json::to_value(normalizer).unwrap_or_default();
        json["normalizers"].as_array().is_none_or(|all| !all.is_empty())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_that_may_overlap() {
        for (token, other, expected) in [
            ("<|a|>", "<|a|>", true),
            ("<|a|>", "<|b|>", true),
            ("<|a|>", "<|a|>\n", false),
            ("<|a|>", "|", false),
            ("<|a|>", ">>", false),
            ("<|a|>", "x<", false),
            ("abab", "abab", false),
            ("<s>", "</s>", true),
        ] {
            assert_eq!(apart(token, other), expected, "{token} {other}");
            assert_eq!(apart(other, token), expected, "{other} {token}");
        }
    }

    #[test]
    fn pieces_are_the_text() {
        let cuts = Cuts::at(&[(64, "<a>"), (1, "<b>")]).unwrap();
        for (text, expected) in [
            ("", vec![]),
            ("x", vec!["x"]),
            ("<a>", vec!["<a>"]),
            ("<a>x<b><b>y", vec!["<a>x", "<b>", "<b>y"]),
            ("x<a>", vec!["x", "<a>"]),
        ] {
            assert_eq!(cuts.segments(text).map(|piece| &text[piece]).collect::<Vec<_>>(), expected);
        }
        for (text, expected) in [("", false), ("<a>", true), ("<b>x", true), ("x<a>", false), ("<a", false)] {
            assert_eq!(cuts.is_before(text), expected, "{text}");
        }
        let places = |ids: &[u32]| cuts.places(ids).collect::<Vec<_>>();
        assert_eq!(places(&[64, 0, 1, 1, 65, 128, 64]), [0, 2, 3, 6]);
        assert_eq!(places(&[7, 1]), [1]);
        let many: Vec<u32> = (0..1000).map(|at| if at % 130 == 0 { 1 } else { 65 + at }).collect();
        assert_eq!(places(&many), (0..1000).step_by(130).collect::<Vec<_>>());
    }
}
