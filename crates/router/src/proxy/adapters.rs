//! Loading and unloading of LoRA adapters by clients. Each change is made at every engine concerned, as a request for
//! the adapter may be sent to any of them.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::header::{CONTENT_LENGTH, HeaderMap, HeaderValue};
use hyper::{Method, Response, StatusCode};
use serde_json::{Map, Value, json};

use super::exchange::{Patience, exchange};
use crate::answers::refusal::Refusal;
use crate::answers::{Answer, json as answer};
use crate::engines::fleet::Fleet;
use crate::engines::request_head::{EngineRequest, REQUEST_ID, strip};
use crate::engines::{Engine, Fault, Serving, whole};

/// Maximum size of a body, in bytes, in which the name of the adapter is searched for.
const LONGEST: usize = 64 << 10;

/// Change of the LoRA adapters that engines have loaded: load or unload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AdapterChange {
    Load,
    Unload,
}

/// Answer of one engine to a request to load or unload an adapter.
struct EngineAnswer {
    engine: Arc<Engine>,
    answer: Result<(StatusCode, HeaderMap, Vec<u8>), Fault>,
}

impl AdapterChange {
    /// Returns the change of adapters that a request makes, by its method and path; None for other requests.
    pub(super) fn of(method: &Method, path: &str) -> Option<Self> {
        let path = if *method == Method::POST { path.strip_prefix("/v1").unwrap_or(path) } else { return None };
        match path {
            "/load_lora_adapter" | "/load_lora_adapter_from_tensors" => Some(Self::Load),
            "/unload_lora_adapter" => Some(Self::Unload),
            _ => None,
        }
    }

    /// True if an engine's answer shows that the change is in force: the engine made the change, or the adapter was
    /// loaded or unloaded before.
    fn is_done(self, status: StatusCode, body: &[u8]) -> bool {
        let text = String::from_utf8_lossy(body).to_lowercase();
        let says = |words: &[&str]| words.iter().any(|words| text.contains(words));
        match self {
            _ if status.is_success() => true,
            Self::Load => {
                status == StatusCode::BAD_REQUEST && says(&["already been loaded", "already loaded", "already exists"])
            }
            Self::Unload => {
                let lacks = says(&["not found", "cannot be found", "not loaded", "not been loaded", "does not exist"]);
                matches!(status, StatusCode::NOT_FOUND | StatusCode::BAD_REQUEST) && lacks
            }
        }
    }
}

/// Sends a change of the adapters to every engine concerned at the same time.
///
/// Loading concerns all engines that serve the model named in the request, or all engines if it names none. Unloading
/// concerns all engines that may have the adapter, or all engines if none is known to have it.
pub(super) async fn change(
    fleet: &Fleet,
    first_byte: Duration,
    shard: usize,
    outgoing: &EngineRequest<'_>,
    what: AdapterChange,
    model: Option<&str>,
    body: &Bytes,
) -> Result<Response<Answer>, Refusal> {
    let is_short = body.len() <= LONGEST;
    let asked: Map<String, Value> =
        if is_short { serde_json::from_slice(body).unwrap_or_default() } else { Map::new() };
    let name = asked.get("lora_name").and_then(Value::as_str).map(str::to_owned);
    let base = asked.get("model").and_then(Value::as_str).or(model);
    let engines = fleet.engines().clone();
    let concerns = |engine: &&Arc<Engine>| match (what, &name) {
        (AdapterChange::Load, _) => engine.models.load().may_serve(base),
        (AdapterChange::Unload, Some(name)) => engine.models.load().serving(name) != Serving::Not,
        (AdapterChange::Unload, None) => true,
    };
    let mut to: Vec<Arc<Engine>> = engines.iter().filter(concerns).cloned().collect();
    if to.is_empty() && what == AdapterChange::Unload {
        to = engines.to_vec();
    }
    if to.is_empty() {
        return Err(match base {
            Some(base) if !engines.is_empty() => {
                Refusal::new(StatusCode::NOT_FOUND, "model_not_found", format!("no engine serves the model {base:?}"))
            }
            _ => Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "no_engines", "the router has no engines"),
        });
    }
    let tasks: Vec<_> = to
        .into_iter()
        .map(|engine| {
            let mut head = Vec::new();
            outgoing.write(&engine, None, body.len(), None, &mut head);
            // It goes on if the client leaves: an adapter at half of the engines is of no use.
            tokio::spawn(ask(first_byte, shard, engine, head, body.clone(), what, name.clone()))
        })
        .collect();
    let mut told = Vec::with_capacity(tasks.len());
    for task in tasks {
        let ended = task.await;
        told.push(ended.map_err(|_| {
            Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "an engine could not be asked")
        })?);
    }
    let mut response = sum_up(what, told);
    if let Some(id) = outgoing.id.or_else(|| outgoing.headers.get(REQUEST_ID)) {
        response.headers_mut().insert(REQUEST_ID, HeaderValue::clone(id));
    }
    Ok(response)
}

async fn ask(
    first_byte: Duration,
    shard: usize,
    engine: Arc<Engine>,
    head: Vec<u8>,
    body: Bytes,
    what: AdapterChange,
    name: Option<String>,
) -> EngineAnswer {
    let patience = Patience::new(first_byte, &engine);
    let asked = async {
        let (connection, answer) = exchange(first_byte, &engine, shard, &head, &body, &Method::POST, true).await?;
        let (_, body) = whole(connection, answer.framing).await.map_err(Fault::Broken)?;
        Ok((answer.status, answer.headers, body))
    };
    let answer = patience.wait(pin!(asked)).await;
    if let (Ok((status, _, body)), Some(name)) = (&answer, &name)
        && what.is_done(*status, body)
    {
        // What it lists is asked for every few seconds only.
        engine.models.rcu(|models| match what {
            AdapterChange::Load => models.with_adapter(name),
            AdapterChange::Unload => models.without(name),
        });
    }
    let said = answer.as_ref().map_or(0, |(status, ..)| status.as_u16());
    tracing::info!(engine = &*engine.name, adapter = name, status = said, "adapters of the engine: {what:?}");
    EngineAnswer { engine, answer }
}

/// Combines the engines' answers to a change of adapters into one answer for the client: the common answer if all
/// agree, else a list.
fn sum_up(what: AdapterChange, mut told: Vec<EngineAnswer>) -> Response<Answer> {
    let said = |told: &EngineAnswer| told.answer.as_ref().ok().map(|(status, _, body)| (*status, body.clone()));
    let first = told.first().and_then(said);
    if first.is_some()
        && told.iter().all(|other| said(other) == first)
        && let Ok((status, mut headers, body)) = told.swap_remove(0).answer
    {
        strip(&mut headers);
        headers.remove(CONTENT_LENGTH);
        let mut response = Response::new(Answer::Full(body.into()));
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        return response;
    }
    // Without one that did so, no engine had it before either.
    let is_any = told.iter().any(|told| matches!(&told.answer, Ok((status, ..)) if status.is_success()));
    let (all, mut worst, mut failed, mut each) = (told.len(), StatusCode::OK, Vec::new(), Map::new());
    for EngineAnswer { engine, answer } in told {
        let (status, words, is_done) = match answer {
            Ok((status, _, body)) => {
                let words = serde_json::from_slice(&body);
                let words = words.unwrap_or_else(|_| Value::from(String::from_utf8_lossy(&body).into_owned()));
                (status, words, is_any && what.is_done(status, &body))
            }
            Err(fault) => (StatusCode::BAD_GATEWAY, Value::from(fault.to_string()), false),
        };
        if !is_done {
            worst = worst.max(status);
            failed.push(format!("{} ({status})", engine.name));
        }
        each.insert(engine.name.to_string(), json!({ "status": status.as_u16(), "answer": words }));
    }
    let mut body = json!({ "engines": each });
    if !failed.is_empty() {
        let verb = if what == AdapterChange::Load { "load" } else { "unload" };
        let (count, names) = (failed.len(), failed.join(", "));
        body["error"] = json!({
            "message": format!("{count} of {all} engines did not {verb} the adapter: {names}; `engines` has their answers"),
            "type": if worst.is_server_error() { "server_error" } else { "invalid_request_error" },
            "param": null,
            "code": "adapter_failed",
        });
    }
    answer(worst, body.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_change_adapters() {
        let of = |method: Method, path: &str| AdapterChange::of(&method, path);
        for path in ["/v1/load_lora_adapter", "/load_lora_adapter", "/load_lora_adapter_from_tensors"] {
            assert_eq!(of(Method::POST, path), Some(AdapterChange::Load), "{path}");
        }
        for path in ["/v1/unload_lora_adapter", "/unload_lora_adapter"] {
            assert_eq!(of(Method::POST, path), Some(AdapterChange::Unload), "{path}");
        }
        assert_eq!(of(Method::GET, "/v1/load_lora_adapter"), None);
        assert_eq!(of(Method::POST, "/v1/load_lora_adapters"), None);
    }

    #[test]
    fn what_counts_as_done() {
        let done = |what: AdapterChange, status: u16, body: &str| {
            what.is_done(StatusCode::from_u16(status).expect("a status"), body.as_bytes())
        };
        assert!(done(AdapterChange::Load, 200, ""));
        assert!(done(AdapterChange::Load, 400, "The lora adapter 'x' has already been loaded."));
        assert!(!done(AdapterChange::Load, 400, "No adapter found for path"));
        assert!(!done(AdapterChange::Load, 404, "Not Found"));
        assert!(done(AdapterChange::Unload, 404, "The lora adapter 'x' cannot be found."));
        assert!(done(AdapterChange::Unload, 400, "LoRA adapter x is not loaded"));
        assert!(!done(AdapterChange::Unload, 400, "missing lora_name"));
        assert!(!done(AdapterChange::Unload, 500, "not found"));
    }
}
