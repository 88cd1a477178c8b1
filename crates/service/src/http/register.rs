//! `/register` and `/unregister`: what is said becomes a call of the fleet's, which checks the rest.

use std::fmt;

use hyper::{Response, StatusCode};
use serde::Deserialize;
use serde::de::{Deserializer, Visitor};

use super::answer::{Answer, json};
use super::app::App;
use super::query::{DEFAULT_ROUTING_GROUP, MAX_TEXT, check_name};
use super::refusal::Refusal;
use crate::allow::Allow;
use crate::error::Error;
use crate::fleet::Registering;
use crate::state::{ModelNames, Registration};

/// A worker's name: a number or a string.
#[derive(Debug)]
pub(super) struct InstanceId(pub(super) String);

impl<'de> Deserialize<'de> for InstanceId {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Id;

        impl Visitor<'_> for Id {
            type Value = InstanceId;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an integer from 0 to 18446744073709551615 or a string")
            }

            fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<InstanceId, E> {
                Ok(InstanceId(number.to_string()))
            }

            fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<InstanceId, E> {
                Ok(InstanceId(name.to_owned()))
            }
        }

        from.deserialize_any(Id)
    }
}

/// Null is as good as absent, as in the dialect.
fn or_default<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_else(|| DEFAULT_ROUTING_GROUP.to_owned()))
}

fn default_group() -> String {
    DEFAULT_ROUTING_GROUP.to_owned()
}

#[derive(Debug, Deserialize)]
struct Register {
    instance_id: InstanceId,
    endpoint: String,
    model_name: String,
    block_size: u32,
    #[serde(default = "default_group", deserialize_with = "or_default")]
    routing_group: String,
    dp_rank: Option<u32>,
    replay_endpoint: Option<String>,
    topic: Option<String>,
    count_copies: Option<bool>,
    source: Option<String>,
    aliases: Option<Vec<String>>,
    adapters: Option<Vec<String>>,
}

#[derive(Debug, Deserialize)]
struct Unregister {
    instance_id: InstanceId,
    model_name: Option<String>,
    routing_group: Option<String>,
    dp_rank: Option<u32>,
}

/// What a body says to register.
pub(crate) fn registration(body: &[u8]) -> Result<Registration, Refusal> {
    let register: Register = serde_json::from_slice(body)?;
    check_name(&register.instance_id.0)?;
    let texts = [
        ("model_name", Some(&register.model_name)),
        ("routing_group", Some(&register.routing_group)),
        ("endpoint", Some(&register.endpoint)),
        ("replay_endpoint", register.replay_endpoint.as_ref()),
        ("topic", register.topic.as_ref()),
        ("source", register.source.as_ref()),
    ];
    let names = |what, names| std::iter::repeat(what).zip(Option::into_iter(names).flatten().map(Some));
    let aliases = names("a name in aliases", register.aliases.as_ref());
    let adapters = names("a name in adapters", register.adapters.as_ref());
    // They are kept, and repeated in metrics and logs.
    if let Some((what, text)) = texts
        .into_iter()
        .chain(aliases)
        .chain(adapters)
        .find_map(|(what, text)| Some((what, text.filter(|it| it.len() > MAX_TEXT)?)))
    {
        let message = format!("{what} must be a string of at most {MAX_TEXT} bytes, got {} bytes", text.len());
        return Err(Refusal::wrong_type(message));
    }
    let names = (register.aliases.is_some() || register.adapters.is_some()).then(|| ModelNames {
        aliases: register.aliases.unwrap_or_default(),
        adapters: register.adapters.unwrap_or_default(),
    });
    Ok(Registration {
        names,
        worker: register.instance_id.0,
        model: register.model_name,
        routing_group: register.routing_group,
        block_size: register.block_size,
        rank: register.dp_rank.unwrap_or(0),
        endpoint: register.endpoint.parse()?,
        replay_endpoint: register.replay_endpoint.map(|endpoint| endpoint.parse()).transpose()?,
        topic: register.topic.unwrap_or_default(),
        count_copies: register.count_copies.unwrap_or(true),
        source: register.source.unwrap_or_else(|| "zmq".to_owned()),
    })
}

/// Whether the endpoints of a registration may be followed. `host`: one that the operator named otherwise.
pub(crate) fn check_allowed(allow: &Allow, registration: &Registration, host: Option<&str>) -> Result<(), Error> {
    let endpoints = std::iter::once(&registration.endpoint).chain(&registration.replay_endpoint);
    endpoints.into_iter().try_for_each(|endpoint| allow.check(endpoint, host))
}

pub(crate) async fn register(app: &App, body: &[u8]) -> Result<Response<Answer>, Refusal> {
    let registration = registration(body)?;
    check_allowed(&app.follower.allow, &registration, None)?;
    let status = match app.fleet.register(registration).await? {
        Registering::New => StatusCode::CREATED,
        Registering::Already => StatusCode::OK,
    };
    Ok(done(status))
}

pub(crate) async fn unregister(app: &App, body: &[u8]) -> Result<Response<Answer>, Refusal> {
    let Unregister { instance_id, model_name, routing_group, dp_rank } = serde_json::from_slice(body)?;
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn nothing_that_is_kept_is_long() {
        let plain = json!({"instance_id": 1, "endpoint": "tcp://host:1", "model_name": "m", "block_size": 16});
        for key in ["model_name", "routing_group", "endpoint", "replay_endpoint", "topic", "source"] {
            let mut body = plain.clone();
            body[key] = format!("tcp://{}:1", "x".repeat(MAX_TEXT - 8)).into();
            assert!(registration(body.to_string().as_bytes()).is_ok(), "{key}");
            body[key] = format!("tcp://{}:1", "x".repeat(MAX_TEXT - 7)).into();
            let refusal = registration(body.to_string().as_bytes()).expect_err("too long");
            assert_eq!((refusal.status, refusal.code), (StatusCode::UNPROCESSABLE_ENTITY, "wrong_type"), "{key}");
            assert!(refusal.message.starts_with(key) && refusal.message.len() < 100, "{}", refusal.message);
        }
    }
}
