//! Detection of names and fields in clients' requests that only the router may write.
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

use bytes::Bytes;
use hyper::header::{HeaderMap, HeaderName};

use crate::answers::refusal::Refusal;
use crate::config::{Config, EngineFields};
use crate::engines::request_head::REQUEST_ID;
use crate::requests::long_work::LongWork;
use kvatlas_http::ShownKey;

/// Headers reserved for the router, or for a proxy of an engine.
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

/// Parts of a request id after which vLLM's NCCL connector reads addresses.
const ADDRESSES: [&str; 2] = ["___prefill_addr_", "___decode_addr_"];

/// A reserved part of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
enum ReservedPart {
    /// A name of a picture.
    Name,
    /// A field or header between the router and its engines.
    Field(Cow<'static, str>),
}

/// True if a client with this key may write fields reserved for the router.
pub(crate) fn may_write_fields(config: &Config, shown: ShownKey) -> bool {
    config.engine_fields == EngineFields::All || shown == ShownKey::AdminKey
}

/// Refuses a head with headers reserved for the router.
///
/// # Errors
/// A refusal that names the header or field, if there is one.
pub(crate) fn check_head(headers: &HeaderMap) -> Result<(), Refusal> {
    // A request has few headers: to compare their names takes less than to look each of these up.
    let mut names = headers.keys().map(HeaderName::as_str).filter(|name| name.starts_with("x-"));
    let known = names.find_map(|name| HEADERS.into_iter().find(|known| *known == name));
    let found = known.or_else(|| {
        let id = headers.get(REQUEST_ID)?.as_bytes();
        has_address(id).then_some("x-request-id")
    });
    found.map_or(Ok(()), |name| Err(ReservedPart::Field(name.into()).refusal("header")))
}

/// Refuses a body with names or fields reserved for the router. `may_write_fields`: whether its client may write
/// fields; `takes_long`: whether that work on the body [does](crate::requests::long_work::takes_long).
///
/// # Errors
/// A refusal that names the header or field, if there is one.
pub(crate) async fn check_body(
    threads: &LongWork,
    may_write_fields: bool,
    body: &Bytes,
    takes_long: bool,
) -> Result<(), Refusal> {
    let found = threads.run_on(body, takes_long, move |body| find(body, may_write_fields)).await?;
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

/// True for a field reserved for the router.
fn is_engine_field(name: &[u8]) -> bool {
    name.ends_with(b"_transfer_params")
        || name.starts_with(b"bootstrap_")
        || name.ends_with(b"dp_rank")
        || name.starts_with(b"data_parallel_rank")
        || matches!(name, b"disaggregated_params" | b"decode_tp_size")
}

/// True if a request id contains an address for a connector.
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
