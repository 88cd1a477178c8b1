//! Decoding of texts, to find what any program behind the server may read in them.

use std::borrow::Cow;

/// A text decoded until nothing changes: `%41`, `%2541`, `%u0041`, and overlong UTF-8 of ASCII characters.
#[must_use]
pub fn plain(text: &[u8]) -> Cow<'_, [u8]> {
    if !text.iter().any(|byte| *byte == b'%' || *byte >= 0xc0) {
        return Cow::Borrowed(text);
    }
    let mut out = Vec::with_capacity(text.len());
    for byte in text {
        out.push(*byte);
        // No encoding begins within another, so each is decoded at its last byte.
        while let Some((length, decoded)) = encoded(&out) {
            out.truncate(out.len() - length);
            out.push(decoded);
        }
    }
    Cow::Owned(out)
}

/// The encoded byte at the end of a text: the length of its encoding, and its value.
fn encoded(text: &[u8]) -> Option<(usize, u8)> {
    let hex = |digit: u8| (digit as char).to_digit(16).map(|digit| digit as u8);
    match *text {
        [.., b'%', a, b] => Some((3, hex(a)? << 4 | hex(b)?)),
        [.., b'%', b'u' | b'U', b'0', b'0', a, b] => {
            Some((6, hex(a)? << 4 | hex(b)?)).filter(|(_, decoded)| decoded.is_ascii())
        }
        [.., first @ (0xc0 | 0xc1), last @ 0x80..=0xbf] => Some((2, (first & 1) << 6 | (last & 0x3f))),
        [.., 0xe0, first @ (0x80 | 0x81), last @ 0x80..=0xbf] => Some((3, (first & 1) << 6 | (last & 0x3f))),
        [.., 0xf0, 0x80, first @ (0x80 | 0x81), last @ 0x80..=0xbf] => Some((4, (first & 1) << 6 | (last & 0x3f))),
        _ => None,
    }
}

/// The bytes of a base64 text, in either alphabet; incomplete last bytes are dropped.
pub(crate) fn from_base64(text: &[u8]) -> Vec<u8> {
    let (mut out, mut word, mut bits) = (Vec::with_capacity(text.len() * 3 / 4), 0_u32, 0);
    for sign in text.iter().map_while(|byte| base64_sign(*byte)) {
        (word, bits) = (word << 6 | u32::from(sign), bits + 6);
        if bits >= 8 {
            bits -= 8;
            out.push((word >> bits) as u8);
        }
    }
    out
}

/// The value of a base64 character, in either alphabet.
pub(crate) fn base64_sign(byte: u8) -> Option<u8> {
    Some(match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' | b'-' => 62,
        b'/' | b'_' => 63,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_decoded_until_nothing_changes() {
        for (text, wanted) in [
            (&b"/v1/x"[..], &b"/v1/x"[..]),
            (b"%2e%2E", b".."),
            (b"%252e", b"."),
            (b"%25%32%35%32%65", b"."),
            (b"%2%35%32e", b"."),
            (b"%%32e", b"."),
            (b"%u002e%U002F", b"./"),
            (b"%c0%ae\xc0\xaf", b"./"),
            (b"%e0%80%ae%f0%80%80%af", b"./"),
            (b"%c0%a52e", b"."),
            (b"%c3%a9%zz%", b"\xc3\xa9%zz%"),
            (b"%u00e9", b"%u00e9"),
        ] {
            assert_eq!(&*plain(text), wanted, "{}", text.escape_ascii());
        }
        let deep = [b"%".as_slice(), &b"25".repeat(100_000), b"2e"].concat();
        assert_eq!(&*plain(&deep), b".");
    }

    #[test]
    fn base64_of_both_alphabets() {
        assert_eq!(from_base64(b"YWRtMW4="), b"adm1n");
        assert_eq!(from_base64(b"-_8"), from_base64(b"+/8="));
        assert_eq!(from_base64(b""), b"");
    }
}
