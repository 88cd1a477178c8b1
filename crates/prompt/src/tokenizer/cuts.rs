//! Where a text can be cut so that its parts have the same tokens as the whole.
//!
//! The common library first takes the added tokens out of a text, the longest at the leftmost place; everything else
//! (normalizers, pre-tokenizers, the model) then sees each piece between them by itself. So a text can be cut where an
//! added token begins, if that token is always found there:
//!
//! - it is looked for in the text as it is (not in normalized text, if that is another), and takes no white space beside it (`lstrip`, `rstrip`);
//! - no other added token, nor itself, can begin before it ends and overlap it;
//! - no added token asks what stands beside it (`single_word`).
//!
//! The cut is before the token and not after, so that a piece knows that it is not the first: some pre-tokenizers
//! (`Metaspace` with `prepend_scheme: first`) treat the beginning of the text in another way.

use aho_corasick::{AhoCorasick, FindIter, MatchKind};

/// The tokens before which texts are cut.
#[derive(Debug)]
pub(super) struct Cuts {
    tokens: AhoCorasick,
    /// Bytes of the longest of them.
    pub(super) longest: usize,
}

impl Cuts {
    /// Those of a tokenizer; none if there is nothing to cut at.
    pub(super) fn of(library: &tokenizers::Tokenizer) -> Option<Self> {
        let normalizes = super::normalizes(library);
        let added: Vec<_> = library.get_added_tokens_decoder().into_values().collect();
        if added.iter().any(|token| token.single_word) {
            return None;
        }
        let all: Vec<&str> = added.iter().map(|token| token.content.as_str()).filter(|text| !text.is_empty()).collect();
        let safe: Vec<&str> = added
            .iter()
            .filter(|token| !(token.lstrip || token.rstrip || token.normalized && normalizes))
            .map(|token| token.content.as_str())
            .filter(|text| !text.is_empty() && all.iter().all(|other| apart(text, other)))
            .collect();
        if safe.is_empty() {
            return None;
        }
        let longest = safe.iter().map(|text| text.len()).max().unwrap_or(0);
        let tokens = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(safe).ok()?;
        Some(Self { tokens, longest })
    }

    /// A text's pieces, in order. All of them together are the text.
    pub(super) fn segments<'t>(&'t self, text: &'t str) -> impl Iterator<Item = &'t str> {
        Pieces { text, from: 0, found: self.tokens.find_iter(text), done: text.is_empty() }
    }
}

/// Whether two tokens cannot overlap in any text, unless they are the same and at the same place.
fn apart(token: &str, other: &str) -> bool {
    let overlaps = |first: &str, second: &str| {
        (1..first.len()).filter(|&at| first.is_char_boundary(at)).any(|at| second.starts_with(&first[at..]))
    };
    (token == other || (!token.contains(other) && !other.contains(token)))
        && !overlaps(token, other)
        && !overlaps(other, token)
}

struct Pieces<'t> {
    text: &'t str,
    from: usize,
    found: FindIter<'t, 't>,
    done: bool,
}

impl<'t> Iterator for Pieces<'t> {
    type Item = &'t str;

    fn next(&mut self) -> Option<&'t str> {
        if self.done {
            return None;
        }
        let next = self.found.by_ref().map(|found| found.start()).find(|&start| start > self.from);
        self.done = next.is_none();
        let piece = &self.text[self.from..next.unwrap_or(self.text.len())];
        self.from += piece.len();
        Some(piece)
    }
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
        let tokens = AhoCorasick::new(["<a>", "<b>"]).unwrap();
        let cuts = Cuts { tokens, longest: 3 };
        for (text, expected) in [
            ("", vec![]),
            ("x", vec!["x"]),
            ("<a>", vec!["<a>"]),
            ("<a>x<b><b>y", vec!["<a>x", "<b>", "<b>y"]),
            ("x<a>", vec!["x", "<a>"]),
        ] {
            assert_eq!(cuts.segments(text).collect::<Vec<_>>(), expected);
        }
    }
}
