//! Payloads and events that cannot be decoded, and what that costs.
//!
//! Large and unusual payloads take time for each of their bytes once, not again and again. There is no clock in these
//! tests; with a second look at all bytes for each value they would not end.

use kvatlas_wire::{Error, Event, Reason, decode};
use serde_json::json;

use crate::{hex, pack, read, with};

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
            "index_full",
            "partial_block",
            "hidden_salt"
        ]
    );
    for (at, reason) in Reason::ALL.iter().enumerate() {
        assert_eq!(*reason as usize, at);
    }
}

fn count(items: u32) -> [u8; 5] {
    let [a, b, c, d] = items.to_be_bytes();
    [0xdd, a, b, c, d]
}

/// A batch with one store in the positional form: a block of all the tokens.
fn store(tokens: u32, packed: &[u8]) -> Vec<u8> {
    let mut payload = b"\x92\x01\x91\x95\xabBlockStored\x91\x07\xc0".to_vec();
    payload.extend(count(tokens));
    payload.extend_from_slice(packed);
    payload.push(0xce);
    payload.extend(tokens.to_be_bytes());
    payload
}

fn tokens(payload: &[u8]) -> Vec<u32> {
    let mut batch = decode(payload).expect("a batch");
    assert_eq!(batch.refused, []);
    match batch.events.pop() {
        Some(Event::Stored(stored)) => stored.tokens,
        other => panic!("{other:?}"),
    }
}

#[test]
fn integers_wider_than_they_need_to_be() {
    let packed: Vec<u8> = (0..2_000_000_u64).flat_map(|id| [0xcf].into_iter().chain(id.to_be_bytes())).collect();
    assert!(tokens(&store(2_000_000, &packed)).into_iter().eq(0..2_000_000));
}

#[test]
fn wide_and_narrow_integers_in_turn() {
    let mut packed = Vec::new();
    for id in 0..2_000_000_u32 {
        if id % 2 == 0 {
            packed.push(0xd3);
            packed.extend(u64::from(id).to_be_bytes());
        } else {
            packed.push(0xce);
            packed.extend(id.to_be_bytes());
        }
    }
    assert!(tokens(&store(2_000_000, &packed)).into_iter().eq(0..2_000_000));
}

#[test]
fn nothing_but_nonsense() {
    let mut payload = b"\x92\x01".to_vec();
    payload.extend(count(4_000_000));
    payload.resize(payload.len() + 4_000_000, 0xc0);
    let batch = decode(&payload).expect("a batch");
    assert!(batch.refused.len() < 100);
    assert!(batch.refused.iter().all(|it| it.reason == Reason::NotAnEvent));
    assert_eq!(batch.refused.iter().map(|it| it.events).sum::<u64>(), 4_000_000);
}
