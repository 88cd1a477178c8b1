//! What engines send, and what is like it.

mod payload;

use kvatlas_index::Tier;
use kvatlas_wire::{Batch, Cleared, Error, Event, Key, Name, Reason, Removed, Stored, decode};
use payload::{batch, hex, pack};
use serde_json::{Value, json};

fn read(events: &Value) -> Batch {
    decode(&batch(events)).expect("a batch")
}

/// The only event of a batch in which nothing was refused.
fn one(event: &Value) -> Event {
    let mut batch = read(&json!([event]));
    assert_eq!(batch.refused, [], "{event}");
    assert_eq!(batch.events.len(), 1);
    batch.events.remove(0)
}

fn stored(event: &Value) -> Stored {
    match one(event) {
        Event::Stored(stored) => *stored,
        other => panic!("{other:?}"),
    }
}

/// A store of blocks of two tokens, with more fields.
fn with(more: &Value) -> Value {
    let mut event = json!({
        "type": "BlockStored", "block_hashes": [7, 8], "parent_block_hash": null, "token_ids": [1, 2, 3, 4],
        "block_size": 2, "lora_id": null, "medium": "GPU", "lora_name": null
    });
    for (key, value) in more.as_object().expect("a map") {
        event[key] = value.clone();
    }
    event
}

fn plain() -> Stored {
    Stored {
        block_hashes: vec![Name::from(7_u64), Name::from(8_u64)],
        tokens: vec![1, 2, 3, 4],
        block_size: 2,
        medium: Some("GPU".into()),
        ..Stored::default()
    }
}

/// The reasons for which the events of a batch were refused.
fn refused(events: &Value) -> Vec<(usize, Reason)> {
    let batch = read(events);
    assert!(batch.refused.iter().all(|it| it.events == 1 && !it.detail.is_empty()));
    batch.refused.iter().map(|it| (it.at, it.reason)).collect()
}

fn item(identifier: &str, offset: i64) -> Key {
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
fn names_of_every_width_sign_and_kind() {
    let names = |hex_names: &str| {
        let bytes = [
            hex("9301 91 82 a474797065 ac426c6f636b52656d6f766564 ac626c6f636b5f686173686573"),
            hex(hex_names),
            hex("00"),
        ];
        match decode(&bytes.concat()).expect("a batch").events.remove(0) {
            Event::Removed(removed) => removed.block_hashes,
            other => panic!("{other:?}"),
        }
    };
    let five = [Name::Unsigned(5)];
    for wide in [
        "05",
        "cc05",
        "cd0005",
        "ce00000005",
        "cf0000000000000005",
        "d005",
        "d10005",
        "d200000005",
        "d30000000000000005",
    ] {
        assert_eq!(names(&format!("91{wide}")), five);
        assert_eq!(names(&format!("dc0001{wide}")), five);
        assert_eq!(names(&format!("dd00000001{wide}")), five);
    }
    for wide in ["ff", "d0ff", "d1ffff", "d2ffffffff", "d3ffffffffffffffff"] {
        assert_eq!(names(&format!("91{wide}")), [Name::Signed(-1)]);
    }
    for digest in ["c402abcd", "c50002abcd", "c600000002abcd"] {
        assert_eq!(names(&format!("91{digest}")), [Name::Bytes([0xab, 0xcd].into())]);
    }
    let all = names("94 05 ff cfffffffffffffffff c405ffffffffff");
    let mut canonical: Vec<_> = all.iter().map(Name::canonical).collect();
    canonical.sort_unstable();
    canonical.dedup();
    assert_eq!(canonical.len(), 4, "-1, 2**64 - 1 and ff... are different blocks");
    assert_eq!(Name::from(-1_i64), Name::Signed(-1));
    assert_eq!(Name::from(1_i64), Name::Unsigned(1));
}

#[test]
fn tokens_of_every_width() {
    for (tokens, expected) in [
        ("94 01 cc80 cdffff ceffffffff", vec![1, 128, 65535, u32::MAX]),
        ("94 cf0000000000000001 d202 01 d20000ffff", vec![]),
        ("94 cf00000000ffffffff d20000ffff d07f d17fff", vec![u32::MAX, 65535, 127, 32767]),
        ("dc0004 01 02 03 04", vec![1, 2, 3, 4]),
        ("dd00000004 01 02 03 04", vec![1, 2, 3, 4]),
        ("c0", vec![]),
        ("90", vec![]),
    ] {
        let payload = [hex("9301 91 95 ab426c6f636b53746f726564 91 07 c0"), hex(tokens), hex("04 00")].concat();
        let mut batch = decode(&payload).expect("a batch");
        match batch.events.pop() {
            Some(Event::Stored(stored)) => assert_eq!(stored.tokens, expected, "{tokens}"),
            None => assert!(tokens.contains("d202 01"), "{tokens}: {:?}", batch.refused),
            other => panic!("{other:?}"),
        }
    }
    // Runs of one width, broken at every place by a token of another.
    for odd in [3_u32, 200, 70_000] {
        for at in 0..40 {
            let tokens: Vec<u32> = (0..40).map(|i| if i == at { odd } else { 1000 + i }).collect();
            assert_eq!(stored(&with(&json!({"token_ids": tokens}))).tokens, tokens);
        }
    }
}

#[test]
fn tokens_that_are_none() {
    for tokens in [
        json!(["x", 2, 3, 4]),
        json!([1, 2, 3, -1]),
        json!([1, 2, 3, 1u64 << 32]),
        json!([1, null, 3, 4]),
        json!([1.0, 2, 3, 4]),
    ] {
        assert_eq!(refused(&json!([with(&json!({"token_ids": tokens}))])), [(0, Reason::InvalidToken)]);
    }
    assert_eq!(refused(&json!([with(&json!({"token_ids": "1234"}))])), [(0, Reason::InvalidField)]);
}

#[test]
fn pairs_of_tokens() {
    let event = with(&json!({"token_ids": [[1, 2], [2, 3], [3, 4], [4, 70_000]]}));
    assert_eq!(stored(&event), Stored { bigrams: Some(vec![2, 3, 4, 70_000]), ..plain() });
    for tokens in [json!([[1, 2], 3]), json!([[1, 2, 3]]), json!([[1]]), json!([[], []])] {
        assert_eq!(refused(&json!([with(&json!({"token_ids": tokens}))])), [(0, Reason::InvalidField)]);
    }
    assert_eq!(refused(&json!([with(&json!({"token_ids": [1, [2, 3]]}))])), [(0, Reason::InvalidToken)]);
}

#[test]
fn media_and_tiers() {
    for (medium, tier) in [
        (json!(null), Tier::Gpu),
        (json!("GPU"), Tier::Gpu),
        (json!("gpu"), Tier::Gpu),
        (json!("Device"), Tier::Gpu),
        (json!("CPU"), Tier::Cpu),
        (json!("cpu"), Tier::Cpu),
        (json!("CPU_PINNED"), Tier::Cpu),
        (json!("LocalCPUBackend"), Tier::Cpu),
        (json!("STORAGE"), Tier::Disk),
        (json!("Disk"), Tier::Disk),
        (json!("CPU_TIER2"), Tier::Disk),
        (json!("EXTERNAL"), Tier::External),
        (json!("REMOTE"), Tier::External),
        (json!("holographic"), Tier::External),
    ] {
        assert_eq!(stored(&with(&json!({"medium": medium}))).tier(), tier, "{medium}");
        assert_eq!(stored(&with(&json!({"medium": medium, "locality": "LOCAL"}))).tier(), tier, "{medium}");
        assert_eq!(stored(&with(&json!({"medium": medium, "locality": "REMOTE"}))).tier(), Tier::External, "{medium}");
        match one(&json!(["BlockRemoved", [7], medium])) {
            Event::Removed(removed) => assert_eq!(removed.tier(), tier, "{medium}"),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn adapters() {
    for (id, name, adapter) in [
        (json!(null), json!(null), None),
        (json!(3), json!("a"), Some("a")),
        (json!(null), json!("a"), Some("a")),
        (json!(3), json!(null), Some("lora-id:3")),
        (json!(3), json!(""), Some("lora-id:3")),
        (json!(0), json!(null), None),
    ] {
        let stored = stored(&with(&json!({"lora_id": id, "lora_name": name})));
        assert_eq!(stored.adapter().as_deref(), adapter, "{id} {name}");
    }
}

/// Extra keys as vLLM sends them: the LoRA name first, items, the salt in the first block, embeddings.
#[test]
fn extra_keys() {
    let digest = "bin:00112233";
    let embeds = Key::Embeds(hex("00112233").into());
    for (lora, keys, salt, expected) in [
        (json!(null), json!(null), None, vec![]),
        (json!(null), json!([null, null]), None, vec![]),
        (json!(null), json!([["s"], null]), Some("s"), vec![]),
        (json!("a"), json!([["a"], ["a"]]), None, vec![]),
        (json!("a"), json!([["a", "s"], ["a"]]), Some("s"), vec![]),
        // A salt may be called as an adapter is.
        (json!("a"), json!([["a", "a"], ["a"]]), Some("a"), vec![]),
        (
            json!(null),
            json!([[["i", 0], ["j", 5], "s", digest], [["j", -3]]]),
            Some("s"),
            vec![(0, item("i", 0)), (0, item("j", 5)), (0, embeds.clone()), (1, item("j", -3))],
        ),
        (json!("a"), json!([["a", ["i", 0]], ["a", ["i", -16]]]), None, vec![(0, item("i", 0)), (1, item("i", -16))]),
        (json!(null), json!([["dynamo-cache-salt:tenant"], null]), Some("tenant"), vec![]),
        // Tagged, as the engine hashes them.
        (
            json!(null),
            json!([[["lora", "a", "/path"], ["mm", "i", 2], ["cache_salt", "s"], ["prompt_embeds", digest]], null]),
            Some("s"),
            vec![(0, item("i", 2)), (0, embeds)],
        ),
        // A string in another place is none of these; it must not be lost.
        (json!(null), json!([["s"], ["t"]]), Some("s"), vec![(1, Key::Text("t".into()))]),
        (json!(null), json!([["s", "t"], null]), Some("s"), vec![(0, Key::Text("t".into()))]),
        (
            json!(null),
            json!([[7], [["i", 1.5]]]),
            None,
            vec![(0, Key::Other(hex("07").into())), (1, Key::Other(hex("92 a169 cb3ff8000000000000").into()))],
        ),
        (json!(null), json!(["s", null]), Some("s"), vec![]),
        (json!(null), json!([[["i", [0]]], null]), None, vec![(0, Key::Other(hex("92 a169 9100").into()))]),
        (json!(null), json!([[[[], 0]], null]), None, vec![(0, Key::Other(hex("92 90 00").into()))]),
    ] {
        let tagged = keys.to_string().contains("/path");
        let stored = stored(&with(&json!({"lora_name": lora, "extra_keys": keys})));
        assert_eq!(stored.salt.as_deref(), salt, "{keys}");
        assert_eq!(stored.extra_keys, expected, "{keys}");
        assert_eq!(stored.lora.as_deref(), if tagged { Some("a") } else { lora.as_str() });
    }
    assert_eq!(refused(&json!([with(&json!({"extra_keys": [null, null, ["s"]]}))])), [(0, Reason::InvalidField)]);
    assert_eq!(refused(&json!([with(&json!({"extra_keys": 5}))])), [(0, Reason::InvalidField)]);
    // The order of a map's entries says nothing.
    let event = hex("9301 91 87 aa65787472615f6b657973 91 92 a161 a173 ac626c6f636b5f686173686573 9107
         b1706172656e745f626c6f636b5f68617368 c0 a9746f6b656e5f696473 920102 aa626c6f636b5f73697a65 02
         a96c6f72615f6e616d65 a161 a474797065 ab426c6f636b53746f726564");
    match decode(&event).expect("a batch").events.remove(0) {
        Event::Stored(it) => assert_eq!((it.lora.as_deref(), it.salt.as_deref()), (Some("a"), Some("s"))),
        other => panic!("{other:?}"),
    }
}

#[test]
fn sglang_shows_its_salt_in_a_field_of_its_own() {
    assert_eq!(stored(&with(&json!({"cache_salt": "s"}))).salt.as_deref(), Some("s"));
    assert_eq!(stored(&with(&json!({"cache_salt": ""}))).salt, None);
    assert_eq!(stored(&with(&json!({"cache_salt": null}))).salt, None);
}

#[test]
fn a_bad_event_costs_itself() {
    let good = json!(["AllBlocksCleared"]);
    for (bad, reason) in [
        (json!(null), Reason::NotAnEvent),
        (json!(5), Reason::NotAnEvent),
        (json!("AllBlocksCleared"), Reason::NotAnEvent),
        (json!([]), Reason::NotAnEvent),
        (json!({}), Reason::NotAnEvent),
        (json!([[["deep"]]]), Reason::NotAnEvent),
        (json!({"type": 5}), Reason::NotAnEvent),
        (json!(["BlockMoved", [1], {"a": [2]}]), Reason::UnknownEvent),
        (json!({"type": "BlockMoved", "what": {"a": [[2]]}}), Reason::UnknownEvent),
        (json!(["blockstored", [7]]), Reason::UnknownEvent),
        (json!({"type": "BlockRemoved", "medium": "GPU"}), Reason::MissingField),
        (json!({"type": "BlockStored", "block_hashes": [1], "token_ids": [1], "block_size": 1}), Reason::MissingField),
        (json!({"type": "BlockRemoved", "block_hashes": 7}), Reason::InvalidField),
        (json!({"type": "BlockRemoved", "block_hashes": [7, "8"]}), Reason::InvalidField),
        (json!({"type": "BlockRemoved", "block_hashes": [7, 8.0]}), Reason::InvalidField),
        (json!({"type": "BlockRemoved", "block_hashes": [null]}), Reason::InvalidField),
        (with(&json!({"parent_block_hash": "7"})), Reason::InvalidField),
        (with(&json!({"block_size": -2})), Reason::InvalidField),
        (with(&json!({"block_size": 1u64 << 32})), Reason::InvalidField),
        (with(&json!({"medium": 5})), Reason::InvalidField),
        (with(&json!({"lora_name": ["a"]})), Reason::InvalidField),
        (with(&json!({"lora_id": "a"})), Reason::InvalidField),
        (with(&json!({"cache_salt": 5})), Reason::InvalidField),
        (with(&json!({"group_idx": -1})), Reason::InvalidField),
        (with(&json!({"kv_cache_spec_kind": 1})), Reason::InvalidField),
        (with(&json!({"lookahead_token_ids": [3]})), Reason::InvalidField),
    ] {
        let batch = read(&json!([good, bad, good]));
        assert_eq!(batch.events.len(), 2, "{bad}");
        let [refused] = &batch.refused[..] else { panic!("{bad}: {:?}", batch.refused) };
        assert_eq!((refused.at, refused.events, refused.reason), (1, 1, reason), "{bad}: {}", refused.detail);
    }
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

#[test]
fn no_batch_at_all() {
    for (payload, code) in [
        (vec![], "empty_payload"),
        (pack(&json!(null)), "not_a_batch"),
        (pack(&json!({"ts": 1})), "not_a_batch"),
        (pack(&json!([])), "not_a_batch"),
        (pack(&json!([1.5])), "not_a_batch"),
        (pack(&json!(["now", []])), "not_a_batch"),
        (pack(&json!([1.5, {"a": 1}])), "not_a_batch"),
        (hex("93"), "truncated_payload"),
        (hex("93 cb3ff0"), "truncated_payload"),
        (hex("93 01"), "truncated_payload"),
        (hex("c1"), "malformed_payload"),
        (hex("92 c1"), "malformed_payload"),
        (b"hello".to_vec(), "not_a_batch"),
    ] {
        let error = decode(&payload).expect_err("no batch");
        assert_eq!(error.code(), code, "{payload:?}: {error}");
    }
    assert_eq!(decode(b"\x93\x01"), Err(Error::Truncated { bytes: 2 }));
}

#[test]
fn nothing_is_made_room_for_before_it_is_there() {
    // Four billion events, hashes, tokens, keys: in twenty bytes.
    for lie in [
        "9301 ddffffffff",
        "9301 91 95 ab426c6f636b53746f726564 ddffffffff",
        "9301 91 95 ab426c6f636b53746f726564 9107 c0 ddffffffff",
        "9301 91 95 ab426c6f636b53746f726564 9107 c0 ddffffffff 9201",
        "9301 91 81 a474797065",
        "9301 91 dfffffffff 01",
        "9301 91 dbffffffff",
        "9301 91 c6ffffffff",
        "9301 91 c9ffffffff",
    ] {
        let batch = decode(&hex(lie)).expect("a batch");
        assert_eq!(batch.events, []);
        let [refused] = &batch.refused[..] else { panic!("{lie}: {:?}", batch.refused) };
        assert_eq!(refused.reason, Reason::Truncated, "{lie}");
        assert!(refused.events <= 64, "{lie}: {}", refused.events);
    }
}

#[test]
fn nesting_costs_no_stack() {
    let deep = [hex("9301 92"), vec![0x91; 1 << 20], hex("c0 91 b0416c6c426c6f636b73436c6561726564 00")].concat();
    let batch = decode(&deep).expect("a batch");
    assert_eq!((batch.events.len(), batch.refused.len()), (1, 1));
}

#[test]
fn a_payload_of_nonsense_does_not_grow() {
    let nonsense = [hex("9301 dd000f4240"), vec![0xc0; 1_000_000], hex("00")].concat();
    let batch = decode(&nonsense).expect("a batch");
    assert!(batch.refused.len() <= 64);
    assert_eq!(batch.refused.iter().map(|it| it.events).sum::<u64>(), 1_000_000);
}

#[test]
fn codes_are_stable_and_different() {
    let codes: Vec<&str> = Reason::ALL.iter().map(|reason| reason.code()).collect();
    assert_eq!(
        codes,
        [
            "truncated",
            "malformed",
            "not_an_event",
            "unknown_event",
            "missing_field",
            "invalid_field",
            "invalid_token",
            "block_size",
            "token_count",
            "no_content",
            "other_group",
            "index_full"
        ]
    );
    for (at, reason) in Reason::ALL.iter().enumerate() {
        assert_eq!(*reason as usize, at);
    }
}
