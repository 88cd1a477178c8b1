//! Detection of ids and fields in clients' requests that only the router may write.
//!
//! An engine does not examine an image whose id it knows, so a client that used one of the router's ids for another
//! image would change the answers to others. Fields for the transfer of blocks between engines make engines fetch
//! blocks by number, keep them, or connect to an address.
//!
//! Every body that is sent to an engine is searched for these ids and fields, whether or not the router can parse the
//! body, with the engine's decoding: with escapes resolved, in UTF-16 and UTF-32 too. For most bodies, a quick scan of
//! the quotes suffices at nearly no cost; only suspicious bodies are scanned completely.

mod json;

use std::borrow::Cow;

use bytes::Bytes;
use hyper::header::{HeaderMap, HeaderName};

use crate::answers::refusal::Refusal;
use crate::config::{Config, EngineFields};
use crate::engines::request_head::REQUEST_ID;
use crate::requests::long_work::LongWork;
use kvatlas_http::ShownKey;

/// Headers that clients must not send, as they are reserved for the router or for an engine's own proxy.
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

/// Parts of a request id that vLLM's NCCL connector interprets as followed by an address.
const ADDRESSES: [&str; 2] = ["___prefill_addr_", "___decode_addr_"];

/// Part of a client's request that only the router may write: an image id, or a reserved field or header.
#[derive(Debug, Clone, PartialEq, Eq)]
enum ReservedPart {
    /// Image id that only the router may assign.
    Name,
    /// Field or header for the communication between the router and its engines.
    Field(Cow<'static, str>),
}

/// True if a client that has sent the key `shown` may write the fields reserved for the router.
pub(crate) fn may_write_fields(config: &Config, shown: ShownKey) -> bool {
    config.engine_fields == EngineFields::All || shown == ShownKey::AdminKey
}

/// Refuses a request with headers reserved for the router.
///
/// # Errors
/// A refusal that names the header.
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

/// Refuses a body with ids or fields reserved for the router. `may_write_fields`: true if the client may write reserved
/// fields; `takes_long`: true if processing the body [takes long](crate::requests::long_work::takes_long).
///
/// # Errors
/// A refusal that names the field.
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
        json::Text::Utf8 => json::suspicion(body, is_object, may_write_fields),
        _ => json::Suspicion::Open,
    };
    match suspicion {
        json::Suspicion::None => None,
        json::Suspicion::Sure(found) => Some(found),
        json::Suspicion::Open => text.read(body, json::Reader::new(is_object, may_write_fields)),
    }
}

/// True for the name of a field reserved for the router.
fn is_engine_field(name: &[u8]) -> bool {
    name.ends_with(b"_transfer_params")
        || name.starts_with(b"bootstrap_")
        || name.ends_with(b"dp_rank")
        || name.starts_with(b"data_parallel_rank")
        || matches!(name, b"disaggregated_params" | b"decode_tp_size")
}

/// True if a request id contains an address that vLLM's connector would connect to.
fn has_address(id: &[u8]) -> bool {
    ADDRESSES.iter().any(|piece| memchr::memmem::find(id, piece.as_bytes()).is_some())
}

impl ReservedPart {
    /// Makes the refusal of a request with a part that only the router may write. `what`: name of the part's kind,
    /// `header` or `field`.
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
mod tests {
    use super::*;

    const NAME: &str = "kvatlas-0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    fn found(body: impl AsRef<[u8]>) -> Option<ReservedPart> {
        find(body.as_ref(), false)
    }

    fn field(name: &'static str) -> Option<ReservedPart> {
        Some(ReservedPart::Field(name.into()))
    }

    /// Writes each character of a text that `which` selects as a JSON escape.
    fn escaped(text: &str, which: impl Fn(char) -> bool) -> String {
        text.chars().map(|it| if which(it) { format!("\\u{:04X}", u32::from(it)) } else { it.to_string() }).collect()
    }

    fn in_units(text: &str, width: usize, is_big: bool, mark: bool) -> Vec<u8> {
        let mark = mark.then_some('\u{feff}');
        mark.into_iter()
            .chain(text.chars())
            .flat_map(|it| {
                let number = u32::from(it);
                let bytes = if is_big { number.to_be_bytes() } else { number.to_le_bytes() };
                if is_big { bytes[4 - width..].to_vec() } else { bytes[..width].to_vec() }
            })
            .collect()
    }

    #[test]
    fn names_are_found_however_they_are_written() {
        let bodies = [
            format!(r#"{{"messages": [{{"content": [{{"uuid": "{NAME}"}}]}}]}}"#),
            format!(r#"{{"a": 1, "a": NaN, "uuid" : "{NAME}"}}"#),
            format!(r#"{{"features": {{"mm_hashes": {{"image": ["{NAME}"]}}}}}}"#),
            format!(r#"[{{"b": "\ud800", "uuid":"{NAME}"}}]"#),
            r#"{"uuid": "kvatlas-0"}"#.to_owned(),
            format!("--x\r\n\r\n{NAME}\r\n--x--"),
            format!("--x\r\nstray \" quote\r\n{{\"body\": {{\"uuid\": \"{NAME}\"}}}}\r\n--x--"),
        ];
        for body in &bodies {
            assert_eq!(found(body), Some(ReservedPart::Name), "{body}");
            assert_eq!(find(body.as_bytes(), true), Some(ReservedPart::Name), "{body}");
        }
        for which in ["k", "-", "v", "kvatlas", "0", "kvatlas-0123456789abcdef", "u"] {
            let body = escaped(&bodies[0], |it| which.contains(it));
            assert_eq!(found(&body), Some(ReservedPart::Name), "{body}");
            let stray = format!("--x\r\nstray \" quote\r\n{body}\r\n--x--");
            assert_eq!(found(&stray), Some(ReservedPart::Name), "{stray}");
            for (width, is_big, mark) in
                [(2, true, true), (2, false, true), (2, true, false), (4, false, true), (4, true, false)]
            {
                assert_eq!(
                    found(in_units(&body, width, is_big, mark)),
                    Some(ReservedPart::Name),
                    "{width} {is_big} {mark}"
                );
            }
        }
        assert_eq!(found(format!("\u{feff}{}", bodies[0])), Some(ReservedPart::Name));
    }

    #[test]
    fn texts_about_names_are_no_names() {
        for body in [
            r#"{"model": "kvatlas-7b", "prompt": "kvatlas-router is a router"}"#.to_owned(),
            r#"{"uuid": "mine", "user": "kvatlas-"}"#.to_owned(),
            format!(r#"{{"prompt": "the log says \"uuid\": \"{NAME}\", \\u0061 and {NAME}"}}"#),
            format!(r#"{{"prompt": "{}", "a": "\u0022\u003c\u00e9\u0060"}}"#, "é日本".repeat(9)),
        ] {
            assert_eq!(found(&body), None, "{body}");
        }
    }

    #[test]
    fn fields_between_the_router_and_engines() {
        for name in [
            "kv_transfer_params",
            "ec_transfer_params",
            "bootstrap_host",
            "bootstrap_port",
            "bootstrap_room",
            "bootstrap_pair_key",
            "data_parallel_rank",
            "routed_dp_rank",
            "disagg_prefill_dp_rank",
            "disaggregated_params",
            "decode_tp_size",
        ] {
            for body in [
                format!(r#"{{"prompt": "a", "{name}": {{"a": 1}}}}"#),
                format!("{{\"prompt\": NaN, \"{name}\"\n: [5]}}"),
                format!(r#"{{"{name}": null, "{name}": 0}}"#),
                format!(r#"[{{"prompt": "a"}}, {{"{name}": 0}}]"#),
                format!(r#"{{"vllm_xargs": {{"{name}": "x"}}}}"#),
                format!(r#"{{"sampling_params": [{{"extra_args": {{"{name}": 1}}}}]}}"#),
                format!("--x\r\ncontent-disposition: form-data; name=\"{name}\"\r\n\r\n5\r\n--x--"),
                format!("--x\r\n{{\"messages\": [\"\r\n{{\"body\": {{\"{name}\": 5}}}}\r\n--x--"),
            ] {
                assert_eq!(found(&body), field(name), "{body}");
                assert_eq!(find(body.as_bytes(), true), None, "{body}");
                if body.starts_with(['{', '[']) {
                    let hidden = escaped(&body, |it| "_k".contains(it));
                    assert_eq!(found(&hidden), field(name), "{hidden}");
                    assert_eq!(found(in_units(&body, 2, true, true)), field(name), "{body}");
                }
            }
            for body in [
                format!(r#"{{"prompt": "what is {name}? {{\"{name}\": 5}}", "{name}": null}}"#),
                format!(r#"{{"prompt": "{name}", "a": ["{name}"]}}"#),
                format!(r#"{{"tools": [{{"function": {{"parameters": {{"properties": {{"{name}": {{}}}}}}}}}}]}}"#),
                format!(r#"{{"messages": [{{"content": [{{"type": "tool_use", "input": {{"{name}": 1}}}}]}}]}}"#),
            ] {
                assert_eq!(found(&body), None, "{body}");
            }
            let behind = format!(r#"{{"tools": [{{"a": {{}}}}], "b": {{"{name}": 1}}}}"#);
            assert_eq!(found(behind), field(name));
        }
        assert_eq!(found(r#"{"bootstrap": 1, "params": {}, "rank": 1, "dp": 2}"#), None);
    }

    #[test]
    fn addresses_in_the_name_of_a_request() {
        let id = "a___prefill_addr_10.0.0.1:5___decode_addr_10.0.0.2:6_b";
        assert_eq!(found(format!(r#"{{"request_id": "{id}"}}"#)), field("request_id"));
        assert_eq!(found(format!(r#"{{"request_id": "{}{id}"}}"#, "a".repeat(KEPT_AND_MORE))), field("request_id"));
        assert_eq!(found(format!(r#"{{"prompt": "{id}", "request_id": "r-1"}}"#)), None);
        let mut headers = HeaderMap::new();
        assert_eq!(check_head(&headers), Ok(()));
        headers.insert("x-request-id", id.parse().expect("a value"));
        assert!(check_head(&headers).is_err());
    }

    const KEPT_AND_MORE: usize = 600;
}
