//! Reading a request's body: at most so many bytes, within the time limit.

use std::ops::Deref;

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Incoming};
use tokio::time::{Instant, timeout_at};

use super::refusal::Refusal;

/// How many times the limit is read and thrown away after it, so that a client that sends its whole body before it
/// listens gets to read why it was refused.
const PATIENCE: u64 = 8;

/// A whole body.
pub(crate) enum Whole {
    /// It came in one piece, as short ones do: no copy.
    One(Bytes),
    Joined(Vec<u8>),
}

impl Deref for Whole {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::One(bytes) => bytes,
            Self::Joined(bytes) => bytes,
        }
    }
}

/// Reads it all.
pub(crate) async fn read(body: Incoming, limit: usize, until: Instant) -> Result<Whole, Refusal> {
    // The timer is armed only if the body is not here yet.
    timeout_at(until, collect(body, limit)).await.unwrap_or_else(|_| Err(Refusal::too_slow()))
}

async fn collect(mut body: Incoming, limit: usize) -> Result<Whole, Refusal> {
    let announced = body.size_hint().lower();
    if announced > limit as u64 {
        return Err(discard(body, limit).await);
    }
    let Some(first) = next(&mut body).await? else { return Ok(Whole::One(Bytes::new())) };
    if first.len() > limit {
        return Err(discard(body, limit).await);
    }
    if body.is_end_stream() {
        return Ok(Whole::One(first));
    }
    let mut whole = Vec::with_capacity(first.len().max(announced as usize));
    whole.extend_from_slice(&first);
    while let Some(piece) = next(&mut body).await? {
        if whole.len() + piece.len() > limit {
            return Err(discard(body, limit).await);
        }
        whole.extend_from_slice(&piece);
    }
    Ok(Whole::Joined(whole))
}

async fn next(body: &mut Incoming) -> Result<Option<Bytes>, Refusal> {
    loop {
        match body.frame().await {
            None => return Ok(None),
            Some(Err(_)) => return Err(Refusal::body_cut_off()),
            Some(Ok(frame)) => {
                // Trailers say nothing here.
                if let Ok(data) = frame.into_data() {
                    return Ok(Some(data));
                }
            }
        }
    }
}

async fn discard(mut body: Incoming, limit: usize) -> Refusal {
    let most = (limit as u64).saturating_mul(PATIENCE);
    let mut thrown = 0;
    if body.size_hint().lower() <= most {
        while let Ok(Some(piece)) = next(&mut body).await {
            thrown += piece.len() as u64;
            if thrown > most {
                break;
            }
        }
    }
    Refusal::body_too_large(limit)
}
