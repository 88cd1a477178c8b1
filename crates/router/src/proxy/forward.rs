//! One request, from the client's head to the head of the answer.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::body::{Body as _, Incoming};
use hyper::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER};
use hyper::{Request, Response, StatusCode};
use kvatlas_prompt::Endpoint;

use super::exchange::exchange;
use super::flight::Flight;
use super::handover::{self, Prepared};
use super::headers::{Outgoing, REQUEST_ID, strip};
use super::passing::Passing;
use super::usage;
use crate::answer::Answer;
use crate::app::App;
use crate::config::Role;
use crate::engine::{Connection, Engine, Fault, Head};
use crate::names;
use crate::observe::{Dialect, Observer, Reading};
use crate::prompts::{Known, session};
use crate::refusal::Refusal;
use crate::stored;

/// Bytes of a body that were not seen before, beyond which its prompt is turned into tokens on a thread beside those that
/// serve: or the streams of a whole thread would wait for it.
const LONG: usize = 32 << 10;

/// The longest that an engine is left alone because it asks for it.
const MAX_PAUSE: Duration = Duration::from_secs(60);

/// Passes a request on, and its answer back. `endpoint`: what the body is, where it has a prompt.
pub(crate) async fn forward(
    app: &Arc<App>,
    shard: usize,
    request: Request<Incoming>,
    endpoint: Option<Endpoint>,
    until: Instant,
    arrived: Instant,
) -> Result<Response<Answer>, Refusal> {
    let (head, body) = request.into_parts();
    let body = read(body, app.config.http.max_body, until).await?;
    let new_id = (!head.headers.contains_key(REQUEST_ID)).then(names::request_id);
    let outgoing = Outgoing {
        method: &head.method,
        uri: &head.uri,
        headers: &head.headers,
        id: new_id.as_ref(),
        hides_key: app.gate.asks_for_key(),
        plain: endpoint.is_some(),
    };
    let mut known = match endpoint {
        Some(endpoint) => look_at(app, endpoint, &body).await?,
        None => Known::default(),
    };
    hints(app, &head.headers, &mut known);
    let is_response = endpoint == Some(Endpoint::Responses);
    let kept = if is_response { stored::previous(&body) } else { stored::of_path(head.uri.path()).map(Cow::Borrowed) };
    known.only = kept.and_then(|id| app.stored.engine_of(&id, |name| app.fleet.engine(name).is_some()));
    if let Some(endpoint) = endpoint.filter(|_| app.prompts.asks_engines()) {
        let engine = app.fleet.one_for(known.model.as_deref());
        app.prompts.ask(engine.as_deref(), endpoint, &body, &mut known).await;
    }

    let mut reading = Reading { dialect: Dialect::of(endpoint), hides_usage: false };
    let asking =
        if known.lacks_usage && app.config.ask_usage { usage::asking(&body, known.has_stream_options) } else { None };
    reading.hides_usage = asking.is_some();
    let body = asking.unwrap_or(body);

    // Only what generates is worth to be taken apart.
    let split = matches!(endpoint, Some(Endpoint::Chat | Endpoint::Completions)) && app.fleet.is_split();
    let forwards_ids = app.config.forward_tokens && endpoint == Some(Endpoint::Completions);
    let mut tried: Vec<Arc<Engine>> = Vec::new();
    let mut last: Option<Refusal> = None;
    loop {
        let role = if split { Role::Decode } else { Role::Both };
        let placement = match app.places.choose(app, shard, &known, role, &tried).await {
            Ok(placement) => placement,
            // Why the last one failed says more than that there is no other.
            Err(refusal) => return Err(last.unwrap_or(refusal)),
        };
        let (engine, rank) = (placement.engine.clone(), placement.rank);
        let mut flight = Flight::new(app.clone(), placement, arrived);
        let retries_left = (tried.len() as u32) < app.config.upstream.retries && known.only.is_none();
        let prepared = if split && flight.placement().uncached(&known) > app.config.decode_alone {
            let prepared = handover::prepare(app, shard, &outgoing, &body, &known, &engine, arrived).await;
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
        let mut bytes = Vec::new();
        outgoing.write(&engine, rank, asked.len(), &mut bytes);
        let answered = exchange(app, &engine, shard, &bytes, &asked, &head.method);
        let fault = match handover::beside_prefill(answered, &mut prefill).await {
            Ok((connection, answer)) => {
                flight.answered(answer.status.as_u16());
                let pause = pause_wanted(&answer);
                if let Some(pause) = pause {
                    engine.health.set_busy(pause);
                }
                if is_worth_another(answer.status) && retries_left && has_other(app, &engine, &tried) {
                    let fault = Fault::Busy(answer.status.as_u16());
                    flight.failed(&fault, answer.status == StatusCode::BAD_GATEWAY);
                    fault
                } else {
                    let is_kept = is_response && answer.status.is_success();
                    let (mut passing, told) = pass(app, shard, connection, answer, reading, flight);
                    if is_kept {
                        passing = passing.kept();
                    }
                    match handover::beside_prefill(passing.begin(), &mut prefill).await {
                        Ok(()) => return Ok(respond(app, told, passing, new_id, &head.headers)),
                        Err(fault) => {
                            passing.into_flight().failed(&fault, fault != Fault::Prefill);
                            fault
                        }
                    }
                }
            }
            Err(fault) => {
                // What goes wrong at a prefill engine is not the decode engine's fault.
                flight.failed(&fault, fault != Fault::Prefill);
                fault
            }
        };
        let refusal = failed(&engine, &fault);
        if !retries_left {
            return Err(refusal);
        }
        last = Some(refusal);
        tried.push(engine);
        app.counts.retries[fault.number()].fetch_add(1, Relaxed);
    }
}

/// What a body says.
async fn look_at(app: &Arc<App>, endpoint: Endpoint, body: &Bytes) -> Result<Known, Refusal> {
    let recalled = app.prompts.recall(endpoint, body);
    if recalled.new_bytes() <= LONG || !app.places.wants().hashes {
        return Ok(app.prompts.read(app.service.as_ref(), endpoint, body, &recalled));
    }
    let _turn = app.prompts.turn().await;
    let (app, body) = (app.clone(), body.clone());
    let read = move || app.prompts.read(app.service.as_ref(), endpoint, &body, &recalled);
    tokio::task::spawn_blocking(read).await.map_err(|_| {
        let message = "internal error; the router's log has the details";
        Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message)
    })
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
    if let Some(id) = new_id.or_else(|| asked.get(REQUEST_ID).cloned()) {
        headers.insert(REQUEST_ID, id);
    }
    if app.config.response_headers {
        passing.placement().tell(&mut headers);
    }
    let mut response = Response::new(Answer::Passing(Box::new(passing)));
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
}

/// What a client is told when nobody answered.
fn failed(engine: &Engine, fault: &Fault) -> Refusal {
    let message = format!("engine {}: {fault}", engine.name);
    match fault {
        Fault::FirstByte | Fault::Stalled => Refusal::new(StatusCode::GATEWAY_TIMEOUT, "engine_timeout", message),
        Fault::Busy(_) => {
            Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "engine_busy", message).again_after(engine.health.busy_for())
        }
        _ => Refusal::new(StatusCode::BAD_GATEWAY, "engine_failed", message),
    }
}

/// The whole body.
async fn read(body: Incoming, most: usize, until: Instant) -> Result<Bytes, Refusal> {
    let too_long = || {
        let message = format!("the body is larger than the limit of {most} bytes (http.max_body)");
        Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message).closing()
    };
    if body.is_end_stream() {
        return Ok(Bytes::new());
    }
    let expected = body.size_hint().exact();
    if body.size_hint().lower() > most as u64 {
        return Err(too_long());
    }
    let reading = async {
        let mut body = body;
        let (mut first, mut all) = (Bytes::new(), BytesMut::new());
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| {
                Refusal::bad("incomplete_body", format!("the body cannot be read: {error}")).closing()
            })?;
            let Ok(data) = frame.into_data() else { continue };
            if first.is_empty() && all.is_empty() {
                first = data;
            } else {
                if !first.is_empty() {
                    // What a client says of its length is not believed beyond some.
                    let room = expected.unwrap_or(0).min(1 << 20) as usize;
                    all.reserve(room.max(first.len() + data.len()));
                    all.extend_from_slice(&std::mem::take(&mut first));
                }
                all.extend_from_slice(&data);
            }
            if first.len() + all.len() > most {
                return Err(too_long());
            }
        }
        Ok(if all.is_empty() { first } else { all.freeze() })
    };
    tokio::time::timeout_at(until.into(), reading).await.unwrap_or_else(|_| {
        let message = "the body did not arrive within the time limit (http.request_timeout)";
        Err(Refusal::new(StatusCode::REQUEST_TIMEOUT, "body_timeout", message).closing())
    })
}
