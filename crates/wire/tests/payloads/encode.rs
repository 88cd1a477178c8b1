//! Payloads as another encoder would write them, to the byte.

use super::pack;
use kvatlas_wire::encode::{Dialect, UnknownDialect, encode};
use kvatlas_wire::{Batch, Cleared, Event, Key, Name, Removed, Stored, decode};
use serde_json::{Value, json};

fn encoded(event: impl Into<Event>, dialect: Dialect) -> Vec<u8> {
    encode(&Batch { timestamp: 1.5, rank: Some(0), events: vec![event.into()], refused: vec![] }, dialect)
}

/// A batch as JSON would have it, of one removal.
fn removal(names: &Value) -> Value {
    json!([1.5, [["BlockRemoved", names, "GPU"]], 0])
}

#[test]
fn integers_in_their_shortest_form() {
    let edges = (0..64).flat_map(|bit| [-1_i128, 0, 1].map(|by| (1_i128 << bit) + by));
    for edge in edges.flat_map(|edge| [edge, -edge]).chain([i128::from(u64::MAX)]) {
        let (name, number) = match (u64::try_from(edge), i64::try_from(edge)) {
            (Ok(edge), _) => (Name::from(edge), json!(edge)),
            (_, Ok(edge)) => (Name::from(edge), json!(edge)),
            _ => continue,
        };
        let removed = Removed { block_hashes: vec![name], ..Removed::default() };
        assert_eq!(encoded(removed, Dialect::SglangArrays), pack(&removal(&json!([number]))), "{edge}");
    }
}

#[test]
fn lengths_in_their_shortest_form() {
    for length in [0, 1, 15, 16, 31, 32, 255, 256, 65_535, 65_536] {
        let removed = Removed { block_hashes: vec![Name::from(1_u64); length], ..Removed::default() };
        assert_eq!(encoded(removed, Dialect::SglangArrays), pack(&removal(&json!(vec![1; length]))), "{length}");
        let digest = vec![0xab; length];
        let removed = Removed { block_hashes: vec![Name::from(&digest[..])], ..Removed::default() };
        let digest = format!("bin:{}", "ab".repeat(length));
        assert_eq!(encoded(removed, Dialect::SglangArrays), pack(&removal(&json!([digest]))), "{length}");
        let medium = "m".repeat(length);
        let removed = Removed { medium: Some(medium.clone().into()), ..Removed::default() };
        let expected = json!([1.5, [["BlockRemoved", [], medium]], 0]);
        assert_eq!(encoded(removed, Dialect::SglangArrays), pack(&expected), "{length}");
    }
}

#[test]
fn extra_keys_in_the_engines_order() {
    let stored = Stored {
        block_hashes: vec![Name::from(1_u64), Name::from(2_u64), Name::from(3_u64)],
        tokens: vec![1, 200, 70_000],
        bigrams: Some(vec![200, 70_000, 4]),
        block_size: 1,
        lora: Some("a".into()),
        salt: Some("s".into()),
        extra_keys: vec![
            (0, Key::Item { identifier: "i".into(), offset: 0 }),
            (0, Key::Item { identifier: "j".into(), offset: 2 }),
            (0, Key::Embeds([1, 2].into())),
            (2, Key::Other([0x07].into())),
            (2, Key::Text("t".into())),
        ],
        ..Stored::default()
    };
    let keys = json!([["a", ["i", 0], ["j", 2], "s", "bin:0102"], ["a"], ["a", 7, "t"]]);
    let tokens = json!([[1, 200], [200, 70_000], [70_000, 4]]);
    let array = json!(["BlockStored", [1, 2, 3], null, tokens, 1, null, "GPU", "a", keys, null, null, null]);
    assert_eq!(encoded(stored.clone(), Dialect::VllmArrays), pack(&json!([1.5, [array], 0])));
    // A store that goes on shows no salt, as the engine does not.
    let later = Stored { parent: Some(Name::from(9_u64)), ..stored };
    let keys = json!([["a", ["i", 0], ["j", 2], "bin:0102"], ["a"], ["a", 7, "t"]]);
    let array = json!(["BlockStored", [1, 2, 3], 9, tokens, 1, null, "GPU", "a", keys, null, null, null]);
    assert_eq!(encoded(later, Dialect::VllmArrays), pack(&json!([1.5, [array], 0])));
}

#[test]
fn a_batch_without_a_rank() {
    let batch = Batch { timestamp: -0.5, rank: None, events: vec![Cleared.into()], refused: vec![] };
    for dialect in Dialect::ALL {
        assert_eq!(decode(&encode(&batch, dialect)), Ok(batch.clone()), "{dialect:?}");
    }
}

#[test]
fn names_of_dialects() {
    for dialect in Dialect::ALL {
        assert_eq!(dialect.name().parse(), Ok(dialect));
    }
    let error = "vLLM".parse::<Dialect>().expect_err("no dialect");
    assert_eq!(error, UnknownDialect("vLLM".to_owned()));
    assert!(error.to_string().contains("\"sglang-arrays\""));
}
