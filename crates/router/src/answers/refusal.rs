//! Refusals of requests by the router itself, as answers in the error formats of the engines' APIs, which client
//! libraries understand.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::header::{ALLOW, CONNECTION, HeaderValue, RETRY_AFTER, UPGRADE, WWW_AUTHENTICATE};
use hyper::{Response, StatusCode};
use kvatlas_http::{BodyFault, Denial};

use crate::answers::observe::{Dialect, error_event};
use crate::answers::{Answer, json};

/// Value of `Retry-After`, the time until a retry, in a refusal because the memory for request bodies is full.
const AGAIN: Duration = Duration::from_secs(1);

/// Refusal of a request by the router: what was wrong and what would be right.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    /// Stable error code of the refusal, for programs.
    pub(crate) code: &'static str,
    pub(crate) message: Cow<'static, str>,
    /// Name of the field of the request body that caused the refusal; None for other causes.
    param: Option<&'static str>,
    /// Delay for the header `Retry-After`; None to send no such header.
    pub(crate) retry_after: Option<Duration>,
    /// True if the server closes the client's connection after the answer.
    pub(crate) closes: bool,
    /// Methods that the path accepts, for the header `Allow` of an answer with status 405; None with other statuses.
    allow: Option<String>,
    /// Label of the request's model in the metrics; None if the model was unknown when the request was refused.
    pub(crate) model: Option<Arc<str>>,
}

impl Refusal {
    /// Makes the refusal of a request to a path that the router does not have.
    pub(crate) fn unknown_path() -> Self {
        let message = "there is no such path; GET / lists all, and the setting `forward` adds paths of engines";
        Self::new(StatusCode::NOT_FOUND, "unknown_path", message)
    }

    pub(crate) fn new(status: StatusCode, code: &'static str, message: impl Into<Cow<'static, str>>) -> Self {
        let message = message.into();
        Self { status, code, message, param: None, retry_after: None, closes: false, allow: None, model: None }
    }

    /// Adds the request's model to the refusal, as the model's label in the metrics.
    pub(crate) fn of_model(self, model: &Arc<str>) -> Self {
        Self { model: Some(model.clone()), ..self }
    }

    /// Adds the name of the field of the body that caused the refusal.
    pub(crate) fn about(self, field: &'static str) -> Self {
        Self { param: Some(field), ..self }
    }

    pub(crate) fn bad(code: &'static str, message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, code, message)
    }

    /// Makes the refusal of a method that the path does not accept; `allow` lists the accepted methods.
    pub(crate) fn wrong_method(allow: String) -> Self {
        let message = format!("this path accepts only {allow}");
        Self { allow: Some(allow), ..Self::new(StatusCode::METHOD_NOT_ALLOWED, "wrong_method", message) }
    }

    /// Makes the refusal of a WebSocket handshake, as neither the router nor engines support WebSocket. Clients that
    /// receive its status repeat the request over plain HTTP.
    pub(crate) fn no_websocket() -> Self {
        let message = "WebSocket is not spoken here: send the request with POST, and `stream` for a streamed answer";
        Self::new(StatusCode::UPGRADE_REQUIRED, "upgrade_required", message)
    }

    /// Makes the refusal of a request whose content type a browser may send to another origin without a preflight
    /// request.
    pub(crate) fn wrong_content_type() -> Self {
        let message = "send a JSON body with the header \"Content-Type: application/json\"";
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "wrong_content_type", message)
    }

    /// Makes the refusal of a request whose body cannot be decompressed.
    pub(crate) fn unreadable() -> Self {
        let message = "the body cannot be unpacked as its Content-Encoding says, within the limit for bodies \
                       (http.max_body): send it as it is, or in one of gzip, deflate, br and zstd";
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unreadable_encoding", message)
    }

    /// Makes the refusal of a request whose body has several content encodings.
    pub(crate) fn several_encodings() -> Self {
        let message = "the body is compressed more than once: send it with one encoding at most in \
                       \"Content-Encoding\" (gzip, deflate, br or zstd)";
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "several_encodings", message)
    }

    /// True if the request was refused because no engine was available.
    pub(crate) fn is_for_want_of_engines(&self) -> bool {
        matches!(self.code, "no_worker" | "no_engines")
    }

    /// Makes the server close the client's connection after the refusal.
    pub(crate) fn closing(self) -> Self {
        Self { closes: true, ..self }
    }

    /// Adds the header `Retry-After` to the refusal, with the delay `pause`.
    pub(crate) fn again_after(self, pause: Duration) -> Self {
        Self { retry_after: Some(pause), ..self }
    }

    /// Makes the refusal of a request whose body could not be received; `most` is the maximum size of a body in bytes.
    pub(crate) fn of_body(fault: &BodyFault, most: usize) -> Self {
        let refusal = match fault {
            BodyFault::TooLarge => {
                let message = format!("the body is larger than the limit of {most} bytes (http.max_body)");
                Self::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message)
            }
            BodyFault::CutOff(why) => Self::bad("incomplete_body", format!("the body cannot be read: {why}")),
            BodyFault::TooSlow => {
                let message = "the body did not arrive within the time limit (http.request_timeout)";
                Self::new(StatusCode::REQUEST_TIMEOUT, "body_timeout", message)
            }
            BodyFault::NoRoom => {
                let message = "the memory for the bodies of all requests is full (http.body_memory)";
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "body_memory", message).again_after(AGAIN)
            }
        };
        refusal.closing()
    }

    /// Returns the error type of the refusal, in the terms of the API `dialect`.
    fn kind(&self, dialect: Dialect) -> &'static str {
        let is_message = dialect == Dialect::Messages;
        match self.status.as_u16() {
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            413 if is_message => "request_too_large",
            429 => "rate_limit_error",
            503 if is_message => "overloaded_error",
            504 if is_message => "timeout_error",
            500.. if is_message => "api_error",
            500.. => "server_error",
            _ => "invalid_request_error",
        }
    }

    /// Makes the event that reports the refusal in an event stream that has already begun, and ends the stream.
    pub(crate) fn event(&self, dialect: Dialect) -> Bytes {
        error_event(dialect, self.kind(dialect), self.code, &self.message, 0).into()
    }

    /// Makes the HTTP answer for the refusal, in the error format of the API `dialect`.
    pub(crate) fn response(&self, dialect: Dialect) -> Response<Answer> {
        let kind = self.kind(dialect);
        let mut body = serde_json::json!({
            "error": { "message": self.message, "type": kind, "param": self.param, "code": self.code }
        });
        if dialect == Dialect::Messages {
            body["type"] = "error".into();
        }
        let mut response = json(self.status, body.to_string());
        let headers = response.headers_mut();
        if let Some(pause) = self.retry_after {
            headers.insert(RETRY_AFTER, HeaderValue::from(pause.as_secs_f64().ceil().max(1.0) as u64));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(allow) = self.allow.as_deref().and_then(|allow| allow.parse().ok()) {
            headers.insert(ALLOW, allow);
        }
        if self.status == StatusCode::UPGRADE_REQUIRED {
            // It must name what would be spoken instead (RFC 9110, 15.5.22).
            headers.insert(UPGRADE, HeaderValue::from_static("HTTP/1.1"));
            headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        }
        if self.closes {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

impl From<Denial> for Refusal {
    fn from(denied: Denial) -> Self {
        Self::new(denied.status, denied.code, denied.message)
    }
}
