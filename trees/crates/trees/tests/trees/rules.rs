//! Tests of single rules of the trees.

use kvatlas_trees::string_tree::StringTree;
use kvatlas_trees::token_tree::TokenTree;
use kvatlas_trees::{EvictionPolicy, GLOBAL_EVICTION_HASH, TreeError, hash_node_path};

fn sizes(tree: &StringTree) -> Vec<(String, usize)> {
    assert_eq!(tree.recount(), tree.tenant_sizes());
    tree.tenant_sizes().into_iter().map(|(name, n)| (name.to_string(), n)).collect()
}

fn depths(tree: &StringTree, key: &str) -> Vec<(String, usize)> {
    tree.match_all(key).into_iter().map(|(name, n)| (name.to_string(), n)).collect()
}

#[test]
fn nothing_matches_nobody() {
    let tree = StringTree::new();
    tree.insert_text("", "w0");
    assert_eq!((tree.tenant_count(), tree.node_count()), (0, 0));
    tree.insert_text("abc", "w0");
    for key in ["", "x", "é"] {
        let found = tree.match_prefix_with_counts(key);
        assert_eq!((found.tenant, found.matched, found.input), (None, 0, key.chars().count()));
        assert_eq!(tree.prefix_match(key), None);
        assert_eq!(tree.prefix_match_legacy(key), ("", None));
    }
    assert_eq!(tree.prefix_match_legacy("abx"), ("ab", Some("w0".into())));
}

#[test]
fn characters_are_never_divided() {
    let tree = StringTree::new();
    tree.insert_text("静かな海", "w0");
    // The second character differs from the stored one in its last byte only.
    tree.insert_text("静がx", "w1");
    assert_eq!(depths(&tree, "静かな山"), [("w0".into(), 3), ("w1".into(), 1)]);
    assert_eq!(sizes(&tree), [("w0".into(), 4), ("w1".into(), 3)]);
    let paths: Vec<String> = tree.iter_entries().map(|e| e.path).collect();
    assert_eq!(paths, ["静", "静かな海", "静がx"]);
    // Composed and decomposed are different texts.
    tree.insert_text("caf\u{e9}", "w0");
    assert_eq!(tree.match_prefix_with_counts("cafe\u{301}").matched, 3);
}

#[test]
fn pages_and_both_lengths() {
    let tree = TokenTree::new();
    let tokens: Vec<u32> = (0..31).collect();
    tree.insert_tokens(&tokens[..15], "w0");
    assert_eq!(tree.tenant_count(), 0);
    tree.insert_tokens(&tokens, "w0");
    let found = tree.match_prefix_with_counts(&tokens);
    assert_eq!((found.matched, found.paged, found.input), (16, 16, 31));
    assert!((found.hit_ratio() - 16.0 / 31.0).abs() < 1e-12 && (found.paged_ratio() - 1.0).abs() < 1e-12);
    let mut other = tokens.clone();
    other[14] = 99;
    assert_eq!(tree.match_prefix_with_counts(&other).matched, 0);
    for page in [1, 2, 4, 8, 16, 32, 64, 128] {
        let tree = TokenTree::with_config(page, EvictionPolicy::Lru).unwrap();
        let tokens: Vec<u32> = (0..400).collect();
        tree.insert_tokens(&tokens, "w0");
        assert_eq!((tree.page_size(), tree.tenant_size("w0")), (page, 400 / page * page));
        assert_eq!(tree.match_prefix_with_counts(&tokens[..200]).matched, 200 / page * page);
    }
    for page in [0, 3, 12, 129, 256, usize::MAX] {
        let refused = TokenTree::with_config(page, EvictionPolicy::Lru).unwrap_err();
        assert_eq!((refused.code(), refused), ("invalid_page_size", TreeError::PageSize { got: page }));
    }
}

#[test]
fn the_answer_stays_with_who_has_held_it_longest() {
    let tree = StringTree::new();
    tree.insert_text("shared prompt", "w1");
    tree.insert_text("shared prompt", "w0");
    tree.insert_text("shared program", "w2");
    for _ in 0..3 {
        assert_eq!(tree.prefix_match("shared prompt").as_deref(), Some("w1"));
        // The upper part of the split has the data, too.
        assert_eq!(tree.prefix_match("shared pr").as_deref(), Some("w1"));
    }
    tree.remove_tenant("w1");
    assert_eq!(tree.prefix_match("shared prompt").as_deref(), Some("w0"));
    assert_eq!(tree.prefix_match("shared program").as_deref(), Some("w2"));
}

#[test]
fn inserting_again_adds_nothing() {
    let tree = TokenTree::new();
    let tokens: Vec<u32> = (0..1024).collect();
    for _ in 0..1000 {
        tree.insert_tokens(&tokens, "w0");
        tree.insert_tokens(&tokens[..64], "w0");
    }
    assert_eq!((tree.tenant_size("w0"), tree.total_size()), (1024, 1024));
    assert_eq!(tree.evict_tenant("w0", 10_000), 0);
}

#[test]
fn a_match_keeps_what_it_finds() {
    let tree = StringTree::new();
    tree.insert_text("first text", "w0");
    tree.insert_text("second text", "w0");
    assert_eq!(tree.match_prefix_with_counts("first te").matched, 8);
    // A query for all tenants is not an access.
    assert_eq!(tree.match_all("second text").len(), 1);
    assert_eq!(tree.evict_tenant("w0", 10), 11);
    assert_eq!(tree.match_prefix_with_counts("first text").matched, 10);
}

#[test]
fn shared_nodes_do_not_stop_an_eviction() {
    let tree = StringTree::new();
    for tenant in ["w0", "w1"] {
        tree.insert_text("aaaa", tenant);
        tree.insert_text("aaaabbbb", tenant);
    }
    assert_eq!(tree.evict_tenant("w0", 0), 8);
    assert_eq!(sizes(&tree), [("w1".into(), 8)]);
    assert_eq!(tree.node_count(), 2);
    assert!(!tree.contains_tenant("w0"));
}

#[test]
fn evicted_memory_comes_back() {
    let tree = StringTree::new();
    let empty = tree.bytes();
    let mut text = "a prefix of some length, ".repeat(40);
    for i in 0..3000 {
        text.push_str(&format!("{i}, "));
        tree.insert_text(&text[..text.len().min(4000) - i % 7], &format!("w{}", i % 50));
        tree.insert_text(&format!("{i}{text}"), &format!("w{}", i % 50));
    }
    let full = tree.bytes();
    tree.evict_to_size(tree.total_size() / 10);
    assert!(tree.bytes() * 4 < full, "{} of {full}", tree.bytes());
    for tenant in tree.tenants() {
        tree.remove_tenant(&tenant);
    }
    assert_eq!((tree.node_count(), tree.tenant_count(), tree.total_size()), (0, 0, 0));
    // The pair code remains, and a list of nodes.
    assert!(tree.bytes() < empty + (400 << 10), "{}", tree.bytes());
}

#[test]
fn a_cut_off_run_does_not_stay_in_memory() {
    let tree = TokenTree::with_config(1, EvictionPolicy::Lru).unwrap();
    let tokens: Vec<u32> = (0..100_000).collect();
    tree.insert_tokens(&tokens, "w0");
    for n in [10, 200, 3000] {
        tree.insert_tokens(&tokens[..n], "w0");
    }
    assert!(tree.bytes() > 200_000);
    tree.evict_tenant("w0", 3000);
    assert_eq!(tree.tenant_size("w0"), 3000);
    assert!(tree.bytes() < 20_000, "{}", tree.bytes());
    assert_eq!(tree.match_prefix_with_counts(&tokens).matched, 3000);
    tree.evict_tenant("w0", 200);
    assert_eq!(tree.match_prefix_with_counts(&tokens).matched, 200);
}

#[test]
fn a_small_budget_keeps_what_fits_however_much_has_passed() {
    let tree = StringTree::new();
    tree.set_budget_bytes(Some(100_000));
    for number in 0..400 {
        tree.insert_text(&format!("{number} {}", "some words of a prompt ".repeat(40)), "a");
    }
    assert!(tree.bytes() <= 100_000 && tree.total_size() > 20_000, "{} bytes, {}", tree.bytes(), tree.total_size());
}

#[test]
fn a_budget_holds_at_every_insert() {
    let tree = StringTree::new();
    tree.set_budget_bytes(Some(100_000));
    for i in 0..2000 {
        tree.insert_text(&format!("{i} {}", "some words ".repeat(i % 90)), &format!("w{}", i % 5));
        assert!(tree.bytes() <= 100_000 || tree.node_count() == 0, "{} bytes", tree.bytes());
        assert_eq!(tree.budget_bytes(), Some(100_000));
    }
    tree.set_budget_bytes(Some(10_000));
    // The learnt tables are larger than the budget.
    assert!(tree.bytes() <= 10_000 || tree.node_count() == 0);
    tree.set_budget_bytes(None);
    tree.insert_text("x", "w0");
    assert!(tree.contains_tenant("w0"));
}

#[test]
fn hashes_evict_paths() {
    let tree = StringTree::new();
    for tenant in ["w0", "w1"] {
        tree.insert_text("sys", tenant);
        tree.insert_text("sys user one", tenant);
        tree.insert_text("sys user two", tenant);
    }
    assert_eq!(tree.evict_by_path_hash(hash_node_path("sys us"), None), 0);
    assert_eq!(tree.evict_by_path_hash(hash_node_path("sys user one"), Some("w0")), 3);
    assert_eq!(tree.evict_by_path_hash(hash_node_path("sys user one"), Some("w0")), 0);
    assert_eq!(tree.evict_by_path_hash(hash_node_path("sys user "), None), 6 + 6 + 3 + 3 + 3);
    assert_eq!(sizes(&tree), [("w0".into(), 3), ("w1".into(), 3)]);
    assert_eq!(tree.evict_by_path_hash(GLOBAL_EVICTION_HASH, Some("w1")), 3);
    assert_eq!(tree.evict_by_path_hash(GLOBAL_EVICTION_HASH, None), 3);
    assert_eq!((tree.node_count(), tree.tenant_count()), (0, 0));
}

#[test]
fn a_callback_may_use_the_tree() {
    let tree = StringTree::new();
    tree.insert_text("abc", "w0");
    let found = tree.match_and_insert_with("abcdef", |found| {
        assert_eq!((found.matched, found.input), (3, 6));
        // Another insert and an eviction between the match and its insert.
        tree.insert_text("abcdxx", "w1");
        tree.remove_tenant("w0");
        Some(String::from("w2"))
    });
    assert_eq!((found.tenant.as_deref(), found.matched), (Some("w0"), 3));
    assert_eq!(depths(&tree, "abcdef"), [("w2".into(), 6), ("w1".into(), 4)]);
    assert_eq!(sizes(&tree), [("w1".into(), 6), ("w2".into(), 6)]);
    let failed = tree.try_match_and_insert_with("abcdef!", |_| Err::<Option<&str>, _>("no"));
    assert_eq!(failed, Err("no"));
    tree.match_and_insert_with("abcdef!", |_| None::<&str>);
    assert_eq!(tree.total_size(), 12);
}

/// Splits the edge at the end of a match, or moves it to another run, before the insert that follows the match.
#[test]
fn an_edge_may_change_between_match_and_insert() {
    let long = "abcdefgh".repeat(40);
    let tree = StringTree::new();
    tree.insert_text(&long, "w0");
    let found = tree.match_and_insert_with("abcdXX", |_| {
        tree.insert_text("abYY", "w1");
        Some("w2")
    });
    assert_eq!(found.matched, 4);
    let paths: Vec<String> = tree.iter_entries().map(|e| e.path).collect();
    assert_eq!(paths, ["ab", "abYY", "abcd", "abcdXX", &long]);
    assert_eq!(sizes(&tree), [("w0".into(), 320), ("w1".into(), 4), ("w2".into(), 6)]);

    let tree = StringTree::new();
    for end in [100, 320] {
        tree.insert_text(&long[..end], "w0");
    }
    let found = tree.match_and_insert_with(&format!("{}!", &long[..90]), |_| {
        assert_eq!(tree.evict_tenant("w0", 100), 220);
        Some("w1")
    });
    assert_eq!((found.matched, tree.match_prefix_with_counts(&long).matched), (90, 100));
    assert_eq!(sizes(&tree), [("w0".into(), 100), ("w1".into(), 91)]);
}

#[test]
fn policies_by_name() {
    for policy in EvictionPolicy::ALL {
        assert_eq!(policy.as_str().parse::<EvictionPolicy>(), Ok(policy));
    }
    assert_eq!("LRU".parse::<EvictionPolicy>().unwrap_err().code(), "unknown_policy");
}

#[test]
fn numbers_of_tenants_come_back() {
    let tree = StringTree::new();
    for i in 0..20_000 {
        let tenant = format!("http://worker-{i}");
        tree.insert_text("hello", &tenant);
        tree.remove_tenant(&tenant);
    }
    assert_eq!(tree.tenant_count(), 0);
    assert!(tree.bytes() < 4_000, "{}", tree.bytes());
}

#[test]
fn wide_nodes_find_and_forget() {
    let tree = TokenTree::with_config(2, EvictionPolicy::Lru).unwrap();
    for i in 0..5_000u32 {
        tree.insert_tokens(&[7, i, i, i], "w0");
    }
    assert_eq!(tree.node_count(), 5_000);
    for i in 0..5_000u32 {
        assert_eq!(tree.match_prefix_with_counts(&[7, i, i, i]).matched, 4);
        assert_eq!(tree.match_prefix_with_counts(&[7, i + 5_000]).matched, 0);
    }
    let paths: Vec<Vec<u32>> = tree.iter_entries().map(|e| e.path).collect();
    assert!(paths.is_sorted() && paths.len() == 5_000);
    assert_eq!(tree.evict_tenant("w0", 400), 20_000 - 400);
    assert_eq!(tree.match_prefix_with_counts(&[7, 4_999, 4_999, 4_999]).matched, 4);
    assert_eq!(tree.match_prefix_with_counts(&[7, 1, 1, 1]).matched, 0);
}

/// Builds a million levels on a small stack, which recursion by level would overflow.
#[test]
fn a_million_levels() {
    let deep = || {
        let tree = TokenTree::with_config(1, EvictionPolicy::Lru).unwrap();
        let levels = 1 << 20;
        // Inserting each prefix of one key would take too long: a snapshot of the chain is read instead.
        let snapshot = chain(levels);
        let tokens = vec![5u32; levels];
        let read = TokenTree::from_snapshot(&snapshot).unwrap();
        assert_eq!(read.node_count(), levels);
        assert_eq!(read.snapshot(), snapshot);
        assert_eq!(read.match_prefix_with_counts(&tokens).matched, levels);
        assert_eq!(read.match_all(&tokens).len(), 1);
        assert_eq!(read.iter_entries().take(1000).last().map(|e| e.path.len()), Some(1000));
        let below = kvatlas_trees::hash_token_path(&tokens[..levels / 2]);
        assert_eq!(read.evict_by_path_hash(below, None), levels / 2 + 1);
        assert_eq!(read.evict_tenant("w", 1000), levels / 2 - 1 - 1000);
        tree.insert_tokens(&tokens, "w");
        drop(read);
        assert_eq!(tree.remove_tenant("w"), levels);
    };
    std::thread::Builder::new().stack_size(256 << 10).spawn(deep).unwrap().join().unwrap();
}

/// Snapshot of a chain of nodes with one token each.
fn chain(levels: usize) -> Vec<u8> {
    let mut out = b"KVAT\x01T\x01\x00".to_vec();
    // One tenant "w", one top node.
    out.extend([1, 1, b'w', 1]);
    for level in 0..levels {
        // Token 5; one holder: number 0, since 1, accessed 1 by the last, one hit there, priority 0; children.
        let last = level + 1 == levels;
        out.extend([1, 5, 1, 0, 1, u8::from(last), u8::from(last), 0, u8::from(!last)]);
    }
    // One tick.
    out.push(1);
    let sum = xxhash_rust::xxh3::xxh3_64(&out);
    out.extend(sum.to_le_bytes());
    out
}
