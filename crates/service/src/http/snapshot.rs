//! `/snapshot`: all streams' blocks with their marks, for another service to begin with; in parts, as it may be large.
//!
//! A part is asked for with `Range: bytes=FROM-TO`, and the next parts with `If-Range` and the first answer's `ETag`, so
//! that they are of the same snapshot. If that is gone, the answer is the whole of a new one, as HTTP has it (RFC 9110).
//! One that was made a few seconds ago is as good, unless the client says `Cache-Control: no-cache`.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::header::{
    ACCEPT_RANGES, CACHE_CONTROL, CONTENT_RANGE, CONTENT_TYPE, ETAG, HeaderMap, HeaderValue, IF_RANGE, RANGE,
};
use hyper::{Response, StatusCode};

use super::refusal::Refusal;
use crate::fleet::Fleet;
use crate::snapshot::Spooled;

/// How long a client waits for one that is being made, before it is told to ask again.
const LONGEST: Duration = Duration::from_secs(5);

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Part {
    from: usize,
    most: usize,
}

/// Answers with a snapshot, or a part of one. `patience`: how long a request may take.
pub(crate) async fn snapshot(
    fleet: &Arc<Fleet>,
    headers: &HeaderMap,
    head: bool,
    patience: Duration,
) -> Result<Response<Bytes>, Refusal> {
    if fleet.is_keyed() {
        return Err(Refusal::keyed_identity("there is no snapshot of it that others could use"));
    }
    let part = part_of(headers);
    let wanted = headers.get(IF_RANGE).and_then(|tag| id_of(tag.to_str().ok()?));
    let wait = (patience / 2).min(LONGEST);
    let no_cache = |value: &HeaderValue| value.as_bytes().eq_ignore_ascii_case(b"no-cache");
    let fresh = headers.get(CACHE_CONTROL).is_some_and(no_cache);
    let spooled = fleet.snapshots().spooled(fleet, wanted, fresh, wait).await;
    let failed = |message: String| Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "snapshot_failed", message);
    let Some(spooled) = spooled.map_err(failed)? else {
        let message = "a snapshot is being made: ask again in a second";
        return Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "snapshot_not_ready", message));
    };
    let is_same = wanted.is_none_or(|id| id == spooled.id) && (wanted.is_some() || !headers.contains_key(IF_RANGE));
    answered(&spooled, part.filter(|_| is_same), head)
}

fn answered(spooled: &Spooled, part: Option<Part>, head: bool) -> Result<Response<Bytes>, Refusal> {
    let all = spooled.bytes.len();
    let Part { from, most } = part.unwrap_or(Part { from: 0, most: all });
    let Some(bytes) = spooled.part(from, most) else {
        let message = format!("the snapshot has {all} bytes, and the range begins at {from}");
        return Err(Refusal::new(StatusCode::RANGE_NOT_SATISFIABLE, "range_not_satisfiable", message));
    };
    let end = from + bytes.len();
    let mut response = Response::new(if head { Bytes::new() } else { bytes });
    *response.status_mut() = if part.is_some() { StatusCode::PARTIAL_CONTENT } else { StatusCode::OK };
    let headers = response.headers_mut();
    let value = |text: String| HeaderValue::from_str(&text).map_err(|_| Refusal::internal());
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/zstd"));
    headers.insert(ETAG, value(tag_of(spooled.id))?);
    headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if part.is_some() {
        headers.insert(CONTENT_RANGE, value(format!("bytes {from}-{}/{all}", end - 1))?);
    }
    Ok(response)
}

fn tag_of(id: u64) -> String {
    format!("\"{id:016x}\"")
}

fn id_of(tag: &str) -> Option<u64> {
    u64::from_str_radix(tag.strip_prefix('"')?.strip_suffix('"')?, 16).ok()
}

/// The one range that is asked for. What is not understood is left out, as RFC 9110 has it.
fn part_of(headers: &HeaderMap) -> Option<Part> {
    let (from, to) = headers.get(RANGE)?.to_str().ok()?.strip_prefix("bytes=")?.split_once('-')?;
    let from: usize = from.parse().ok()?;
    let most = if to.is_empty() { usize::MAX } else { to.parse::<usize>().ok()?.checked_sub(from)?.saturating_add(1) };
    Some(Part { from, most })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_which_there_is_one() {
        let of = |range: &'static str| {
            let part = part_of(&HeaderMap::from_iter([(RANGE, HeaderValue::from_static(range))]));
            part.map(|part| (part.from, part.most))
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
