//! Meaning of events: groups, salts, tiers, sizes, clears, and what is left out.

use std::num::NonZeroU32;

use kvatlas_index::{BlockIndex, Config, EvictionOrder, Loadable, Members, SharedPool, Tier, View, hash};
use kvatlas_wire::keys::content_hash;
use kvatlas_wire::{Key, Reader, Reason, Tally, decode};
use serde_json::{Value, json};

use super::batch;

const BLOCK: u32 = 2;

/// One stream into an index.
struct Stream {
    index: BlockIndex,
    reader: Reader,
    tally: Tally,
}

impl Stream {
    fn new() -> Self {
        Self::counting(true)
    }

    fn counting(count_copies: bool) -> Self {
        let index = BlockIndex::new(Config { block_size: BLOCK, count_copies }).expect("a block size");
        Self { index, reader: Reader::new(BLOCK), tally: Tally::default() }
    }

    fn send(&mut self, events: &Value) -> &mut Self {
        let batch = decode(&batch(events)).expect("a batch");
        self.reader.apply(&batch, &self.index, "w", 3, &mut self.tally);
        self
    }

    fn salted_blocks(&self) -> usize {
        self.reader.state().expect("not of a hybrid model").salts.len()
    }

    fn held(&self) -> u64 {
        self.index.stats().blocks
    }

    fn contents(&self, contents: &[u64], view: View) -> u32 {
        self.index.find(contents).depth(view)
    }

    /// Blocks on the device of a prompt without adapter and salt.
    fn plain(&self, tokens: &[u32]) -> u32 {
        self.depth(tokens, None, None)
    }

    fn depth(&self, tokens: &[u32], lora: Option<&str>, salt: Option<&str>) -> u32 {
        self.contents(&hash::content_hashes(tokens, BLOCK as usize, lora, salt), View::Device)
    }

    fn anywhere(&self, tokens: &[u32]) -> u32 {
        self.contents(&hash::content_hashes(tokens, BLOCK as usize, None, None), View::AnyTier)
    }

    fn refused(&self) -> Vec<(Reason, u64)> {
        let all = Reason::ALL.iter().map(|&reason| (reason, self.tally.refused_for(reason)));
        all.filter(|&(_, events)| events > 0).collect()
    }
}

/// Blocks `names` after `parent`, of tokens that count on from `first`.
fn store(names: &[i64], parent: Option<i64>, first: u32, more: &Value) -> Value {
    let tokens: Vec<u32> = (first..).take(names.len() * BLOCK as usize).collect();
    let mut event = json!({
        "type": "BlockStored", "block_hashes": names, "parent_block_hash": parent, "token_ids": tokens,
        "block_size": BLOCK, "lora_id": null, "medium": "GPU", "lora_name": null
    });
    for (key, value) in more.as_object().expect("a map") {
        event[key] = value.clone();
    }
    event
}

fn plain(names: &[i64], parent: Option<i64>, first: u32) -> Value {
    store(names, parent, first, &json!({}))
}

fn remove(names: &[i64], more: &Value) -> Value {
    let mut event = json!({"type": "BlockRemoved", "block_hashes": names, "medium": "GPU"});
    for (key, value) in more.as_object().expect("a map") {
        event[key] = value.clone();
    }
    event
}

const CLEAR: &str = "AllBlocksCleared";
const SIX: [u32; 6] = [1, 2, 3, 4, 5, 6];

#[test]
fn stores_removals_and_clears() {
    let mut stream = Stream::new();
    stream.send(&json!([plain(&[10, -11], None, 1), plain(&[12], Some(-11), 5)]));
    assert_eq!(stream.plain(&SIX), 3);
    let found = stream.index.find(&hash::content_hashes(&SIX, 2, None, None));
    assert_eq!(found.by_rank(View::Device), [(&"w".into(), 3, 3)]);
    drop(found);
    stream.send(&json!([remove(&[12], &json!({}))]));
    assert_eq!(stream.plain(&SIX), 2);
    stream.send(&json!([{"type": CLEAR}, plain(&[10], None, 1)]));
    assert_eq!((stream.plain(&SIX), stream.held()), (1, 1));
    let expected = Tally { events: 5, stored_blocks: 4, removed_blocks: 1, clears: 1, ..Tally::default() };
    assert_eq!(stream.tally, expected);
    let mut twice = expected;
    twice += expected;
    assert_eq!((twice.events, twice.stored_blocks, twice.refused_total()), (10, 8, 0));
}

#[test]
fn order_within_a_batch_counts() {
    let mut stream = Stream::new();
    stream.send(&json!([plain(&[10], None, 1), remove(&[10], &json!({}))]));
    assert_eq!(stream.plain(&SIX), 0);
    stream.send(&json!([plain(&[10], None, 1)]));
    stream.send(&json!([remove(&[10], &json!({})), plain(&[10], None, 1)]));
    assert_eq!(stream.plain(&SIX), 1);
}

#[test]
fn what_could_not_be_decoded_is_counted_with_the_rest() {
    let mut stream = Stream::new();
    stream.send(&json!([plain(&[10], None, 1), {"type": "BlockMoved"}, null, plain(&[11], Some(10), 3)]));
    assert_eq!(stream.plain(&SIX), 2);
    assert_eq!(stream.refused(), [(Reason::NotAnEvent, 1), (Reason::UnknownEvent, 1)]);
}

#[test]
fn blocks_that_do_not_fit_are_left_out() {
    let mut stream = Stream::new();
    stream.send(&json!([
        store(&[10], None, 1, &json!({"block_size": 1, "token_ids": [1]})),
        store(&[10], None, 1, &json!({"block_size": 4, "token_ids": [1, 2, 3, 4]})),
        store(&[10], None, 1, &json!({"token_ids": [1, 2, 3]})),
        store(&[10, 11], None, 1, &json!({"token_ids": [1, 2]})),
        store(&[10], None, 1, &json!({"token_ids": []})),
        store(&[10], None, 1, &json!({"block_size": 0, "token_ids": [], "medium": "GPU"})),
        store(&[10], None, 1, &json!({"block_size": 0, "token_ids": [1, 2]})),
        // Nothing at all is stored, and nothing is wrong.
        store(&[], None, 1, &json!({"token_ids": [1, 2]})),
        store(&[], None, 1, &json!({"block_size": 0, "token_ids": []})),
    ]));
    let refused = [(Reason::BlockSize, 2), (Reason::TokenCount, 3), (Reason::NoContent, 1), (Reason::PartialBlock, 1)];
    assert_eq!(stream.refused(), refused);
    assert_eq!((stream.held(), stream.tally.events, stream.tally.stored_blocks), (0, 2, 0));
}

#[test]
fn a_salt_is_inherited_along_the_chain() {
    let mut stream = Stream::new();
    stream.send(&json!([
        store(&[10, 11], None, 1, &json!({"extra_keys": [["s"], null]})),
        plain(&[12], Some(11), 5),
        plain(&[20, 21, 22], None, 1),
    ]));
    assert_eq!((stream.depth(&SIX, None, Some("s")), stream.plain(&SIX)), (3, 3));
    assert_eq!(stream.salted_blocks(), 3);
    // One removal may mix salts.
    stream.send(&json!([remove(&[22, 12], &json!({}))]));
    assert_eq!((stream.depth(&SIX, None, Some("s")), stream.plain(&SIX)), (2, 2));
    stream.send(&json!([plain(&[12], Some(11), 5)]));
    assert_eq!((stream.depth(&SIX, None, Some("s")), stream.plain(&SIX)), (3, 2));
    assert_eq!(stream.depth(&SIX, Some("s"), None), 0);
    assert_eq!(stream.depth(&SIX, None, Some("t")), 0);
}

#[test]
fn a_copy_on_another_tier_does_not_take_a_salt_away() {
    let mut stream = Stream::new();
    let salted = store(&[10], None, 1, &json!({"extra_keys": [["s"]]}));
    let on_host = store(&[10], None, 1, &json!({"medium": "CPU"}));
    stream.send(&json!([salted, on_host, plain(&[11], Some(10), 3)]));
    assert_eq!((stream.depth(&SIX, None, Some("s")), stream.plain(&SIX)), (2, 0));
    // As long as the host has it, it is what it was.
    stream.send(&json!([remove(&[11, 10], &json!({})), store(&[10], None, 1, &json!({"medium": "STORAGE"}))]));
    assert_eq!((stream.depth(&SIX, None, Some("s")), stream.salted_blocks()), (0, 1));
    let any_tier =
        |stream: &Stream, salt| stream.index.find(&hash::content_hashes(&SIX, 2, None, salt)).depth(View::AnyTier);
    assert_eq!((any_tier(&stream, Some("s")), any_tier(&stream, None)), (1, 0));
    // After a pull the host announces it first.
    stream.send(&json!([{"type": CLEAR}, on_host, salted]));
    assert_eq!((stream.depth(&SIX, None, Some("s")), any_tier(&stream, Some("s")), any_tier(&stream, None)), (1, 1, 0));
}

#[test]
fn salts_are_forgotten_with_their_blocks() {
    let mut stream = Stream::new();
    let salted = store(&[10, 11], None, 1, &json!({"extra_keys": [["s"], null]}));
    stream.send(&json!([salted, salted, remove(&[11], &json!({})), remove(&[10], &json!({}))]));
    assert_eq!(stream.salted_blocks(), 2, "a second copy of each is left");
    stream.send(&json!([plain(&[12], Some(11), 5)]));
    assert_eq!(stream.depth(&SIX, None, Some("s")), 3);
    stream.send(&json!([remove(&[12, 11, 10], &json!({}))]));
    assert_eq!((stream.salted_blocks(), stream.held()), (0, 0));
    stream.send(&json!([salted, {"type": CLEAR}]));
    assert_eq!(stream.salted_blocks(), 0);
    stream.send(&json!([salted]));
    stream.reader.reset();
    assert_eq!(stream.salted_blocks(), 0);
}

#[test]
fn salts_of_engines_that_do_not_count() {
    let mut stream = Stream::counting(false);
    let salted = store(&[10, 11], None, 1, &json!({"cache_salt": "s"}));
    stream.send(&json!([salted, salted, remove(&[11, 10], &json!({}))]));
    assert_eq!((stream.salted_blocks(), stream.held()), (0, 0));
}

#[test]
fn salts_outlive_a_tier() {
    let mut stream = Stream::new();
    let salted = store(&[10], None, 1, &json!({"cache_salt": "s"}));
    let offloaded = store(&[10], None, 1, &json!({"cache_salt": "s", "medium": "CPU"}));
    stream.send(&json!([salted, offloaded, remove(&[10], &json!({}))]));
    assert_eq!(stream.salted_blocks(), 1);
    stream.send(&json!([plain(&[11], Some(10), 3), salted]));
    assert_eq!(stream.depth(&SIX, None, Some("s")), 2);
    stream.reader.reset_tier(kvatlas_index::Tier::Gpu);
    assert_eq!(stream.salted_blocks(), 1);
    stream.send(&json!([remove(&[10], &json!({"medium": "cpu"}))]));
    assert_eq!(stream.salted_blocks(), 0);
}

/// A name means one content, so another announcement of a salted block that does not show its salt is under it too.
#[test]
fn a_name_keeps_its_salt() {
    let mut stream = Stream::new();
    stream.send(&json!([
        store(&[10], None, 1, &json!({"cache_salt": "s"})),
        store(&[11], Some(10), 3, &json!({"cache_salt": "s"})),
        remove(&[10], &json!({})),
        plain(&[11], Some(10), 3),
        store(&[10], None, 1, &json!({"cache_salt": "s"})),
    ]));
    assert_eq!(stream.depth(&SIX, None, Some("s")), 2);
    assert_eq!(stream.index.stats().replaced, 0);
}

/// After a late join a chain's beginning is unknown, and with it the salt: no query may find the rest, with or without.
#[test]
fn a_chain_without_its_beginning_counts_for_nobody() {
    let mut stream = Stream::new();
    stream.send(&json!([plain(&[11, 12], Some(10), 3)]));
    assert_eq!((stream.plain(&SIX), stream.plain(&SIX[2..])), (0, 0));
    stream.send(&json!([store(&[10], None, 1, &json!({"extra_keys": [["s"]]}))]));
    assert_eq!((stream.plain(&SIX), stream.depth(&SIX, None, Some("s"))), (0, 1));
}

#[test]
fn adapters_are_kept_apart() {
    let mut stream = Stream::new();
    stream.send(&json!([
        store(&[10, 11], None, 1, &json!({"lora_name": "a", "lora_id": 1, "extra_keys": [["a"], ["a"]]})),
        store(
            &[20, 21, 22],
            None,
            1,
            &json!({"lora_name": "b", "lora_id": 2, "extra_keys": [["b", "s"], ["b"], ["b"]]})
        ),
        store(&[30], None, 1, &json!({"lora_id": 7})),
    ]));
    assert_eq!(stream.plain(&SIX), 0);
    assert_eq!(stream.depth(&SIX, Some("a"), None), 2);
    assert_eq!(stream.depth(&SIX, Some("b"), None), 0);
    assert_eq!(stream.depth(&SIX, Some("b"), Some("s")), 3);
    assert_eq!(stream.depth(&SIX, Some("lora-id:7"), None), 1);
}

#[test]
fn items_and_embeddings_are_part_of_the_content() {
    let mut stream = Stream::new();
    stream.send(&json!([
        store(&[10, 11, 12], None, 1, &json!({"extra_keys": [null, [["image", 1]], [["image", -1], ["next", 1]]]})),
        store(&[21], None, 1, &json!({"extra_keys": [["bin:0102"]]})),
    ]));
    assert_eq!(stream.plain(&SIX), 1, "only the block before the image");
    let image = Key::Item { identifier: "image".into(), offset: 1 };
    let next = Key::Item { identifier: "next".into(), offset: 1 };
    let plain = hash::content_hashes(&SIX[..2], 2, None, None)[0];
    let prompt = |first: &Key, second: [&Key; 2]| {
        [plain, content_hash(&[3, 4], [first], None, None), content_hash(&[5, 6], second, None, None)]
    };
    assert_eq!(stream.contents(&prompt(&image, [&image, &next]), View::Device), 3);
    assert_eq!(stream.contents(&prompt(&image, [&image, &image]), View::Device), 2);
    assert_eq!(stream.contents(&prompt(&next, [&image, &next]), View::Device), 1);
    let embeds = Key::Embeds([1, 2].into());
    assert_eq!(stream.contents(&[content_hash(&[1, 2], [&embeds], None, None)], View::Device), 1);
}

#[test]
fn the_group_with_full_attention_decides() {
    for kind in ["full_attention", "mla_attention", "sink_full_attention"] {
        let mut stream = Stream::new();
        let group = |number: u32, kind: &str| json!({"group_idx": number, "kv_cache_spec_kind": kind});
        stream.send(&json!([store(&[10, 11], None, 1, &group(1, kind))]));
        assert!(!stream.reader.upper_bound());
        stream.send(&json!([
            store(&[10, 11, 12], None, 1, &group(0, "sliding_window")),
            store(&[], None, 1, &json!({"group_idx": 2, "kv_cache_spec_kind": "mamba", "token_ids": [1, 2, 3]})),
            store(&[12], None, 1, &json!({"group_idx": 3, "kv_cache_spec_kind": "what comes", "token_ids": [1, 2, 3]})),
        ]));
        assert!(stream.reader.upper_bound());
        assert_eq!((stream.plain(&SIX), stream.held()), (2, 2));
        // Removals name only the group.
        stream.send(&json!([remove(&[11], &json!({"group_idx": 0})), remove(&[11], &json!({"group_idx": 2}))]));
        assert_eq!(stream.plain(&SIX), 2);
        stream.send(&json!([remove(&[11], &json!({"group_idx": 1}))]));
        assert_eq!(stream.plain(&SIX), 1);
        stream.send(&json!([remove(&[10], &json!({}))]));
        assert_eq!(stream.plain(&SIX), 0);
        assert_eq!(stream.refused(), [(Reason::OtherGroup, 5)]);
        stream.reader.reset();
        assert!(!stream.reader.upper_bound());
    }
}

#[test]
fn groups_of_engines_that_do_not_name_kinds() {
    let mut stream = Stream::new();
    let group = |number: u32| json!({"group_idx": number});
    stream.send(&json!([remove(&[9], &group(1)), store(&[10], None, 1, &group(1))]));
    assert_eq!((stream.plain(&SIX), stream.reader.upper_bound()), (0, true));
    stream.send(&json!([store(&[10], None, 1, &group(0)), store(&[11], Some(10), 3, &json!({}))]));
    assert_eq!((stream.plain(&SIX), stream.held()), (2, 2));
    let mut first = Stream::new();
    first.send(&json!([store(&[10], None, 1, &json!({"group_idx": 0, "kv_cache_spec_kind": "unknown"}))]));
    assert_eq!((first.plain(&SIX), first.reader.upper_bound()), (1, false));
    // Learned from a kind, then left out of later events.
    let mut learned = Stream::new();
    learned.send(&json!([
        store(&[10], None, 1, &json!({"group_idx": 0, "kv_cache_spec_kind": "mamba"})),
        store(&[10], None, 1, &group(0)),
        store(&[10], None, 1, &json!({"group_idx": 2, "kv_cache_spec_kind": "full_attention"})),
        store(&[11], Some(10), 3, &group(2)),
    ]));
    assert_eq!((learned.plain(&SIX), learned.held()), (2, 2));
}

#[test]
fn of_several_groups_with_full_attention_one_is_counted() {
    let mut stream = Stream::new();
    let group = |number: u32| json!({"group_idx": number, "kv_cache_spec_kind": "full_attention"});
    stream.send(&json!([store(&[10], None, 1, &group(0)), store(&[10], None, 1, &group(1))]));
    assert!(stream.reader.upper_bound());
    stream.send(&json!([remove(&[10], &json!({"group_idx": 0}))]));
    assert_eq!(stream.plain(&SIX), 0);
}

#[test]
fn tiers() {
    let mut stream = Stream::new();
    stream.send(&json!([
        plain(&[10], None, 1),
        store(&[10, 11], None, 1, &json!({"medium": "cpu"})),
        store(&[12], Some(11), 5, &json!({"medium": "STORAGE", "locality": "REMOTE"})),
    ]));
    assert_eq!((stream.plain(&SIX), stream.anywhere(&SIX)), (1, 3));
    stream.send(&json!([remove(&[12], &json!({"medium": "STORAGE"})), remove(&[10], &json!({}))]));
    assert_eq!((stream.plain(&SIX), stream.anywhere(&SIX)), (0, 3));
    stream.send(&json!([remove(&[12], &json!({"medium": "STORAGE", "locality": "REMOTE"}))]));
    assert_eq!(stream.anywhere(&SIX), 2);
    // A clear concerns all tiers: it is better to miss an offloaded block than to promise one.
    stream.send(&json!([[CLEAR]]));
    assert_eq!((stream.anywhere(&SIX), stream.held()), (0, 0));
}

#[test]
fn a_clear_is_of_its_rank_alone() {
    let mut stream = Stream::new();
    let other = hash::content_hashes(&[1, 2], 2, None, None);
    stream.index.store("w", 4, kvatlas_index::Tier::Gpu, None, &[1.into()], &other).expect("room");
    stream.send(&json!([plain(&[10], None, 1), [CLEAR]]));
    assert_eq!(stream.plain(&SIX), 1);
}

/// Speculative decoding: the first tokens of the pairs are the block's content, and what the last one looks ahead to
/// is not known to a query, which is what the upper bound says.
#[test]
fn pairs_and_lookahead_are_an_upper_bound() {
    let pairs = json!({"token_ids": [[1, 2], [2, 3], [3, 4], [4, 5]]});
    let ahead = json!({"lookahead_token_ids": [[3], [5]]});
    for more in [pairs, ahead] {
        let mut stream = Stream::new();
        stream.send(&json!([plain(&[9], None, 70)]));
        assert!(!stream.reader.upper_bound());
        stream.send(&json!([store(&[10, 11], None, 1, &more)]));
        assert_eq!(stream.plain(&SIX), 2);
        assert!(stream.reader.upper_bound());
    }
}

#[test]
fn blocks_offloaded_by_name_alone_are_what_the_rank_holds_under_the_name() {
    let by_name = |names: &[i64]| store(names, None, 1, &json!({"block_size": 0, "token_ids": [], "medium": "CPU"}));
    let mut stream = Stream::new();
    stream.send(&json!([store(&[10, 11, 12], None, 1, &json!({"cache_salt": "red"}))]));
    stream.send(&json!([by_name(&[10, 99, 11])]));
    assert_eq!((stream.refused(), stream.reader.undescribed()), (vec![], 1));
    assert_eq!(stream.tally.stored_blocks, 5);
    stream.send(&json!([remove(&[12, 11, 10], &json!({}))]));
    let red = hash::content_hashes(&SIX, BLOCK as usize, None, Some("red"));
    assert_eq!(View::ALL.map(|view| stream.contents(&red, view)), [0, 2, 2, 2]);
    // The salt is still known: it goes on with the chain.
    stream.send(&json!([plain(&[12], Some(11), 5)]));
    assert_eq!(stream.contents(&red, View::Host), 3);
    stream.send(&json!([remove(&[10], &json!({"medium": "CPU"}))]));
    assert_eq!(stream.contents(&red, View::AnyTier), 0);
    stream.send(&json!([remove(&[11], &json!({"medium": "CPU"})), remove(&[12], &json!({}))]));
    assert_eq!((stream.held(), stream.salted_blocks()), (0, 0));
}

/// An engine that pulls has blocks in host memory before it has them on its device, whose events describe them.
#[test]
fn blocks_that_are_described_later_count_from_then_on() {
    let more = json!({"block_size": 0, "token_ids": [], "medium": "CPU"});
    let by_name = |names: &[i64]| store(names, None, 1, &more);
    let red = hash::content_hashes(&SIX, BLOCK as usize, None, Some("red"));
    let described = store(&[10, 11, 12], None, 1, &json!({"cache_salt": "red"}));
    let mut stream = Stream::new();
    stream.send(&json!([by_name(&[10, 11, 12, 77])]));
    assert_eq!((stream.held(), stream.reader.undescribed()), (0, 4));
    stream.send(&json!([remove(&[12], &json!({"medium": "CPU"})), described]));
    assert_eq!((stream.reader.undescribed(), stream.tally.stored_blocks, stream.tally.named_blocks), (1, 5, 4));
    let depths = |stream: &Stream| View::ALL.map(|view| stream.contents(&red, view));
    assert_eq!(depths(&stream), [3, 3, 3, 3]);
    // The copies in host memory have the salt, too, which what continues them inherits.
    stream.send(&json!([remove(&[12, 11, 10], &json!({})), plain(&[12], Some(11), 5)]));
    assert_eq!(depths(&stream), [0, 3, 3, 3]);
    // What is gone before it is described is not there then, nor is what a reset takes along.
    for gone in [json!([remove(&[10, 11, 12], &json!({"medium": "CPU"}))]), json!([{"type": CLEAR}])] {
        let mut stream = Stream::new();
        stream.send(&json!([by_name(&[10, 11, 12])])).send(&gone).send(&json!([described]));
        assert_eq!((stream.held(), stream.reader.undescribed()), (3, 0));
        stream.send(&json!([remove(&[10, 11, 12], &json!({}))]));
        assert_eq!(stream.held(), 0, "{gone}");
    }
    // A state goes on where another one ended.
    let mut stream = Stream::new();
    stream.send(&json!([by_name(&[10])]));
    let state = stream.reader.state().expect("not of a hybrid model");
    let mut stream = Stream { reader: Reader::new(BLOCK).with_state(state), ..Stream::new() };
    stream.send(&json!([described, remove(&[12, 11, 10], &json!({}))]));
    assert_eq!(depths(&stream), [0, 1, 1, 1]);
}

#[test]
fn what_a_pool_has_by_name_alone_stays_after_a_reset() {
    let mut stream = Stream::new();
    stream.index.add_pool(SharedPool {
        name: "folder".into(),
        members: Members::Named(vec!["w".into()]),
        tier: Tier::External,
        chunk: Some(NonZeroU32::MIN),
        announces_removals: false,
        lifetime: None,
        room: None,
        evicts: EvictionOrder::Announced,
        follows_store: false,
        from_beginning: false,
    });
    let more = json!({"block_size": 0, "token_ids": [], "medium": "STORAGE", "locality": "REMOTE"});
    stream.send(&json!([store(&[10, 11], None, 1, &more), {"type": CLEAR}, plain(&[10, 11, 12], None, 1)]));
    stream.send(&json!([remove(&[12, 11, 10], &json!({}))]));
    let found = stream.index.find_loadable(&hash::content_hashes(&SIX, BLOCK as usize, None, None));
    assert_eq!(found.iter().map(Loadable::depth).collect::<Vec<_>>(), [2]);
}

#[test]
fn chunks_by_the_name_of_their_last_block_are_as_long_as_was_told() {
    let by_name =
        |name: i64, medium: &str| store(&[name], None, 1, &json!({"block_size": 0, "token_ids": [], "medium": medium}));
    for (told, host) in [(None, 0), (NonZeroU32::new(3), 3), (NonZeroU32::new(2), 0)] {
        let mut stream = Stream::new();
        stream.reader = Reader::new(BLOCK).chunking(told);
        stream.send(&json!([plain(&[10, 11, 12], None, 1), by_name(12, "CPU"), remove(&[12, 11, 10], &json!({}))]));
        let found = stream.index.find_loadable(&hash::content_hashes(&SIX, BLOCK as usize, None, None));
        assert_eq!(found[0].host, host, "{told:?}");
        assert_eq!(stream.reader.chunks()[0], told.map_or(0, NonZeroU32::get));
    }
    // The registered length of host memory's chunks counts for other tiers until their stores show otherwise.
    let mut stream = Stream::new();
    stream.reader = Reader::new(BLOCK).chunking(NonZeroU32::new(3));
    stream.send(&json!([
        plain(&[10, 11, 12], None, 1),
        by_name(12, "STORAGE"),
        store(&[10, 11], None, 1, &json!({"medium": "CPU"}))
    ]));
    assert_eq!(stream.reader.chunks(), [3, 3, 0]);
    stream.send(&json!([store(&[10, 11], None, 1, &json!({"medium": "STORAGE"}))]));
    assert_eq!(stream.reader.chunks(), [3, 1, 0]);
    let state = stream.reader.state().expect("not of a hybrid model");
    assert_eq!(Reader::new(BLOCK).with_state(state).chunks(), [3, 1, 0]);
}

/// vLLM 0.11 sends arrays of seven or eight elements: a salted prompt looks like one without a salt.
#[test]
fn stores_without_a_place_for_salts() {
    let short = |name: u64| json!(["BlockStored", [name], null, [1, 2], BLOCK, null, "GPU", null]);
    let mut stream = Stream::new();
    assert_eq!(stream.reader.shows_salts(), None);
    stream.send(&json!([short(10)]));
    assert_eq!((stream.plain(&SIX), stream.reader.shows_salts()), (1, Some(false)));
    stream.send(&json!([remove(&[10], &json!({}))]));
    assert_eq!(stream.reader.shows_salts(), Some(false));
    // Those of SGLang grow a map when there is a salt: then the others had none.
    stream.send(&json!([["BlockStored", [11], null, [1, 2], BLOCK, null, "GPU", {"cache_salt": "s"}]]));
    assert_eq!(stream.reader.shows_salts(), Some(true));
    stream.send(&json!([short(12)]));
    assert_eq!(stream.reader.shows_salts(), Some(true));
    stream.reader.reset();
    assert_eq!(stream.reader.shows_salts(), None);
    // Later arrays have the place, empty or not, and maps need none.
    for with_place in [
        json!(["BlockStored", [10], null, [1, 2], BLOCK, null, "GPU", null, null]),
        json!(["BlockStored", [10], null, [1, 2], BLOCK, null, "GPU", null, [["s"]], 0]),
        plain(&[10], None, 1),
    ] {
        let mut stream = Stream::new();
        stream.send(&json!([with_place]));
        assert_eq!((stream.held(), stream.reader.shows_salts()), (1, Some(true)), "{with_place}");
    }
}

/// A hit, as an engine in full report mode announces it (proposed for vLLM in vllm-project/vllm#51699).
fn reused(names: &[i64], parent: Option<i64>, first: u32) -> Value {
    store(names, parent, first, &json!({"origin": "REUSED"}))
}

#[test]
fn what_was_hit_has_no_more_copies() {
    let mut stream = Stream::new();
    stream.send(&json!([plain(&[10, 11, 12], None, 1)]));
    stream.send(&json!([reused(&[10, 11], None, 1), reused(&[10, 11, 12], None, 1)]));
    assert_eq!((stream.plain(&SIX), stream.tally.reused_blocks), (3, 5));
    stream.send(&json!([remove(&[12], &json!({})), remove(&[11], &json!({}))]));
    assert_eq!(stream.plain(&SIX), 1);
    // A second copy that was written stays one: a hit takes none away.
    stream.send(&json!([store(&[10], None, 1, &json!({"origin": "NEW"})), reused(&[10], None, 1)]));
    stream.send(&json!([remove(&[10], &json!({}))]));
    assert_eq!(stream.plain(&SIX), 1);
    stream.send(&json!([remove(&[10], &json!({}))]));
    assert_eq!((stream.plain(&SIX), stream.held()), (0, 0));
    // Of what was never announced a hit shows that it is held, once.
    stream.send(&json!([reused(&[10, 11], None, 1), reused(&[10], None, 1)]));
    assert_eq!(stream.plain(&SIX), 2);
    stream.send(&json!([remove(&[11], &json!({})), remove(&[10], &json!({}))]));
    assert_eq!(stream.held(), 0);
}

#[test]
fn what_was_hit_under_a_salt_keeps_it_as_long_as_its_copies() {
    let mut stream = Stream::new();
    let salted = |origin: &str| store(&[10], None, 1, &json!({"extra_keys": [["tenant"]], "origin": origin}));
    stream.send(&json!([salted("NEW"), salted("NEW"), salted("REUSED"), remove(&[10], &json!({}))]));
    stream.send(&json!([plain(&[11], Some(10), 3)]));
    assert_eq!(stream.depth(&SIX, None, Some("tenant")), 2);
}

const DIGEST: &str = "9b2d6c1f0a7e4835b6d09c8e7f61a2349b2d6c1f0a7e4835b6d09c8e7f61a234";
const OTHER: &str = "sha256:00ff6c1f0a7e4835b6d09c8e7f61a234";

fn adapted(names: &[i64], parent: Option<i64>, first: u32, keys: &Value) -> Value {
    store(names, parent, first, &json!({"lora_name": "sql", "extra_keys": keys}))
}

#[test]
fn digests_of_adapters_are_no_salts() {
    let forms = [
        json!([["sql", DIGEST], ["sql", DIGEST]]),
        json!([["lora", "sql", "lora_identity", DIGEST], ["lora", "sql", "lora_identity", DIGEST]]),
        json!([[["lora", "sql"], ["lora_identity", DIGEST]], [["lora", "sql"], ["lora_identity", DIGEST]]]),
    ];
    for keys in forms {
        let mut stream = Stream::new();
        stream
            .send(&json!([adapted(&[10, 11], None, 1, &keys), adapted(&[12], Some(11), 5, &json!([["sql", DIGEST]]))]));
        assert_eq!(stream.depth(&SIX, Some("sql"), None), 3, "{keys}");
        assert_eq!((stream.tally.adapter_digests, stream.tally.unsure_keys), (2, 0), "{keys}");
        assert!(!stream.reader.upper_bound());
    }
}

#[test]
fn a_digest_and_a_salt_are_told_apart() {
    let mut stream = Stream::new();
    let both = json!([["sql", DIGEST, "tenant"], ["sql", DIGEST]]);
    stream.send(&json!([adapted(&[10, 11], None, 1, &both), adapted(&[12], Some(11), 5, &json!([["sql", DIGEST]]))]));
    assert_eq!(stream.depth(&SIX, Some("sql"), Some("tenant")), 3);
    assert_eq!(stream.depth(&SIX, Some("sql"), None), 0);
    // One block may have either; here the engine has shown that it tells digests.
    stream.send(&json!([adapted(&[20], None, 7, &json!([["sql", DIGEST]]))]));
    assert_eq!((stream.depth(&[7, 8], Some("sql"), None), stream.tally.unsure_keys), (1, 0));
    // And here that it does not, so what looks like a digest is a salt, which stands in the first block alone.
    let mut stream = Stream::new();
    stream.send(&json!([adapted(&[10, 11], None, 1, &json!([["sql", DIGEST], ["sql"]]))]));
    stream.send(&json!([adapted(&[20], None, 7, &json!([["sql", DIGEST]]))]));
    assert_eq!(stream.depth(&SIX, Some("sql"), Some(DIGEST)), 2);
    assert_eq!(stream.depth(&[7, 8], Some("sql"), Some(DIGEST)), 1);
    assert_eq!((stream.tally.adapter_digests, stream.tally.unsure_keys), (0, 0));
}

#[test]
fn what_may_be_a_digest_or_a_salt_is_marked() {
    let mut stream = Stream::new();
    stream.send(&json!([adapted(&[10], None, 1, &json!([["sql", DIGEST]]))]));
    assert_eq!((stream.depth(&SIX, Some("sql"), None), stream.tally.unsure_keys), (1, 1));
    // Without an adapter there is no digest of one.
    stream.send(&json!([store(&[20], None, 7, &json!({"extra_keys": [[DIGEST]]}))]));
    assert_eq!(stream.depth(&[7, 8], None, Some(DIGEST)), 1);
    assert_eq!(stream.tally.unsure_keys, 1);
}

#[test]
fn an_adapter_that_is_loaded_anew_makes_depths_bounds() {
    let mut stream = Stream::new();
    stream.send(&json!([adapted(&[10, 11], None, 1, &json!([["sql", DIGEST], ["sql", DIGEST]]))]));
    assert!(!stream.reader.upper_bound());
    stream.send(&json!([adapted(&[20, 21], None, 1, &json!([["sql", OTHER], ["sql", OTHER]]))]));
    assert!(stream.reader.upper_bound());
}

#[test]
fn a_block_that_is_not_full_costs_itself() {
    let mut stream = Stream::new();
    // Two full ones and a part of a third.
    stream.send(&json!([store(&[10, 11, 12], None, 1, &json!({"token_ids": [1, 2, 3, 4, 5]}))]));
    assert_eq!((stream.plain(&SIX), stream.held()), (2, 2));
    // Parts alone, of the index's size and of a smaller one.
    stream.send(&json!([store(&[20], Some(11), 5, &json!({"token_ids": [5]}))]));
    stream.send(&json!([store(&[21], Some(11), 5, &json!({"token_ids": [5], "block_size": 1}))]));
    assert_eq!((stream.plain(&SIX), stream.held()), (2, 2));
    assert_eq!(stream.refused(), [(Reason::PartialBlock, 3)]);
    assert_eq!(stream.reader.other_size(), None);
    // The full one takes its place.
    stream.send(&json!([remove(&[12], &json!({})), plain(&[13], Some(11), 5)]));
    assert_eq!(stream.plain(&SIX), 3);
}

#[test]
fn the_size_that_most_blocks_have_is_known() {
    let mut stream = Stream::new();
    let sized = |names: &[i64], size: u32| {
        let tokens: Vec<u32> = (1..=size * names.len() as u32).collect();
        store(names, None, 1, &json!({"block_size": size, "token_ids": tokens}))
    };
    stream.send(&json!([sized(&[1], 1), sized(&[2, 3, 4], 8), sized(&[5], 4)]));
    assert_eq!(stream.reader.other_size(), Some((8, 3)));
    assert_eq!(stream.refused(), [(Reason::BlockSize, 2), (Reason::PartialBlock, 1)]);
}
