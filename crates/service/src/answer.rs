//! Bodies of answers: whole, or in pieces as they are made.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use hyper::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, HeaderValue, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use hyper::{Response, StatusCode};
use kvatlas_ui::{Asset, Viewer};
use tokio::sync::mpsc;

/// The body of an answer.
pub(crate) enum Answer {
    /// A complete body.
    Whole(Bytes),
    /// Pieces up to [`Piece::End`]. If the sender is dropped before, the connection is cut off, so that the client does
    /// not take the body for complete.
    Pieces(mpsc::Receiver<Piece>),
    /// Events for a viewer of the page, until it leaves.
    Events(Viewer),
}

/// A part of a body in pieces.
#[derive(Debug)]
pub(crate) enum Piece {
    Bytes(Bytes),
    /// The end of the body.
    End,
}

/// The error of a body that could not be completed.
#[derive(Debug)]
pub(crate) struct UnfinishedAnswer;

impl fmt::Display for UnfinishedAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the answer could not be finished")
    }
}

impl std::error::Error for UnfinishedAnswer {}

impl Body for Answer {
    type Data = Bytes;
    type Error = UnfinishedAnswer;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, UnfinishedAnswer>>> {
        match self.get_mut() {
            Self::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            Self::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Self::Pieces(pieces) => pieces.poll_recv(context).map(|piece| match piece {
                Some(Piece::Bytes(bytes)) => Some(Ok(Frame::data(bytes))),
                Some(Piece::End) => None,
                None => Some(Err(UnfinishedAnswer)),
            }),
            Self::Events(viewer) => viewer.poll_next(context).map(|event| event.map(|bytes| Ok(Frame::data(bytes)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(bytes) if bytes.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Self::Pieces(_) | Self::Events(_) => SizeHint::default(),
        }
    }
}

/// An answer in JSON.
pub(crate) fn json(status: StatusCode, body: impl Into<Bytes>) -> Response<Answer> {
    typed(status, "application/json", body)
}

/// An answer of the given content type.
pub(crate) fn typed(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Response<Answer> {
    with_type(status, content_type, Answer::Whole(body.into()))
}

/// An answer in JSON that is sent while it is made.
pub(crate) fn json_pieces(pieces: mpsc::Receiver<Piece>) -> Response<Answer> {
    with_type(StatusCode::OK, "application/json", Answer::Pieces(pieces))
}

/// A file of the page, which must not be shown inside another page, nor load anything from other servers.
pub(crate) fn page(asset: Asset) -> Response<Answer> {
    let mut response = typed(StatusCode::OK, asset.media_type, asset.bytes);
    let headers = response.headers_mut();
    for (name, value) in PAGE_HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

const PAGE_HEADERS: [(HeaderName, &str); 4] = [
    (CONTENT_SECURITY_POLICY, kvatlas_ui::CONTENT_SECURITY_POLICY),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (REFERRER_POLICY, "no-referrer"),
    // Another version of the service has other files.
    (CACHE_CONTROL, "no-cache"),
];

/// The answer to a viewer of the page.
pub(crate) fn events(viewer: Viewer) -> Response<Answer> {
    let mut response = with_type(StatusCode::OK, "text/event-stream", Answer::Events(viewer));
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    // Keeps nginx and similar proxies from buffering the events.
    headers.insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    response
}

fn with_type(status: StatusCode, content_type: &'static str, body: Answer) -> Response<Answer> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}
