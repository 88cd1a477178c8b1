//! Texts on which the two tokenizer libraries are compared when a tokenizer is opened.

use super::plain;

/// Texts on which tokenizers tend to differ: contractions, numbers, white space of every kind, scripts, marks, code.
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

/// Checks that both libraries agree on all probes, and on every added token between words; an error describes the
/// difference.
pub(super) fn agree(common: &tokenizers::Tokenizer, quick: &fastokens::Tokenizer) -> Result<(), String> {
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

/// The tokens that are added before and after every text; none if the additions depend on the text.
pub(super) fn around(library: &tokenizers::Tokenizer) -> Option<(Vec<u32>, Vec<u32>)> {
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
