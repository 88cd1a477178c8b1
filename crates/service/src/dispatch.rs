//! Dispatch of HTTP requests: checks the key, path and method of a request, and calls the function of its route.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, LazyLock};
use std::thread::available_parallelism;
use std::time::Instant;

use hyper::{Method, Request, Response, StatusCode};
use kvatlas_follow::log::panic_text;
use kvatlas_follow::report::{self, VERSION};
use kvatlas_http::ranges::RangeRequest;
use kvatlas_http::{BodyLimits, Call, Content, ListenerKind, RequestBody, body};
use tokio::sync::Semaphore;

use crate::answer::{self, Answer, PATIENCE, Refusal, json, json_pieces, typed};
use crate::app::App;
use crate::query::{Body, Kind};
use crate::routes::{Route, WELCOME};
use crate::trace::Trace;
use crate::{dump, exposition, health, page, queries, register, sites};

const OPENAPI: &str = include_str!("openapi.json");

/// Answers an HTTP request.
pub(crate) async fn answer(app: Arc<App>, call: Call, request: Request<RequestBody>) -> Response<Answer> {
    let started = Instant::now();
    let route = Route::of(request.uri().path());
    let trace = Trace::of(&request, app.gate.live().access_log, &app.gate);
    let mut response = dispatch(&app, &call, route, request).await.unwrap_or_else(|refusal| refusal.response());
    let took = started.elapsed();
    app.counts.answered(route, response.status().as_u16(), took);
    trace.answered(route, &mut response, took);
    response
}

async fn dispatch(
    app: &Arc<App>,
    call: &Call,
    route: Route,
    request: Request<RequestBody>,
) -> Result<Response<Answer>, Refusal> {
    let kind = call.kind;
    app.gate.check_target(&request)?;
    if kind == ListenerKind::Admin {
        app.gate.check_admin_host(&request)?;
    } else {
        app.gate.check(&request, route.access())?;
    }
    if route == Route::Unknown || !route.is_at(kind) {
        return Err(Refusal::unknown_path());
    }
    let head = request.method() == Method::HEAD && route.method() == Method::GET;
    if request.method() != route.method() && !head {
        return Err(Refusal::wrong_method(if route.method() == Method::GET { "GET, HEAD" } else { "POST" }));
    }
    if route.method() == Method::POST {
        return post(app, route, request, call.until).await;
    }
    let blank = app.front.config.request_timeout.min(app.front.config.idle_timeout) / 3;
    match route {
        Route::Workers => {
            let (model, routing_group) = workers_filter(request.uri().query().unwrap_or_default());
            guarded(app, || {
                let list = report::workers(&app.fleet, model.as_deref(), routing_group.as_deref());
                Ok(json(StatusCode::OK, list.to_string()))
            })
        }
        Route::SitesStatus => guarded(app, || sites::status(app)),
        Route::Engines => Ok(json(StatusCode::OK, report::engines(&app.fleet).to_string())),
        // The body of a HEAD is not made only for its length.
        Route::Dump if head => Ok(json(StatusCode::OK, "")),
        Route::Dump if app.fleet.is_keyed() => {
            Err(Refusal::keyed_identity("there is no dump of it that others could use"))
        }
        Route::Dump => Ok(json_pieces(dump::start(app, blank))),
        Route::Snapshot => {
            let part = RangeRequest::of(request.headers());
            let snapshot = app.follower.snapshot(part.wanted, part.fresh, app.front.config.request_timeout).await?;
            let answered = part.answer("snapshot", snapshot.id, &snapshot.bytes, "application/zstd", head)?;
            Ok(answered.map(Answer::Whole))
        }
        Route::Page => kvatlas_ui::asset(request.uri().path()).map(answer::page).ok_or_else(Refusal::unknown_path),
        Route::PageEvents if head => Ok(typed(StatusCode::OK, "text/event-stream", "")),
        Route::PageEvents => page::watch(app).map(answer::events),
        Route::Health => Ok(health::health(&app.pulses, &app.follower)),
        Route::Ready => Ok(health::ready(&app.fleet, request.uri().query())),
        Route::Metrics => guarded(app, || {
            let made =
                app.front.exposition.get(request.headers(), kind == ListenerKind::Admin, || exposition::text(app));
            let (kind, text) = made.map_err(|_| Refusal::internal())?;
            Ok(typed(StatusCode::OK, kind, text))
        }),
        Route::Version => Ok(json(StatusCode::OK, serde_json::json!({ "version": VERSION }).to_string())),
        Route::OpenApi => Ok(json(StatusCode::OK, OPENAPI)),
        _ => Ok(typed(StatusCode::OK, "text/plain; charset=utf-8", WELCOME)),
    }
}

async fn post(
    app: &Arc<App>,
    route: Route,
    request: Request<RequestBody>,
    until: Instant,
) -> Result<Response<Answer>, Refusal> {
    let (head, body) = request.into_parts();
    // The body is read even for a refusal, so that the client reads the reason before the connection closes.
    let most = app.front.config.max_body;
    let limits = BodyLimits { most, thrown_away: (most as u64).saturating_mul(PATIENCE), until };
    let body = body::read(body, limits, &app.front.memory).await.map_err(|fault| Refusal::of_body(&fault, most))?;
    let is_json = match Content::of(&head.headers) {
        Some(Content::Json) => true,
        Some(Content::Bytes) if matches!(route, Route::Query | Route::QueryByHash | Route::Digest) => false,
        _ => return Err(Refusal::wrong_content_type()),
    };
    match route {
        Route::Register => return counted(app, register::register(app, &body).await),
        Route::Unregister => return counted(app, register::unregister(app, &body).await),
        _ => {}
    }
    if !takes_long(route, body.len()) {
        return answer_at(app, route, head.uri.query().unwrap_or_default(), &body, is_json);
    }
    let turn = LONG_WORK.acquire().await.ok();
    let app = app.clone();
    let answering = tokio::task::spawn_blocking(move || {
        let answered = answer_at(&app, route, head.uri.query().unwrap_or_default(), &body, is_json);
        drop((turn, body));
        answered
    });
    answering.await.unwrap_or_else(|_| Err(Refusal::internal()))
}

/// Semaphore that limits the number of requests with long work, which run on threads other than the serving ones, to
/// the number of CPU cores.
static LONG_WORK: LazyLock<Semaphore> =
    LazyLock::new(|| Semaphore::new(available_parallelism().map_or(1, usize::from)));

/// Maximum size, in bytes, of the body of a single query that is answered on a serving thread: a prompt of about 40,000
/// tokens. Larger queries are answered on other threads.
const LONG_QUERY: usize = 256 << 10;
/// Maximum size, in bytes, of other bodies that are answered on a serving thread. The limit is lower than for single
/// queries, because a body with many items causes many look-ups.
const LONG_BODY: usize = 16 << 10;

fn takes_long(route: Route, bytes: usize) -> bool {
    bytes > if matches!(route, Route::Query | Route::QueryByHash) { LONG_QUERY } else { LONG_BODY }
}

/// Calls the function of a route that answers without waiting.
fn answer_at(
    app: &App,
    route: Route,
    parameters: &str,
    body: &[u8],
    is_json: bool,
) -> Result<Response<Answer>, Refusal> {
    let sent = if is_json { Body::Json(body) } else { Body::Bytes { parameters, blocks: body } };
    guarded(app, || match route {
        Route::Observed => register::observe(app, body),
        Route::Digest => match sent {
            Body::Bytes { parameters, blocks } => sites::digest(app, parameters, blocks),
            Body::Json(_) => Err(Refusal::wrong_content_type()),
        },
        Route::Sites => sites::find(app, body),
        Route::SitesCompare => sites::compare(app, body),
        Route::Query => queries::single(app, sent, Kind::Tokens),
        Route::QueryByHash => queries::single(app, sent, Kind::Hashes),
        _ => queries::batch(app, body),
    })
}

/// Runs the function of a route. If it panics, which is a bug, only its own request fails.
fn guarded(app: &App, work: impl FnOnce() -> Result<Response<Answer>, Refusal>) -> Result<Response<Answer>, Refusal> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        app.counts.panics.fetch_add(1, Relaxed);
        tracing::error!(panic = panic_text(&*panic), "internal error while a request was being answered");
        Err(Refusal::internal())
    })
}

/// Counts an internal error of a change to the fleet, whose panic the fleet has caught and logged. Returns the answer
/// unchanged.
fn counted(app: &App, done: Result<Response<Answer>, Refusal>) -> Result<Response<Answer>, Refusal> {
    if done.as_ref().is_err_and(|refusal| refusal.status == StatusCode::INTERNAL_SERVER_ERROR) {
        app.counts.panics.fetch_add(1, Relaxed);
    }
    done
}

fn workers_filter(query: &str) -> (Option<String>, Option<String>) {
    let mut filter = (None, None);
    for (key, value) in form_urlencoded::parse(query.as_bytes()) {
        match &*key {
            "model_name" => filter.0 = Some(value.into_owned()),
            "routing_group" => filter.1 = Some(value.into_owned()),
            _ => {}
        }
    }
    filter
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_costs_one_answer() {
        let config = crate::config::Config::from_json("{}").expect("a configuration");
        let front = kvatlas_http::Front::new(config.http, false).expect("no files");
        let follower = kvatlas_follow::Follower::start(config.follow, false).expect("threads");
        let app = App::new(follower, config.untrusted, front);
        let refusal = guarded(&app, || panic!("a bug")).err().expect("refused");
        assert_eq!(app.counts.panics.load(Relaxed), 1);
        assert_eq!((refusal.status, refusal.code), (StatusCode::INTERNAL_SERVER_ERROR, "internal"));
    }

    #[test]
    fn what_was_cut_off_by_the_end_is_no_fault_of_the_client() {
        let refusal = Refusal::from(kvatlas_follow::Error::Closed);
        assert_eq!((refusal.status, refusal.code), (StatusCode::SERVICE_UNAVAILABLE, "draining"));
    }
}
