//! Answers to clients: bodies, facts read from engines' answers, refusals, and stored answers. The body of an answer,
//! complete or streamed, is in this file.
//!
//! | file | contents |
//! |---|---|
//! | `observe` | facts that an engine's answer states about itself, extracted as the answer passes |
//! | `refusal.rs` | refusals by the router, in the error formats of the APIs |
//! | `stored.rs`, `stored_search.rs` | engines that store responses, files and batches, and the search for these engines |

pub(crate) mod observe;
pub(crate) mod refusal;
pub(crate) mod stored;
pub(crate) mod stored_search;

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};

/// Error that ends the body of an answer before the body is complete.
pub(crate) type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// Body of an answer to a client.
pub(crate) enum Answer {
    /// A body that is complete and in memory.
    Full(Bytes),
    /// A body that is still being produced, piece by piece.
    Stream(Pin<Box<dyn Body<Data = Bytes, Error = BodyError> + Send>>),
}

impl Body for Answer {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match self.get_mut() {
            Self::Full(bytes) if bytes.is_empty() => Poll::Ready(None),
            Self::Full(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Self::Stream(body) => body.as_mut().poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Full(bytes) => bytes.is_empty(),
            Self::Stream(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Full(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Self::Stream(body) => body.size_hint(),
        }
    }
}

/// Makes an answer with a status, a content type and a complete body.
#[must_use]
pub(crate) fn typed(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Response<Answer> {
    let mut response = Response::new(Answer::Full(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// Makes an answer with a complete body in JSON.
#[must_use]
pub(crate) fn json(status: StatusCode, body: impl Into<Bytes>) -> Response<Answer> {
    typed(status, "application/json", body)
}
