//! Parsing of registrations of engines in JSON, as sent by clients over HTTP and by discovery (the automatic
//! registration of engines).

use std::fmt;
use std::num::NonZeroU32;

use serde::Deserialize;
use serde::de::{Deserializer, Visitor};

use crate::error::{Error, WRONG_TYPE};
use crate::state::{ModelNames, Registration};

/// Routing group of a registration that names none.
pub const DEFAULT_ROUTING_GROUP: &str = "default";

/// Maximum length of a worker's name, in bytes.
const MAX_NAME: usize = 256;

/// Maximum length of an endpoint, a topic, or a name other than a worker's, in bytes.
pub const MAX_TEXT: usize = 1024;

/// Name of a worker, written in JSON as a number or a string.
#[derive(Debug)]
pub struct InstanceId(pub String);

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

/// Reads a routing group from JSON. Null counts as absent, as in Dynamo's interface.
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
    host_chunk: Option<NonZeroU32>,
    source: Option<String>,
    aliases: Option<Vec<String>>,
    adapters: Option<Vec<String>>,
}

/// Parses a registration from a JSON body of `/register`.
///
/// # Errors
/// [`Error::Invalid`] if the body is not a registration, with the code [`WRONG_TYPE`] for JSON values of wrong types.
pub fn registration(body: &[u8]) -> Result<Registration, Error> {
    let register: Register = serde_json::from_slice(body).map_err(malformed)?;
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
        return Err(Error::invalid(WRONG_TYPE, message));
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
        host_chunk: register.host_chunk,
        source: register.source.unwrap_or_else(|| "zmq".to_owned()),
    })
}

fn malformed(error: serde_json::Error) -> Error {
    Error::invalid(if error.is_data() { WRONG_TYPE } else { "malformed_json" }, error.to_string())
}

/// Checks the name of a worker.
///
/// # Errors
/// [`Error::Invalid`] if the name is empty or too long.
pub fn check_name(name: &str) -> Result<(), Error> {
    if (1..=MAX_NAME).contains(&name.len()) {
        return Ok(());
    }
    let message = format!(
        "instance_id must be an integer or a string of 1 to {MAX_NAME} bytes, got a string of {} bytes",
        name.len()
    );
    Err(Error::invalid("invalid_instance_id", message))
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
            assert_eq!(refusal.code(), WRONG_TYPE, "{key}");
            let message = refusal.to_string();
            assert!(message.starts_with(key) && message.len() < 100, "{message}");
        }
    }
}
