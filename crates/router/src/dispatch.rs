//! Entry point of requests from the HTTP server: checks access, and calls the function that answers the request.

use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Poll;
use std::time::Instant;

use hyper::body::Body as _;
use hyper::header::{CONNECTION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, UPGRADE};
use hyper::{Method, Request, Response, StatusCode, Version};
use kvatlas_http::{Access, Call, Content, Denial, Front, Handler, ListenerKind, RequestBody};

use crate::answers::observe::Dialect;
use crate::answers::refusal::Refusal;
use crate::answers::{Answer, json, typed};
use crate::app::App;
use crate::engines::request_head::REQUEST_ID;
use crate::proxy::boxed;
use crate::reports::admin;
use crate::reports::exposition;
use crate::reports::page;
use crate::requests::cors;
use crate::requests::reserved;
use crate::requests::routes::{self, Responder, RouteMatch, RouterAnswer};
use crate::{counts, reports};

impl Handler for App {
    type Body = Answer;

    const HTTP2: bool = true;

    /// False: a request ends if the client closes its side of the connection, as nothing may occupy an engine for a
    /// client that has left.
    const HALF_CLOSE: bool = false;

    fn front(&self) -> &Front {
        &self.front
    }

    fn answer(
        app: Arc<Self>,
        call: Call,
        request: Request<RequestBody>,
    ) -> impl Future<Output = Response<Answer>> + Send + 'static {
        // In a place of its own: it is large, and gone when the head of the answer is here, while hyper keeps its place for
        // as long as the connection is open.
        boxed(|| answer(app, call, request))
    }

    fn refuse(denied: Denial) -> Response<Answer> {
        // The path has not been read.
        Refusal::from(denied).response(Dialect::Other)
    }
}

/// Answers a client's request: checks access, finds the route, and calls the function for this route.
async fn answer(app: Arc<App>, call: Call, mut request: Request<RequestBody>) -> Response<Answer> {
    let arrived = Instant::now();
    // A key in it would be in the answer and in logs.
    let id = request.headers().get(REQUEST_ID).filter(|id| !app.gate.has_key_in(id.as_bytes())).cloned();
    if id.is_none() {
        request.headers_mut().remove(REQUEST_ID);
    }
    let target = app.gate.check_target(&request);
    let (origin, is_logged) = {
        let live = app.gate.live();
        (cors::origin(request.headers(), &live.origins), live.access_log)
    };
    let is_http1 = request.version() <= Version::HTTP_11;
    let dialect = Dialect::at(request.uri().path());
    let logged = (is_logged && target.is_ok())
        .then(|| (request.method().clone(), request.uri().path().to_owned()))
        .or_else(|| is_logged.then(Default::default));
    let mut answering = pin!(async {
        target?;
        dispatch(&app, &call, request, arrived).await
    });
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
        app.counts.refuse(refusal.status, refusal.code, refusal.model.as_ref());
        let mut response = refusal.response(dialect);
        if let Some(id) = id {
            response.headers_mut().insert(REQUEST_ID, id);
        }
        response
    });
    if let Some(origin) = origin {
        cors::let_read(&mut response, origin);
    }
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
    request: Request<RequestBody>,
    arrived: Instant,
) -> Result<Response<Answer>, Refusal> {
    let (shard, kind, until) = (call.thread, call.kind, call.until);
    if kind == ListenerKind::Admin {
        app.gate.check_admin_host(&request)?;
    }
    if wants_websocket(&request) {
        return Err(Refusal::no_websocket());
    }
    let path = request.uri().path();
    let route = match routes::find(request.method(), path, &app.config.forward) {
        RouteMatch::Route(route) => route,
        RouteMatch::ForAdmins(route, methods) if kind == ListenerKind::Main => {
            if !app.gate.check(&request, Access::Admin).is_ok_and(|is_known| is_known) {
                app.gate.check(&request, Access::Ask)?;
                return Err(Refusal::wrong_method(methods.list()));
            }
            route
        }
        RouteMatch::ForAdmins(..) => return Err(Refusal::unknown_path()),
        RouteMatch::WrongMethod(methods) if kind == ListenerKind::Main && *request.method() == Method::OPTIONS => {
            return Ok(cors::options(methods, request.headers(), &app.gate.live().origins, &app.gate));
        }
        RouteMatch::WrongMethod(methods) if kind == ListenerKind::Main => {
            return Err(Refusal::wrong_method(methods.list()));
        }
        RouteMatch::WrongMethod(_) => return Err(Refusal::unknown_path()),
        RouteMatch::Unknown => {
            if kind == ListenerKind::Main {
                app.gate.check(&request, Access::Ask)?;
            }
            return Err(Refusal::unknown_path());
        }
    };
    let own = match route.to {
        Responder::Own(own) if kind == ListenerKind::Main || route.is_for_probes() => own,
        Responder::Engine(forwarded) if kind == ListenerKind::Main => {
            let shown = app.gate.admit(&request, route.wants)?;
            if routes::lacks_key(forwarded, shown, path, &app.config.forward) {
                return Err(if route.is_unnamed() { Refusal::unknown_path() } else { changes_engines() });
            }
            let span = app.spans.as_ref();
            let span = span.map(|spans| spans.begin(request.method(), path, route.pattern(), request.headers()));
            let counted = counts::Request::new(&app.counts, arrived, span);
            let may_write_fields = reserved::may_write_fields(&app.config, shown);
            let proxy = &app.proxy;
            let forwarding =
                boxed(|| proxy.forward(shard, request, route, forwarded, until, &counted, call.from, may_write_fields));
            let answered = forwarding.await;
            let answered = answered.map_err(|refusal| refusal.of_model(&counted.model().name));
            match &answered {
                Ok(response) => counted.answered(response.status(), None),
                Err(refusal) => counted.answered(refusal.status, Some(refusal.code)),
            }
            return answered;
        }
        _ => return Err(Refusal::unknown_path()),
    };
    // What is open to everybody is so whatever host they name.
    let is_checked = kind == ListenerKind::Main && route.wants != Access::Open;
    let is_known = is_checked && app.gate.check(&request, route.wants)?;
    // A page can send other types to any server unasked.
    let has_body = own.wants_body() || !request.body().is_end_stream() || request.headers().contains_key(CONTENT_TYPE);
    if own.takes_json() && has_body && Content::of(request.headers()) != Some(Content::Json) {
        return Err(Refusal::wrong_content_type());
    }
    let query = request.uri().query();
    match own {
        RouterAnswer::Welcome => Ok(typed(StatusCode::OK, "text/plain; charset=utf-8", routes::WELCOME.as_bytes())),
        RouterAnswer::Health => Ok(typed(StatusCode::OK, "text/plain; charset=utf-8", "ok")),
        RouterAnswer::Ready => Ok(admin::ready(app.leaving.load(Relaxed), &app.fleet, app.follower.as_deref())),
        RouterAnswer::Version => {
            let version = serde_json::json!({ "version": env!("CARGO_PKG_VERSION") });
            Ok(json(StatusCode::OK, version.to_string()))
        }
        RouterAnswer::Metrics => metrics(app, request.headers(), kind),
        RouterAnswer::Workers => Ok(json(StatusCode::OK, reports::workers(&app.places).to_string())),
        RouterAnswer::Router => Ok(json(StatusCode::OK, reports::router(app).to_string())),
        RouterAnswer::Streams => {
            let streams = app.follower.as_ref().map_or_else(|| serde_json::json!([]), |service| service.workers());
            Ok(json(StatusCode::OK, streams.to_string()))
        }
        RouterAnswer::Decisions => admin::decisions(&app.places, &app.reader.threads, query).await,
        RouterAnswer::Reuse => Ok(json(StatusCode::OK, app.places.reuse().to_string())),
        RouterAnswer::Models => Ok(json(StatusCode::OK, reports::models(&app.fleet).to_string())),
        RouterAnswer::Model => admin::model(&app.fleet, route.parameter(path)),
        // Its files have nothing to hide: what they show is asked for with the key.
        RouterAnswer::Page => kvatlas_ui::asset(path).map(page::file).ok_or_else(Refusal::unknown_path),
        RouterAnswer::PageEvents => page::events(&app.page),
        RouterAnswer::PageDecision => page::decision(&app.places, query),
        RouterAnswer::Explain => admin::explain(app, shard, request, until, call.from).await,
        RouterAnswer::Snapshot => {
            admin::snapshot(app.follower.as_deref(), app.config.http.request_timeout, request).await
        }
        RouterAnswer::PeersRequests => admin::hear_report(&app.reader, &app.peers, &*app.places, request, until).await,
        RouterAnswer::FleetChanges => admin::change_fleet(app, "list", None, request, is_known, until).await,
        RouterAnswer::AddEngine => admin::change_fleet(app, "add", None, request, is_known, until).await,
        RouterAnswer::RemoveEngine | RouterAnswer::Drain | RouterAnswer::Undrain => {
            let action = match own {
                RouterAnswer::RemoveEngine => "remove",
                RouterAnswer::Drain => "drain",
                _ => "undrain",
            };
            let name = route.parameter(path).to_owned();
            admin::change_fleet(app, action, Some(&name), request, is_known, until).await
        }
    }
}

/// True if a client requests a WebSocket (RFC 6455, 4.1). Other upgrades, such as `h2c`, may be ignored, and so may
/// every upgrade requested before HTTP/1.1.
fn wants_websocket(request: &Request<RequestBody>) -> bool {
    let names = |header: HeaderName, wanted: &str| {
        let values = request.headers().get_all(header).iter();
        values
            .flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
            .any(|word| word.trim_ascii().eq_ignore_ascii_case(wanted.as_bytes()))
    };
    request.version() == Version::HTTP_11
        && *request.method() == Method::GET
        && request.headers().contains_key(UPGRADE)
        && names(UPGRADE, "websocket")
        && names(CONNECTION, "upgrade")
}

fn metrics(app: &Arc<App>, headers: &HeaderMap, listener: ListenerKind) -> Result<Response<Answer>, Refusal> {
    let failed = |_| Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "the metrics cannot be written");
    let (kind, text) =
        app.front.exposition.get(headers, listener == ListenerKind::Admin, || exposition::text(app)).map_err(failed)?;
    Ok(typed(StatusCode::OK, kind, text))
}

/// Makes the refusal of a request that would change the fleet's engines, at a router without an admin key.
fn changes_engines() -> Refusal {
    let message = "this path changes an engine for all its clients: it is forwarded for the admin key \
                   (http.admin_key_file), which this router does not have, or if the setting `forward` names it";
    Refusal::new(StatusCode::FORBIDDEN, "forbidden", message)
}
