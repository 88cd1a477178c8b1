//! Payloads of engines, and others that are like them: events written as JSON and packed by another encoder than ours,
//! decoded, encoded and read into an index. The tests of whole batches and events are in this file.

mod encode;
mod fields;
mod reader;
mod refusals;

use kvatlas_wire::{Batch, Cleared, Event, Key, Name, Reason, Removed, Stored, decode};
use serde_json::{Value, json};

pub(crate) fn read(events: &Value) -> Batch {
    decode(&batch(events)).expect("a batch")
}

/// The only event of a batch in which nothing was refused.
pub(crate) fn one(event: &Value) -> Event {
    let mut batch = read(&json!([event]));
    assert_eq!(batch.refused, [], "{event}");
    assert_eq!(batch.events.len(), 1);
    batch.events.remove(0)
}

pub(crate) fn stored(event: &Value) -> Stored {
    match one(event) {
        Event::Stored(stored) => *stored,
        other => panic!("{other:?}"),
    }
}

/// A store of blocks of two tokens, with more fields.
pub(crate) fn with(more: &Value) -> Value {
    let mut event = json!({
        "type": "BlockStored", "block_hashes": [7, 8], "parent_block_hash": null, "token_ids": [1, 2, 3, 4],
        "block_size": 2, "lora_id": null, "medium": "GPU", "lora_name": null
    });
    for (key, value) in more.as_object().expect("a map") {
        event[key] = value.clone();
    }
    event
}

pub(crate) fn plain() -> Stored {
    Stored {
        block_hashes: vec![Name::from(7_u64), Name::from(8_u64)],
        tokens: vec![1, 2, 3, 4],
        block_size: 2,
        medium: Some("GPU".into()),
        ..Stored::default()
    }
}

/// The reasons for which the events of a batch were refused.
pub(crate) fn refused(events: &Value) -> Vec<(usize, Reason)> {
    let batch = read(events);
    assert!(batch.refused.iter().all(|it| it.events == 1 && !it.detail.is_empty()));
    batch.refused.iter().map(|it| (it.at, it.reason)).collect()
}

pub(crate) fn item(identifier: &str, offset: i64) -> Key {
    Key::Item { identifier: identifier.into(), offset }
}

#[test]
fn payloads_as_recorded_from_an_engine() {
    let cleared = hex("93 cb3ff0000000000000 91 81a474797065b0416c6c426c6f636b73436c6561726564 00");
    let expected = Batch { timestamp: 1.0, rank: Some(0), events: vec![Event::Cleared(Cleared)], refused: vec![] };
    assert_eq!(decode(&cleared), Ok(expected));
    let removed = hex("93 cb3ff0000000000000 91 84a474797065ac426c6f636b52656d6f766564ac626c6f636b5f686173686573
         91cf8000000000000005 a66d656469756d a3475055 a967726f75705f696478 00 01");
    let event = Removed {
        block_hashes: vec![Name::Unsigned((1 << 63) + 5)],
        medium: Some("GPU".into()),
        group: Some(0),
        ..Removed::default()
    };
    let expected = Batch { timestamp: 1.0, rank: Some(1), events: vec![event.into()], refused: vec![] };
    assert_eq!(decode(&removed), Ok(expected));
}

#[test]
fn every_field_of_the_map_form() {
    let event = with(&json!({
        "parent_block_hash": 6, "lora_id": 3, "lora_name": "a", "medium": "STORAGE",
        "extra_keys": [["a", ["image", 3]], null], "group_idx": 1, "kv_cache_spec_kind": "sliding_window",
        "kv_cache_spec_sliding_window": 128, "locality": "LOCAL", "ownership": "tier-2", "session_id": "s",
        "lookahead_token_ids": [[3], [9]]
    }));
    let expected = Stored {
        parent: Some(Name::from(6_u64)),
        lora_id: Some(3),
        lora: Some("a".into()),
        medium: Some("STORAGE".into()),
        extra_keys: vec![(0, item("image", 3))],
        group: Some(1),
        kind: Some("sliding_window".into()),
        window: Some(128),
        locality: Some("LOCAL".into()),
        ownership: Some("tier-2".into()),
        session_id: Some("s".into()),
        lookahead: Some(vec![vec![3], vec![9]]),
        ..plain()
    };
    assert_eq!(stored(&event), expected);
}

#[test]
fn the_positional_form_of_every_age() {
    let whole = json!([
        "BlockStored", [7, 8], null, [1, 2, 3, 4], 2, 5, "GPU", "a", [["a", "s"], ["a"]], 1, "mamba", 64, "REMOTE", "x",
        "what comes", {"later": 1}
    ]);
    let expected = Stored {
        lora_id: Some(5),
        lora: Some("a".into()),
        salt: Some("s".into()),
        group: Some(1),
        kind: Some("mamba".into()),
        window: Some(64),
        locality: Some("REMOTE".into()),
        ownership: Some("x".into()),
        ..plain()
    };
    assert_eq!(stored(&whole), expected);
    // The first releases ended after five fields; each later one added some.
    for length in 5..=14 {
        let event = Value::Array(whole.as_array().expect("an array")[..length].to_vec());
        let stored = stored(&event);
        assert_eq!(stored.lora_id.is_some(), length > 5);
        assert_eq!(stored.medium.is_some(), length > 6);
        assert_eq!(stored.salt.is_some(), length > 8);
        assert_eq!(stored.bare, length <= 8, "{length}: there is a place for salts or not");
        assert_eq!(stored.kind.is_some(), length > 10);
    }
    assert_eq!(refused(&json!([["BlockStored", [7], null, [1, 2]]])), [(0, Reason::MissingField)]);
    let removed = Removed { block_hashes: vec![Name::from(7_u64)], ..Removed::default() };
    assert_eq!(one(&json!(["BlockRemoved", [7]])), removed.clone().into());
    let removed = Removed { medium: Some("CPU".into()), group: Some(2), ..removed };
    assert_eq!(one(&json!(["BlockRemoved", [7], "CPU", 2])), removed.into());
    assert_eq!(one(&json!(["AllBlocksCleared"])), Event::Cleared(Cleared));
    assert_eq!(one(&json!(["AllBlocksCleared", "owner"])), Event::Cleared(Cleared));
}

#[test]
fn a_map_at_the_end_of_the_positional_form() {
    let event = json!(["BlockStored", [7, 8], null, [1, 2, 3, 4], 2, null, "GPU", {"cache_salt": "s", "other": [1]}]);
    assert_eq!(stored(&event), Stored { salt: Some("s".into()), ..plain() });
}

#[test]
fn batches_of_two_three_and_more() {
    let event = json!(["AllBlocksCleared"]);
    let rank =
        |payload: &Value| decode(&pack(payload)).map(|batch| (batch.events.len(), batch.refused.len(), batch.rank));
    assert_eq!(rank(&json!([1.5, [event]])), Ok((1, 0, None)));
    assert_eq!(rank(&json!([1.5, [event], null])), Ok((1, 0, None)));
    assert_eq!(rank(&json!([1.5, [event], 3])), Ok((1, 0, Some(3))));
    assert_eq!(rank(&json!([1.5, [event], 3, "more", {"and": "more"}])), Ok((1, 0, Some(3))));
    assert_eq!(rank(&json!([15, [event], -1])), Ok((1, 1, None)));
    assert_eq!(rank(&json!([-15, [event], "0"])), Ok((1, 1, None)));
    assert_eq!(rank(&json!([null, [], 1u64 << 32])), Ok((0, 1, None)));
}

#[test]
fn what_is_not_known_is_read_past() {
    let event = with(&json!({"new": {"a": [1, [2, {"b": null}]]}, "remaining_copy_counts": [1], "origin": "NEW"}));
    assert_eq!(stored(&event), plain());
    // Keys that are no strings, and extension values.
    let odd = hex(
        "9301 91 84 05 c403abcdef a474797065 b0416c6c426c6f636b73436c6561726564 d7ff0000000000000000 90 c0 c7030a000000 00",
    );
    assert_eq!(decode(&odd).expect("a batch").events, [Event::Cleared(Cleared)]);
    let removed = json!({"type": "BlockRemoved", "block_hashes": [7], "token_ids": "anything"});
    assert!(matches!(one(&removed), Event::Removed(_)));
}

#[test]
fn empty_hashes_and_sizes_of_nothing() {
    let event = with(&json!({"block_hashes": [], "token_ids": [1, 2, 3], "block_size": 0}));
    let it = stored(&event);
    assert_eq!((it.block_hashes.len(), it.tokens.len(), it.block_size), (0, 3, 0));
}

/// The MessagePack of a JSON value. A string `bin:…` becomes the bytes that its hexadecimal digits say.
pub(crate) fn pack(json: &serde_json::Value) -> Vec<u8> {
    let mut bytes = Vec::new();
    rmpv::encode::write_value(&mut bytes, &value(json)).expect("a Vec takes everything");
    bytes
}

/// A batch of these events, of time 1.5 and rank 0.
pub(crate) fn batch(events: &serde_json::Value) -> Vec<u8> {
    pack(&serde_json::json!([1.5, events, 0]))
}

/// Bytes from hexadecimal digits and blanks.
pub(crate) fn hex(digits: &str) -> Vec<u8> {
    let digits: String = digits.split_whitespace().collect();
    (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).expect("digits")).collect()
}

fn value(json: &serde_json::Value) -> rmpv::Value {
    match json {
        serde_json::Value::Null => rmpv::Value::Nil,
        serde_json::Value::Bool(flag) => rmpv::Value::Boolean(*flag),
        serde_json::Value::Number(number) => {
            let integer = number.as_u64().map(rmpv::Value::from).or_else(|| number.as_i64().map(rmpv::Value::from));
            integer.unwrap_or_else(|| rmpv::Value::F64(number.as_f64().expect("a number")))
        }
        serde_json::Value::String(text) => match text.strip_prefix("bin:") {
            Some(digits) => rmpv::Value::Binary(hex(digits)),
            None => rmpv::Value::from(text.as_str()),
        },
        serde_json::Value::Array(items) => rmpv::Value::Array(items.iter().map(value).collect()),
        serde_json::Value::Object(entries) => {
            rmpv::Value::Map(entries.iter().map(|(key, item)| (rmpv::Value::from(key.as_str()), value(item))).collect())
        }
    }
}
