//! From a request to its answer: what is asked, who may ask it, and who answers.

use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Poll;
use std::time::{Duration, Instant};

use hyper::header::{CONNECTION, HeaderValue};
use hyper::{Method, Request, Response, StatusCode, Version};
use kvatlas_http::{Access, Call, Door, Incoming};
use kvatlas_prompt::Endpoint;

use crate::admin;
use crate::answer::{Answer, json, typed};
use crate::app::App;
use crate::exposition;
use crate::peers;
use crate::proxy::{REQUEST_ID, forward};
use crate::refusal::Refusal;
use crate::state;
use crate::ui;

/// What `GET /` says.
const WELCOME: &str = "\
kvatlas: a router in front of inference engines

/v1/…                        forwarded to an engine: chat/completions, completions, responses, embeddings, messages, …
GET    /v1/models            the models of all engines
GET    /workers              engines and their state
GET    /ui                   a web page that shows engines and decisions live
GET    /router               the router's own state
GET    /streams              the engines' event streams, if they are followed here
GET    /decisions            the last decisions; ?limit=N
POST   /explain              how each engine compares for a prompt (a body of chat/completions or completions); nothing is sent
POST   /engines              add an engine: {\"url\": \"http://host:port\", …}
DELETE /engines/NAME         remove an engine
POST   /engines/NAME/drain   send an engine no new requests; /engines/NAME/undrain ends that
POST   /peers/work           for other routers: report their requests at the engines
GET    /snapshot             for other routers and services: every block that the router's index holds
GET    /health               200 while the router's threads are running
GET    /ready                200 while the router should get requests
GET    /metrics              metrics for Prometheus
GET    /version              the version of the router
";

/// Paths of engines without a prompt that are passed on. What changes an engine for all its clients is not among them.
const FORWARDED: [&str; 17] = [
    "/tokenize",
    "/detokenize",
    "/score",
    "/rerank",
    "/pooling",
    "/classify",
    "/generate",
    "/encode",
    "/v2/embed",
    "/v2/rerank",
    "/inference/v1/generate",
    "/get_model_info",
    "/model_info",
    "/chat/completions",
    "/completions",
    "/embeddings",
    "/responses",
];

/// Answers a request.
pub(crate) async fn answer(app: Arc<App>, call: Call, request: Request<Incoming>) -> Response<Answer> {
    let arrived = Instant::now();
    app.counts.all_requests.fetch_add(1, Relaxed);
    let id = request.headers().get(REQUEST_ID).cloned();
    let is_http1 = request.version() <= Version::HTTP_11;
    let logged = app.config.http.access_log.then(|| (request.method().clone(), request.uri().path().to_owned()));
    let mut answering = pin!(dispatch(&app, &call, request, arrived));
    // A panic is a bug, and costs the request that met it.
    let answered = std::future::poll_fn(|context| {
        let polled = std::panic::catch_unwind(AssertUnwindSafe(|| answering.as_mut().poll(context)));
        polled.unwrap_or_else(|_| {
            app.counts.panics.fetch_add(1, Relaxed);
            tracing::error!("internal error while a request was being answered");
            let message = "internal error; the router's log has the details";
            Poll::Ready(Err(Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message)))
        })
    });
    let mut response = answered.await.unwrap_or_else(|refusal| {
        let class = usize::from(refusal.status.is_server_error());
        app.counts.refused[class].fetch_add(1, Relaxed);
        let mut response = refusal.response();
        if let Some(id) = id {
            response.headers_mut().insert(REQUEST_ID, id);
        }
        response
    });
    if is_http1 && app.leaving.load(Relaxed) {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    if let Some((method, path)) = logged {
        let text = |value: Option<&HeaderValue>| value.and_then(|value| value.to_str().ok()).map(str::to_owned);
        let path: String = path.chars().filter(char::is_ascii_graphic).take(128).collect();
        tracing::info!(
            method = method.as_str().get(..16.min(method.as_str().len())),
            path,
            status = response.status().as_u16(),
            microseconds = arrived.elapsed().as_micros() as u64,
            request_id = text(response.headers().get(REQUEST_ID)),
            worker = text(response.headers().get("x-kvatlas-worker")),
            "request"
        );
    }
    response
}

async fn dispatch(
    app: &Arc<App>,
    call: &Call,
    request: Request<Incoming>,
    arrived: Instant,
) -> Result<Response<Answer>, Refusal> {
    let (shard, door, until) = (call.thread, call.door, call.until);
    let path = request.uri().path();
    let is_get = matches!(*request.method(), Method::GET | Method::HEAD);
    // Open to everybody, at both doors.
    if is_get {
        match path {
            "/health" | "/ping" => return Ok(typed(StatusCode::OK, "text/plain; charset=utf-8", "ok")),
            "/ready" => return Ok(admin::ready(app)),
            "/version" => {
                let version = serde_json::json!({ "version": env!("CARGO_PKG_VERSION") });
                return Ok(json(StatusCode::OK, version.to_string()));
            }
            _ => {}
        }
        // Its files have nothing to hide: what they show is asked for with the key.
        if let Some(asset) = kvatlas_ui::asset(path).filter(|_| door == Door::Main) {
            return Ok(ui::file(asset));
        }
    }
    if door == Door::Admin {
        return match path {
            "/metrics" if is_get => metrics(app),
            _ => Err(unknown_path()),
        };
    }
    let changes = (path.starts_with("/engines") || path == peers::PATH) && !is_get;
    let gives = path == "/snapshot" && is_get;
    if app.gate.check(&request, if changes || gives { Access::Admin } else { Access::Ask })? {
        call.place.is_known();
    }
    if gives {
        return admin::snapshot(app, request).await;
    }
    if is_get {
        match path {
            "/" => return Ok(typed(StatusCode::OK, "text/plain; charset=utf-8", WELCOME)),
            "/metrics" => return metrics(app),
            "/workers" | "/engines" => return Ok(json(StatusCode::OK, state::workers(app).to_string())),
            "/streams" => {
                let streams = app.service.as_ref().map_or_else(|| serde_json::json!([]), |service| service.workers());
                return Ok(json(StatusCode::OK, streams.to_string()));
            }
            "/router" => return Ok(json(StatusCode::OK, state::router(app).to_string())),
            "/decisions" => return Ok(json(StatusCode::OK, admin::decisions(app, request.uri().query()))),
            "/v1/models" | "/models" => return Ok(json(StatusCode::OK, state::models(app).to_string())),
            _ => {}
        }
        if *request.method() == Method::GET
            && let Some(answer) = ui::answer(app, path, request.uri().query())
        {
            return answer;
        }
        if let Some(name) = path.strip_prefix("/v1/models/") {
            return admin::model(app, name);
        }
    }
    if path == peers::PATH && *request.method() == Method::POST {
        return peers::hear(app, request, until).await;
    }
    if changes {
        return admin::change(app, request, until).await;
    }
    if path == "/explain" && *request.method() == Method::POST {
        return admin::explain(app, shard, request, until).await;
    }
    let endpoint = Endpoint::of_path(path).filter(|_| *request.method() == Method::POST);
    if endpoint.is_some() || is_forwarded(app, path) {
        return forward(app, shard, request, endpoint, until, arrived).await;
    }
    Err(unknown_path())
}

fn is_forwarded(app: &App, path: &str) -> bool {
    let by_rule = |rule: &String| match rule.strip_suffix('*') {
        Some(start) => path.starts_with(start),
        None => path == rule,
    };
    let is_listed = path.starts_with("/v1/") || FORWARDED.contains(&path) || app.config.forward.iter().any(by_rule);
    // Whoever stands before the engine may make another path of it, which nobody has allowed.
    is_listed && !climbs(path)
}

/// Whether a path has `.` or `..` among its segments, however it writes them (RFC 3986, 5.2.4).
fn climbs(path: &str) -> bool {
    let is_dots = |segment: &str| {
        let lower = segment.to_ascii_lowercase().replace("%2e", ".");
        matches!(lower.as_str(), "." | "..")
    };
    path.contains(['.', '%']) && path.replace("%2f", "/").replace("%2F", "/").split(['/', '\\']).any(is_dots)
}

fn metrics(app: &Arc<App>) -> Result<Response<Answer>, Refusal> {
    let failed = |_| Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "the metrics cannot be written");
    let text = exposition::text(app).map_err(failed)?;
    Ok(typed(StatusCode::OK, "application/openmetrics-text; version=1.0.0; charset=utf-8", text))
}

pub(crate) fn unknown_path() -> Refusal {
    let message =
        "there is no such path; GET / lists the router's own, and the setting `forward` adds paths of engines";
    Refusal::new(StatusCode::NOT_FOUND, "unknown_path", message)
}

/// How long a client should wait before it asks again whether the router is ready.
pub(crate) const READY_AGAIN: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_climb() {
        for path in ["/v1/../x", "/v1/..", "/v1/./x", "/v1/%2e%2E/x", "/v1/.%2e/x", "/v1/a%2f..%2Fx", "/v1\\..\\x"] {
            assert!(climbs(path), "{path}");
        }
        for path in ["/v1/files/a.b", "/v1/models/x..y", "/v1/...", "/v1/a%20b", "/v1/responses/%2e1"] {
            assert!(!climbs(path), "{path}");
        }
    }
}
