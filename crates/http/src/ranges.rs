//! Answers with a large file in memory, whole or in ranges of bytes.
//!
//! A range is requested with `Range: bytes=FROM-TO`. For the following ranges, clients send `If-Range` with the `ETag`
//! of the first answer, so that all ranges are of the same file. If that file no longer exists, the answer is a new
//! file as a whole, as in HTTP (RFC 9110). A file made a few seconds ago is reused, unless the client sends
//! `Cache-Control: no-cache`.

use bytes::Bytes;
use hyper::header::{
    ACCEPT_RANGES, CACHE_CONTROL, CONTENT_RANGE, CONTENT_TYPE, ETAG, HeaderMap, HeaderValue, IF_RANGE, RANGE,
};
use hyper::{Response, StatusCode};

use crate::Denial;

/// Request of a client for a file, or for a range of its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RangeRequest {
    /// Id, in the `If-Range` header, of the version of the file from which the client already has other ranges; None if
    /// the header is missing.
    pub wanted: Option<u64>,
    /// True if the client wants a file that is newly made for the request (`Cache-Control: no-cache`), not a recent
    /// one.
    pub fresh: bool,
    /// True if the request has no `If-Range` header, so that its range may be taken from any version of the file.
    of_any: bool,
    range: Option<ByteRange>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ByteRange {
    from: usize,
    most: usize,
}

impl RangeRequest {
    /// Parses the headers of a request for a file.
    #[must_use]
    pub fn of(headers: &HeaderMap) -> Self {
        let no_cache = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"no-cache");
        Self {
            wanted: headers.get(IF_RANGE).and_then(|tag| id_of(tag.to_str().ok()?)),
            fresh: headers.get(CACHE_CONTROL).is_some_and(no_cache),
            of_any: !headers.contains_key(IF_RANGE),
            range: range_of(headers),
        }
    }

    /// Answers with the file whose id is `id`, or with the requested range of the file. `what`: name of the file in
    /// messages; `head`: true to answer without the bytes.
    ///
    /// # Errors
    /// [`Denial`] if the range begins after the end of the file.
    pub fn answer(
        &self,
        what: &str,
        id: u64,
        file: &Bytes,
        content_type: &'static str,
        head: bool,
    ) -> Result<Response<Bytes>, Denial> {
        let is_same = self.wanted.map_or(self.of_any, |wanted| wanted == id);
        let range = self.range.filter(|_| is_same);
        let all = file.len();
        let ByteRange { from, most } = range.unwrap_or(ByteRange { from: 0, most: all });
        if from >= all {
            let message = format!("the {what} has {all} bytes, and the range begins at {from}");
            return Err(Denial::new(StatusCode::RANGE_NOT_SATISFIABLE, "range_not_satisfiable", message));
        }
        let bytes = file.slice(from..from.saturating_add(most).min(all));
        let end = from + bytes.len();
        let mut response = Response::new(if head { Bytes::new() } else { bytes });
        *response.status_mut() = if range.is_some() { StatusCode::PARTIAL_CONTENT } else { StatusCode::OK };
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        headers.insert(ETAG, value(tag_of(id))?);
        headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if range.is_some() {
            headers.insert(CONTENT_RANGE, value(format!("bytes {from}-{}/{all}", end - 1))?);
        }
        Ok(response)
    }
}

fn value(text: String) -> Result<HeaderValue, Denial> {
    let internal =
        |_| Denial::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "internal error: a header cannot be sent");
    HeaderValue::from_str(&text).map_err(internal)
}

fn tag_of(id: u64) -> String {
    format!("\"{id:016x}\"")
}

fn id_of(tag: &str) -> Option<u64> {
    u64::from_str_radix(tag.strip_prefix('"')?.strip_suffix('"')?, 16).ok()
}

/// Returns the range of bytes in the headers of a request, if there is exactly one. Ranges of an unknown form are
/// ignored, as in RFC 9110.
fn range_of(headers: &HeaderMap) -> Option<ByteRange> {
    let (from, to) = headers.get(RANGE)?.to_str().ok()?.strip_prefix("bytes=")?.split_once('-')?;
    let from: usize = from.parse().ok()?;
    let most = if to.is_empty() { usize::MAX } else { to.parse::<usize>().ok()?.checked_sub(from)?.saturating_add(1) };
    Some(ByteRange { from, most })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_which_there_is_one() {
        let of = |range: &'static str| {
            let range = range_of(&HeaderMap::from_iter([(RANGE, HeaderValue::from_static(range))]));
            range.map(|range| (range.from, range.most))
        };
        assert_eq!(of("bytes=0-9"), Some((0, 10)));
        assert_eq!(of("bytes=5-"), Some((5, usize::MAX)));
        assert_eq!(of("bytes=5-5"), Some((5, 1)));
        for other in ["bytes=-5", "bytes=5-4", "bytes=1-2,4-5", "lines=1-2", "bytes=a-", "", "bytes=1"] {
            assert_eq!(of(other), None, "{other}");
        }
        assert_eq!(id_of(&tag_of(0xabc)), Some(0xabc));
        assert_eq!((id_of("W/\"abc\""), id_of("abc"), id_of("\"xyz\"")), (None, None, None));
    }
}
