//! StringTree and TokenTree against a plain model, under random operations, from many threads, and from bad bytes. Tests of
//! snapshots are in this file: the same tree gives the same bytes, and other bytes are refused or give a sound tree.

mod concurrent;
mod histories;
mod model;
mod rules;

use kvatlas_trees::string_tree::StringTree;
use kvatlas_trees::token_tree::TokenTree;
use xxhash_rust::xxh3::xxh3_64;

use kvatlas_testing::Random;

fn filled() -> StringTree {
    let tree = StringTree::new();
    let mut rng = Random(11);
    for i in 0..60 {
        let text: String = (0..rng.index(12)).map(|_| ["ab", "é", "静か", "xyz "][rng.index(4)]).collect();
        tree.insert_text_with_priority(&text, &format!("w{}", i % 5), i - 30);
        let _ = tree.prefix_match(&text);
    }
    tree
}

#[test]
fn order_of_history_does_not_show() {
    let tree = filled();
    let bytes = tree.snapshot();
    assert_eq!(tree.snapshot(), bytes);
    let again = StringTree::from_snapshot(&bytes).unwrap();
    assert_eq!(again.snapshot(), bytes);
    assert_eq!(again.tenant_sizes(), tree.tenant_sizes());
    assert_eq!(again.recount(), tree.recount());
    assert_eq!(again.iter_entries().collect::<Vec<_>>(), tree.iter_entries().collect::<Vec<_>>());
    let empty = StringTree::new().snapshot();
    assert_eq!(StringTree::from_snapshot(&empty).unwrap().node_count(), 0);
}

#[test]
fn shared_prefixes_are_written_once() {
    let tree = StringTree::new();
    let prefix = "all of them begin with this. ".repeat(300);
    (0..100).for_each(|i| tree.insert_text(&format!("{prefix}{i}"), "w0"));
    assert!(tree.snapshot().len() < prefix.len() + 100 * 20);
}

#[test]
fn every_flipped_bit_and_every_cut_is_refused() {
    let bytes = filled().snapshot();
    for at in 0..bytes.len() {
        let mut bad = bytes.clone();
        bad[at] ^= 1 << (at % 8);
        let refused = StringTree::from_snapshot(&bad).unwrap_err();
        assert_eq!(refused.code(), "invalid_snapshot");
        assert!(StringTree::from_snapshot(&bytes[..at]).is_err());
    }
    assert!(StringTree::from_snapshot(&[&bytes[..], b"x"].concat()).is_err());
    assert!(TokenTree::from_snapshot(&bytes).is_err());
}

/// With a corrected checksum, only snapshots that the tree could not handle are refused.
#[test]
fn what_gets_past_the_checksum_is_refused_or_sound() {
    let text = filled().snapshot();
    let tokens = {
        let tree = TokenTree::new();
        (0..40u32).for_each(|i| tree.insert_tokens(&[i % 3; 48][..16 + 16 * (i as usize % 3)], &format!("w{}", i % 4)));
        tree.snapshot()
    };
    let mut rng = Random(5);
    let (mut read, mut refused) = (0, 0);
    for round in 0..30_000 {
        let source = if round % 2 == 0 { &text } else { &tokens };
        let mut bad = source[..source.len() - 8].to_vec();
        for _ in 0..1 + rng.index(3) {
            let at = 8 + rng.index(bad.len() - 8);
            match rng.index(4) {
                0 => bad[at] ^= 1 << rng.index(8),
                1 => bad[at] = [0, 1, 0x7f, 0x80, 0xff][rng.index(5)],
                2 => bad.insert(at, rng.index(256) as u8),
                _ => {
                    bad.remove(at);
                }
            }
        }
        let sum = xxh3_64(&bad);
        bad.extend(sum.to_le_bytes());
        let sound = if round % 2 == 0 {
            StringTree::from_snapshot(&bad).map(|tree| {
                assert_eq!(tree.recount(), tree.tenant_sizes());
                tree.iter_entries().for_each(|e| drop(tree.match_prefix_with_counts(&e.path)));
                tree.evict_to_size(tree.total_size() / 2);
                tree.evict_to_size(0);
                assert_eq!((tree.node_count(), tree.tenant_count()), (0, 0));
            })
        } else {
            TokenTree::from_snapshot(&bad).map(|tree| {
                assert_eq!(tree.recount(), tree.tenant_sizes());
                tree.evict_to_size(0);
                assert_eq!((tree.node_count(), tree.tenant_count()), (0, 0));
            })
        };
        match sound {
            Ok(()) => read += 1,
            Err(e) => {
                assert_eq!(e.code(), "invalid_snapshot");
                refused += 1;
            }
        }
    }
    assert!(read > 100 && refused > 10_000, "{read} read, {refused} refused");
}
