//! Prompts that one engine computes and another goes on from: what each is asked, in vLLM's way and in SGLang's.
//!
//! vLLM: the prefill engine is asked first, for one token; what its answer says of its blocks goes to the decode engine.
//! SGLang: both are asked at once, with a room in which they meet.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use hyper::header::{CONTENT_LENGTH, HeaderMap};
use hyper::{Response, StatusCode};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::attempts::Attempts;
use super::exchange::{Patience, exchange};
use super::flight::Flight;
use super::headers::{Outgoing, strip};
use crate::answer::Answer;
use crate::app::App;
use crate::config::{Handover, Role};
use crate::control::whole;
use crate::engine::{Engine, Fault};
use crate::names;
use crate::observe::{Observer, Reading, Seen};
use crate::prompts::Known;

/// What prefill has come to before decode is asked.
pub(crate) enum Prepared {
    /// The decode engine gets this.
    Body(Bytes),
    /// The same, while the prefill engine is at work: if that fails, so does the request there.
    Meanwhile(Bytes, Leg),
    /// No prefill engine has done it: the decode engine computes the prompt itself.
    Alone,
}

/// A prefill engine at work. If it is dropped, the work ends there too.
pub(crate) struct Leg {
    pub(crate) engine: Arc<Engine>,
    work: Option<tokio::task::JoinHandle<Result<Prefilled, Fault>>>,
}

/// The end of a prefill engine's work.
enum Prefilled {
    /// It has computed the prompt, and said this.
    Done(Vec<u8>),
    /// It refused the request itself, as the decode engine would.
    Refused(Verdict),
}

/// An answer of status 4xx: it is about the request, not about the engine.
pub(crate) struct Verdict {
    status: StatusCode,
    headers: HeaderMap,
    body: Vec<u8>,
}

/// Why the decode engine's answer is not waited for any longer.
pub(crate) enum Ended {
    /// Something went wrong, there or at the prefill engine.
    Failed(Fault),
    /// The prefill engine refused the request.
    Refused(Verdict),
}

type Fields<'a> = BTreeMap<String, &'a RawValue>;

/// Has a prompt computed by a prefill engine, as the decode engine wants it.
#[expect(clippy::too_many_arguments, reason = "a request, where it goes, and what became of it so far")]
pub(crate) async fn prepare(
    app: &Arc<App>,
    shard: usize,
    outgoing: &Outgoing<'_>,
    body: &Bytes,
    known: &Known,
    decode: &Engine,
    arrived: Instant,
    attempts: &mut Attempts,
) -> Prepared {
    let Ok(fields) = serde_json::from_slice::<Fields<'_>>(body) else { return Prepared::Alone };
    let mut tried: Vec<Arc<Engine>> = Vec::new();
    while tried.len() <= app.config.upstream.retries as usize {
        let Ok(placement) = app.places.choose(app, shard, known, Role::Prefill, &tried).await else { break };
        let engine = placement.engine.clone();
        let rank = placement.rank;
        if engine.config.role != Role::Prefill {
            // One that does both can do it when it is asked to decode.
            app.places.fail(&placement);
            break;
        }
        let flight = Flight::new(app.clone(), placement, arrived);
        match decode.config.handover {
            Handover::Vllm => {
                let Some(asked) = vllm_prefill(&fields) else { return Prepared::Alone };
                let fresh = attempts.needs_new_connection();
                match first(app, shard, outgoing, asked, flight, fresh).await {
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
                            .map_or(Prepared::Alone, Prepared::Body);
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
                let room = names::number() >> 1;
                let fields = with(
                    &fields,
                    [
                        ("bootstrap_host", json!(engine.address.host)),
                        ("bootstrap_port", json!(engine.config.bootstrap_port)),
                        ("bootstrap_room", json!(room)),
                    ],
                );
                let Some(both) = fields else { return Prepared::Alone };
                let mut head = Vec::new();
                outgoing.write(&engine, rank, both.len(), &mut head);
                let fresh = attempts.needs_new_connection();
                let work = beside(app.clone(), shard, head, both.clone(), flight, fresh);
                return Prepared::Meanwhile(both, Leg { engine, work: Some(tokio::spawn(work)) });
            }
        }
    }
    Prepared::Alone
}

/// What a decode engine answers, unless the prefill engine that it waits for fails first, or refuses the request.
pub(crate) async fn beside_prefill<T>(
    answered: impl Future<Output = Result<T, Fault>>,
    prefill: &mut Option<Leg>,
) -> Result<T, Ended> {
    let mut answered = std::pin::pin!(answered);
    if let Some(work) = prefill.as_mut().and_then(|leg| leg.work.as_mut()) {
        tokio::select! {
            biased;
            answer = answered.as_mut() => return answer.map_err(Ended::Failed),
            done = work => {
                *prefill = None;
                match done {
                    Ok(Ok(Prefilled::Done(_))) => {}
                    Ok(Ok(Prefilled::Refused(verdict))) => return Err(Ended::Refused(verdict)),
                    Ok(Err(fault)) => {
                        return Err(Ended::Failed(Fault::Prefill { sent: fault.may_have_been_sent() }));
                    }
                    Err(_) => return Err(Ended::Failed(Fault::Prefill { sent: true })),
                }
            }
        }
    }
    answered.await.map_err(Ended::Failed)
}

impl Leg {
    /// Lets it come to its end: the decode engine has what it needs of it.
    pub(crate) fn let_finish(mut self) {
        self.work = None;
    }
}

impl Drop for Leg {
    fn drop(&mut self) {
        if let Some(work) = &self.work {
            work.abort();
        }
    }
}

impl Verdict {
    /// The same answer, for the client.
    pub(crate) fn response(mut self) -> Response<Answer> {
        strip(&mut self.headers);
        self.headers.remove(CONTENT_LENGTH);
        let mut response = Response::new(Answer::Full(self.body.into()));
        *response.status_mut() = self.status;
        *response.headers_mut() = self.headers;
        response
    }
}

impl Prepared {
    /// Its place among [`PREPARED`].
    pub(crate) fn number(&self) -> usize {
        match self {
            Self::Body(_) => 0,
            Self::Meanwhile(..) => 1,
            Self::Alone => 2,
        }
    }
}

/// What prefill can come to, in order of its numbers.
pub(crate) const PREPARED: [&str; 3] = ["first", "meanwhile", "alone"];

/// The body with some fields set.
pub(super) fn with<const N: usize>(fields: &Fields<'_>, set: [(&str, Value); N]) -> Option<Bytes> {
    let set: Vec<(&str, Box<RawValue>)> = set
        .into_iter()
        .map(|(name, value)| Some((name, serde_json::value::to_raw_value(&value).ok()?)))
        .collect::<Option<_>>()?;
    let mut fields: BTreeMap<&str, &RawValue> = fields.iter().map(|(name, value)| (&**name, *value)).collect();
    fields.extend(set.iter().map(|(name, value)| (*name, &**value)));
    serde_json::to_vec(&fields).ok().map(Bytes::from)
}

/// True if vLLM can go on from blocks of another engine for such a request: it hands over those of one prompt only, and
/// its beam search asks for each token anew.
fn can_be_handed_over(fields: &Fields<'_>) -> bool {
    let is = |name: &str, so: fn(&Value) -> bool| {
        fields.get(name).and_then(|raw| serde_json::from_str(raw.get()).ok()).is_some_and(|value: Value| so(&value))
    };
    let has_many = |value: &Value| {
        let parts = value.as_array();
        parts.is_some_and(|parts| parts.len() > 1 && parts.iter().any(|part| part.is_string() || part.is_array()))
    };
    // A prompt as text may be long, and is one.
    let is_list = fields.get("prompt").is_some_and(|raw| raw.get().starts_with('['));
    let is_many = is_list && is("prompt", has_many);
    !is_many && !is("use_beam_search", |value| *value == Value::Bool(true))
}

/// What a prefill engine of vLLM's is asked: the prompt, one token of one sequence, as a whole, its blocks kept for
/// another. None if that is of no use.
fn vllm_prefill(fields: &Fields<'_>) -> Option<Bytes> {
    if !can_be_handed_over(fields) {
        return None;
    }
    let mut fields = fields.clone();
    for name in ["stream_options", "min_tokens", "max_completion_tokens", "n", "best_of"] {
        fields.remove(name);
    }
    let parameters = json!({
        "do_remote_decode": true,
        "do_remote_prefill": false,
        "remote_engine_id": null,
        "remote_block_ids": null,
        "remote_host": null,
        "remote_port": null,
    });
    with(&fields, [("max_tokens", json!(1)), ("stream", json!(false)), ("kv_transfer_params", parameters)])
}

/// Asks a prefill engine, and waits for its whole answer. None: it refused the request.
async fn first(
    app: &App,
    shard: usize,
    outgoing: &Outgoing<'_>,
    body: Bytes,
    mut flight: Flight,
    fresh: bool,
) -> Result<Option<Value>, Fault> {
    let mut head = Vec::new();
    outgoing.write(flight.engine(), flight.placement().rank, body.len(), &mut head);
    let answer = legwork(app, shard, &head, &body, &mut flight, fresh).await;
    let parsed = answer.and_then(|prefilled| match prefilled {
        Prefilled::Done(body) => {
            serde_json::from_slice(&body).map(Some).map_err(|_| Fault::Malformed("its body is not JSON"))
        }
        Prefilled::Refused(_) => Ok(None),
    });
    if let Err(fault) = &parsed {
        flight.failed(fault);
    }
    parsed
}

/// Asks a prefill engine whose answer nobody reads.
async fn beside(
    app: Arc<App>,
    shard: usize,
    head: Vec<u8>,
    body: Bytes,
    mut flight: Flight,
    fresh: bool,
) -> Result<Prefilled, Fault> {
    let answer = legwork(&app, shard, &head, &body, &mut flight, fresh).await;
    if let Err(fault) = &answer {
        flight.failed(fault);
    }
    answer
}

async fn legwork(
    app: &App,
    shard: usize,
    head: &[u8],
    body: &[u8],
    flight: &mut Flight,
    fresh: bool,
) -> Result<Prefilled, Fault> {
    let engine = flight.engine().clone();
    let patience = Patience::new(app, &engine);
    let (connection, answer) = exchange(app, &engine, shard, head, body, &hyper::Method::POST, fresh).await?;
    flight.answered(answer.status.as_u16());
    let (keep, status, headers) = (answer.keep, answer.status, answer.headers);
    let body = async { whole(connection, answer.framing).await.map_err(Fault::Broken) };
    let (connection, body) = patience.wait(body).await?;
    if keep && connection.is_clean() {
        engine.pool.put(shard, connection);
    }
    if status.is_client_error() && status != StatusCode::TOO_MANY_REQUESTS {
        flight.done(Seen::default());
        return Ok(Prefilled::Refused(Verdict { status, headers, body }));
    }
    if !status.is_success() {
        return Err(Fault::Busy(status.as_u16()));
    }
    flight.heard();
    // It is asked for one token: its answer is that.
    flight.generated(1, Instant::now());
    let mut observer = Observer::of(Some(b"application/json"), Reading::default());
    observer.pass(Bytes::from(body.clone()));
    flight.done(observer.seen());
    Ok(Prefilled::Done(body))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_keep_what_is_not_changed() {
        let body = br#"{"model":"m","prompt":"a\u00e9","top_p":1.50,"n":4,"best_of":8,"max_tokens":7,"stream":true,"stream_options":{},"seed":12345678901234567890123}"#;
        let fields: Fields<'_> = serde_json::from_slice(body).expect("an object");
        let asked = vllm_prefill(&fields).expect("a body");
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
    fn what_cannot_be_handed_over() {
        let asked = |body: &'static str| vllm_prefill(&serde_json::from_str(body).expect("an object")).is_some();
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
