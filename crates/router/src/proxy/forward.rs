//! One request, from the client's head to the head of the answer.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER};
use hyper::{Request, Response, StatusCode};
use kvatlas_http::{BodyLimits, Incoming, body};
use kvatlas_prompt::Endpoint;

use super::attempts::{Attempts, GivenUp};
use super::exchange::{Patience, exchange};
use super::flight::Flight;
use super::handover::{self, Ended, Prepared, Verdict};
use super::headers::{Outgoing, REQUEST_ID, hide_keys, strip};
use super::passing::Passing;
use super::usage;
use crate::answer::Answer;
use crate::app::App;
use crate::config::Role;
use crate::encoding::{Codings, unpacked};
use crate::engine::{Connection, Engine, Fault, Head};
use crate::names;
use crate::observe::{Dialect, Observer, Reading};
use crate::place::Placement;
use crate::prompts::{Known, session};
use crate::reading::look_at;
use crate::refusal::Refusal;
use crate::routes::{Forwarded, Route, of_query};
use crate::stored;

/// The longest that an engine is left alone because it asks for it.
const MAX_PAUSE: Duration = Duration::from_secs(60);

/// Passes a request on, and its answer back.
pub(crate) async fn forward(
    app: &Arc<App>,
    shard: usize,
    request: Request<Incoming>,
    route: &Route,
    forwarded: Forwarded,
    until: Instant,
    arrived: Instant,
) -> Result<Response<Answer>, Refusal> {
    let endpoint = forwarded.endpoint;
    let (mut head, body) = request.into_parts();
    hide_keys(&mut head.headers, &app.gate);
    let body = read(app, body, app.config.http.max_body, until).await?;
    let new_id = (!head.headers.contains_key(REQUEST_ID)).then(names::request_id);
    let outgoing = Outgoing {
        method: &head.method,
        uri: &head.uri,
        headers: &head.headers,
        id: new_id.as_ref(),
        plain: endpoint.is_some(),
    };
    let mut known = look(app, &head.headers, head.uri.query(), forwarded, &body).await?;
    hints(app, &head.headers, &mut known);
    let is_response = endpoint == Some(Endpoint::Responses);
    let repeatable = route.may_repeat(&head.method) && !known.in_background;
    let kept = known.previous.as_deref().or_else(|| stored::of_path(head.uri.path()));
    known.only = kept.and_then(|id| app.stored.engine_of(id, |name| app.fleet.engine(name).is_some()));

    let mut reading = Reading { dialect: Dialect::of(endpoint), hides_usage: false };
    let asking =
        if known.lacks_usage && app.config.ask_usage { usage::asking(&body, known.has_stream_options) } else { None };
    reading.hides_usage = asking.is_some();
    let body = asking.unwrap_or(body);

    // Only what generates is worth to be taken apart.
    let split = matches!(endpoint, Some(Endpoint::Chat | Endpoint::Completions)) && app.fleet.is_split();
    let forwards_ids = app.config.forward_tokens && endpoint == Some(Endpoint::Completions);
    let mut attempts = Attempts::new(repeatable, if known.only.is_none() { app.config.upstream.retries } else { 0 });
    let mut last: Option<Refusal> = None;
    let give_up = |why: GivenUp, refusal: Refusal| {
        why.count(app, new_id.as_ref().or_else(|| head.headers.get(REQUEST_ID)), &refusal);
        refusal
    };
    loop {
        let role = if split { Role::Decode } else { Role::Both };
        let placement = match app.places.choose(app, shard, &known, role, attempts.tried()).await {
            Ok(placement) => placement,
            Err(_) if attempts.go_back() => continue,
            // Why the last one failed says more than that there is no other.
            Err(refusal) => {
                return Err(last.map_or(refusal, |last| give_up(GivenUp::NoOtherEngine, last)));
            }
        };
        let (engine, rank) = (placement.engine.clone(), placement.rank);
        let mut flight = Flight::new(app.clone(), placement, arrived);
        let prepared = if split && flight.placement().uncached(&known) > app.config.decode_alone {
            let prepared =
                handover::prepare(app, shard, &outgoing, &body, &known, &engine, arrived, &mut attempts).await;
            app.counts.handovers[prepared.number()].fetch_add(1, Relaxed);
            prepared
        } else {
            Prepared::Alone
        };
        if forwards_ids && !matches!(prepared, Prepared::Alone) {
            app.tokens.goes_apart();
        }
        let (asked, mut prefill) = match prepared {
            Prepared::Alone if forwards_ids => (app.tokens.body(app, &engine, &known, &body), None),
            Prepared::Alone => (body.clone(), None),
            Prepared::Body(body) => (body, None),
            Prepared::Meanwhile(body, prefill) => (body, Some(prefill)),
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
            exchange(app, &engine, shard, &bytes, &asked, &head.method, fresh).await
        };
        let fault = match handover::beside_prefill(answered, &mut prefill).await {
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
                    flight.failed(&busy);
                    busy
                } else {
                    let status = answer.status;
                    let is_kept = is_response && status.is_success();
                    let (mut passing, told) = pass(app, shard, connection, answer, reading, flight);
                    if is_kept {
                        passing = passing.kept();
                    }
                    match handover::beside_prefill(patience.wait(passing.begin()), &mut prefill).await {
                        Ok(()) => {
                            if !status.is_server_error() {
                                attempts.answered();
                            }
                            if let Some(prefill) = prefill.take() {
                                passing.beside(prefill);
                            }
                            return Ok(respond(app, told, passing, new_id, &head.headers));
                        }
                        Err(Ended::Refused(verdict)) => {
                            return Ok(refused(app, verdict, passing.into_flight(), new_id, &head.headers));
                        }
                        Err(Ended::Failed(fault)) => {
                            passing.into_flight().failed(&fault);
                            fault
                        }
                    }
                }
            }
            Err(Ended::Refused(verdict)) => return Ok(refused(app, verdict, flight, new_id, &head.headers)),
            Err(Ended::Failed(fault)) => {
                flight.failed(&fault);
                fault
            }
        };
        let refusal = failed(&engine, &fault);
        let suspect = awaited.filter(|_| matches!(fault, Fault::Prefill { .. }));
        if let Some(why) = attempts.failed(&engine, suspect.as_ref().unwrap_or(&engine), &fault) {
            return Err(give_up(why, refusal));
        }
        last = Some(refusal);
        app.counts.retries[fault.number()].fetch_add(1, Relaxed);
    }
}

/// What a request asks. A body that is compressed is read all the same.
async fn look(
    app: &Arc<App>,
    headers: &HeaderMap,
    query: Option<&str>,
    forwarded: Forwarded,
    body: &Bytes,
) -> Result<Known, Refusal> {
    let codings = Codings::of(headers);
    let unpacked = match codings {
        Some(codings) if !codings.are_none() => unpacked(codings, body, app.config.http.max_body).await,
        _ => None,
    };
    let plain = unpacked.as_ref().map_or(body, |unpacked| &unpacked.body);
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let mut known = look_at(app, forwarded.endpoint, forwarded.model, kind, plain).await?;
    // It is passed on as it came.
    known.lacks_usage &= unpacked.is_none();
    if known.model.is_none() && forwarded.endpoint.is_none() {
        known.model = query.and_then(of_query);
    }
    Ok(known)
}

/// What headers say of where a request should go, and when.
fn hints(app: &App, headers: &HeaderMap, known: &mut Known) {
    let config = &app.config;
    let text = |name: &str| (!name.is_empty()).then(|| headers.get(name)?.to_str().ok()).flatten();
    if let Some(name) = text(&config.session_header) {
        known.session = Some(session(name));
    }
    if let Some(priority) = text(&config.priority_header).and_then(|text| text.trim().parse().ok()) {
        known.priority = priority;
    }
}

/// Whether somebody else could take the request.
fn has_other(app: &App, engine: &Arc<Engine>, tried: &[Arc<Engine>]) -> bool {
    let known = |other: &Arc<Engine>| Arc::ptr_eq(engine, other) || tried.iter().any(|it| Arc::ptr_eq(it, other));
    app.fleet.engines().iter().any(|other| !known(other))
}

/// An answer that says nothing of the request, only that this engine does not take it.
fn is_worth_another(status: StatusCode) -> bool {
    matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::BAD_GATEWAY | StatusCode::SERVICE_UNAVAILABLE)
}

/// How long an engine asks to be left alone.
fn pause_wanted(answer: &Head) -> Option<Duration> {
    if !matches!(answer.status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
        return None;
    }
    let seconds: u64 = answer.headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds).min(MAX_PAUSE))
}

/// An answer on its way, and what stands before it.
fn pass(
    app: &App,
    shard: usize,
    connection: Connection,
    answer: Head,
    reading: Reading,
    flight: Flight,
) -> (Passing, (StatusCode, HeaderMap)) {
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
    (Passing::new(connection, framing, keep, shard, observer, flight, stall), (status, headers))
}

fn respond(
    app: &App,
    (status, mut headers): (StatusCode, HeaderMap),
    passing: Passing,
    new_id: Option<HeaderValue>,
    asked: &HeaderMap,
) -> Response<Answer> {
    name(app, passing.placement(), new_id, asked, &mut headers);
    let mut response = Response::new(Answer::Passing(Box::new(passing)));
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}

/// The answer of a prefill engine that refused the request: the decode engine, which waits for it, would have said the
/// same.
fn refused(
    app: &App,
    verdict: Verdict,
    mut decode: Flight,
    new_id: Option<HeaderValue>,
    asked: &HeaderMap,
) -> Response<Answer> {
    decode.refused_elsewhere();
    let mut response = verdict.response();
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

/// What a client is told when nobody answered.
fn failed(engine: &Engine, fault: &Fault) -> Refusal {
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

/// A body as a whole, of `most` bytes at most.
pub(crate) async fn read(app: &App, body: Incoming, most: usize, until: Instant) -> Result<Bytes, Refusal> {
    let limits = BodyLimits { most, thrown_away: 0, until };
    body::read(body, limits, &app.front.memory).await.map_err(|fault| Refusal::of_body(&fault, most))
}
