//! Endpoint Picker for gateways: a gateway asks the router over gRPC for an engine, and forwards the request itself.
//!
//! Routing, access control, parsing of bodies, decisions and counts are the same as for requests that the router
//! forwards. The router's changes to a request (other model names, ids for images, retries, prefill engines) are not
//! made: the gateway sends the client's request, together with the fields that tell the engine which blocks to load and
//! to pull.

mod connections;
mod server;
#[cfg(test)]
mod tests;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::header::{HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Method, Request, StatusCode, Uri};
use kvatlas_epp::{AnswerWatcher, BodyRoom, Pick, PickRefusal, Picker, RequestToPick};
use kvatlas_http::{BodyFault, BodyLease, ShownKey};

pub(crate) use self::server::PickerServer;
use crate::answers::Answer;
use crate::answers::observe::{AnswerFormat, Dialect, Observer};
use crate::answers::refusal::Refusal;
use crate::app::App;
use crate::counts;
use crate::engines::Engine;
use crate::placing::{EngineWait, Placement};
use crate::proxy::{Arrival, BodyReading, Flight, pause_wanted, transfer_field};
use crate::remote::index::ExternalIndex;
use crate::requests::facts::RequestFacts;
use crate::requests::long_work::takes_long;
use crate::requests::reserved;
use crate::requests::routes::{self, ForwardRule, Responder, Route, RouteMatch};
use crate::requests::task::Task;

/// Maximum number of fallback engines returned to a gateway, after the chosen engine.
const FALL_BACKS: usize = 2;

/// Number of fallback engines that a routing decision lists. It is more than a gateway gets, as the gateway may not
/// reach all of them.
const NAMED: usize = 8;

/// Endpoint Picker that chooses engines for a gateway by the same decisions as for forwarded requests.
pub(crate) struct EnginePicker {
    app: Arc<App>,
}

impl Picker for EnginePicker {
    type Room = GatewayRoom;

    fn room(&self, request: &RequestToPick) -> GatewayRoom {
        GatewayRoom::new(self.app.clone(), Dialect::at(request.header(":path").unwrap_or_default()))
    }

    async fn pick(&self, request: RequestToPick) -> Result<Pick, PickRefusal> {
        let arrived = Instant::now();
        let dialect = Dialect::at(request.header(":path").unwrap_or_default());
        let picked = Box::pin(self.choose(request, arrived)).await;
        picked.map_err(|refusal| {
            self.app.counts.refuse(refusal.status, refusal.code, refusal.model.as_ref());
            show(&refusal, dialect)
        })
    }
}

impl EnginePicker {
    pub(crate) fn new(app: Arc<App>) -> Self {
        app.places.name_others(NAMED);
        Self { app }
    }

    async fn choose(&self, request: RequestToPick, arrived: Instant) -> Result<Pick, Refusal> {
        let mut head = head_of(&request)?;
        self.app.gate.check_target(&head)?;
        let (route, forwarded) = find_below(&mut head, &self.app.config.forward)?;
        let shown = self.app.gate.admit(&head, route.wants)?;
        let counted = counts::Request::new(&self.app.counts, arrived, None);
        let picked = self.place(&request, head.into_parts().0, route, forwarded, shown, &counted).await;
        let picked = picked.map_err(|refusal| refusal.of_model(&counted.model().name));
        // What the client gets of an engine is not known yet; it is counted at the engine.
        match &picked {
            Ok(_) => counted.answered(StatusCode::OK, None),
            Err(refusal) => counted.answered(refusal.status, Some(refusal.code)),
        }
        picked
    }

    async fn place(
        &self,
        request: &RequestToPick,
        head: Parts,
        route: &Route,
        forwarded: ForwardRule,
        shown: ShownKey,
        counted: &counts::Request<'_>,
    ) -> Result<Pick, Refusal> {
        let app = &self.app;
        if routes::lacks_key(forwarded, shown, head.uri.path(), &app.config.forward) {
            return Err(Refusal::unknown_path());
        }
        let may_write_fields = reserved::may_write_fields(&app.config, shown);
        if !may_write_fields {
            reserved::check_head(&head.headers)?;
        }
        let Some(body) = &request.body else { return Err(no_body()) };
        let takes_long = takes_long(body);
        reserved::check_body(&app.reader.threads, may_write_fields, body, takes_long).await?;
        let reading = BodyReading { client: None, may_write_fields, as_is: true, takes_long };
        let mut facts = app.proxy.facts(&head, route, forwarded, reading, body).await?;
        facts.hints.tells = request.may_change_body
            && transfer_field::can_tell(forwarded.endpoint, &facts.body, &head.headers, may_write_fields, body);
        counted.is_for(&facts.model);
        let task = if forwarded.task == Task::Generate { Task::Alone } else { forwarded.task };
        let placement = self.choose_engine(request, &facts, task).await?;
        let flight = Flight::new(app.proxy.clone(), placement, &Arrival { at: counted.arrived, span: None });
        let first = flight.engine().clone();
        // One that keeps what the request continues, or that came meanwhile.
        let Some(endpoint) = endpoint_of(&first).filter(|_| may_take(&first, &facts, request)) else {
            return Err(out_of_reach(&first));
        };
        let mut endpoints = vec![endpoint];
        let body = transfer_field::written(&app.fleet, flight.placement(), body);
        let pull = flight.placement().transfer.as_deref().and_then(|transfer| transfer.pull.as_ref());
        // Of the others, an engine that cannot read the field might refuse it, and none pulls from itself.
        let may_read = |it: &Engine| body.is_none() || it.pulls() && pull.is_none_or(|source| *source.name != *it.name);
        if flight.placement().rank.is_none() && facts.hints.only_engine.is_none() {
            // Any of them gets the request with the headers made for the first.
            let is_alike = |it: &Arc<Engine>| it.authorization == first.authorization && it.config.ranks.count() == 1;
            let others = flight.placement().others.iter().filter_map(|name| app.fleet.engine(name));
            let others = others.filter(|it| is_alike(it) && may_read(it) && may_take(it, &facts, request));
            endpoints.extend(others.filter_map(|it| endpoint_of(&it)).take(FALL_BACKS));
        }
        let headers = headers_for(flight.placement(), forwarded.endpoint.is_some());
        let finds_errors = head.method == Method::POST && route.may_repeat(&head.method);
        let reading = AnswerFormat { dialect: Dialect::of(forwarded.endpoint), hides_usage: false, finds_errors };
        Ok(Pick { endpoints, headers, body, watcher: Some(Box::new(FlightWatcher::new(flight, reading))) })
    }

    /// Chooses an engine that the gateway can reach. While no engine is up, the request waits, and the gateway waits
    /// for the answer.
    async fn choose_engine(
        &self,
        request: &RequestToPick,
        facts: &RequestFacts,
        task: Task,
    ) -> Result<Placement, Refusal> {
        let places = &self.app.places;
        let shard = self.app.external_index.as_deref().map_or(0, ExternalIndex::own_shard);
        let mut waited: Option<EngineWait<'_>> = None;
        loop {
            let engines = self.app.fleet.engines().clone();
            let (reached, excluded): (Vec<_>, Vec<_>) =
                engines.iter().cloned().partition(|engine| may_take(engine, facts, request));
            // What is down may be tried by the router itself, which would try another one then; a gateway gives up.
            let chosen = match places.all_down(facts, task, &excluded) {
                Some(refusal) => Err(refusal),
                None => {
                    let choosing = places.choose(shard, facts, task, &excluded);
                    match &waited {
                        None => choosing.await,
                        Some(place) => place.in_turn(Box::pin(choosing)).await,
                    }
                }
            };
            match chosen {
                Ok(placement) => {
                    if let Some(place) = waited {
                        place.placed();
                    }
                    return Ok(placement);
                }
                // One that the gateway does not offer may be up all day: that is no reason to wait.
                Err(refusal)
                    if refusal.is_for_want_of_engines()
                        && facts.hints.only_engine.is_none()
                        && (!reached.is_empty() || engines.is_empty() && request.subset.is_none()) =>
                {
                    Box::pin(places.wait_for_engine(&mut waited, facts, task, &excluded, false, refusal)).await?;
                }
                Err(refusal) => return Err(refusal),
            }
        }
    }
}

/// Builds a request's head from the headers and pseudo-headers sent by the gateway. The host is omitted, as it is the
/// gateway's own.
fn head_of(request: &RequestToPick) -> Result<Request<()>, Refusal> {
    let text = |name: &str| request.header(name).unwrap_or_default();
    let mut head = Request::new(());
    *head.method_mut() = Method::from_bytes(text(":method").as_bytes()).map_err(|_| wrong("method"))?;
    *head.uri_mut() =
        Uri::try_from(text(":path")).ok().filter(|uri| uri.path().starts_with('/')).ok_or_else(|| wrong("path"))?;
    for (name, value) in request.headers.iter().filter(|(name, _)| !name.starts_with(':') && name != "host") {
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| wrong("name of a header"))?;
        let value = HeaderValue::from_maybe_shared(value.clone()).map_err(|_| wrong("value of a header"))?;
        head.headers_mut().append(name, value);
    }
    Ok(head)
}

fn wrong(what: &str) -> Refusal {
    Refusal::bad("malformed_request", format!("the gateway shows no usable {what}"))
}

/// Finds the route of a request to an engine. The path may have a prefix, by which gateways select a route and which
/// they remove after the pick; the prefix is removed from `head`.
fn find_below(head: &mut Request<()>, listed: &[String]) -> Result<(&'static Route, ForwardRule), Refusal> {
    let (path, method) = (head.uri().path().to_owned(), head.method().clone());
    let unknown = match find(&method, &path, listed) {
        Err(refusal) if refusal.status == StatusCode::NOT_FOUND => refusal,
        found => return found,
    };
    for (at, _) in path.match_indices('/').skip(1) {
        let below = &path[at..];
        if let Ok(found) = find(&method, below, listed) {
            let query = head.uri().query().map_or_else(String::new, |query| format!("?{query}"));
            *head.uri_mut() = Uri::try_from(format!("{below}{query}")).map_err(|_| wrong("path"))?;
            return Ok(found);
        }
    }
    Err(unknown)
}

/// Finds the route of a request to an engine; an error for a path that the router itself answers.
fn find(method: &Method, path: &str, listed: &[String]) -> Result<(&'static Route, ForwardRule), Refusal> {
    match routes::find(method, path, listed) {
        RouteMatch::Route(route) => match route.to {
            Responder::Engine(forwarded) => Ok((route, forwarded)),
            Responder::Own(_) => {
                let message = "the router answers this path itself, at its own HTTP address: no engine does";
                Err(Refusal::new(StatusCode::NOT_FOUND, "not_for_engines", message))
            }
        },
        RouteMatch::ForAdmins(_, methods) | RouteMatch::WrongMethod(methods) => {
            Err(Refusal::wrong_method(methods.list()))
        }
        RouteMatch::Unknown => Err(Refusal::unknown_path()),
    }
}

/// True if an engine accepts a request as sent by the client, and is among the gateway's endpoints.
fn may_take(engine: &Engine, facts: &RequestFacts, request: &RequestToPick) -> bool {
    let is_renamed = || {
        let name = facts.body.model.as_deref().filter(|_| !engine.config.aliases.is_empty());
        name.is_some_and(|name| engine.models.load().own_name(name).is_some())
    };
    endpoint_of(engine).is_some_and(|endpoint| request.allows(&endpoint)) && !is_renamed()
}

/// Returns the engine's address in the form that gateways use, `IP:port`; None if the engine's URL has a host name or a
/// path.
fn endpoint_of(engine: &Engine) -> Option<String> {
    let ip: IpAddr = engine.address.host.parse().ok().filter(|_| engine.address.base.is_empty())?;
    Some(SocketAddr::new(ip, engine.address.port).to_string())
}

/// Returns the headers that the gateway must add to the request for the engine.
fn headers_for(placement: &Placement, is_prompt: bool) -> Vec<(String, String)> {
    let mut headers = Vec::new();
    if let Some(rank) = placement.rank {
        headers.push(("x-data-parallel-rank".to_owned(), rank.to_string()));
    }
    if let Some(key) = &placement.engine.authorization {
        headers.push(("authorization".to_owned(), key.clone()));
    }
    if is_prompt {
        // What is compressed cannot be counted.
        headers.push(("accept-encoding".to_owned(), "identity".to_owned()));
    }
    headers
}

/// Makes the refusal of a request whose body the gateway did not send.
fn no_body() -> Refusal {
    let message = "the gateway asks for an engine before it shows the body: set its request_body_mode to \
                   FULL_DUPLEX_STREAMED, or to BUFFERED with room for the whole body";
    Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "body_not_shown", message)
}

/// Makes the refusal of a request that only an engine outside the gateway's endpoints could answer.
fn out_of_reach(engine: &Engine) -> Refusal {
    let message =
        format!("engine {} has what the request continues, and is not among the gateway's endpoints", engine.name);
    Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "no_worker", message).again_after(Duration::from_secs(1))
}

/// Converts a refusal into the answer that the gateway sends to the client, in the error format of the API `dialect`.
fn show(refusal: &Refusal, dialect: Dialect) -> PickRefusal {
    let response = refusal.response(dialect);
    let is_sent = |name: &HeaderName| *name != hyper::header::CONTENT_TYPE && *name != hyper::header::CONNECTION;
    let headers = response.headers().iter().filter(|(name, _)| is_sent(name));
    let headers = headers.filter_map(|(name, value)| Some((name.as_str().to_owned(), value.to_str().ok()?.to_owned())));
    let headers = headers.collect();
    let body = match response.into_body() {
        Answer::Full(text) => String::from_utf8_lossy(&text).into_owned(),
        Answer::Stream(_) => String::new(),
    };
    PickRefusal { status: refusal.status.as_u16(), headers, body }
}

/// Memory reserved for the body of one request that a gateway sends.
pub(crate) struct GatewayRoom {
    app: Arc<App>,
    dialect: Dialect,
    lease: BodyLease,
}

impl GatewayRoom {
    fn new(app: Arc<App>, dialect: Dialect) -> Self {
        let lease = app.front.memory.lease();
        Self { app, dialect, lease }
    }

    fn refused(&self, fault: &BodyFault) -> PickRefusal {
        let refusal = Refusal::of_body(fault, self.app.config.http.max_body);
        self.app.counts.refuse(refusal.status, refusal.code, None);
        show(&refusal, self.dialect)
    }
}

impl BodyRoom for GatewayRoom {
    async fn grow(&mut self, bytes: usize) -> Result<(), PickRefusal> {
        let grown = self.lease.grow(bytes).await;
        grown.map_err(|fault| self.refused(&fault))
    }

    async fn must_leave(&self) -> PickRefusal {
        self.lease.must_leave().await;
        self.refused(&BodyFault::NoRoom)
    }

    fn too_large(&self) -> PickRefusal {
        self.refused(&BodyFault::TooLarge)
    }

    fn complete(&mut self) {
        self.lease.complete();
    }
}

/// Observer of an engine's answer that a gateway forwards, which counts the answer as if the router had forwarded it.
/// If dropped before the answer's end, the request is counted as cancelled by the client.
struct FlightWatcher {
    flight: Flight,
    reading: AnswerFormat,
    observer: Observer,
}

impl FlightWatcher {
    fn new(flight: Flight, reading: AnswerFormat) -> Self {
        Self { flight, reading, observer: Observer::of(None, reading) }
    }
}

impl AnswerWatcher for FlightWatcher {
    fn head(&mut self, status: u16, headers: &[(String, Bytes)]) {
        let value = |name: &str| headers.iter().find(|(other, _)| other == name).map(|(_, value)| &**value);
        self.flight.answered(status);
        let retry_after = value("retry-after").and_then(|value| HeaderValue::from_bytes(value).ok());
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::BAD_GATEWAY);
        if let Some(pause) = pause_wanted(status, retry_after.as_ref()) {
            self.flight.engine().health.set_busy(pause);
        }
        let finds_errors = self.reading.finds_errors && status.is_success();
        let kind = value("content-type").filter(|_| value("content-encoding").is_none());
        self.observer = Observer::of(kind, AnswerFormat { finds_errors, ..self.reading });
    }

    fn part(&mut self, part: &Bytes) {
        self.observer.pass(part.clone());
        if self.observer.take_progress() {
            self.flight.note_piece();
        } else {
            self.flight.note_sign_of_life();
        }
        match self.observer.failure() {
            Some(failure) => self.flight.note_error(failure),
            None => self.flight.note_tokens(self.observer.tokens(), Instant::now()),
        }
    }

    fn end(&mut self) {
        self.observer.rest();
        self.flight.note_end(self.observer.seen());
    }
}
