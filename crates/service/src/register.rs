//! Routes `/register` and `/unregister`, which parse a body and pass it to the fleet, where the values are validated;
//! and `/observed`, which receives reports of routers about the number of a prompt's tokens that an engine had cached.

use std::time::{Duration, Instant};

use hyper::{Response, StatusCode};
use kvatlas_follow::Error;
use kvatlas_follow::fleet::RegistrationOutcome;
use kvatlas_follow::register::{DEFAULT_ROUTING_GROUP, InstanceId, MAX_TEXT, check_name, registration};
use serde::Deserialize;

use crate::answer::{Answer, Refusal, json};
use crate::app::App;

#[derive(Debug, Deserialize)]
struct UnregisterRequest {
    instance_id: InstanceId,
    model_name: Option<String>,
    routing_group: Option<String>,
    dp_rank: Option<u32>,
}

pub(crate) async fn register(app: &App, body: &[u8]) -> Result<Response<Answer>, Refusal> {
    let registration = registration(body)?;
    app.follower.allow().check_registration(&registration, None)?;
    #[cfg(test)]
    if app.fail.swap(false, std::sync::atomic::Ordering::Relaxed) {
        return Err(kvatlas_follow::Error::Internal.into());
    }
    let status = match app.fleet.register(registration).await? {
        RegistrationOutcome::New => StatusCode::CREATED,
        RegistrationOutcome::Already => StatusCode::OK,
    };
    Ok(done(status))
}

pub(crate) async fn unregister(app: &App, body: &[u8]) -> Result<Response<Answer>, Refusal> {
    let UnregisterRequest { instance_id, model_name, routing_group, dp_rank } = serde_json::from_slice(body)?;
    check_name(&instance_id.0)?;
    for (what, text) in [("model_name", &model_name), ("routing_group", &routing_group)] {
        if text.as_ref().is_some_and(|text| text.len() > MAX_TEXT) {
            return Err(Refusal::wrong_type(format!("{what} must be a string of at most {MAX_TEXT} bytes")));
        }
    }
    if model_name.is_none() && routing_group.is_some() {
        let message = "routing_group can only be given together with model_name";
        return Err(Refusal::invalid("missing_model_name", message));
    }
    let keyspace = model_name.as_deref().map(|model| (model, routing_group.as_deref()));
    app.fleet.unregister(&instance_id.0, keyspace, dp_rank).await?;
    Ok(done(StatusCode::OK))
}

fn done(status: StatusCode) -> Response<Answer> {
    json(status, &b"{\"status\":\"ok\"}"[..])
}

/// Allowance for the transmission time of a report, which is added to the age of every reported prompt. The reporter
/// itself adds any longer delay.
const ON_ITS_WAY: Duration = Duration::from_secs(1);
/// Maximum age of a reported prompt, in seconds.
const LONGEST_AGE: f64 = 86_400.0;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Observation {
    instance_id: InstanceId,
    model_name: String,
    routing_group: Option<String>,
    dp_rank: Option<u32>,
    token_ids: Vec<u32>,
    lora_name: Option<String>,
    cache_salt: Option<String>,
    cached_tokens: usize,
    age: f64,
}

pub(crate) fn observe(app: &App, body: &[u8]) -> Result<Response<Answer>, Refusal> {
    let received = Instant::now();
    let it: Observation = serde_json::from_slice(body)?;
    check_name(&it.instance_id.0)?;
    if !(0.0..=LONGEST_AGE).contains(&it.age) {
        let message = format!("age must be a number of seconds from 0 to {LONGEST_AGE}, got {}", it.age);
        return Err(Refusal::wrong_type(message));
    }
    if it.cached_tokens > it.token_ids.len() {
        let (cached, tokens) = (it.cached_tokens, it.token_ids.len());
        let message = format!("cached_tokens must be at most the {tokens} of token_ids, got {cached}");
        return Err(Refusal::wrong_type(message));
    }
    let found = app.fleet.find(&it.model_name, it.routing_group.as_deref().unwrap_or(DEFAULT_ROUTING_GROUP))?;
    let worker = &*it.instance_id.0;
    let ranks: Vec<u32> =
        found.keyspace.streams_of(worker).into_iter().flat_map(|(_, stream)| stream.ranks()).collect();
    let rank = match (it.dp_rank, &ranks[..]) {
        (Some(rank), _) if ranks.contains(&rank) => rank,
        (None, [rank]) => *rank,
        (None, [_, ..]) => {
            let message = format!("worker {worker:?} has the ranks {ranks:?}: give the one that answered as dp_rank");
            return Err(Error::unknown("unknown_rank", message).into());
        }
        (rank, _) => {
            let (code, message) = match rank.filter(|_| !ranks.is_empty()) {
                Some(rank) => ("unknown_rank", format!("worker {worker:?} has no rank {rank}; it has {ranks:?}")),
                None => ("unknown_worker", format!("worker {worker:?} is not registered for this model")),
            };
            return Err(Error::unknown(code, message).into());
        }
    };
    let lora = it.lora_name.as_deref().or(found.adapter.as_deref());
    let prompt = (&it.token_ids[..], lora, it.cache_salt.as_deref());
    let age = Duration::from_secs_f64(it.age) + ON_ITS_WAY;
    // A prompt sent before this machine started gives no information.
    let used = received
        .checked_sub(age)
        .is_some_and(|sent| found.keyspace.answered(worker, rank, prompt, it.cached_tokens, sent));
    Ok(json(StatusCode::OK, format!("{{\"status\":\"ok\",\"wanted\":{used}}}")))
}
