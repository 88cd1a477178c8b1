//! Warm-up requests, which make an engine with an empty cache pull the blocks of a prompt from another engine. Each one
//! is made from a client's request as it passes.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Map, Value, json};

use super::body_fields::{fields, with};
use super::{Forwarder, transfer_field};
use crate::answers::observe::{AnswerFormat, Observer, error_of};
use crate::engines::ask;
use crate::placing::{WarmUp, WarmUpResult};

/// Part of the time limit of a warm-up request (which makes an engine pull blocks) that is allowed for computing the
/// rest of the prompt. The other part is twice the expected duration of the pull.
const PATIENCE: Duration = Duration::from_secs(5);

/// Sends a warm-up request, in the background, to an engine that must pull a prompt's blocks. `path` and `body`: those
/// of the client's request.
pub(super) fn send(proxy: &Arc<Forwarder>, warm_up: Box<WarmUp>, path: &str, body: &Bytes) {
    let parameters = transfer_field::of(&proxy.fleet, &warm_up.transfer);
    let asked = parameters.contains_key("remote_kv_source").then(|| one_token(body, parameters)).flatten();
    let (proxy, path) = (proxy.clone(), path.to_owned());
    let Some(asked) = asked else { return proxy.places.warmed_up(&warm_up, WarmUpResult::Failed, 0) };
    tokio::spawn(async move {
        let limit = PATIENCE + Duration::from_secs_f64((2.0 * warm_up.transfer.seconds).clamp(0.0, 60.0));
        let answer = tokio::time::timeout(limit, ask(&warm_up.engine, "POST", &path, &asked)).await;
        let (result, tokens) = match answer {
            Ok(Ok((200, body))) if error_of(&body).is_none() => brought(&warm_up, body),
            Ok(Ok((status, _))) if status < 500 => (WarmUpResult::Refused, 0),
            Ok(_) => (WarmUpResult::Failed, 0),
            Err(_) => (WarmUpResult::Late, 0),
        };
        let (engine, tokens_to_pull) = (&*warm_up.engine.name, warm_up.tokens());
        tracing::info!(engine, ?result, tokens, tokens_to_pull, "a prompt was sent to an engine to warm it up");
        proxy.places.warmed_up(&warm_up, result, tokens);
    });
}

/// Returns the result of a warm-up request from the engine's answer, and the cached tokens that the answer reports. If
/// it reports none, the pull is assumed to have succeeded.
fn brought(warm_up: &WarmUp, body: Vec<u8>) -> (WarmUpResult, u64) {
    let mut observer = Observer::of(Some(b"application/json"), AnswerFormat::default());
    observer.pass(Bytes::from(body));
    match observer.seen().usage.cached {
        Some(cached) if u64::from(cached) * 2 < u64::from(warm_up.tokens()) => (WarmUpResult::Nothing, cached.into()),
        cached => (WarmUpResult::Brought, cached.unwrap_or(warm_up.tokens()).into()),
    }
}

/// Makes the body of a warm-up request, which asks for one token. `parameters`: instructions about the blocks to pull.
fn one_token(body: &[u8], parameters: Map<String, Value>) -> Option<Bytes> {
    let mut fields = fields(body)?;
    for name in ["stream_options", "min_tokens", "max_completion_tokens", "n", "best_of", "use_beam_search"] {
        fields.remove(name);
    }
    let parameters = Value::Object(parameters);
    with(&fields, [("max_tokens", json!(1)), ("stream", json!(false)), ("kv_transfer_params", parameters)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_token_of_the_same_prompt_is_asked_for() {
        let body = br#"{"prompt":"a\u00e9","n":4,"max_completion_tokens":7,"max_tokens":9,"stream":true,"stream_options":{},"model":"m"}"#;
        let source = Map::from_iter([("remote_kv_source".to_owned(), json!({ "remote_port": 1 }))]);
        let asked = one_token(body, source).expect("an object");
        assert_eq!(
            String::from_utf8_lossy(&asked),
            r#"{"kv_transfer_params":{"remote_kv_source":{"remote_port":1}},"max_tokens":1,"model":"m","prompt":"a\u00e9","stream":false}"#
        );
        assert_eq!(one_token(b"[]", Map::new()), None);
    }
}
