//! Answers about the router and its engines, and changes of the fleet.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::{Method, Request, Response, StatusCode};
use kvatlas_http::parts::PartRequest;
use kvatlas_http::{Access, RequestBody, ShownKey};
use kvatlas_prompt::Endpoint;
use serde_json::{Value, json};

use crate::answers::body::{Answer, json as answer};
use crate::answers::refusal::Refusal;
use crate::app::App;
use crate::config::EngineConfig;
use crate::engines::Engine;
use crate::engines::fleet::Adder;
use crate::error::Error;
use crate::placing::Outlook;
use crate::proxy::read;
use crate::remote::peer_requests::{self, Report};
use crate::reports::state;
use crate::requests::long_work::{aside, aside_if_long};
use crate::requests::read_body::look_at;
use crate::requests::reading_turns::Client;
use crate::requests::reserved;
use crate::requests::routes::ModelAt;

/// Time that a client should wait before it asks again whether the router is ready.
const READY_AGAIN: Duration = Duration::from_secs(1);

/// Bytes of a change's body at most.
const MAX_CHANGE: usize = 64 << 10;

/// Decisions beyond which their text is made aside.
const MANY_DECISIONS: usize = 1024;

/// Answers whether requests should come here: from when an engine can take one until the router shuts down. They need
/// not wait for what the index does not know yet; whoever wants the index of this router does (`index_ready`).
pub(crate) fn ready(app: &App) -> Response<Answer> {
    let leaving = app.leaving.load(Relaxed);
    let any = app.fleet.has_any_up();
    let index = app.service.as_ref().map(|service| service.fleet().is_ready());
    let body = json!({ "ready": any && !leaving, "leaving": leaving, "engines_up": any, "index_ready": index });
    if any && !leaving {
        return answer(StatusCode::OK, body.to_string());
    }
    let mut response = answer(StatusCode::SERVICE_UNAVAILABLE, body.to_string());
    response.headers_mut().insert(hyper::header::RETRY_AFTER, READY_AGAIN.as_secs().into());
    response
}

/// Answers with a snapshot of this router's index, for another router or service to begin with; in parts, as that one
/// asks for them.
pub(crate) async fn snapshot(app: &App, request: Request<RequestBody>) -> Result<Response<Answer>, Refusal> {
    let (head, _) = request.into_parts();
    let service = app.service.as_ref().ok_or_else(|| {
        let message =
            "this router follows no events itself: ask the service that it asks (router.index), if there is one";
        Refusal::new(StatusCode::NOT_FOUND, "no_index", message)
    })?;
    let part = PartRequest::of(&head.headers);
    let snapshot = service.snapshot(part.wanted, part.fresh, app.config.http.request_timeout).await;
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

/// Answers with one model of those that engines serve, by its name.
pub(crate) fn model(app: &App, name: &str) -> Result<Response<Answer>, Refusal> {
    let name = decoded(name);
    let Value::Array(all) = state::models(app)["data"].take() else { return Err(Refusal::unknown_path()) };
    let found = all.into_iter().find(|card| card["id"] == name);
    let card = found.ok_or_else(|| {
        let message = "no engine serves a model of that name; GET /v1/models lists the models";
        Refusal::new(StatusCode::NOT_FOUND, "model_not_found", message)
    })?;
    Ok(answer(StatusCode::OK, card.to_string()))
}

/// The last decisions, the newest first.
pub(crate) async fn decisions(app: &Arc<App>, query: Option<&str>) -> Result<Response<Answer>, Refusal> {
    let limit = query.unwrap_or_default().split('&').find_map(|pair| pair.strip_prefix("limit=")?.parse().ok());
    let last = app.places.decisions.last(limit.unwrap_or(50));
    let is_short = last.len() <= MANY_DECISIONS;
    let write = move || Value::Array(last.iter().map(|record| record.to_json()).collect()).to_string();
    // A router can keep a million of them.
    let text = if is_short { write() } else { aside(app, &Bytes::new(), move |_, _| write()).await? };
    Ok(answer(StatusCode::OK, text))
}

/// Answers how the candidates look for a prompt, which is not sent.
pub(crate) async fn explain(
    app: &Arc<App>,
    shard: usize,
    request: Request<RequestBody>,
    until: Instant,
    client: Client,
) -> Result<Response<Answer>, Refusal> {
    // What a session does is not for a client that guesses its name.
    let admitted = app.gate.admit(&request, Access::Admin);
    let may_write_fields = reserved::may_write_fields(app, admitted.as_ref().map_or(ShownKey::Nothing, |shown| *shown));
    let (head, body) = request.into_parts();
    let body = read(app, body, app.config.http.max_body, until).await?;
    // Engines are asked for the tokens of such prompts.
    reserved::check_body(app, may_write_fields, &body).await?;
    let endpoint = aside_if_long(app, &body, |_, body| Endpoint::of_body(body)).await?;
    let endpoint = endpoint.ok_or_else(|| Refusal::bad("malformed_json", "the body must be a JSON object"))?;
    let mut known = look_at(app, client, Some(endpoint), ModelAt::Json, "", &body).await?;
    if admitted.is_ok() {
        let (named, hints) = app.sessions.identify(&head.headers, &known.in_body);
        known.session = named.map(|identity| identity.name);
        known.turn = app.sessions.look(named, hints, known.prompt()).map(Arc::new);
    }
    let Outlook { explained, held, bounds } = app.places.explain(app, shard, &known).await?;
    let mut candidates = explained.to_json();
    for (at, depth) in held.iter().flatten().enumerate() {
        let tokens = |blocks: u32| blocks * known.block_size;
        candidates[at]["held_tokens"] =
            json!({ "device": tokens(depth.device), "host": tokens(depth.host), "any_tier": tokens(depth.any) });
    }
    let mut said = json!({
        "policy": app.places.policy(),
        "model": known.model,
        "tokens": known.tokens,
        "block_size": known.block_size,
        "blocks": known.hashes.len(),
        "terms": explained.term_names(),
        "candidates": candidates,
        "session": known.turn.as_ref().map(|turn| turn.to_json()),
    });
    if let Some(pictured) = &known.pictured {
        // Their names are between the router and its engines.
        said["images"] = pictured.expanded.lengths().map(|tokens| json!({ "tokens": tokens })).collect();
    }
    let engines = app.fleet.engines();
    let unverified = engines.iter().filter(|engine| engine.is_unverified.load(Relaxed));
    let unverified: Vec<&str> = unverified.map(|engine| &*engine.name).collect();
    if !unverified.is_empty() {
        said["unverified"] = unverified.into();
    }
    if let Some(bounds) = bounds {
        said["bounds"] = bounds.to_json(app.fleet.engines().iter().map(|engine| &*engine.name));
    }
    Ok(answer(StatusCode::OK, said.to_string()))
}

/// `POST /engines`, by a client that has shown a key, or not.
pub(crate) async fn add_engine(
    app: &App,
    request: Request<RequestBody>,
    is_known: bool,
    until: Instant,
) -> Result<Response<Answer>, Refusal> {
    let body = read(app, request.into_body(), MAX_CHANGE, until).await?;
    let config: EngineConfig = serde_json::from_slice(&body)
        .map_err(|error| Refusal::bad("invalid_engine", format!("an engine is {{\"url\": …}}: {error}")))?;
    if config.use_key == Some(true) && !is_known {
        let message = "use_key shows the engine the key of all engines: only a client that shows the admin key may ask \
                       for that (http.admin_key_file); give the engine's own key instead";
        return Err(Refusal::new(StatusCode::FORBIDDEN, "forbidden", message));
    }
    let engine = app.set_engine(config, Adder::Client).map_err(|error| match error {
        Error::Taken { .. } | Error::Full { .. } => Refusal::new(StatusCode::CONFLICT, error.code(), error.to_string()),
        _ => Refusal::bad("invalid_engine", error.to_string()),
    })?;
    Ok(answer(StatusCode::CREATED, state::worker(app, &engine).to_string()))
}

/// `DELETE /engines/NAME`.
pub(crate) fn remove_engine(app: &App, name: &str) -> Result<Response<Answer>, Refusal> {
    answer_change(app, app.remove_engine(&decoded(name)))
}

/// `POST /engines/NAME/drain` and `…/undrain`.
pub(crate) fn drain_engine(app: &App, name: &str, drain: bool) -> Result<Response<Answer>, Refusal> {
    answer_change(app, app.drain_engine(&decoded(name), drain))
}

fn answer_change(app: &App, done: Result<Arc<Engine>, Error>) -> Result<Response<Answer>, Refusal> {
    let engine = done.map_err(|error| Refusal::new(StatusCode::NOT_FOUND, "unknown_engine", error.to_string()))?;
    Ok(answer(StatusCode::OK, state::worker(app, &engine).to_string()))
}

/// A name out of a path, where `%XX` is a byte.
fn decoded(name: &str) -> String {
    percent_encoding::percent_decode_str(name).decode_utf8_lossy().into_owned()
}

/// Takes in the report of another router.
pub(crate) async fn hear_report(
    app: &Arc<App>,
    request: Request<RequestBody>,
    until: Instant,
) -> Result<Response<Answer>, Refusal> {
    let body = read(app, request.into_body(), peer_requests::MOST_BYTES, until).await?;
    let report = aside_if_long(app, &body, |_, body| Report::parse(body)).await??;
    peer_requests::hear(&app.peers, &*app.places, report)
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
