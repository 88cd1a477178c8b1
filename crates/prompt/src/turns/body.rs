//! The list of messages in a body, located without parsing it.
//!
//! The list is found by its name. Its known beginning is recognised by hashes, one for each [`STEP`] bytes and each
//! over all bytes before; the bytes themselves are compared before the match is used. The body without the known
//! messages is then parsed as usual, which also shows whether the list found was really the body's.

use memchr::memmem;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Bytes between two hashes.
pub(super) const STEP: usize = 4096;

/// Offset after the opening bracket of the list with this name (given in its quotes). None if no such list is found.
pub(super) fn list(body: &[u8], name: &str) -> Option<usize> {
    let at = memmem::find(body, name.as_bytes())? + name.len();
    let at = past(body, at, b':')?;
    past(body, at, b'[')
}

/// Offset after white space and the byte `wanted`.
fn past(body: &[u8], at: usize, wanted: u8) -> Option<usize> {
    let at = space(body, at);
    (body.get(at) == Some(&wanted)).then_some(at + 1)
}

/// Offset after white space.
fn space(body: &[u8], at: usize) -> usize {
    let rest = body.get(at..).unwrap_or_default();
    at + rest.iter().position(|byte| !matches!(byte, b' ' | b'\n' | b'\r' | b'\t')).unwrap_or(rest.len())
}

/// One hash for each beginning of the list, [`STEP`] bytes apart.
pub(super) fn keys(list: &[u8], seed: u64) -> Vec<u64> {
    let mut before = seed;
    let next = |step: &[u8]| {
        before = xxh3_64_with_seed(step, before);
        before
    };
    list.chunks_exact(STEP).map(next).collect()
}

/// The body without the first messages of the list, which begins at `list`; the removed messages end at `end`. Also
/// returns the offset in the body where the rest of the list begins. None if the list does not continue as it should.
pub(super) fn without(body: &[u8], list: usize, end: usize) -> Option<(Vec<u8>, usize)> {
    let at = space(body, end);
    let rest = match body.get(at)? {
        b']' => at,
        b',' if body.get(space(body, at + 1)) != Some(&b']') => at + 1,
        _ => return None,
    };
    Some(([&body[..list], &body[rest..]].concat(), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists() {
        for (body, rest) in [
            (r#"{"messages": [1]}"#, Some("1]}")),
            ("{\"a\": 1, \"messages\" :\n[ 1]}", Some(" 1]}")),
            (r#"{"messages": {}}"#, None),
            (r#"{"message": [1]}"#, None),
            (r#"{"messages""#, None),
            ("", None),
        ] {
            assert_eq!(list(body.as_bytes(), r#""messages""#).map(|at| &body[at..]), rest, "{body}");
        }
    }

    #[test]
    fn bodies_without_what_is_known() {
        for (body, end, expected) in [
            ("[1, 2]}", 2, Some("[ 2]}")),
            ("[1 ,2]}", 2, Some("[2]}")),
            ("[1]}", 2, Some("[]}")),
            ("[1 ] }", 2, Some("[] }")),
            ("[1,]}", 2, None),
            ("[1, ]}", 2, None),
            ("[1 2]}", 2, None),
            ("[1", 2, None),
        ] {
            let found = without(body.as_bytes(), 1, end);
            let texts = found.map(|(short, rest)| {
                assert_eq!(short[1..], body.as_bytes()[rest..]);
                String::from_utf8(short).unwrap()
            });
            assert_eq!(texts.as_deref(), expected, "{body}");
        }
    }

    #[test]
    fn beginnings() {
        let text: Vec<u8> = (0..9000_u32).map(|at| (at * at) as u8).collect();
        for at in [0, 1, 1023, 1024, 1025, 5000, 8999] {
            let mut other = text.clone();
            other[at] ^= 1;
            let (some, all) = (keys(&other, 1), keys(&text, 1));
            assert_eq!(some.iter().zip(&all).take_while(|(left, right)| left == right).count(), (at / STEP).min(2));
        }
    }
}
