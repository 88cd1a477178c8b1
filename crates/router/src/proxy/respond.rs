//! Answers to clients: an engine's answer that is forwarded, or a refusal by the router.

use hyper::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::{Response, StatusCode};

use super::answer_body::AnswerBody;
use super::flight::{Flight, Verdict};
use crate::answers::Answer;
use crate::answers::observe::{AnswerFormat, Observer};
use crate::answers::refusal::Refusal;
use crate::config::Config;
use crate::engines::request_head::{REQUEST_ID, strip};
use crate::engines::{Connection, Engine, Fault, Head};
use crate::placing::Placement;

/// Makes the answer for the client from an engine's answer: the head, and a body that forwards the engine's.
pub(super) fn pass(
    config: &Config,
    shard: usize,
    connection: Connection,
    answer: Head,
    reading: AnswerFormat,
    flight: Flight,
) -> (Box<AnswerBody>, (StatusCode, HeaderMap)) {
    let Head { status, mut headers, keep, framing } = answer;
    strip(&mut headers);
    let reading = AnswerFormat { finds_errors: reading.finds_errors && status.is_success(), ..reading };
    let observer = if headers.contains_key(CONTENT_ENCODING) {
        Observer::of(None, reading)
    } else {
        Observer::of(headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes), reading)
    };
    let stall = config.upstream.stall_timeout;
    let mut passing = Box::new(AnswerBody::new(connection, framing, keep, shard, observer, flight, stall));
    passing.comments_after(config.comment_after);
    (passing, (status, headers))
}

pub(super) fn respond(
    config: &Config,
    (status, mut headers): (StatusCode, HeaderMap),
    passing: Box<AnswerBody>,
    new_id: Option<HeaderValue>,
    asked: &HeaderMap,
) -> Response<Answer> {
    if passing.hides() {
        headers.remove(CONTENT_LENGTH);
    }
    name(config, passing.placement(), new_id, asked, &mut headers);
    let mut response = Response::new(Answer::Stream(Box::into_pin(passing)));
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}

/// Marker on an answer that contains an error in spite of a status of success.
#[derive(Clone, Copy)]
pub(super) struct FailedMark;

/// Makes the answer for the client from an engine's error, if no other engine gives a better answer.
pub(super) fn respond_failed(
    config: &Config,
    told: (StatusCode, HeaderMap),
    passing: Box<AnswerBody>,
    new_id: Option<HeaderValue>,
    asked: &HeaderMap,
) -> Response<Answer> {
    let mut response = respond(config, told, passing, new_id, asked);
    response.extensions_mut().insert(FailedMark);
    response
}

/// Makes the answer for a refusal by the prefill engine. The decode engine, which depends on the prefill engine, would
/// have refused too.
pub(super) fn refused(
    config: &Config,
    verdict: Verdict,
    mut decode: Flight,
    new_id: Option<HeaderValue>,
    asked: &HeaderMap,
) -> Response<Answer> {
    decode.note_refusal_elsewhere();
    let Verdict { status, headers: mut its, body } = verdict;
    strip(&mut its);
    its.remove(CONTENT_LENGTH);
    let mut response = Response::new(Answer::Full(body.into()));
    *response.status_mut() = status;
    *response.headers_mut() = its;
    name(config, decode.placement(), new_id, asked, response.headers_mut());
    response
}

/// Adds headers with the request's id, the chosen engine and the reason for the choice.
fn name(
    config: &Config,
    placement: &Placement,
    new_id: Option<HeaderValue>,
    asked: &HeaderMap,
    headers: &mut HeaderMap,
) {
    if let Some(id) = new_id.or_else(|| asked.get(REQUEST_ID).cloned()) {
        headers.insert(REQUEST_ID, id);
    }
    if config.response_headers {
        placement.tell(headers);
    }
}

/// Makes the refusal of a request that no engine answered.
pub(super) fn refuse_failed(engine: &Engine, fault: &Fault) -> Refusal {
    let message = format!("engine {}: {fault}", engine.name);
    match fault {
        Fault::NoModel => Refusal::new(StatusCode::NOT_FOUND, "model_not_found", message),
        Fault::FirstByte | Fault::Stalled | Fault::Down => {
            Refusal::new(StatusCode::GATEWAY_TIMEOUT, "engine_timeout", message)
        }
        Fault::Busy(_) => {
            Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "engine_busy", message).again_after(engine.health.busy_for())
        }
        _ => Refusal::new(StatusCode::BAD_GATEWAY, "engine_failed", message),
    }
}
