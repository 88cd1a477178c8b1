//! What the router says of itself and its engines, and changes of the fleet.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use http_body_util::{BodyExt as _, Limited};
use hyper::{Method, Request, Response, StatusCode};
use kvatlas_http::Incoming;
use kvatlas_prompt::Endpoint;
use serde_json::{Value, json};

use crate::answer::{Answer, json as answer};
use crate::app::App;
use crate::config::EngineConfig;
use crate::dispatch::{READY_AGAIN, unknown_path};
use crate::proxy::read;
use crate::refusal::Refusal;
use crate::state;

/// Bytes of a change's body at most.
const MAX_CHANGE: usize = 64 << 10;

/// Whether requests should come here: from when an engine can take one until the router shuts down. They need not wait
/// for what the index does not know yet; whoever wants the index of this router does (`index_ready`).
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

/// What the index of this router holds, for another router or service to begin with; in parts, as that one asks for them.
pub(crate) async fn snapshot(app: &App, request: Request<Incoming>) -> Result<Response<Answer>, Refusal> {
    let (head, _) = request.into_parts();
    let service = app.service.as_ref().ok_or_else(|| {
        let message =
            "this router follows no events itself: ask the service that it asks (router.index), if there is one";
        Refusal::new(StatusCode::NOT_FOUND, "no_index", message)
    })?;
    let answered = service.snapshot(&head.headers, head.method == Method::HEAD, app.config.http.request_timeout).await;
    match answered {
        Ok(response) => Ok(response.map(Answer::Full)),
        Err(denied) if denied.status == StatusCode::SERVICE_UNAVAILABLE => {
            Err(Refusal::from(denied).again_after(READY_AGAIN))
        }
        Err(denied) => Err(denied.into()),
    }
}

/// One of them.
pub(crate) fn model(app: &App, name: &str) -> Result<Response<Answer>, Refusal> {
    let Value::Array(all) = state::models(app)["data"].take() else { return Err(unknown_path()) };
    let found = all.into_iter().find(|card| card["id"] == name);
    let card = found.ok_or_else(|| {
        let message = "no engine serves a model of that name; GET /v1/models lists the models";
        Refusal::new(StatusCode::NOT_FOUND, "model_not_found", message)
    })?;
    Ok(answer(StatusCode::OK, card.to_string()))
}

/// The last decisions, the newest first.
pub(crate) fn decisions(app: &App, query: Option<&str>) -> String {
    let limit = query.unwrap_or_default().split('&').find_map(|pair| pair.strip_prefix("limit=")?.parse().ok());
    let last = app.places.decisions.last(limit.unwrap_or(50));
    Value::Array(last.iter().map(|record| record.to_json()).collect()).to_string()
}

/// How the candidates look for a prompt, which is not sent.
pub(crate) async fn explain(
    app: &Arc<App>,
    shard: usize,
    request: Request<Incoming>,
    until: Instant,
) -> Result<Response<Answer>, Refusal> {
    let body = read(app, request.into_body(), until).await?;
    let fields: serde_json::Map<String, Value> =
        serde_json::from_slice(&body).map_err(|_| Refusal::bad("malformed_json", "the body must be a JSON object"))?;
    let endpoint = match (fields.contains_key("messages"), fields.contains_key("input")) {
        (true, _) => Endpoint::Chat,
        (_, true) => Endpoint::Responses,
        _ => Endpoint::Completions,
    };
    let recalled = app.prompts.recall(endpoint, &body);
    let known = app.prompts.read(app.service.as_ref(), endpoint, &body, &recalled);
    let (explained, bounds) = app.places.explain(app, shard, &known).await?;
    let mut said = json!({
        "policy": app.places.policy(),
        "model": known.model,
        "tokens": known.tokens,
        "block_size": known.block_size,
        "blocks": known.hashes.len(),
        "terms": explained.term_names(),
        "candidates": explained.to_json(),
    });
    if let Some(bounds) = bounds {
        said["bounds"] = bounds.to_json(app.fleet.engines().iter().map(|engine| &*engine.name));
    }
    Ok(answer(StatusCode::OK, said.to_string()))
}

/// Changes the fleet: `POST /engines`, `DELETE /engines/NAME`, `POST /engines/NAME/drain` and `…/undrain`.
pub(crate) async fn change(
    app: &Arc<App>,
    request: Request<Incoming>,
    until: Instant,
) -> Result<Response<Answer>, Refusal> {
    let (head, body) = request.into_parts();
    let reading = Limited::new(body, MAX_CHANGE).collect();
    let body = tokio::time::timeout_at(until.into(), reading).await.ok().and_then(Result::ok);
    let body = body.ok_or_else(|| Refusal::bad("incomplete_body", "the body is too long, or did not come"))?.to_bytes();
    let rest = head.uri.path().strip_prefix("/engines").unwrap_or_default();
    let done = match (head.method, rest.trim_start_matches('/').rsplit_once('/')) {
        (Method::POST, None) if rest.trim_matches('/').is_empty() => {
            let config: EngineConfig = serde_json::from_slice(&body)
                .map_err(|error| Refusal::bad("invalid_engine", format!("an engine is {{\"url\": …}}: {error}")))?;
            let engine = app.set_engine(config).map_err(|error| Refusal::bad("invalid_engine", error.to_string()))?;
            return Ok(answer(StatusCode::CREATED, state::worker(app, &engine).to_string()));
        }
        (Method::POST, Some((name, "drain"))) => app.drain_engine(&decoded(name), true),
        (Method::POST, Some((name, "undrain"))) => app.drain_engine(&decoded(name), false),
        (Method::DELETE, _) => app.remove_engine(&decoded(rest.trim_start_matches('/'))),
        _ => return Err(unknown_path()),
    };
    let engine = done.map_err(|error| Refusal::new(StatusCode::NOT_FOUND, "unknown_engine", error.to_string()))?;
    Ok(answer(StatusCode::OK, state::worker(app, &engine).to_string()))
}

/// A name out of a path, where `%XX` is a byte.
fn decoded(name: &str) -> String {
    percent_encoding::percent_decode_str(name).decode_utf8_lossy().into_owned()
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
