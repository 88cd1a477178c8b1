//! Tests that every way of tokenizing a text gives the same tokens as the common library (`tokenizers`) for the whole
//! text.
//!
//! The environment variable `KVATLAS_TOKENIZER` names another `tokenizer.json` on which to compare the libraries.

use std::path::PathBuf;

use proptest::prelude::*;

use super::*;

fn file(name: &str) -> PathBuf {
    PathBuf::from(format!("{}/tests/data/{name}/tokenizer.json", env!("CARGO_MANIFEST_DIR")))
}

/// One tokenizer opened with each library, and the common library itself.
struct TokenizerPair {
    ours: Tokenizer,
    right: tokenizers::Tokenizer,
}

impl TokenizerPair {
    fn open(file: &Path, library: Library) -> Self {
        let ours = Tokenizer::open(file, library, 1 << 20).unwrap().0;
        let mut right = tokenizers::Tokenizer::from_file(file).unwrap();
        right.with_truncation(None).unwrap();
        right.with_padding(None);
        Self { ours, right }
    }

    fn check(&self, text: &str) {
        for special in [false, true] {
            // Much of it is remembered the second time.
            for _ in 0..2 {
                assert_eq!(
                    self.ours.encode(text, special).map(|made| made.ids.to_vec()),
                    plain(&self.right, text, special),
                    "{special} {text:?}"
                );
            }
        }
    }
}

#[test]
fn the_quick_library_is_taken_where_it_agrees() {
    for (name, quick) in [("byte_level", true), ("metaspace", false), ("unigram", false)] {
        let (tokenizer, note) = Tokenizer::open(&file(name), Library::Best, 0).unwrap();
        assert_eq!(matches!(tokenizer.engine, Engine::Quick(_)), quick, "{name} {note:?}");
        assert_eq!(note.is_none(), quick);
    }
}

#[test]
fn tokens_that_others_overlap_are_no_cuts() {
    let cuts = |name| Cuts::of(&tokenizers::Tokenizer::from_file(file(name)).unwrap());
    let text = "<s>a<|im_start|>b<|im_end|>\nc<|im_end|>";
    let pieces = |name| cuts(name).unwrap().segments(text).map(|piece| text[piece].to_owned()).collect::<Vec<_>>();
    assert_eq!(pieces("metaspace"), ["<s>a", "<|im_start|>b", "<|im_end|>\nc", "<|im_end|>"]);
    // In this tokenizer one token covers the end of a turn and a line feed.
    assert_eq!(pieces("unigram"), ["<s>a", "<|im_start|>b<|im_end|>\nc<|im_end|>"]);
}

#[test]
fn what_is_not_a_tokenizer() {
    let error = Tokenizer::open(&file("nothing"), Library::Best, 0).unwrap_err().to_string();
    assert!(error.contains("nothing/tokenizer.json"), "{error}");
}

/// Random texts like those of conversations, with special tokens at wrong places.
fn text() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        4 => "[a-zA-Z' ]{0,20}",
        2 => "[ \t\r\n]{0,5}",
        2 => "\\PC{0,8}",
        1 => "[0-9]{0,12}",
        1 => "(é|e\u{301}|漢|字|😀|👩‍👩‍👧|ﬁ|½|\u{a0}|\u{3000}|\u{feff}|ß|İ){0,6}",
        1 => any::<String>(),
        3 => prop::sample::select(vec![
            "<|im_start|>", "<|im_end|>", "<|im_end|>\n", "<|endoftext|>", "<s>", "</s>", "<unk>", "<mask>", " <mask> ",
            "<tool_call>", "</tool_call>", "<|im_", "end|>", "<|im_start|", "▁", "<0x0A>", "user\n", "assistant\n",
        ]).prop_map(str::to_owned),
    ];
    prop::collection::vec(piece, 0..30).prop_map(|pieces| pieces.concat())
}

fn cases() -> ProptestConfig {
    let cases = kvatlas_testing::seeds(300).try_into().expect("few");
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

fn random(both: &TokenizerPair) {
    proptest!(cases(), |(one in text(), two in text(), three in text())| {
        both.check(&one);
        both.check(&format!("{one}{two}"));
        // An edit in the middle of the remembered text.
        both.check(&format!("{one}{three}{two}"));
    });
}

#[test]
fn quick_is_exact() {
    random(&TokenizerPair::open(&file("byte_level"), Library::Best));
}

#[test]
fn quick_is_exact_where_it_remembers() {
    let both = TokenizerPair::open(&file("byte_level"), Library::Best);
    assert!(matches!(both.ours.engine, Engine::Quick(_)) && both.ours.cuts.is_some());
    proptest!(cases(), |(one in text(), two in text(), three in text())| {
        let words = "some words, 12 of them; ".repeat(QUICK_PIECE / 8);
        let long = format!("{one}{words}<|im_end|>{words}{two}");
        let text = long.repeat(QUICK_TEXT / long.len() + 1);
        both.check(&text);
        both.check(&format!("{text}{three}{words}"));
        prop_assert!(both.ours.segments.bytes() > 0);
    });
}

/// Checks a text for which the library returns more tokens that begin pieces than the text has pieces: the pieces are
/// then tokenized one by one.
#[test]
fn it_is_exact_where_other_text_makes_such_tokens() {
    let mut both = TokenizerPair::open(&file("byte_level"), Library::Best);
    let all = both.ours.cuts.as_mut().expect("tokens to cut at");
    all.ids.fill(u64::MAX);
    let words = "some words, 12 of them; ".repeat(QUICK_PIECE / 8);
    both.check(&format!("{words}<|im_start|>{words}<|im_end|>\n<|im_start|>{words}").repeat(4));
    assert!(both.ours.segments.bytes() > 0);
}

#[test]
fn remembered_is_exact_byte_level() {
    random(&TokenizerPair::open(&file("byte_level"), Library::Common));
}

#[test]
fn remembered_is_exact_metaspace() {
    random(&TokenizerPair::open(&file("metaspace"), Library::Best));
}

#[test]
fn remembered_is_exact_unigram() {
    random(&TokenizerPair::open(&file("unigram"), Library::Best));
}

/// Checks a piece of line feeds, which gives no token, beside unknown text, which gives a token that begins pieces: the
/// number of these tokens then equals the number of pieces by chance.
#[test]
fn a_piece_without_tokens_is_not_taken_for_the_next_one() {
    let both = TokenizerPair::open(&file("unigram"), Library::Best);
    for text in ["\r\n\n</s>&𒑱 /%<unk>k", "\n</s>𒑱", "</s>&𒑱 /%", "</s>", "<unk>k</s>𒑱", "\n"] {
        both.check(text);
    }
}

#[test]
fn a_tokenizer_of_yours_is_exact() {
    let Ok(file) = std::env::var("KVATLAS_TOKENIZER") else { return };
    for library in [Library::Best, Library::Common] {
        let both = TokenizerPair::open(Path::new(&file), library);
        random(&both);
    }
}
