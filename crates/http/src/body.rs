//! Reads a request's body: at most so many bytes, within the time limit, into memory that all bodies share.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt as _;
use tokio::time::timeout_at;

use crate::memory::{BodyTurn, Lease, Memory};
use crate::note::Note;

/// The first allocation for a body that grows, in bytes.
const FIRST: usize = 64 << 10;

/// A request's body as it comes.
pub struct RequestBody {
    body: hyper::body::Incoming,
    note: Arc<Note>,
}

impl RequestBody {
    pub(crate) fn new(body: hyper::body::Incoming, note: Arc<Note>) -> Self {
        Self { body, note }
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
            Poll::Ready(Some(Ok(_))) => self.note.body_came(self.body.is_end_stream()),
            Poll::Ready(_) => self.note.body_came(true),
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

/// A body that could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BodyFault {
    /// The body has more bytes than the limit.
    TooLarge,
    /// The body ended early, or is not framed as the head says. With hyper's words.
    CutOff(String),
    /// The body did not come within the time limit.
    TooSlow,
    /// There was no memory for the body, or others needed that more.
    NoRoom,
}

/// A body in memory that is counted.
struct BodyBuffer {
    bytes: Vec<u8>,
    _lease: Lease,
}

impl AsRef<[u8]> for BodyBuffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// The limits within which a body is read.
#[derive(Debug, Clone, Copy)]
pub struct BodyLimits {
    /// Bytes of a body at most.
    pub most: usize,
    /// Bytes beyond that which are read and thrown away, so that a client that sends its whole body before it listens gets
    /// to read why it was refused.
    pub thrown_away: u64,
    /// The time by which the body must be here.
    pub until: Instant,
}

/// Reads a body to its end.
///
/// # Errors
/// [`BodyFault`] names the reason.
pub async fn read(body: RequestBody, limits: BodyLimits, memory: &Arc<Memory>) -> Result<Bytes, BodyFault> {
    if body.is_end_stream() {
        return Ok(Bytes::new());
    }
    // The timer is armed only if the body is not here yet.
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
    // It came in one piece, as short ones do: the memory is the connection's own.
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

/// Makes room for `length` bytes. What a client says of the length is believed as far as it has kept it.
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
    // Under a limit on its address space, a process that asks without trying would end here.
    whole.try_reserve_exact(wanted - whole.len()).map_err(|_| BodyFault::NoRoom)
}

async fn next(body: &mut RequestBody) -> Result<Option<Bytes>, BodyFault> {
    loop {
        match body.frame().await {
            None => return Ok(None),
            Some(Err(error)) => return Err(BodyFault::CutOff(error.to_string())),
            Some(Ok(frame)) => {
                // Trailers say nothing here.
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
