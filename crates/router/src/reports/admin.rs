//! Answers to requests for the state of the router and its engines, and to requests for changes of the fleet.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use hyper::{Method, Request, Response, StatusCode};
use kvatlas_follow::Follower;
use kvatlas_http::ranges::RangeRequest;
use kvatlas_http::{Access, RequestBody, ShownKey};
use kvatlas_prompt::Endpoint;
use serde_json::{Value, json};

use crate::answers::refusal::Refusal;
use crate::answers::{Answer, json as answer};
use crate::app::App;
use crate::engines::DrainedBy;
use crate::engines::fleet::Fleet;
use crate::keeper::{FleetAnswer, FleetRequest};
use crate::placing::{LearntTransfer, Outlook, Places};
use crate::remote::peer_requests::{self, Report, SharedRequests};
use crate::remote::peers::Peers;
use crate::reports;
use crate::requests::facts::{RequestFacts, RoutingHints, WaitTime};
use crate::requests::long_work::{LongWork, takes_long};
use crate::requests::read_body::{BodyReader, BodySource, Client};
use crate::requests::reserved;
use crate::requests::routes::ModelAt;

/// Value of `Retry-After` in the answer that the router is not ready.
const READY_AGAIN: Duration = Duration::from_secs(1);

/// Maximum size of the body of a request to change the fleet, in bytes.
const MAX_CHANGE: usize = 64 << 10;

/// Error codes of refused changes of the fleet.
const CHANGE_CODES: [&str; 8] = [
    "invalid_engine",
    "forbidden",
    "name_taken",
    "too_many_engines",
    "unknown_engine",
    "state_not_written",
    "not_ready",
    "closed",
];

/// Number of decisions above which the JSON of an answer with routing decisions is made on another thread.
const MANY_DECISIONS: usize = 1024;

/// Answers whether the router is ready for requests: an engine is up, and the router is not shutting down. The index
/// need not be complete; the field `index_ready` of the answer states whether it is.
pub(crate) fn ready(leaving: bool, fleet: &Fleet, follower: Option<&Follower>) -> Response<Answer> {
    let any = fleet.has_any_up();
    let index = follower.map(|follower| follower.fleet().is_ready());
    let body = json!({ "ready": any && !leaving, "leaving": leaving, "engines_up": any, "index_ready": index });
    if any && !leaving {
        return answer(StatusCode::OK, body.to_string());
    }
    let mut response = answer(StatusCode::SERVICE_UNAVAILABLE, body.to_string());
    response.headers_mut().insert(hyper::header::RETRY_AFTER, READY_AGAIN.as_secs().into());
    response
}

/// Answers with a snapshot of this router's index, from which another router or service can start. The snapshot is sent
/// in parts if the client requests ranges.
pub(crate) async fn snapshot(
    follower: Option<&Follower>,
    patience: Duration,
    request: Request<RequestBody>,
) -> Result<Response<Answer>, Refusal> {
    let (head, _) = request.into_parts();
    let follower = follower.ok_or_else(|| {
        let message =
            "this router follows no events itself: ask the service that it asks (router.index), if there is one";
        Refusal::new(StatusCode::NOT_FOUND, "no_index", message)
    })?;
    let part = RangeRequest::of(&head.headers);
    let snapshot = follower.snapshot(part.wanted, part.fresh, patience).await;
    let snapshot = snapshot.map_err(|error| {
        let refused = |status| Refusal::new(status, error.code(), error.to_string());
        match &error {
            kvatlas_follow::Error::Conflict { .. } => refused(StatusCode::CONFLICT),
            _ => refused(StatusCode::SERVICE_UNAVAILABLE).again_after(READY_AGAIN),
        }
    })?;
    let head = head.method == Method::HEAD;
    let answered = part.answer("snapshot", snapshot.id, &snapshot.bytes, "application/zstd", head)?;
    Ok(answered.map(Answer::Full))
}

/// Answers with the JSON entry of one model, in the form of OpenAI's API.
pub(crate) fn model(fleet: &Fleet, name: &str) -> Result<Response<Answer>, Refusal> {
    let name = decoded(name);
    let Value::Array(all) = reports::models(fleet)["data"].take() else { return Err(Refusal::unknown_path()) };
    let found = all.into_iter().find(|card| card["id"] == name);
    let card = found.ok_or_else(|| {
        let message = "no engine serves a model of that name; GET /v1/models lists the models";
        Refusal::new(StatusCode::NOT_FOUND, "model_not_found", message)
    })?;
    Ok(answer(StatusCode::OK, card.to_string()))
}

/// Answers with the most recent routing decisions, the newest first.
pub(crate) async fn decisions(
    places: &Places,
    threads: &LongWork,
    query: Option<&str>,
) -> Result<Response<Answer>, Refusal> {
    let limit = query.unwrap_or_default().split('&').find_map(|pair| pair.strip_prefix("limit=")?.parse().ok());
    let last = places.decisions.last(limit.unwrap_or(50));
    let is_short = last.len() <= MANY_DECISIONS;
    let write = move || Value::Array(last.iter().map(|record| record.to_json()).collect()).to_string();
    // A router can keep a million of them.
    let text = if is_short { write() } else { threads.run(write).await? };
    Ok(answer(StatusCode::OK, text))
}

/// Answers with a comparison of the candidate engines for a request, without sending the request to an engine. With
/// `?hashes=1`, the answer includes the content hashes of the prompt's blocks.
pub(crate) async fn explain(
    app: &App,
    shard: usize,
    request: Request<RequestBody>,
    until: Instant,
    client: Client,
) -> Result<Response<Answer>, Refusal> {
    // What a session does is not for a client that guesses its name.
    let admitted = app.gate.admit(&request, Access::Admin);
    let may_write_fields =
        reserved::may_write_fields(&app.config, admitted.as_ref().map_or(ShownKey::Nothing, |shown| *shown));
    let (head, body) = request.into_parts();
    let body = app.reader.receive(body, app.config.http.max_body, until).await?;
    // Engines are asked for the tokens of such prompts.
    let is_long = takes_long(&body);
    reserved::check_body(&app.reader.threads, may_write_fields, &body, is_long).await?;
    let endpoint = app.reader.threads.run_on(&body, is_long, Endpoint::of_body).await?;
    let endpoint = endpoint.ok_or_else(|| Refusal::bad("malformed_json", "the body must be a JSON object"))?;
    let source = BodySource {
        endpoint: Some(endpoint),
        model: ModelAt::Json,
        kind: "",
        query: None,
        as_is: false,
        takes_long: is_long,
    };
    let (fields, prompt) = *app.reader.look_at(client, source, &body).await?;
    let tells = endpoint.generates();
    let mut hints = RoutingHints { priority: fields.priority, tells, ..RoutingHints::default() };
    if admitted.is_ok() {
        let (named, shown) = app.proxy.sessions.identify(&head.headers, &fields.session_names);
        hints.session = named.map(|identity| identity.name);
        hints.turn = app.proxy.sessions.look(named, shown, prompt.in_session()).map(Arc::new);
    }
    let model = app.counts.models.of(fields.model.as_deref(), |name| app.fleet.counted_as(name));
    let facts = RequestFacts { body: fields, prompt, hints, model, waited: WaitTime::default() };
    let Outlook { explained, held, bounds } = app.places.explain(shard, &facts).await?;
    let mut candidates = explained.to_json();
    for (at, depth) in held.iter().flatten().enumerate() {
        let tokens = |blocks: u32| blocks * facts.prompt.block_size;
        candidates[at]["held_tokens"] =
            json!({ "device": tokens(depth.device), "host": tokens(depth.host), "any_tier": tokens(depth.any) });
    }
    let transfers = app.places.transfers();
    for candidate in candidates.as_array_mut().into_iter().flatten() {
        let (worker, rank) = (candidate["worker"].as_str().unwrap_or_default(), candidate["rank"].as_u64());
        let is_its = |it: &&LearntTransfer| rank.is_some_and(|rank| it.is_of(worker, rank as u32));
        let its: Vec<Value> = transfers.iter().filter(is_its).map(LearntTransfer::to_json).collect();
        if !its.is_empty() {
            candidate["transfers"] = its.into();
        }
    }
    let mut said = json!({
        "policy": app.places.policy(),
        "model": facts.body.model,
        "tokens": facts.prompt.tokens,
        "block_size": facts.prompt.block_size,
        "blocks": facts.prompt.hashes.len(),
        "terms": explained.term_names(),
        "candidates": candidates,
        "session": facts.hints.turn.as_ref().map(|turn| turn.to_json()),
    });
    if head.uri.query().unwrap_or_default().split('&').any(|pair| pair == "hashes=1") {
        said["content_hashes"] = json!(&*facts.prompt.hashes);
    }
    if let Some(pictured) = &facts.prompt.pictured {
        // Their names are between the router and its engines.
        said["images"] = pictured.expanded.lengths().map(|tokens| json!({ "tokens": tokens })).collect();
    }
    let engines = app.fleet.engines();
    let unverified = engines.iter().filter(|engine| engine.is_unverified.load(Relaxed));
    let unverified: Vec<&str> = unverified.map(|engine| &*engine.name).collect();
    if !unverified.is_empty() {
        said["unverified"] = unverified.into();
    }
    let sick = engines.iter().map(|engine| (&*engine.name, engine.record.lock().condition_to_json()));
    let sick: serde_json::Map<String, Value> = sick
        .filter(|(_, condition)| !condition.is_null())
        .map(|(name, condition)| (name.to_owned(), condition))
        .collect();
    if !sick.is_empty() {
        said["conditions"] = sick.into();
    }
    if let Some(bounds) = bounds {
        said["bounds"] = bounds.to_json(app.fleet.engines().iter().map(|engine| &*engine.name));
    }
    Ok(answer(StatusCode::OK, said.to_string()))
}

/// Answers a request to change the fleet, or to list the changes in force. `name`: the engine's name in the path;
/// `is_known`: true if the client has sent a key that permits changes.
pub(crate) async fn change_fleet(
    app: &App,
    action: &'static str,
    name: Option<&str>,
    request: Request<RequestBody>,
    is_known: bool,
    until: Instant,
) -> Result<Response<Answer>, Refusal> {
    let at_peers = request.uri().query().unwrap_or_default().split('&').any(|pair| pair == "peers=true");
    let body = if action == "add" {
        String::from_utf8_lossy(&app.reader.receive(request.into_body(), MAX_CHANGE, until).await?).into_owned()
    } else {
        String::new()
    };
    let name = name.map(decoded);
    // One that is removed is shown as it was.
    let before = name.as_deref().and_then(|name| app.fleet.engine(name));
    let asked = FleetRequest { action, name: name.clone(), body, is_known, at_peers };
    let changed = match app.changes.ask(asked).await? {
        Some(answer) => answer,
        None => change_alone(&app.places, action, name.as_deref().unwrap_or_default())?,
    };
    let status = StatusCode::from_u16(changed.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    if let Some(code) = &changed.code {
        let code = CHANGE_CODES.into_iter().find(|known| known == code).unwrap_or("internal");
        return Err(Refusal::new(status, code, changed.message.unwrap_or_default()));
    }
    if let Some(body) = changed.body {
        return Ok(answer(status, body.to_string()));
    }
    let name = changed.name.or(name).unwrap_or_default();
    let engine = app.fleet.engine(&name).or(before);
    let mut row = engine.map_or_else(|| json!({ "name": name }), |engine| reports::worker(&app.places, &engine));
    if let Some(routers) = changed.routers {
        row["routers"] = routers;
    }
    Ok(answer(status, row.to_string()))
}

/// Makes a change of the fleet in a router without a keeper (code that stores clients' changes). Engines cannot be
/// added in this case, except by the program that runs the router.
fn change_alone(places: &Places, action: &'static str, name: &str) -> Result<FleetAnswer, Refusal> {
    let changed = match action {
        "remove" => places.remove_engine(name),
        "drain" | "undrain" => places.drain_engine(name, DrainedBy::Operator, action == "drain"),
        _ => return Err(Refusal::unknown_path()),
    };
    changed.map_err(|error| Refusal::new(StatusCode::NOT_FOUND, error.code(), error.to_string()))?;
    Ok(FleetAnswer { status: StatusCode::OK.as_u16(), ..FleetAnswer::default() })
}

/// Decodes an engine's name from a path with percent-encoding (`%XX` for a byte).
fn decoded(name: &str) -> String {
    percent_encoding::percent_decode_str(name).decode_utf8_lossy().into_owned()
}

/// Applies the report of another router about its requests, and answers the report.
pub(crate) async fn hear_report(
    reader: &BodyReader,
    peers: &Peers,
    requests: &impl SharedRequests,
    request: Request<RequestBody>,
    until: Instant,
) -> Result<Response<Answer>, Refusal> {
    let body = reader.receive(request.into_body(), peer_requests::MOST_BYTES, until).await?;
    let report = reader.threads.run_on(&body, takes_long(&body), Report::parse).await??;
    peer_requests::hear(peers, requests, report)
}

#[cfg(test)]
mod tests {
    use super::decoded;

    #[test]
    fn names_in_paths() {
        assert_eq!(decoded("a%3A8000%2Fx"), "a:8000/x");
        assert_eq!(decoded("100%"), "100%");
        assert_eq!(decoded("%zz%4"), "%zz%4");
    }
}
