//! Bodies of HTTP answers, complete or sent in pieces; refusals of requests, with status, error code and message; and a
//! writer of JSON, because a general serializer is too slow for the rate of queries.

use std::borrow::Cow;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use hyper::header::{
    ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, HeaderValue, REFERRER_POLICY,
    RETRY_AFTER, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
};
use hyper::{Response, StatusCode};
use kvatlas_follow::Error;
use kvatlas_follow::error::WRONG_TYPE;
use kvatlas_follow::report::is_number;
use kvatlas_http::{BodyFault, Denial};
use kvatlas_ui::{Asset, Viewer};
use tokio::sync::mpsc;

/// Body of an HTTP answer.
pub(crate) enum Answer {
    /// A complete body.
    Whole(Bytes),
    /// Body sent in pieces, up to [`Piece::End`]. If the sender is dropped before the end, the connection is closed, so
    /// that the client does not take the body for complete.
    Pieces(mpsc::Receiver<Piece>),
    /// Stream of server-sent events for a viewer of the web page, which lasts until the viewer disconnects.
    Events(Viewer),
}

/// Part of a body that is sent in pieces.
#[derive(Debug)]
pub(crate) enum Piece {
    Bytes(Bytes),
    /// End of a body that is sent in pieces.
    End,
}

/// Error for a body sent in pieces that could not be completed.
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

/// Makes an HTTP answer with a JSON body.
pub(crate) fn json(status: StatusCode, body: impl Into<Bytes>) -> Response<Answer> {
    typed(status, "application/json", body)
}

/// Makes an HTTP answer with a body of the given content type.
pub(crate) fn typed(status: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Response<Answer> {
    with_type(status, content_type, Answer::Whole(body.into()))
}

/// Makes an HTTP answer whose JSON body is sent in pieces as they are produced.
pub(crate) fn json_pieces(pieces: mpsc::Receiver<Piece>) -> Response<Answer> {
    with_type(StatusCode::OK, "application/json", Answer::Pieces(pieces))
}

/// Makes an HTTP answer with a file of the web page. Its headers forbid embedding the file in another page, and loading
/// anything from other servers.
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

/// Makes an HTTP answer that streams server-sent events to a viewer of the web page.
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

/// Maximum size of a refused body that is still read and dropped, as a multiple of the limit on bodies. A client that
/// sends its whole body before reading the answer then still receives the refusal.
pub(crate) const PATIENCE: u64 = 8;

/// Refusal of a request, with an error code that is equal in every release, and a message that says what was wrong and
/// what is expected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    pub(crate) code: &'static str,
    pub(crate) message: Cow<'static, str>,
    /// Methods allowed at the path, for status 405 (method not allowed); `None` for other statuses.
    allow: Option<&'static str>,
}

impl Refusal {
    /// Puts `place`, the position of the error in the request, in front of the message.
    pub(crate) fn at(self, place: impl std::fmt::Display) -> Self {
        Self { message: format!("{place}: {}", self.message).into(), ..self }
    }

    pub(crate) fn new(status: StatusCode, code: &'static str, message: impl Into<Cow<'static, str>>) -> Self {
        Self { status, code, message: message.into(), allow: None }
    }

    /// Makes the refusal of a body that is not valid JSON.
    pub(crate) fn malformed(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "malformed_json", message)
    }

    /// Makes the refusal of a value of the wrong type.
    pub(crate) fn wrong_type(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, WRONG_TYPE, message)
    }

    /// Makes the refusal of an invalid value, with an error code and a message.
    pub(crate) fn invalid(code: &'static str, message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, code, message)
    }

    /// Makes the refusal of a query by content hashes at a service that identifies blocks by hashes under a secret key,
    /// which clients cannot compute. `instead` is the member that the client should send.
    pub(crate) fn keyed_identity(instead: &str) -> Self {
        Error::keyed_identity(instead).into()
    }

    pub(crate) fn unknown_path() -> Self {
        let message = "there is no such path; GET / lists all paths";
        Self::new(StatusCode::NOT_FOUND, "unknown_path", message)
    }

    pub(crate) fn wrong_method(allow: &'static str) -> Self {
        let message = format!("this path accepts only {allow}");
        let refusal = Self::new(StatusCode::METHOD_NOT_ALLOWED, "wrong_method", message);
        Self { allow: Some(allow), ..refusal }
    }

    /// Makes the refusal of a body that could not be read. `most` is the maximum size of a body in bytes.
    pub(crate) fn of_body(fault: &BodyFault, most: usize) -> Self {
        match fault {
            BodyFault::TooLarge => {
                let message = format!("the body is larger than the limit of {most} bytes (http.max_body)");
                Self::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message)
            }
            BodyFault::CutOff(_) => {
                let message = "the body ended early or does not match the framing that the request's headers announce";
                Self::new(StatusCode::BAD_REQUEST, "body_cut_off", message)
            }
            BodyFault::TooSlow => {
                let message = "the request did not arrive within the time limit (http.request_timeout)";
                Self::new(StatusCode::REQUEST_TIMEOUT, "request_timeout", message)
            }
            BodyFault::NoRoom => {
                let message = "the memory for the bodies of all requests is full (http.body_memory)";
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "body_memory", message)
            }
        }
    }

    pub(crate) fn wrong_content_type() -> Self {
        let message = "send a JSON body with the header \"Content-Type: application/json\"; /query and /query_by_hash \
                       also take bytes, with application/octet-stream";
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "wrong_content_type", message)
    }

    pub(crate) fn draining() -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "draining", "the service is shutting down")
    }

    /// Makes the refusal for an internal error (status 500), which no request should cause.
    pub(crate) fn internal() -> Self {
        let message = "internal error; the service's log has the details";
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message)
    }

    pub(crate) fn response(&self) -> Response<Answer> {
        let body = serde_json::json!({ "error": self.message, "code": self.code });
        let mut response = json(self.status, body.to_string());
        let headers = response.headers_mut();
        if let Some(allow) = self.allow {
            headers.insert(ALLOW, HeaderValue::from_static(allow));
        }
        match self.status {
            StatusCode::UNAUTHORIZED => {
                headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"kvatlas\""));
            }
            // The rest of the request cannot be told from the next one.
            StatusCode::REQUEST_TIMEOUT => {
                headers.insert(CONNECTION, HeaderValue::from_static("close"));
            }
            StatusCode::SERVICE_UNAVAILABLE => {
                headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
            }
            _ => {}
        }
        response
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        let status = match &error {
            Error::Invalid { code: WRONG_TYPE, .. } => StatusCode::UNPROCESSABLE_ENTITY,
            Error::Invalid { .. } => StatusCode::BAD_REQUEST,
            Error::Forbidden { .. } => StatusCode::FORBIDDEN,
            Error::Conflict { .. } => StatusCode::CONFLICT,
            Error::Unknown { .. } => StatusCode::NOT_FOUND,
            Error::Unavailable { .. } => StatusCode::SERVICE_UNAVAILABLE,
            Error::Internal => return Self::internal(),
            // A change cut off by the shutdown.
            _ => return Self::draining(),
        };
        Self::new(status, error.code(), error.to_string())
    }
}

impl From<Denial> for Refusal {
    fn from(denied: Denial) -> Self {
        Self::new(denied.status, denied.code, denied.message)
    }
}

impl From<serde_json::Error> for Refusal {
    fn from(error: serde_json::Error) -> Self {
        if error.is_data() { Self::wrong_type(error.to_string()) } else { Self::malformed(error.to_string()) }
    }
}

/// Buffer to which JSON text is appended.
pub(crate) struct Writer(Vec<u8>);

impl Writer {
    pub(crate) fn with_capacity(capacity: usize) -> Self {
        Self(Vec::with_capacity(capacity))
    }

    pub(crate) fn finish(self) -> Vec<u8> {
        self.0
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn raw(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    /// Appends bytes that already are JSON.
    pub(crate) fn bytes(&mut self, json: &[u8]) {
        self.0.extend_from_slice(json);
    }

    pub(crate) fn number(&mut self, number: impl itoa::Integer) {
        self.0.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
    }

    /// Appends a string in quotes, with escapes where needed.
    pub(crate) fn string(&mut self, text: &str) {
        if text.bytes().all(|byte| matches!(byte, 0x20 | 0x21 | 0x23..=0x5b | 0x5d..=0x7e)) {
            self.0.push(b'"');
            self.raw(text);
            self.0.push(b'"');
        } else {
            // Writing to memory does not fail.
            let _ = serde_json::to_writer(&mut self.0, text);
        }
    }

    /// Appends a worker's name: as a JSON number if the name is one, else as a string.
    pub(crate) fn id(&mut self, name: &str) {
        if is_number(name) { self.raw(name) } else { self.string(name) }
    }

    /// Appends items separated by commas, each written by a call of `item`.
    pub(crate) fn list<T>(&mut self, items: impl IntoIterator<Item = T>, mut item: impl FnMut(&mut Self, T)) {
        for (at, value) in items.into_iter().enumerate() {
            if at > 0 {
                self.0.push(b',');
            }
            item(self, value);
        }
    }

    /// Appends a number as the key of a JSON object, in quotes and followed by a colon.
    pub(crate) fn key(&mut self, number: u32) {
        self.0.push(b'"');
        self.number(number);
        self.raw("\":");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_json_with_a_code() {
        let response = Refusal::wrong_method("POST").response();
        assert_eq!(response.status(), 405);
        assert_eq!(response.headers()[ALLOW], "POST");
        let Answer::Whole(body) = response.into_body() else { panic!("refusals are short") };
        let body: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
        assert_eq!(body["code"], "wrong_method");
        assert!(body["error"].as_str().is_some_and(|message| message.contains("POST")));
    }

    #[test]
    fn strings_are_escaped() {
        for text in ["a", "a b!", "a\"b", "a\\b", "déjà", "\n\u{1}", "", "</script>", "\u{7f}"] {
            let mut out = Writer::with_capacity(0);
            out.string(text);
            assert_eq!(serde_json::from_slice::<String>(&out.finish()).expect("JSON"), text);
        }
    }
}
