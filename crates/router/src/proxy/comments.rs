//! Comments to the client of a stream whose answer is slow to begin, as proxies in between close idle connections.
//!
//! A request may have no answer for a while, because it waits in the router or an engine computes its prompt. The
//! client then gets the head of a stream, followed by a comment at intervals, which clients ignore. The request is
//! processed as before, so that another engine can still answer it. The status and headers of the engine's own answer
//! are then ignored, and a refusal is reported as an event.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame};
use hyper::header::{CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, HeaderName, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use hyper::{Response, StatusCode};
use tokio::time::{Instant, Sleep, sleep, timeout};

use super::answer_body::COMMENT;
use crate::answers::observe::Dialect;
use crate::answers::refusal::Refusal;
use crate::answers::{Answer, BodyError};
use crate::counts::Counts;
use crate::engines::json_fields::{pick, read};
use crate::engines::request_head::REQUEST_ID;

/// Header of an answer that makes nginx, as a proxy before the router, forward data at once.
const BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

/// Maximum number of bytes read from an engine's answer by which the engine refuses a request.
const MAX_REFUSAL: usize = 64 << 10;

/// Future that serves a request, up to the first byte of an answer.
pub(super) type Work = Pin<Box<dyn Future<Output = Result<Response<Answer>, Refusal>> + Send>>;

/// Stream of comments to a client that has waited long, which begins before an engine's answer arrives.
struct EarlyStream {
    counts: Arc<Counts>,
    /// Label of the request's model in the metrics.
    model: Arc<str>,
    dialect: Dialect,
    every: Duration,
    timer: Pin<Box<Sleep>>,
    state: State,
}

/// State of the engine's answer for which the client waits.
enum State {
    /// No answer from an engine yet; the future yields the answer.
    Waiting(Work),
    /// Refusal by an engine, whose text is still being read.
    Refused(StatusCode, Answer, Vec<u8>),
    /// An engine's answer, which is being forwarded to the client.
    Passing(Answer),
    Over,
}

/// Returns the result of `work`. If the result is not ready within `every`, returns a stream that begins with comments
/// and ends with the result. `id`: the request's id; `model`: label of the request's model in the metrics.
pub(super) async fn run(
    counts: &Arc<Counts>,
    mut work: Work,
    every: Duration,
    dialect: Dialect,
    id: Option<HeaderValue>,
    model: Arc<str>,
) -> Result<Response<Answer>, Refusal> {
    if let Ok(answered) = timeout(every, work.as_mut()).await {
        return answered;
    }
    counts.early_streams.fetch_add(1, Relaxed);
    // The first comment goes with the head.
    let timer = Box::pin(sleep(Duration::ZERO));
    let stream = EarlyStream { counts: counts.clone(), model, dialect, every, timer, state: State::Waiting(work) };
    let mut response = Response::new(Answer::Stream(Box::pin(stream)));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(BUFFERING, HeaderValue::from_static("no"));
    if let Some(id) = id {
        headers.insert(REQUEST_ID, id);
    }
    Ok(response)
}

impl EarlyStream {
    /// Processes the result of the work on the request; returns an event for the client if the result is not a streamed
    /// answer.
    fn take(&mut self, answered: Result<Response<Answer>, Refusal>) -> Option<Bytes> {
        let response = match answered {
            Ok(response) => response,
            Err(refusal) => {
                self.counts.refuse(refusal.status, refusal.code, Some(&self.model));
                return Some(self.end(&refusal));
            }
        };
        let (head, body) = response.into_parts();
        let kind = head.headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
        let is_stream = kind.len() >= 17 && kind[..17].eq_ignore_ascii_case(b"text/event-stream");
        if !head.status.is_success() {
            self.state = State::Refused(head.status, body, Vec::new());
            return None;
        }
        if !is_stream || head.headers.contains_key(CONTENT_ENCODING) {
            let message = "the engine's answer is not the stream that was asked for";
            return Some(self.end(&Refusal::new(StatusCode::BAD_GATEWAY, "no_stream", message)));
        }
        self.state = State::Passing(body);
        None
    }

    /// Ends the client's stream with an event that reports a refusal.
    fn end(&mut self, refusal: &Refusal) -> Bytes {
        self.state = State::Over;
        refusal.event(self.dialect)
    }

    /// Returns a comment for the client once the interval since the last comment has passed.
    fn poll_comment(&mut self, context: &mut Context<'_>) -> Poll<Bytes> {
        ready!(self.timer.as_mut().poll(context));
        self.timer.as_mut().reset(Instant::now() + self.every);
        // It has to be asked once to wake for the next one.
        let _ = self.timer.as_mut().poll(context);
        Poll::Ready(Bytes::from_static(COMMENT))
    }
}

impl Body for EarlyStream {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let stream = &mut *self;
        loop {
            let event = match &mut stream.state {
                State::Over => return Poll::Ready(None),
                State::Passing(answer) => return Pin::new(answer).poll_frame(context),
                State::Waiting(work) => match work.as_mut().poll(context) {
                    Poll::Ready(answered) => stream.take(answered),
                    Poll::Pending => Some(ready!(stream.poll_comment(context))),
                },
                State::Refused(status, answer, said) => match Pin::new(answer).poll_frame(context) {
                    Poll::Ready(Some(Ok(frame))) if said.len() < MAX_REFUSAL => {
                        said.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data));
                        None
                    }
                    Poll::Ready(_) => {
                        let refusal = refusal_of(*status, said);
                        Some(stream.end(&refusal))
                    }
                    Poll::Pending => Some(ready!(stream.poll_comment(context))),
                },
            };
            if let Some(data) = event {
                return Poll::Ready(Some(Ok(Frame::data(data))));
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.state {
            State::Over => true,
            State::Passing(answer) => answer.is_end_stream(),
            State::Waiting(_) | State::Refused(..) => false,
        }
    }
}

/// Converts an engine's refusal to a refusal by the router with the same message.
fn refusal_of(status: StatusCode, said: &[u8]) -> Refusal {
    let code = if status.is_server_error() { "engine_failed" } else { "engine_refused" };
    let message = told(said).unwrap_or_else(|| String::from_utf8_lossy(said).chars().take(1000).collect());
    Refusal::new(status, code, format!("{message} (the engine answered {})", status.as_u16()))
}

/// Extracts the message from an engine's error answer, in any of the engines' formats; None if the answer has no
/// message.
fn told(said: &[u8]) -> Option<String> {
    let [error, own, detail] = pick(said, ["error", "message", "detail"])?;
    let [inside] = error.and_then(|error| pick(error.get().as_bytes(), ["message"])).unwrap_or_default();
    let message = [inside, own, error, detail].into_iter().find_map(read::<String>)?;
    Some(message).filter(|message| !message.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_engines() {
        for (said, message) in [
            (r#"{"error":{"message":"too long","type":"x","code":400}}"#, "too long (the engine answered 400)"),
            (r#"{"object":"error","message":"too long","code":400}"#, "too long (the engine answered 400)"),
            (r#"{"detail":"Not Found"}"#, "Not Found (the engine answered 400)"),
            (r#"{"error":"no"}"#, "no (the engine answered 400)"),
            ("<html>", "<html> (the engine answered 400)"),
        ] {
            assert_eq!(refusal_of(StatusCode::BAD_REQUEST, said.as_bytes()).message, message);
        }
        let long = refusal_of(StatusCode::BAD_GATEWAY, &b"x".repeat(5000));
        assert!(long.message.len() < 1100 && long.code == "engine_failed");
    }
}
