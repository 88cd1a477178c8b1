//! Reading of a request's body, within its size and time limits, into memory shared by all bodies; and the body's
//! content type according to its header.
//!
//! Only two content types are known. A web page cannot make a browser send one of these to another server without that
//! server's permission, but can make it send other types.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use hyper::header::{CONTENT_TYPE, HeaderMap};
use tokio::time::timeout_at;

use crate::activity::Activity;
use crate::memory::{BodyTurn, Lease, Memory};

/// Size of the first allocation for a body of unknown length, in bytes.
const FIRST: usize = 64 << 10;

/// Body of a request that is still arriving.
pub struct RequestBody {
    body: hyper::body::Incoming,
    activity: Arc<Activity>,
}

impl RequestBody {
    pub(crate) fn new(body: hyper::body::Incoming, activity: Arc<Activity>) -> Self {
        Self { body, activity }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        match &frame {
            Poll::Pending => {}
            Poll::Ready(Some(Ok(_))) => self.activity.body_came(self.body.is_end_stream()),
            Poll::Ready(_) => self.activity.body_came(true),
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// Reason why the body of a request could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BodyFault {
    /// The body exceeds the maximum size.
    TooLarge,
    /// The body ended early, or contradicts the length or coding stated in the head. The text is hyper's message.
    CutOff(String),
    /// The body did not arrive within the time limit.
    TooSlow,
    /// The memory for the bodies of all requests is full, or the body was dropped because other bodies needed its
    /// memory.
    NoRoom,
}

/// Body in memory. Its size counts in the memory limit for the bodies of all requests until this value is dropped.
struct BodyBuffer {
    bytes: Vec<u8>,
    _lease: Lease,
}

impl AsRef<[u8]> for BodyBuffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Limits for reading the body of a request: its size, and the time of its end.
#[derive(Debug, Clone, Copy)]
pub struct BodyLimits {
    /// Maximum size of a body, in bytes.
    pub most: usize,
    /// Number of bytes beyond the maximum size that are read and dropped. A client that sends its whole body first can
    /// then still read the refusal.
    pub thrown_away: u64,
    /// Deadline for the end of the body.
    pub until: Instant,
}

/// Reads a body to its end.
///
/// # Errors
/// The reason for an incomplete body, as a [`BodyFault`].
pub async fn read(body: RequestBody, limits: BodyLimits, memory: &Arc<Memory>) -> Result<Bytes, BodyFault> {
    if body.is_end_stream() {
        return Ok(Bytes::new());
    }
    // The timer is armed only if the body is not complete yet.
    timeout_at(limits.until.into(), collect(body, limits, memory)).await.unwrap_or(Err(BodyFault::TooSlow))
}

async fn collect(mut body: RequestBody, limits: BodyLimits, memory: &Arc<Memory>) -> Result<Bytes, BodyFault> {
    let limit = limits.most;
    let announced = body.size_hint();
    if announced.lower() > limit as u64 {
        return Err(discard(body, limits.thrown_away).await);
    }
    let Some(first) = next(&mut body).await? else { return Ok(Bytes::new()) };
    if first.len() > limit {
        return Err(discard(body, limits.thrown_away).await);
    }
    // The body arrived in one piece, as short ones do: the memory is the connection's own.
    if body.is_end_stream() {
        return Ok(first);
    }
    let (reading, mut lease, mut whole) = (BodyTurn::new(memory), Lease::new(memory), Vec::new());
    let exact = announced.exact().map(|exact| exact as usize);
    let mut piece = Some(first);
    while let Some(data) = piece {
        let length = whole.len() + data.len();
        if length > limit {
            drop((reading, lease, whole));
            return Err(discard(body, limits.thrown_away).await);
        }
        reading.came(data.len());
        make_room(&mut whole, length, exact, &reading, &mut lease).await?;
        whole.extend_from_slice(&data);
        drop(data);
        piece = tokio::select! {
            biased;
            piece = next(&mut body) => piece?,
            () = reading.must_leave() => return Err(BodyFault::NoRoom),
        };
    }
    lease.shrink(whole.capacity());
    Ok(Bytes::from_owner(BodyBuffer { bytes: whole, _lease: lease }))
}

/// Grows the buffer `whole` to hold `length` bytes of a body, with reserved memory. If the client declares a larger
/// length, memory is reserved only in proportion to the bytes that have arrived.
async fn make_room(
    whole: &mut Vec<u8>,
    length: usize,
    exact: Option<usize>,
    reading: &BodyTurn,
    lease: &mut Lease,
) -> Result<(), BodyFault> {
    if length <= whole.capacity() {
        return Ok(());
    }
    let doubled = (whole.capacity() * 2).max(FIRST);
    let wanted = exact.map_or(doubled, |exact| exact.min(doubled)).max(length);
    reading.grow(lease, wanted).await.map_err(|_| BodyFault::NoRoom)?;
    // Under a limit on its address space, a process would abort if it allocated without checking.
    whole.try_reserve_exact(wanted - whole.len()).map_err(|_| BodyFault::NoRoom)
}

async fn next(body: &mut RequestBody) -> Result<Option<Bytes>, BodyFault> {
    loop {
        match body.frame().await {
            None => return Ok(None),
            Some(Err(error)) => return Err(BodyFault::CutOff(error.to_string())),
            Some(Ok(frame)) => {
                // Trailers have no meaning here.
                if let Ok(data) = frame.into_data() {
                    return Ok(Some(data));
                }
            }
        }
    }
}

async fn discard(mut body: RequestBody, most: u64) -> BodyFault {
    let mut thrown = 0;
    if most > 0 && body.size_hint().lower() <= most {
        while let Ok(Some(piece)) = next(&mut body).await {
            thrown += piece.len() as u64;
            if thrown > most {
                break;
            }
        }
    }
    BodyFault::TooLarge
}

/// Content type of a body, from its header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// JSON, or a format based on JSON.
    Json,
    /// Numbers in binary form, such as tokens or hashes in the body of a query to an index.
    Bytes,
}

impl Content {
    /// Returns the content type stated in the headers; None if the header is missing or states a type other than JSON
    /// and bytes.
    #[must_use]
    pub fn of(headers: &HeaderMap) -> Option<Self> {
        let kind = headers.get(CONTENT_TYPE)?.to_str().ok()?;
        let kind = kind.split(';').next().unwrap_or_default().trim();
        let is_suffixed = |kind: &str| kind.len() > 5 && kind[kind.len() - 5..].eq_ignore_ascii_case("+json");
        if kind.eq_ignore_ascii_case("application/json") || (kind.starts_with("application/") && is_suffixed(kind)) {
            return Some(Self::Json);
        }
        kind.eq_ignore_ascii_case("application/octet-stream").then_some(Self::Bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_types() {
        let of =
            |kind: &'static str| Content::of(&HeaderMap::from_iter([(CONTENT_TYPE, kind.parse().expect("a header"))]));
        for json in ["application/json", "Application/JSON; charset=utf-8", "application/problem+json"] {
            assert_eq!(of(json), Some(Content::Json), "{json}");
        }
        for bytes in ["application/octet-stream", "Application/Octet-Stream ; type=u32"] {
            assert_eq!(of(bytes), Some(Content::Bytes), "{bytes}");
        }
        for other in [
            "",
            "text/plain",
            "application/x-www-form-urlencoded",
            "multipart/form-data",
            "text/json",
            "application/jsonp",
            "application/octet-streams",
            "+json",
        ] {
            assert_eq!(of(other), None, "{other}");
        }
        assert_eq!(Content::of(&HeaderMap::new()), None);
    }
}
