//! The values of single fields.

use kvatlas_index::Tier;
use kvatlas_wire::{Event, Key, Name, Reason, Stored, decode};
use serde_json::json;

use crate::{hex, item, one, plain, refused, stored, with};

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
