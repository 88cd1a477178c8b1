//! Tests of the JSON reader.

use super::*;

fn code<T: std::fmt::Debug>(result: Result<T>) -> &'static str {
    result.expect_err("refused").code
}

fn tokens_of(json: &str) -> Result<Vec<u32>> {
    let mut into = Vec::new();
    let mut reader = Reader::new(json.as_bytes());
    reader.tokens("token_ids", &mut into)?;
    reader.end()?;
    Ok(into)
}

fn hashes(json: &str) -> Result<Vec<u64>> {
    let mut into = Vec::new();
    let mut reader = Reader::new(json.as_bytes());
    reader.hashes("block_hashes", &mut into)?;
    reader.end()?;
    Ok(into)
}

#[test]
fn every_length_of_a_token_in_every_surrounding() {
    let mut all = vec![0, 1, 9, 10, 4_294_967_295, 4_294_967_290, 99_999_999, 100_000_000, 12_345_678];
    for power in 0..10 {
        all.extend([10u32.pow(power), 10u32.pow(power) - 1, 10u32.pow(power).wrapping_mul(7)]);
    }
    for token in &all {
        for json in [format!("[{token}]"), format!("[{token},{token}]"), format!(" [ {token} ,\n{token}\t] ")] {
            let expected: Vec<u32> = serde_json::from_str(&json).expect("JSON");
            assert_eq!(tokens_of(&json), Ok(expected), "{json}");
        }
    }
    let json = serde_json::to_string(&all).expect("JSON");
    assert_eq!(tokens_of(&json), Ok(all));
    assert_eq!(tokens_of("[]"), Ok(vec![]));
    assert_eq!(tokens_of(" [ ] "), Ok(vec![]));
}

/// Checks long lists, which are parsed in blocks of 64 bytes: wherever an item lies within a block, the result equals a
/// general parser's.
#[test]
fn long_lists_with_anything_anywhere() {
    for separator in [",", ", ", " ,", ",  ", ",\n"] {
        for digits in 1..=10 {
            let tokens: Vec<u32> =
                (0..200u32).map(|n| n.wrapping_mul(2_654_435_761) % 10u32.saturating_pow(digits)).collect();
            let texts: Vec<String> = tokens.iter().map(u32::to_string).collect();
            let json = format!("[{}]", texts.join(separator));
            assert_eq!(tokens_of(&json), Ok(tokens), "{json}");
            // Lists of ten lengths of numbers, with five separators, place every fifth number anywhere in a block.
            for at in (0..200).step_by(5) {
                for strange in ["", "-1", "01", "1.5", "4294967295", "4294967296", "é", "1e1", " 7 ", "null", ",", "]"]
                {
                    let mut texts = texts.clone();
                    texts[at] = strange.to_owned();
                    let json = format!("[{}]", texts.join(separator));
                    let theirs = serde_json::from_str::<Vec<u32>>(&json);
                    assert_eq!(tokens_of(&json).ok(), theirs.ok(), "{json}");
                }
            }
        }
    }
}

#[test]
fn tokens_of_another_type() {
    for json in [
        "[-1]",
        "[1.0]",
        "[1e3]",
        "[4294967296]",
        "[18446744073709551616]",
        "[99999999999999999999999]",
        "[null]",
        "[\"1\"]",
        "[true]",
        "[[1]]",
        "[{}]",
        "{}",
        "1",
        "null",
        "\"1\"",
        "[1,-1]",
        "[1234567.5]",
        "[12345678.5]",
        "[12345678e1]",
        "[-0]",
        "[1E2]",
    ] {
        assert_eq!(code(tokens_of(json)), "wrong_type", "{json}");
    }
}

#[test]
fn tokens_that_are_no_json() {
    for json in [
        "",
        "[",
        "[1",
        "[1,",
        "[1,]",
        "[,1]",
        "[1 2]",
        "[01]",
        "[00]",
        "[-]",
        "[1.]",
        "[1e]",
        "[NaN]",
        "[Infinity]",
        "[+1]",
        "[0x10]",
        "[1]]",
        "[1],",
        "[1,,2]",
        "nul",
        "[tru]",
        "[\"]",
        "[1}",
        "\u{feff}[1]",
        "[1_000]",
        "[1;2]",
        "['1']",
        "[.5]",
        "[-01]",
        "[1:2]",
        "[\u{0}]",
        "[0123456789]",
    ] {
        assert_eq!(code(tokens_of(json)), "malformed_json", "{json:?}");
    }
}

#[test]
fn eight_bytes_stop_at_every_byte_that_is_no_digit() {
    for stop in (0..=255u8).filter(|byte| !byte.is_ascii_digit()) {
        for digits in 0..8 {
            let mut bytes = *b"98765432";
            bytes[digits] = stop;
            let expected = String::from_utf8_lossy(&bytes[..digits]).parse().unwrap_or(0);
            assert_eq!(up_to_eight(u64::from_le_bytes(bytes)), (expected, digits), "{stop} after {digits}");
        }
    }
    assert_eq!(up_to_eight(u64::from_le_bytes(*b"98765432")), (98_765_432, 8));
}

#[test]
fn hashes_of_either_sign() {
    assert_eq!(
        hashes("[0, 18446744073709551615, -1, -9223372036854775808, 9223372036854775808, -0]"),
        Ok(vec![0, u64::MAX, u64::MAX, 1 << 63, 1 << 63, 0])
    );
    for json in ["[18446744073709551616]", "[-9223372036854775809]", "[1.5]", "[\"1\"]", "[1e5]", "[-1.0]", "[null]"] {
        assert_eq!(code(hashes(json)), "wrong_type", "{json}");
    }
    for json in ["[--1]", "[-]", "[012]", "[-012]", "[1", "[1 ", "[- 1]"] {
        assert_eq!(code(hashes(json)), "malformed_json", "{json}");
    }
}

#[test]
fn strings() {
    let string = |json: &'static str| Reader::new(json.as_bytes()).string("name").map(Cow::into_owned);
    assert_eq!(string(r#""Qwen/Qwen3-8B""#), Ok("Qwen/Qwen3-8B".into()));
    assert_eq!(string("\"déjà\""), Ok("déjà".into()));
    assert_eq!(string(r#" "a\"\\\u00e9\n" "#), Ok("a\"\\é\n".into()));
    for json in [r#""a"#, r#""a\x""#, r#""\ud800""#, "\"a\nb\"", r#""\"#, r#""\u12"#] {
        assert_eq!(code(string(json)), "malformed_json", "{json}");
    }
    assert_eq!(code(string("7")), "wrong_type");
    assert_eq!(code(Reader::new(b"\"\xff\"").string("name")), "malformed_json");
    assert_eq!(code(Reader::new(b"\"\xff\\n\"").string("name")), "malformed_json");
}

#[test]
fn skipped_values_must_be_json() {
    let skip = |json: &str| {
        let mut reader = Reader::new(json.as_bytes());
        reader.skip()?;
        reader.end()
    };
    for json in ["1", "-1.5e+10", "0.1", "\"a\"", "[1,[2,{\"a\":null}]]", "{\"a\":{\"b\":[true,false]}}", " {} "] {
        assert_eq!(skip(json), Ok(()), "{json}");
    }
    let deep = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
    assert_eq!(skip(&deep(DEPTH)), Ok(()));
    for json in ["", "{\"a\"}", "{a:1}", "{\"a\":}", "[1,]", "{\"a\":1,}", "tru", "1.", "01", "-", &deep(DEPTH + 1)] {
        assert_eq!(code(skip(json)), "malformed_json", "{json}");
    }
    assert_eq!(code(skip(&"[".repeat(1_000_000))), "malformed_json");
}

/// Checks that the reader agrees with serde_json on all short documents made of the relevant characters.
#[test]
fn agrees_with_serde_json() {
    let alphabet = *b"[]{},:\"0a1-.e ";
    let mut document = Vec::new();
    for mut number in 0..alphabet.len().pow(5) {
        document.clear();
        while number > 0 {
            document.push(alphabet[number % alphabet.len()]);
            number /= alphabet.len();
        }
        let mut reader = Reader::new(&document);
        let ours = reader.skip().is_ok() && reader.end().is_ok();
        let theirs = serde_json::from_slice::<serde::de::IgnoredAny>(&document);
        assert_eq!(ours, theirs.is_ok(), "{:?}", String::from_utf8_lossy(&document));
    }
}
