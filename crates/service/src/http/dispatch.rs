//! From a request to its answer: checks the key, the path and the method, and calls what answers.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderMap};
use hyper::{Method, Request, Response, StatusCode};

use super::access::check_host;
use super::answer::{Answer, json, json_pieces, typed};
use super::app::App;
use super::places::Place;
use super::query::Kind;
use super::refusal::Refusal;
use super::routes::{Door, Route, WELCOME};
use super::trace::Trace;
use super::{body, dump, exposition, health, queries, register, workers};

const OPENAPI: &str = include_str!("openapi.json");

/// Which version this is.
pub(super) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Answers a request, whose body must be here by `until`. `place`: that of its connection, unless that came by the door
/// for administrators.
pub(crate) async fn answer(
    app: Arc<App>,
    place: Option<Arc<Place>>,
    request: Request<Incoming>,
    until: Instant,
) -> Response<Answer> {
    let started = Instant::now();
    let route = Route::of(request.uri().path());
    let trace = Trace::of(&request, app.config.access_log);
    let mut response =
        dispatch(&app, place.as_deref(), route, request, until).await.unwrap_or_else(|refusal| refusal.response());
    let took = started.elapsed();
    app.counts.answered(route, response.status().as_u16(), took);
    trace.answered(route, &mut response, took);
    response
}

async fn dispatch(
    app: &Arc<App>,
    place: Option<&Place>,
    route: Route,
    request: Request<Incoming>,
    until: Instant,
) -> Result<Response<Answer>, Refusal> {
    let door = if place.is_some() { Door::Main } else { Door::Admin };
    if app.checks_hosts(door) {
        check_host(&request, &app.config.hosts)?;
    }
    if let Some(place) = place
        && app.trust.keys().check(&request, route.access())?
    {
        place.is_known();
    }
    if route == Route::Unknown || !route.is_at(door) {
        return Err(Refusal::unknown_path());
    }
    let head = request.method() == Method::HEAD && route.method() == Method::GET;
    if request.method() != route.method() && !head {
        return Err(Refusal::wrong_method(if route.method() == Method::GET { "GET, HEAD" } else { "POST" }));
    }
    if route.method() == Method::POST {
        return post(app, route, request, until).await;
    }
    let blank = app.config.request_timeout.min(app.config.idle_timeout) / 3;
    match route {
        Route::Workers => {
            let (model, routing_group) = workers_filter(request.uri().query().unwrap_or_default());
            Ok(json(StatusCode::OK, workers::list(&app.fleet, model.as_deref(), routing_group.as_deref()).to_string()))
        }
        // There is no need to make it for its length.
        Route::Dump if head => Ok(json(StatusCode::OK, "")),
        Route::Dump => Ok(json_pieces(dump::start(&app.fleet, &app.dumps, blank))),
        Route::Health => Ok(health::health(&app.pulses)),
        Route::Ready => Ok(health::ready(&app.fleet)),
        Route::Metrics => {
            let text = exposition::text(app).map_err(|_| Refusal::internal())?;
            Ok(typed(StatusCode::OK, "application/openmetrics-text; version=1.0.0; charset=utf-8", text))
        }
        Route::Version => Ok(json(StatusCode::OK, serde_json::json!({ "version": VERSION }).to_string())),
        Route::OpenApi => Ok(json(StatusCode::OK, OPENAPI)),
        _ => Ok(typed(StatusCode::OK, "text/plain; charset=utf-8", WELCOME)),
    }
}

async fn post(
    app: &Arc<App>,
    route: Route,
    request: Request<Incoming>,
    until: Instant,
) -> Result<Response<Answer>, Refusal> {
    let is_json = says_json(request.headers());
    // Read also if it is refused anyway, so that the client reads why before the connection is closed.
    let body = body::read(request.into_body(), app.config.max_body, until.into()).await?;
    // A page in somebody's browser can send other types anywhere without asking; JSON it cannot.
    if !is_json {
        return Err(Refusal::wrong_content_type());
    }
    match route {
        Route::Register => register::register(app, &body).await,
        Route::Unregister => register::unregister(app, &body).await,
        Route::Query => guarded(|| queries::single(app, &body, Kind::Tokens)),
        Route::QueryByHash => guarded(|| queries::single(app, &body, Kind::Hashes)),
        _ => guarded(|| queries::batch(app, &body)),
    }
}

/// A panic is a bug, and costs the request that met it.
fn guarded(work: impl FnOnce() -> Result<Response<Answer>, Refusal>) -> Result<Response<Answer>, Refusal> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        tracing::error!("a query caused a panic");
        Err(Refusal::internal())
    })
}

fn says_json(headers: &HeaderMap) -> bool {
    let Some(Ok(kind)) = headers.get(CONTENT_TYPE).map(|kind| kind.to_str()) else { return false };
    let kind = kind.split(';').next().unwrap_or_default().trim();
    let is_suffixed = |kind: &str| kind.len() > 5 && kind[kind.len() - 5..].eq_ignore_ascii_case("+json");
    kind.eq_ignore_ascii_case("application/json") || (kind.starts_with("application/") && is_suffixed(kind))
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
        let refusal = guarded(|| panic!("a bug")).err().expect("refused");
        assert_eq!((refusal.status, refusal.code), (StatusCode::INTERNAL_SERVER_ERROR, "internal"));
    }

    #[test]
    fn what_was_cut_off_by_the_end_is_no_fault_of_the_client() {
        let refusal = Refusal::from(crate::error::Error::Closed);
        assert_eq!((refusal.status, refusal.code), (StatusCode::SERVICE_UNAVAILABLE, "draining"));
    }

    #[test]
    fn content_types_that_are_json() {
        let says =
            |kind: &'static str| says_json(&HeaderMap::from_iter([(CONTENT_TYPE, kind.parse().expect("a header"))]));
        for json in ["application/json", "Application/JSON; charset=utf-8", "application/problem+json"] {
            assert!(says(json), "{json}");
        }
        for other in ["", "text/plain", "application/x-www-form-urlencoded", "text/json", "application/jsonp", "+json"]
        {
            assert!(!says(other), "{other}");
        }
        assert!(!says_json(&HeaderMap::new()));
    }
}
