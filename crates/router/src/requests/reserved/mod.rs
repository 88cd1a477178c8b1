//! Names and fields that only the router writes into what engines get, found where a client has written them.
//!
//! An engine does not look at a picture whose name it knows, so that a client with one of the router's names for
//! another picture would change what others are answered. Fields that are between the router and its engines' connectors
//! make engines fetch blocks by number, keep them, or connect to an address.
//!
//! Both are looked for in every body that goes to an engine, whether it can be read here or not, as the engine would read
//! it: after escapes are undone, in UTF-16 and UTF-32 too. A look at the quotes decides at nearly no cost that most bodies
//! have none of them; only where something stands there is the body read from its beginning.

mod json;
mod quotes;

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use hyper::header::HeaderMap;

use crate::answers::refusal::Refusal;
use crate::app::App;
use crate::config::EngineFields;
use crate::proxy::REQUEST_ID;
use crate::requests::long_work::aside_if_long;
use kvatlas_http::ShownKey;

/// Headers that are between a router and an engine, or what stands beside an engine.
const HEADERS: [&str; 9] = [
    "x-data-parallel-rank",
    "x-data-parallel-host-port",
    "x-dp-rank",
    "x-prefill-dp-rank",
    "x-prefiller-host-port",
    "x-prefiller-url",
    "x-encoder-hosts-ports",
    "x-prefill-instance-id",
    "x-worker-instance-id",
];

/// The pieces of a request's name behind which vLLM's connector over NCCL finds addresses to connect to.
const ADDRESSES: [&str; 2] = ["___prefill_addr_", "___decode_addr_"];

/// A thing that a client has written and only the router may.
#[derive(Debug, Clone, PartialEq, Eq)]
enum ReservedPart {
    /// A name of a picture.
    Name,
    /// A field or header between the router and its engines.
    Field(Cow<'static, str>),
}

/// True if a client that showed this may write what is between the router and its engines.
pub(crate) fn may_write_fields(app: &App, shown: ShownKey) -> bool {
    app.config.engine_fields == EngineFields::All || shown == ShownKey::AdminKey
}

/// Refuses a head with what is between the router and its engines.
///
/// # Errors
/// A refusal that names the header or field, if there is one.
pub(crate) fn check_head(headers: &HeaderMap) -> Result<(), Refusal> {
    let known = HEADERS.iter().find(|name| headers.contains_key(**name));
    let found = known.copied().or_else(|| {
        let id = headers.get(REQUEST_ID)?.as_bytes();
        has_address(id).then_some("x-request-id")
    });
    found.map_or(Ok(()), |name| Err(ReservedPart::Field(name.into()).refusal("header")))
}

/// Refuses a body with what only the router writes. `may_write_fields`: whether its client may write fields.
///
/// # Errors
/// A refusal that names the header or field, if there is one.
pub(crate) async fn check_body(app: &Arc<App>, may_write_fields: bool, body: &Bytes) -> Result<(), Refusal> {
    let found = aside_if_long(app, body, move |_, body| find(body, may_write_fields)).await?;
    found.map_or(Ok(()), |found| Err(found.refusal("field")))
}

fn find(body: &[u8], may_write_fields: bool) -> Option<ReservedPart> {
    let text = json::Text::of(body);
    let is_object = text.is_object(body);
    let suspicion = match text {
        json::Text::Utf8 => quotes::suspicion(body, is_object, may_write_fields),
        _ => quotes::Suspicion::Open,
    };
    match suspicion {
        quotes::Suspicion::None => None,
        quotes::Suspicion::Sure(found) => Some(found),
        quotes::Suspicion::Open => text.read(body, json::Reader::new(is_object, may_write_fields)),
    }
}

/// True if a field of this name is between the router and its engines.
fn is_engine_field(name: &[u8]) -> bool {
    name.ends_with(b"_transfer_params")
        || name.starts_with(b"bootstrap_")
        || name.ends_with(b"dp_rank")
        || name.starts_with(b"data_parallel_rank")
        || matches!(name, b"disaggregated_params" | b"decode_tp_size")
}

/// True if a connector would find an address to connect to in a request's name.
fn has_address(id: &[u8]) -> bool {
    ADDRESSES.iter().any(|piece| memchr::memmem::find(id, piece.as_bytes()).is_some())
}

impl ReservedPart {
    /// `what`: a header, or a field.
    fn refusal(self, what: &str) -> Refusal {
        match self {
            Self::Name => {
                let message = "the body has a name that only the router gives to pictures (kvatlas-…): leave `uuid` out, \
                               or choose another name";
                Refusal::bad("reserved_name", message)
            }
            Self::Field(name) => {
                let message = format!(
                    "the {what} {name:?} is between the router and its engines: leave it out, or send the admin key \
                     (the setting `engine_fields` says who may send it)"
                );
                Refusal::bad("reserved_field", message)
            }
        }
    }
}

#[cfg(test)]
mod tests;
