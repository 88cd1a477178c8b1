//! Prompts that one engine computes and another goes on from: what each is asked, in vLLM's way and in SGLang's.
//!
//! vLLM: the prefill engine is asked first, for one token; what its answer says of its blocks goes to the decode engine.
//! SGLang: both are asked at once, with a room in which they meet.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::attempts::Attempts;
use super::exchange::exchange;
use super::flight::Flight;
use super::headers::Outgoing;
use crate::app::App;
use crate::config::{Handover, Role};
use crate::control::whole;
use crate::engine::{Engine, Fault};
use crate::names;
use crate::observe::{Observer, Reading};
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

/// A prefill engine at work.
pub(crate) struct Leg {
    pub(crate) engine: Arc<Engine>,
    work: tokio::task::JoinHandle<Result<(), Fault>>,
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
                    Ok(answer) => {
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
                return Prepared::Meanwhile(both, Leg { engine, work: tokio::spawn(work) });
            }
        }
    }
    Prepared::Alone
}

/// What a decode engine answers, unless the prefill engine that it waits for fails first.
pub(crate) async fn beside_prefill<T>(
    answered: impl Future<Output = Result<T, Fault>>,
    prefill: &mut Option<Leg>,
) -> Result<T, Fault> {
    let mut answered = std::pin::pin!(answered);
    if let Some(leg) = prefill {
        tokio::select! {
            biased;
            answer = answered.as_mut() => {
                if answer.is_err() {
                    leg.work.abort();
                }
                return answer;
            }
            done = &mut leg.work => {
                *prefill = None;
                match done {
                    Ok(Ok(())) => {}
                    Ok(Err(fault)) => return Err(Fault::Prefill { sent: fault.may_have_been_sent() }),
                    Err(_) => return Err(Fault::Prefill { sent: true }),
                }
            }
        }
    }
    answered.await
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

/// What a prefill engine of vLLM's is asked: the prompt, one token, as a whole, its blocks kept for another.
fn vllm_prefill(fields: &Fields<'_>) -> Option<Bytes> {
    let mut fields = fields.clone();
    for name in ["stream_options", "min_tokens", "max_completion_tokens"] {
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

/// Asks a prefill engine, and waits for its whole answer.
async fn first(
    app: &App,
    shard: usize,
    outgoing: &Outgoing<'_>,
    body: Bytes,
    mut flight: Flight,
    fresh: bool,
) -> Result<Value, Fault> {
    let mut head = Vec::new();
    outgoing.write(flight.engine(), flight.placement().rank, body.len(), &mut head);
    let answer = legwork(app, shard, &head, &body, &mut flight, fresh).await;
    let parsed =
        answer.and_then(|body| serde_json::from_slice(&body).map_err(|_| Fault::Malformed("its body is not JSON")));
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
) -> Result<(), Fault> {
    match legwork(&app, shard, &head, &body, &mut flight, fresh).await {
        Ok(_) => Ok(()),
        Err(fault) => {
            flight.failed(&fault);
            Err(fault)
        }
    }
}

async fn legwork(
    app: &App,
    shard: usize,
    head: &[u8],
    body: &[u8],
    flight: &mut Flight,
    fresh: bool,
) -> Result<Vec<u8>, Fault> {
    let engine = flight.engine().clone();
    let (connection, answer) = exchange(app, &engine, shard, head, body, &hyper::Method::POST, fresh).await?;
    flight.answered(answer.status.as_u16());
    let (keep, status) = (answer.keep, answer.status);
    let (connection, body) = whole(connection, answer.framing).await.map_err(Fault::Broken)?;
    if keep && connection.is_clean() {
        engine.pool.put(shard, connection);
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
    Ok(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_keep_what_is_not_changed() {
        let body = br#"{"model":"m","prompt":"a\u00e9","n":1.50,"max_tokens":7,"stream":true,"stream_options":{},"seed":12345678901234567890123}"#;
        let fields: Fields<'_> = serde_json::from_slice(body).expect("an object");
        let asked = vllm_prefill(&fields).expect("a body");
        let text = String::from_utf8(asked.to_vec()).expect("utf-8");
        for part in [
            r#""prompt":"a\u00e9""#,
            r#""n":1.50"#,
            r#""seed":12345678901234567890123"#,
            r#""max_tokens":1,"#,
            r#""stream":false"#,
            r#""do_remote_decode":true"#,
        ] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert!(!text.contains("stream_options"));
        let decode = with(&fields, [("kv_transfer_params", json!({ "remote_port": 1 }))]).expect("a body");
        let text = String::from_utf8(decode.to_vec()).expect("utf-8");
        assert!(text.contains(r#""max_tokens":7"#) && text.contains(r#""kv_transfer_params":{"remote_port":1}"#));
    }
}
