//! `kv_transfer_params`: the request field that tells a vLLM engine which blocks to load, and from which other engine
//! to pull blocks.
//!
//! A client that could write the field could make engines connect to any address; and an engine crashes if two requests
//! have the same `kv_request_id` and different prompts. A request in which the client wrote the field is therefore
//! refused ([`crate::requests::reserved`]), and each request to an engine gets a new id, also for retries.

use bytes::Bytes;
use hyper::header::{CONTENT_ENCODING, HeaderMap};
use kvatlas_prompt::Endpoint;
use kvatlas_routing::Transfer;
use memchr::memmem;
use serde_json::{Map, Value, json};

use crate::engines::fleet::Fleet;
use crate::ids;
use crate::placing::Placement;
use crate::requests::facts::BodyFields;

const FIELD: &str = "kv_transfer_params";

/// True if the field `kv_transfer_params` can be added to a request's body: the endpoint supports the field, the body
/// is uncompressed, and the client has not written the field.
pub(crate) fn can_tell(
    endpoint: Option<Endpoint>,
    fields: &BodyFields,
    headers: &HeaderMap,
    may_write_fields: bool,
    body: &[u8],
) -> bool {
    let takes_it = matches!(
        endpoint,
        Some(
            Endpoint::Chat
                | Endpoint::Completions
                | Endpoint::Responses
                | Endpoint::Messages
                | Endpoint::Tokens
                | Endpoint::ChatTokens
        )
    );
    takes_it
        && fields.generates
        && !headers.contains_key(CONTENT_ENCODING)
        && !(may_write_fields && memmem::find(body, FIELD.as_bytes()).is_some())
}

/// Makes the body with the field `kv_transfer_params` for the chosen engine; None if the engine has nothing to load or
/// to pull.
pub(crate) fn written(fleet: &Fleet, placement: &Placement, body: &[u8]) -> Option<Bytes> {
    let parameters = parameters(fleet, placement);
    if parameters.is_empty() {
        return None;
    }
    // All else stays as it is, byte for byte. The comma is right, as the field with the prompt follows somewhere.
    let start = body.iter().position(|byte| *byte == b'{')? + 1;
    let field = format!("\"{FIELD}\":{},", Value::Object(parameters));
    let mut made = Vec::with_capacity(body.len() + field.len());
    made.extend_from_slice(&body[..start]);
    made.extend_from_slice(field.as_bytes());
    made.extend_from_slice(&body[start..]);
    Some(made.into())
}

/// Returns the members of the field `kv_transfer_params` for the chosen engine; empty if the engine has nothing to load
/// or to pull.
pub(super) fn parameters(fleet: &Fleet, placement: &Placement) -> Map<String, Value> {
    placement.transfer.as_deref().map_or_else(Map::new, |transfer| of(fleet, transfer))
}

/// Returns the members of the field `kv_transfer_params` for a transfer (blocks to load or to pull).
pub(super) fn of(fleet: &Fleet, transfer: &Transfer) -> Map<String, Value> {
    let mut parameters = Map::new();
    if let Some(most) = transfer.max_load_tokens {
        parameters.insert("max_load_tokens".to_owned(), json!(most));
    }
    let source = transfer.pull.as_ref().and_then(|pull| {
        let engine = fleet.engine(&pull.name)?;
        let (host, port) = engine.pull.as_ref()?.of_rank(engine.config.ranks.place(pull.rank)?)?;
        let id = format!("{:016x}{:016x}", ids::number(), ids::number());
        Some(json!({ "kv_request_id": id, "remote_host": host, "remote_port": port }))
    });
    if let Some(source) = source {
        parameters.insert("remote_kv_source".to_owned(), source);
    }
    parameters
}
