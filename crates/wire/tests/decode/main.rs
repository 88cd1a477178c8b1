//! Payloads of engines, and others that are like them: events written as JSON, decoded.

mod fields;
mod forms;
#[path = "../payload/mod.rs"]
mod payload;
mod refusals;

use kvatlas_wire::{Batch, Event, Key, Name, Reason, Stored, decode};
use serde_json::{Value, json};

use self::payload::batch;

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
