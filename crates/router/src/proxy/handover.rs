//! Prefill and decode on separate engines: the requests to both engines, in the protocols of vLLM and SGLang.
//!
//! vLLM: the request is first sent to the prefill engine, limited to one token; the parameters in its answer, which
//! describe its blocks, are then sent to the decode engine. SGLang: the request is sent to both engines at once, with a
//! number (the bootstrap room) by which they find each other.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::StatusCode;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::attempts::Attempts;
use super::body_fields::{Fields, fields, with};
use super::exchange::{Patience, exchange};
use super::flight::{Arrival, Flight, Leg, PrefillResult, Verdict};
use super::transfer_field;
use crate::answers::observe::{AnswerFacts, AnswerFormat, Observer, error_of};
use crate::answers::refusal::Refusal;
use crate::config::{Handover, Role};
use crate::engines::json_fields::{pick, read};
use crate::engines::request_head::EngineRequest;
use crate::engines::{Engine, Fault, whole};
use crate::ids;
use crate::proxy::Forwarder;
use crate::requests::facts::RequestFacts;
use crate::requests::task::Task;

/// Maximum size, in bytes, of the parameters in a prefill engine's answer. The parameters list the blocks of the prompt
/// for the decode engine.
const MAX_PARAMETERS: usize = 4 << 20;

/// State of prefill (computation of the prompt by another engine) when the request is sent to the decode engine.
pub(crate) enum PrefillState {
    /// Prefill is complete; the bytes are the request body for the decode engine.
    Body(Bytes),
    /// Prefill is in progress: the request body for the decode engine, and the prefill engine's work. If prefill fails,
    /// so does the request.
    Meanwhile(Bytes, Leg),
    /// No prefill engine is used; the decode engine computes the prompt.
    Alone,
    /// The request needs a prefill engine, and no prefill engine is available; the value is the refusal for the client.
    Refused(Refusal),
}

/// Returns the protocol by which an engine gets a prompt's blocks from a prefill engine; None if the engine computes
/// the prompt itself.
///
/// `decode_alone`: number of tokens up to which a decode engine computes prompts itself; `takes_over`: true if there
/// are prefill engines, and vLLM's protocol supports the request; `uncached`: function that returns the number of
/// prompt tokens that the engine would have to compute.
pub(crate) fn prefill_by(
    decode_alone: u32,
    engine: &Engine,
    takes_over: bool,
    uncached: impl FnOnce() -> u32,
) -> Option<Handover> {
    let is_half = engine.config.role == Role::Decode;
    if !is_half && !takes_over {
        return None;
    }
    match engine.handover()? {
        // A half answers nothing without a room in which a prefill engine meets it, and nobody meets one that does both.
        Handover::Sglang => is_half.then_some(Handover::Sglang),
        Handover::Vllm => (takes_over && uncached() > decode_alone).then_some(Handover::Vllm),
    }
}

/// Makes a prefill engine compute a prompt for the decode engine, by the protocol `handover`.
#[expect(clippy::too_many_arguments, reason = "a request, where it goes, and what became of it so far")]
pub(crate) async fn prepare(
    proxy: &Arc<Forwarder>,
    shard: usize,
    outgoing: &EngineRequest<'_>,
    body: &Bytes,
    facts: &RequestFacts,
    handover: Handover,
    arrival: &Arrival,
    attempts: &mut Attempts,
) -> PrefillState {
    let Some(fields) = fields(body) else {
        return match handover {
            Handover::Vllm => PrefillState::Alone,
            Handover::Sglang => PrefillState::Refused(Refusal::bad("malformed_json", "the body must be a JSON object")),
        };
    };
    // They meet for the answers after the first in the same room, and wait there for ever.
    if handover == Handover::Sglang && answers(&fields) > 1 {
        let message = "SGLang's prefill and decode engines compute one answer to each prompt: ask for one (n = 1) several \
                       times, or add an engine that does both (--engine)";
        return PrefillState::Refused(Refusal::new(StatusCode::NOT_IMPLEMENTED, "not_in_pairs", message));
    }
    let first_byte = proxy.config.upstream.first_byte_timeout;
    let mut tried: Vec<Arc<Engine>> = Vec::new();
    while tried.len() <= proxy.config.upstream.retries as usize {
        let placement = match proxy.places.choose(shard, facts, Task::Prefill(handover), &tried).await {
            Ok(placement) => placement,
            Err(refusal) if handover == Handover::Sglang => return PrefillState::Refused(refusal),
            Err(_) => break,
        };
        let engine = placement.engine.clone();
        let rank = placement.rank;
        if engine.config.role != Role::Prefill {
            // One that does both can do it when it is asked to decode.
            proxy.places.fail(&placement);
            break;
        }
        let loads = transfer_field::parameters(&proxy.fleet, &placement);
        let flight = Flight::new(proxy.clone(), placement, arrival);
        match handover {
            Handover::Vllm => {
                let Some(asked) = vllm_prefill(&fields, loads) else { return PrefillState::Alone };
                let fresh = attempts.needs_new_connection();
                match first(first_byte, shard, outgoing, asked, flight, fresh).await {
                    // The decode engine gets the request as the client wrote it, and has the last word.
                    Ok(None) => break,
                    Ok(Some(answer)) => {
                        let Some(parameters) = answer.get("kv_transfer_params").filter(|it| !it.is_null()) else {
                            tracing::warn!(
                                engine = &*engine.name,
                                "the prefill engine returned no kv_transfer_params: check that it has a KV connector"
                            );
                            break;
                        };
                        return with(&fields, [("kv_transfer_params", parameters.clone())])
                            .map_or(PrefillState::Alone, PrefillState::Body);
                    }
                    Err(fault) => {
                        attempts.lose(&engine, &fault);
                        if attempts.is_lost() {
                            break;
                        }
                        tried.push(engine);
                    }
                }
            }
            Handover::Sglang => {
                let Some(both) = sglang_room(&fields, &engine, rank) else { return PrefillState::Alone };
                let mut head = Vec::new();
                outgoing.write(&engine, rank, both.len(), flight.trace_context().as_deref(), &mut head);
                let fresh = attempts.needs_new_connection();
                let work = beside(first_byte, shard, head, both.clone(), flight, fresh);
                return PrefillState::Meanwhile(both, Leg { engine, work: Some(tokio::spawn(work)) });
            }
        }
    }
    PrefillState::Alone
}

impl PrefillState {
    /// Returns the position, in [`PREPARED`], of the name of this state of prefill.
    pub(crate) fn number(&self) -> usize {
        match self {
            Self::Body(_) => 0,
            Self::Meanwhile(..) => 1,
            Self::Alone => 2,
            Self::Refused(_) => 3,
        }
    }
}

/// Names of the states of prefill in the metrics, in the order of [`PrefillState::number`]: computed before decode,
/// computed during decode, no prefill engine used, no prefill engine available.
pub(crate) const PREPARED: [&str; 4] = ["first", "meanwhile", "alone", "refused"];

/// True if vLLM can transfer the blocks of a request's prompt between engines: the request has one prompt and no beam
/// search.
fn can_be_handed_over(fields: &Fields<'_>) -> bool {
    prompts(fields, "prompt").is_none_or(|prompts| prompts <= 1)
        && fields.get("use_beam_search").is_none_or(|raw| raw.get() != "true")
}

/// Returns the number of prompts in a field with a list of prompts; None for a single prompt, as text or as tokens.
fn prompts(fields: &Fields<'_>, name: &str) -> Option<usize> {
    // A prompt may be long, and is mostly one: only a list of texts or lists is looked through.
    let raw = fields.get(name)?.get();
    if !raw.strip_prefix('[')?.trim_start().starts_with(['"', '[']) {
        return None;
    }
    // Nothing is kept of them.
    serde_json::from_str::<Vec<IgnoredAny>>(raw).ok().map(|prompts| prompts.len())
}

/// Returns the number of answers to each prompt that a request asks for, in the request format of SGLang.
fn answers(fields: &Fields<'_>) -> usize {
    let number = |raw: Option<&&RawValue>| serde_json::from_str::<usize>(raw?.get()).ok();
    // In a request of its own API they are among the parameters, of which there may be a list.
    let parameters = fields.get("sampling_params").map(|raw| raw.get().trim_start_matches(['[', ' ', '\n']));
    let first =
        parameters.and_then(|text| serde_json::Deserializer::from_str(text).into_iter::<Parameters<'_>>().next());
    let in_parameters = first.and_then(Result::ok).and_then(|first| number(first.n.as_ref()));
    number(fields.get("n")).or(in_parameters).unwrap_or(1).max(1)
}

/// Sampling parameters of a request; only `n`, the number of answers, is read.
#[derive(Deserialize)]
struct Parameters<'a> {
    #[serde(borrow)]
    n: Option<&'a RawValue>,
}

/// Maximum number of prompts of one request that get bootstrap rooms (numbers by which SGLang's engines find each
/// other).
const MOST_ROOMS: usize = 4_096;

/// Makes the body that is sent to both engines of an SGLang pair: the request, with a bootstrap room (a number by which
/// the engines find each other) for each prompt. `rank`: the prefill engine's data-parallel rank; None if it has only
/// one.
fn sglang_room(fields: &Fields<'_>, engine: &Engine, rank: Option<u32>) -> Option<Bytes> {
    // The decode engine finds the rank by the room's number.
    let ranks = engine.config.ranks.count().max(1) as u64;
    let room = || match rank {
        Some(rank) => (ids::number() >> 1) / ranks * ranks + u64::from(rank) % ranks,
        None => ids::number() >> 1,
    };
    let (host, port) = (json!(engine.address.host), json!(engine.bootstrap_port().unwrap_or(BOOTSTRAP_PORT)));
    let listed = ["prompt", "text", "input_ids"].into_iter().find_map(|name| prompts(fields, name));
    let set = match listed {
        None => [host, port, json!(room())],
        Some(prompts) => {
            let count = prompts.min(MOST_ROOMS);
            [json!(vec![host; count]), json!(vec![port; count]), (0..count).map(|_| room()).collect()]
        }
    };
    let [host, port, room] = set;
    with(fields, [("bootstrap_host", host), ("bootstrap_port", port), ("bootstrap_room", room)])
}

/// Default port at which SGLang's prefill engines arrange transfers with decode engines (the bootstrap port).
const BOOTSTRAP_PORT: u16 = 8998;

/// Makes the body for a prefill engine of vLLM: the request without streaming, limited to one token of one sequence,
/// with the instruction to keep the blocks for the decode engine. `loads`: parameters for blocks that the engine loads
/// or pulls. None if the blocks cannot be transferred between engines.
fn vllm_prefill(fields: &Fields<'_>, loads: Map<String, Value>) -> Option<Bytes> {
    if !can_be_handed_over(fields) {
        return None;
    }
    let mut fields = fields.clone();
    for name in ["stream_options", "min_tokens", "max_completion_tokens", "n", "best_of"] {
        fields.remove(name);
    }
    let mut parameters = json!({
        "do_remote_decode": true,
        "do_remote_prefill": false,
        "remote_engine_id": null,
        "remote_block_ids": null,
        "remote_host": null,
        "remote_port": null,
    });
    if let Value::Object(members) = &mut parameters {
        members.extend(loads);
    }
    with(&fields, [("max_tokens", json!(1)), ("stream", json!(false)), ("kv_transfer_params", parameters)])
}

/// Sends a request to a prefill engine, and waits for the complete answer. None if the engine refused the request.
async fn first(
    first_byte: Duration,
    shard: usize,
    outgoing: &EngineRequest<'_>,
    body: Bytes,
    mut flight: Flight,
    fresh: bool,
) -> Result<Option<Value>, Fault> {
    let mut head = Vec::new();
    let trace = flight.trace_context();
    outgoing.write(flight.engine(), flight.placement().rank, body.len(), trace.as_deref(), &mut head);
    let answer = legwork(first_byte, shard, &head, &body, &mut flight, fresh).await;
    let parsed = answer.and_then(|prefilled| match prefilled {
        PrefillResult::Done(body) => {
            let [handed] = pick(&body, ["kv_transfer_params"]).ok_or(Fault::Malformed("its body is not JSON"))?;
            let handed = handed.filter(|handed| handed.get().len() <= MAX_PARAMETERS);
            Ok(Some(json!({ "kv_transfer_params": read::<Value>(handed) })))
        }
        PrefillResult::Refused(_) => Ok(None),
    });
    if let Err(fault) = &parsed {
        flight.note_failure(fault);
    }
    parsed
}

/// Sends a request to a prefill engine while the decode engine processes the same request.
async fn beside(
    first_byte: Duration,
    shard: usize,
    head: Vec<u8>,
    body: Bytes,
    mut flight: Flight,
    fresh: bool,
) -> Result<PrefillResult, Fault> {
    let answer = legwork(first_byte, shard, &head, &body, &mut flight, fresh).await;
    if let Err(fault) = &answer {
        flight.note_failure(fault);
    }
    answer
}

async fn legwork(
    first_byte: Duration,
    shard: usize,
    head: &[u8],
    body: &[u8],
    flight: &mut Flight,
    fresh: bool,
) -> Result<PrefillResult, Fault> {
    let engine = flight.engine().clone();
    let patience = Patience::new(first_byte, &engine);
    let (connection, answer) = exchange(first_byte, &engine, shard, head, body, &hyper::Method::POST, fresh).await?;
    let (keep, status, headers) = (answer.keep, answer.status, answer.headers);
    if !status.is_success() {
        flight.answered(status.as_u16());
    }
    let body = async { whole(connection, answer.framing).await.map_err(Fault::Broken) };
    let (connection, body) = patience.wait(pin!(body)).await?;
    if keep && connection.is_clean() {
        engine.pool.put(shard, connection);
    }
    if status.is_client_error() && status != StatusCode::TOO_MANY_REQUESTS {
        flight.note_end(AnswerFacts::default());
        return Ok(PrefillResult::Refused(Verdict { status, headers, body }));
    }
    if !status.is_success() {
        return Err(Fault::Busy(status.as_u16()));
    }
    match error_of(&body) {
        Some(failure) if failure.is_of_the_request() => {
            flight.note_end(AnswerFacts { failure: Some(failure), ..AnswerFacts::default() });
            return Ok(PrefillResult::Refused(Verdict { status, headers, body }));
        }
        Some(failure) => return Err(Fault::Error(failure.status)),
        None => flight.answered(status.as_u16()),
    }
    flight.note_piece();
    // It is asked for one token: its answer is that.
    flight.note_tokens(1, Instant::now());
    let mut observer = Observer::of(Some(b"application/json"), AnswerFormat::default());
    observer.pass(Bytes::from(body.clone()));
    flight.note_end(observer.seen());
    Ok(PrefillResult::Done(body))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Ranks;
    use crate::config::{Config, EngineConfig};

    #[test]
    fn bodies_keep_what_is_not_changed() {
        let body = br#"{"model":"m","prompt":"a\u00e9","top_p":1.50,"n":4,"best_of":8,"max_tokens":7,"stream":true,"stream_options":{},"seed":12345678901234567890123}"#;
        let fields: Fields<'_> = serde_json::from_slice(body).expect("an object");
        let asked = vllm_prefill(&fields, Map::new()).expect("a body");
        let text = String::from_utf8(asked.to_vec()).expect("utf-8");
        for part in [
            r#""prompt":"a\u00e9""#,
            r#""top_p":1.50"#,
            r#""seed":12345678901234567890123"#,
            r#""max_tokens":1,"#,
            r#""stream":false"#,
            r#""do_remote_decode":true"#,
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        for part in ["stream_options", "\"n\"", "best_of"] {
            assert!(!text.contains(part), "{part} in {text}");
        }
        let decode = with(&fields, [("kv_transfer_params", json!({ "remote_port": 1 }))]).expect("a body");
        let text = String::from_utf8(decode.to_vec()).expect("utf-8");
        assert!(text.contains(r#""max_tokens":7"#) && text.contains(r#""kv_transfer_params":{"remote_port":1}"#));
        assert!(text.contains(r#""n":4"#) && text.contains(r#""best_of":8"#));
    }

    #[test]
    fn a_room_for_each_prompt() {
        let rooms = |body: &'static str, rank| {
            let config = EngineConfig { ranks: Ranks::Count(4), ..EngineConfig::at("http://a:1") };
            let engine = Engine::new(config, &Config::default(), 1, None).expect("an engine");
            let made = sglang_room(&serde_json::from_str(body).expect("an object"), &engine, rank).expect("a body");
            let made: Value = serde_json::from_slice(&made).expect("JSON");
            assert!(made["bootstrap_port"] == 8998 || made["bootstrap_port"][0] == 8998, "{made}");
            made["bootstrap_room"].clone()
        };
        for (body, count) in [
            (r#"{"prompt": "a"}"#, 0),
            (r#"{"prompt": [1, 2], "n": 1}"#, 0),
            (r#"{"prompt": ["a"]}"#, 1),
            (r#"{"prompt": [ [1, 2], [3]]}"#, 2),
            (r#"{"messages": []}"#, 0),
            (r#"{"text": ["a", "b"], "sampling_params": {"n": 1}}"#, 2),
            (r#"{"input_ids": [[1]]}"#, 1),
        ] {
            let made = rooms(body, Some(3));
            let numbers = made.as_array().cloned().unwrap_or_else(|| vec![made.clone()]);
            assert_eq!(made.as_array().map_or(0, Vec::len), count, "{body}: {made}");
            // The rank that the decode engine concludes from it is the one that computes the prompt.
            assert!(numbers.iter().all(|room| room.as_u64().is_some_and(|room| room % 4 == 3)), "{made}");
        }
    }

    #[test]
    fn answers_that_are_asked_for() {
        for (body, count) in [
            (r#"{"messages": []}"#, 1),
            (r#"{"messages": [], "n": 3}"#, 3),
            (r#"{"text": ["a", "b"], "sampling_params": {"n": 2, "top_p": 1}}"#, 2),
            (r#"{"text": ["a"], "sampling_params": [ {"n": 4}, {"n": 4}]}"#, 4),
            (r#"{"prompt": "a", "n": null, "sampling_params": null}"#, 1),
        ] {
            assert_eq!(answers(&serde_json::from_str(body).expect("an object")), count, "{body}");
        }
    }

    #[test]
    fn what_cannot_be_handed_over() {
        let asked =
            |body: &'static str| vllm_prefill(&serde_json::from_str(body).expect("an object"), Map::new()).is_some();
        for body in [
            r#"{"prompt": ["a", "b"]}"#,
            r#"{"prompt": [[1], [2]]}"#,
            r#"{"prompt": "a", "use_beam_search": true, "n": 4}"#,
        ] {
            assert!(!asked(body), "{body}");
        }
        for body in [
            r#"{"prompt": ["a"]}"#,
            r#"{"prompt": [1, 2]}"#,
            r#"{"prompt": "a", "n": 4, "use_beam_search": false}"#,
            r#"{"messages": []}"#,
        ] {
            assert!(asked(body), "{body}");
        }
    }
}
