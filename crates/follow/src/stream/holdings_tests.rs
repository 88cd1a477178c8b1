//! Tests of [`Holdings`], which applies batches to the index.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use kvatlas_fake_engine::payload;
use kvatlas_wire::{Cleared, Name, Stored};

use super::holdings::Holdings;
use crate::config::StreamConfig;
use crate::context::StreamContext;
use crate::state::{Keyspace, Stream};
use kvatlas_stream::limits::{Limit, LimitsConfig};
use kvatlas_stream::machine::Verdict;

#[test]
fn a_clear_of_one_of_two_ranks_that_are_stored_as_one_is_not_whole() {
    let keyspace = Arc::new(Keyspace::new("m", "g", 4).expect("a block size"));
    let streams = [Stream::for_test("w", 0), Stream::for_test("w", 1)];
    for stream in &streams {
        keyspace.add(stream).map_err(|_| ()).expect("it is the first");
    }
    let clear = |rank| payload(rank, vec![Cleared.into()]);
    let mut holdings = Holdings::new(keyspace, streams[0].clone(), &StreamConfig::default().into());
    // The other stream's rank, and nobody else is stored under ours yet.
    assert_eq!(holdings.apply(0, &clear(Some(1)), false), Verdict::Cleared);
    holdings.apply(0, &clear(None), false);
    assert_eq!(holdings.apply(0, &clear(Some(1)), false), Verdict::Partial);
}

#[test]
fn a_parent_named_0_that_is_no_block_makes_the_stream_partial() {
    let stored = |name: Name, parent: Option<Name>| {
        let stored =
            Stored { block_hashes: vec![name], parent, tokens: (0..4).collect(), block_size: 4, ..Stored::default() };
        payload(None, vec![stored.into()])
    };
    let zeros = [Name::from(0_u64), Name::from(&[0; 8][..]), Name::from(&[0; 32][..])];
    for zero in zeros {
        let keyspace = Arc::new(Keyspace::new("m", "g", 4).expect("a block size"));
        let stream = Stream::for_test("w", 0);
        keyspace.add(&stream).map_err(|_| ()).expect("it is the first");
        let mut holdings = Holdings::new(keyspace, stream.clone(), &StreamConfig::default().into());
        let count = || stream.status.counters.zero_parents.load(Relaxed);
        assert_eq!(holdings.apply(0, &stored(Name::from(7_u64), None), true), Verdict::Whole);
        assert_eq!(holdings.apply(1, &stored(Name::from(8_u64), Some(Name::from(6_u64))), true), Verdict::Whole);
        assert_eq!(holdings.apply(2, &stored(Name::from(9_u64), Some(zero.clone())), true), Verdict::Partial);
        assert_eq!(count(), 1);
        assert!(stream.status.last_error().is_some());
        // A block may have that name.
        assert_eq!(holdings.apply(3, &stored(zero.clone(), None), true), Verdict::Whole);
        assert_eq!(holdings.apply(4, &stored(Name::from(10_u64), Some(zero)), true), Verdict::Whole);
        assert_eq!(count(), 1);
    }
}

#[test]
fn blocks_that_the_index_does_not_know_count_for_the_worker_too() {
    let keyspace = Arc::new(Keyspace::new("m", "g", 4).expect("a block size"));
    let stream = Stream::for_test("w", 0);
    keyspace.add(&stream).map_err(|_| ()).expect("it is the first");
    let limits = LimitsConfig { blocks_per_rank: 5000, blocks_per_worker: 6000, ..StreamConfig::default().limits };
    let config = StreamContext::from(StreamConfig { limits, ..StreamConfig::default() });
    let mut holdings = Holdings::new(keyspace, stream.clone(), &config);
    for rank in 0..5 {
        let stored = Stored {
            block_hashes: (0..3000_u64).map(Name::from).collect(),
            tokens: (0..12_000).collect(),
            block_size: 4,
            group: Some(1),
            kind: Some("sliding_window".into()),
            window: Some(9),
            ..Stored::default()
        };
        holdings.apply(0, &payload(Some(rank), vec![stored.into()]), false);
    }
    assert_eq!(stream.status.limit(), Some(Limit::BlocksPerWorker));
}
