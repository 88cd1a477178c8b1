//! A request that is sent to an engine, and to others if it fails there, up to the first byte of an answer.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER};
use hyper::{Response, StatusCode};

use super::answer_body::AnswerBody;
use super::attempts::{Attempts, LastAttempt};
use super::exchange::{Patience, exchange};
use super::flight::Flight;
use super::handover::{self, PrefillState};
use super::headers::{EngineRequest, REQUEST_ID, strip};
use super::leg::{DecodeFailure, Verdict, beside_prefill};
use super::token_bodies;
use crate::answer::Answer;
use crate::app::App;
use crate::engine::{Connection, Engine, Fault, Head};
use crate::observe::{AnswerFormat, Observer};
use crate::place::{Placement, Task};
use crate::refusal::Refusal;
use crate::request_facts::RequestFacts;

/// The longest that an engine is left alone because it asks for it.
const MAX_PAUSE: Duration = Duration::from_secs(60);

/// A request that is to be sent to an engine.
pub(super) struct Job<'a> {
    pub(super) app: &'a Arc<App>,
    pub(super) shard: usize,
    pub(super) outgoing: EngineRequest<'a>,
    pub(super) body: Bytes,
    pub(super) known: RequestFacts,
    pub(super) reading: AnswerFormat,
    pub(super) task: Task,
    /// True if vLLM goes on from another engine's blocks for such a request, and there are prefill engines.
    pub(super) takes_over: bool,
    pub(super) forwards_ids: bool,
    pub(super) is_response: bool,
    pub(super) arrived: Instant,
}

impl Job<'_> {
    /// Sends the request to an engine, and to others if it fails there, and returns the first answer with its first byte.
    /// `began`: gets the first of these engines.
    pub(super) async fn run(
        &self,
        mut attempts: Attempts,
        began: &OnceLock<Arc<Engine>>,
    ) -> Result<Response<Answer>, Refusal> {
        let Self { app, shard, outgoing, body, known, reading, task, takes_over, forwards_ids, is_response, arrived } =
            self;
        let (app, shard, forwards_ids, arrived) = (*app, *shard, *forwards_ids, *arrived);
        let mut task = *task;
        let (new_id, headers) = (outgoing.id, outgoing.headers);
        let mut last: Option<Refusal> = None;
        let mut unpaired: Option<Refusal> = None;
        let give_up = |why: LastAttempt, refusal: Refusal| {
            why.count(app, new_id.or_else(|| headers.get(REQUEST_ID)), &refusal);
            refusal
        };
        loop {
            let placement = match app.places.choose(app, shard, known, task, attempts.tried()).await {
                Ok(placement) => placement,
                Err(_) if attempts.go_back() => continue,
                // Why the last one failed says more than that there is no other.
                Err(refusal) => {
                    let refusal = unpaired.unwrap_or(refusal);
                    return Err(last.map_or(refusal, |last| give_up(LastAttempt::NoOtherEngine, last)));
                }
            };
            let (engine, rank) = (placement.engine.clone(), placement.rank);
            began.get_or_init(|| engine.clone());
            let mut flight = Flight::new(app.clone(), placement, arrived);
            let prefill_by = match task {
                Task::Generate => {
                    handover::prefill_by(app, &engine, *takes_over, || flight.placement().uncached(known))
                }
                _ => None,
            };
            let prepared = match prefill_by {
                Some(by) => {
                    let prepared =
                        handover::prepare(app, shard, outgoing, body, known, by, arrived, &mut attempts).await;
                    app.counts.handovers[prepared.number()].fetch_add(1, Relaxed);
                    prepared
                }
                None => PrefillState::Alone,
            };
            if forwards_ids && matches!(prepared, PrefillState::Body(_) | PrefillState::Meanwhile(..)) {
                app.tokens.goes_apart();
            }
            let (asked, mut prefill) = match prepared {
                PrefillState::Alone if forwards_ids => (token_bodies::body_of_ids(app, &engine, known, body), None),
                PrefillState::Alone => (body.clone(), None),
                PrefillState::Body(body) => (body, None),
                PrefillState::Meanwhile(body, prefill) => (body, Some(prefill)),
                PrefillState::Refused(refusal) => {
                    flight.note_refusal_elsewhere();
                    // Without a prefill engine, only one that does both can take it.
                    task = Task::Alone;
                    unpaired = Some(refusal);
                    continue;
                }
            };
            // What goes wrong at a prefill engine is not the decode engine's fault.
            let awaited = prefill.as_ref().map(|leg| leg.engine.clone());
            let mut bytes = Vec::new();
            outgoing.write(&engine, rank, asked.len(), &mut bytes);
            let fresh = attempts.needs_new_connection();
            let patience = Patience::new(app, &engine);
            let answered = async {
                if attempts.is_lost() {
                    return Err(Fault::Prefill { sent: false });
                }
                exchange(app, &engine, shard, &bytes, &asked, outgoing.method, fresh).await
            };
            let fault = match beside_prefill(answered, &mut prefill).await {
                Ok((connection, answer)) => {
                    flight.answered(answer.status.as_u16());
                    let pause = pause_wanted(&answer);
                    if let Some(pause) = pause {
                        engine.health.set_busy(pause);
                    }
                    let busy = Fault::Busy(answer.status.as_u16());
                    if answer.status.as_u16() >= 400 {
                        prefill = None;
                    }
                    if is_worth_another(answer.status)
                        && attempts.may_go_on_after(&busy)
                        && has_other(app, &engine, attempts.tried())
                    {
                        flight.note_failure(&busy);
                        busy
                    } else {
                        let status = answer.status;
                        let is_kept = *is_response && status.is_success();
                        let (mut passing, told) = pass(app, shard, connection, answer, *reading, flight);
                        if is_kept {
                            passing = passing.kept();
                        }
                        match beside_prefill(patience.wait(passing.begin()), &mut prefill).await {
                            Ok(()) => {
                                if !status.is_server_error() {
                                    attempts.answered();
                                }
                                if let Some(prefill) = prefill.take() {
                                    passing.beside(prefill);
                                }
                                return Ok(respond(app, told, passing, new_id.cloned(), headers));
                            }
                            Err(DecodeFailure::Refused(verdict)) => {
                                return Ok(refused(app, verdict, passing.into_flight(), new_id.cloned(), headers));
                            }
                            Err(DecodeFailure::Failed(fault)) => {
                                passing.into_flight().note_failure(&fault);
                                fault
                            }
                        }
                    }
                }
                Err(DecodeFailure::Refused(verdict)) => {
                    return Ok(refused(app, verdict, flight, new_id.cloned(), headers));
                }
                Err(DecodeFailure::Failed(fault)) => {
                    flight.note_failure(&fault);
                    fault
                }
            };
            let refusal = refuse_failed(&engine, &fault);
            let suspect = awaited.filter(|_| matches!(fault, Fault::Prefill { .. }));
            if let Some(why) = attempts.note_failure(&engine, suspect.as_ref().unwrap_or(&engine), &fault) {
                return Err(give_up(why, refusal));
            }
            last = Some(refusal);
            app.counts.retries[fault.number()].fetch_add(1, Relaxed);
        }
    }
}

/// True if there is an engine that has not been asked.
fn has_other(app: &App, engine: &Arc<Engine>, tried: &[Arc<Engine>]) -> bool {
    let known = |other: &Arc<Engine>| Arc::ptr_eq(engine, other) || tried.iter().any(|it| Arc::ptr_eq(it, other));
    app.fleet.engines().iter().any(|other| !known(other))
}

/// True if an answer says nothing of the request, only that this engine does not take it.
fn is_worth_another(status: StatusCode) -> bool {
    matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE)
}

/// Returns how long an engine asks to be left alone.
fn pause_wanted(answer: &Head) -> Option<Duration> {
    if !matches!(answer.status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
        return None;
    }
    let seconds: u64 = answer.headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds).min(MAX_PAUSE))
}

/// Makes the answer that is passed on, and the head that stands before it.
fn pass(
    app: &App,
    shard: usize,
    connection: Connection,
    answer: Head,
    reading: AnswerFormat,
    flight: Flight,
) -> (AnswerBody, (StatusCode, HeaderMap)) {
    let Head { status, mut headers, keep, framing } = answer;
    strip(&mut headers);
    let observer = if headers.contains_key(CONTENT_ENCODING) {
        Observer::of(None, reading)
    } else {
        Observer::of(headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes), reading)
    };
    if observer.hides() {
        headers.remove(CONTENT_LENGTH);
    }
    let stall = app.config.upstream.stall_timeout;
    (AnswerBody::new(connection, framing, keep, shard, observer, flight, stall), (status, headers))
}

fn respond(
    app: &App,
    (status, mut headers): (StatusCode, HeaderMap),
    passing: AnswerBody,
    new_id: Option<HeaderValue>,
    asked: &HeaderMap,
) -> Response<Answer> {
    name(app, passing.placement(), new_id, asked, &mut headers);
    let mut response = Response::new(Answer::Passing(Box::new(passing)));
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}

/// Makes the answer of a prefill engine that refused the request: the decode engine, which waits for it, would have
/// said the same.
fn refused(
    app: &App,
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
    name(app, decode.placement(), new_id, asked, response.headers_mut());
    response
}

/// Tells the client which request this answers, and where it was placed.
fn name(app: &App, placement: &Placement, new_id: Option<HeaderValue>, asked: &HeaderMap, headers: &mut HeaderMap) {
    if let Some(id) = new_id.or_else(|| asked.get(REQUEST_ID).cloned()) {
        headers.insert(REQUEST_ID, id);
    }
    if app.config.response_headers {
        placement.tell(headers);
    }
}

/// Makes the refusal that a client gets when nobody answered.
fn refuse_failed(engine: &Engine, fault: &Fault) -> Refusal {
    let message = format!("engine {}: {fault}", engine.name);
    match fault {
        Fault::FirstByte | Fault::Stalled | Fault::Down => {
            Refusal::new(StatusCode::GATEWAY_TIMEOUT, "engine_timeout", message)
        }
        Fault::Busy(_) => {
            Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "engine_busy", message).again_after(engine.health.busy_for())
        }
        _ => Refusal::new(StatusCode::BAD_GATEWAY, "engine_failed", message),
    }
}
