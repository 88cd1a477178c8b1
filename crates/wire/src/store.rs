//! Object keys and events of Mooncake's store, in which engines keep blocks that all of them can load.
//!
//! One block is several objects: one for each tensor-parallel and pipeline rank, and for SGLang one for keys and one for
//! values. Only the key of an object says which block it belongs to.
//!
//! | engine | key | block hash in events |
//! |---|---|---|
//! | vLLM | `[PREFIX@]MODEL@tp_rank:T@pcpP@dcpD@pp_rank:Q@group:G@DIGEST` | last 64 bits of the digest |
//! | SGLang | `[TAG_]MODEL_DIGEST_SHARD`, `SHARD` such as `0_k` or `1_0_v` | first 64 bits of the digest |
//! | SGLang, unified | `DIGEST_ukv1-LAYOUT_SHARD` | first 64 bits of the digest |
//!
//! The master's event stream has batches as engines have them. Each event is a map with `event_type` (`stored`, `removed`
//! or `cleared`), `object_key`, `medium` and `tenant_id`; all other fields are left out here.

use kvatlas_index::BlockHash;

use crate::decode::msgpack::{Cursor, MsgpackError, Value};
use crate::error::Error;

/// Minimum number of hexadecimal digits in a digest: engines use hashes of 64 bits and more.
const FEWEST: usize = 16;
/// Number of hexadecimal digits in SGLang's digests.
const SGLANG: usize = 64;

/// Engine whose form an object key has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeyForm {
    /// vLLM's `MooncakeStoreConnector`.
    Vllm,
    /// SGLang's hierarchical cache.
    Sglang,
}

/// Parts of the key of an object in Mooncake's store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ObjectKey<'k> {
    /// Engine whose form the key has.
    pub form: KeyForm,
    /// Namespace of the key, equal for all blocks that the same engines can load: the model, perhaps with a prefix.
    pub base: &'k str,
    /// Part of the block that the object has, such as the part for one tensor-parallel rank.
    pub shard: &'k str,
    /// Cache group that the block belongs to; empty for engines without groups.
    pub group: &'k str,
    /// Block hash, as the engine's events have it.
    pub block: BlockHash,
}

impl<'k> ObjectKey<'k> {
    /// Splits the key of an object; `None` if the key has no known form.
    #[must_use]
    pub fn parse(key: &'k str) -> Option<Self> {
        Self::vllm(key).or_else(|| Self::sglang(key))
    }

    fn vllm(key: &'k str) -> Option<Self> {
        let (base, rest) = key.split_once("@tp_rank:")?;
        let (ranks, digest) = rest.rsplit_once('@')?;
        let (_, group) = ranks.rsplit_once("@group:")?;
        let block = BlockHash(number(digest.get(digest.len().checked_sub(FEWEST)?..)?)?);
        let shard = &key[base.len() + 1..key.len() - digest.len() - 1];
        (is_hex(digest) && !base.is_empty()).then_some(Self { form: KeyForm::Vllm, base, shard, group, block })
    }

    fn sglang(key: &'k str) -> Option<Self> {
        let mut at = 0;
        let parts = key.split('_').map(|part| {
            let start = at;
            at += part.len() + 1;
            (start, part)
        });
        // A model's name may have underscores, and a tag anything: the last digest counts.
        let (start, digest) = parts.filter(|(_, part)| part.len() == SGLANG && is_hex(part)).last()?;
        let block = BlockHash(number(&digest[..FEWEST])?);
        let rest = key.get(start + SGLANG + 1..)?;
        let (base, shard) = match start.checked_sub(1) {
            Some(end) => (&key[..end], rest),
            None => rest.split_once('_').filter(|(layout, _)| layout.starts_with("ukv1-"))?,
        };
        let is_whole = !base.is_empty() && !shard.is_empty();
        is_whole.then_some(Self { form: KeyForm::Sglang, base, shard, group: "", block })
    }
}

fn is_hex(text: &str) -> bool {
    text.bytes().all(|digit| digit.is_ascii_hexdigit())
}

fn number(digits: &str) -> Option<u64> {
    if is_hex(digits) { u64::from_str_radix(digits, 16).ok() } else { None }
}

/// Kind of memory that holds a copy of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Medium {
    /// Host memory of a client of the Mooncake store.
    Memory,
    /// Any other kind, such as a disk.
    Other,
}

/// Event of a store about its default tenant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StoreEvent<'p> {
    /// A copy of an object was stored.
    Stored {
        /// Key of the object.
        key: &'p str,
        /// Medium of the copy; `None` if the event has none.
        medium: Option<Medium>,
    },
    /// A copy of an object was removed.
    Removed {
        /// Key of the object.
        key: &'p str,
        /// Medium of the copy; `None` if no copy is left.
        medium: Option<Medium>,
    },
    /// All objects were removed.
    Cleared,
}

/// Batch of a store's events.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct StoreBatch<'p> {
    /// Events, in their order.
    pub events: Vec<StoreEvent<'p>>,
    /// Number of events left out: without a key, of an unknown type, or of another tenant.
    pub refused: u64,
}

/// Decodes a batch of the store's events.
///
/// # Errors
/// If the payload is no batch at all. Events that cannot be read are counted in [`StoreBatch::refused`].
pub fn decode_store(payload: &[u8]) -> Result<StoreBatch<'_>, Error> {
    let broken = |broken| match broken {
        MsgpackError::Cut if payload.is_empty() => Error::Empty,
        MsgpackError::Cut => Error::Truncated { bytes: payload.len() },
        MsgpackError::Reserved => Error::Malformed,
    };
    let mut cursor = Cursor::new(payload);
    let shape = |value: &Value<'_>| Error::NotABatch { what: value.kind().to_owned() };
    match cursor.value().map_err(broken)? {
        Value::Array(elements) if elements >= 2 => {}
        other => return Err(shape(&other)),
    }
    cursor.skip().map_err(broken)?;
    let count = match cursor.value().map_err(broken)? {
        Value::Array(count) => count,
        other => return Err(shape(&other)),
    };
    let mut batch = StoreBatch::default();
    for at in 0..count {
        match event(&mut cursor) {
            Ok(Some(event)) => batch.events.push(event),
            Ok(None) => batch.refused += 1,
            Err(_) => {
                batch.refused += (count - at) as u64;
                break;
            }
        }
    }
    Ok(batch)
}

/// Reads an event; `None` if it is to be left out.
fn event<'p>(cursor: &mut Cursor<'p>) -> Result<Option<StoreEvent<'p>>, MsgpackError> {
    let start = *cursor;
    let Value::Map(entries) = cursor.value()? else {
        *cursor = start;
        cursor.skip()?;
        return Ok(None);
    };
    let (mut key, mut kind, mut medium, mut is_ours) = (None, None, None, true);
    for _ in 0..entries {
        let name = cursor.key()?;
        let start = *cursor;
        match (name, cursor.value()?) {
            (Some(b"object_key"), Value::Text(text)) => key = std::str::from_utf8(text).ok(),
            (Some(b"event_type"), Value::Text(text)) => kind = Some(text),
            (Some(b"medium"), Value::Text(b"cpu")) => medium = Some(Medium::Memory),
            (Some(b"medium"), Value::Text(_)) => medium = Some(Medium::Other),
            (Some(b"tenant_id"), Value::Text(tenant)) => is_ours = tenant == b"default",
            _ => {
                *cursor = start;
                cursor.skip()?;
            }
        }
    }
    if !is_ours {
        return Ok(None);
    }
    Ok(match (kind, key) {
        (Some(b"stored"), Some(key)) => Some(StoreEvent::Stored { key, medium }),
        (Some(b"removed"), Some(key)) => Some(StoreEvent::Removed { key, medium }),
        (Some(b"cleared"), _) => Some(StoreEvent::Cleared),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: &str = "0123456789abcdef00112233445566778899aabbccddeeff8000000000000001";

    #[test]
    fn keys_of_all_forms_are_split() {
        let key = format!("prod@Qwen3-8B@tp_rank:1@pcp0@dcp0@pp_rank:0@group:2@{DIGEST}");
        let of = ObjectKey::parse(&key).expect("vLLM's form");
        let shard = "tp_rank:1@pcp0@dcp0@pp_rank:0@group:2";
        let block = BlockHash(0x8000_0000_0000_0001);
        assert_eq!(of, ObjectKey { form: KeyForm::Vllm, base: "prod@Qwen3-8B", shard, group: "2", block });
        let first = BlockHash(0x0123_4567_89ab_cdef);
        for (key, base, shard) in [
            (format!("tag_Qwen-Qwen3_8B_{DIGEST}_0_k"), "tag_Qwen-Qwen3_8B", "0_k"),
            (format!("m_{DIGEST}_{DIGEST}_1_0_v"), &*format!("m_{DIGEST}"), "1_0_v"),
            (format!("{DIGEST}_ukv1-00112233aabbccdd_L0-8_H1"), "ukv1-00112233aabbccdd", "L0-8_H1"),
        ] {
            let of = ObjectKey::parse(&key).expect("SGLang's form");
            assert_eq!(of, ObjectKey { form: KeyForm::Sglang, base, shard, group: "", block: first });
        }
        for other in [
            "",
            "@tp_rank:",
            "m@tp_rank:0@group:0@xyz0123456789abcdef",
            "m@tp_rank:0@group:0@0123",
            "m@tp_rank:0@0123456789abcdef",
            &format!("@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0@{DIGEST}"),
            &format!("m_{DIGEST}"),
            &format!("m_{DIGEST}_"),
            &format!("{DIGEST}_0_k"),
            &format!("m_{}é_0_k", &DIGEST[2..]),
        ] {
            assert_eq!(ObjectKey::parse(other), None, "{other}");
        }
    }

    #[test]
    fn batches_are_read_as_far_as_they_can_be() {
        // Five events: stored in memory, removed from everywhere, another tenant's clear, one without a type, no map.
        let payload = b"\x93\x07\x95\x84\xaaevent_type\xa6stored\xaaobject_key\xa1a\xa1n\x91\xc0\xa6medium\xa3cpu\
                        \x83\xaaevent_type\xa7removed\xaaobject_key\xa1b\xa6medium\xc0\
                        \x82\xaaevent_type\xa7cleared\xa9tenant_id\xa1t\x80\x03\x00";
        let events = vec![
            StoreEvent::Stored { key: "a", medium: Some(Medium::Memory) },
            StoreEvent::Removed { key: "b", medium: None },
        ];
        assert_eq!(decode_store(payload), Ok(StoreBatch { events: events.clone(), refused: 3 }));
        // Cut in the second event: four are lost.
        let cut = StoreBatch { events: events[..1].to_vec(), refused: 4 };
        assert_eq!(decode_store(&payload[..70]), Ok(cut));
        let cleared = b"\x92\x07\x92\x82\xaaevent_type\xa7cleared\xa9tenant_id\xa7default\
                        \x83\xaaevent_type\xa7removed\xaaobject_key\xa1b\xa6medium\xa3ssd";
        let events = vec![StoreEvent::Cleared, StoreEvent::Removed { key: "b", medium: Some(Medium::Other) }];
        assert_eq!(decode_store(cleared), Ok(StoreBatch { events, refused: 0 }));
        assert_eq!(decode_store(b""), Err(Error::Empty));
        assert_eq!(decode_store(b"\x93"), Err(Error::Truncated { bytes: 1 }));
        assert!(matches!(decode_store(b"\x81\x01\x02"), Err(Error::NotABatch { .. })));
        assert!(matches!(decode_store(b"\x93\x07\xc0\x00"), Err(Error::NotABatch { .. })));
    }
}
