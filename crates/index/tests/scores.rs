//! Scores by name and by number, of a match and of one that is kept.

use std::thread;

use kvatlas_index::{BlockHash, BlockIndex, Config, OwnedMatch, Tier, View};

const CHAIN: [u64; 4] = [1, 2, 3, 4];

/// Workers 0 to 999; worker n holds n % 4 + 1 blocks on rank 0, and every tenth one block more on rank 1.
fn fleet() -> BlockIndex {
    let index = BlockIndex::new(Config::default()).unwrap();
    let names = CHAIN.map(BlockHash);
    for n in 0..1_000_usize {
        let worker = format!("w{n}");
        let store = |rank, blocks| {
            index.store(&worker, rank, Tier::Gpu, None, &names[..blocks], &CHAIN[..blocks]).unwrap();
        };
        store(0, n % 4 + 1);
        if n.is_multiple_of(10) {
            store(1, (n % 4 + 2).min(4));
        }
    }
    index
}

fn expected(n: usize) -> u32 {
    let blocks = n % 4 + 1 + usize::from(n.is_multiple_of(10));
    blocks.min(4) as u32
}

#[test]
fn each_worker_has_one_score_that_of_its_best_rank() {
    let index = fleet();
    let found = index.find(&CHAIN);
    let kept = found.to_owned();
    let mut numbered = vec![(0, 0); 3];
    for view in View::ALL {
        found.scores_into(view, &mut numbered);
        let named: Vec<_> = numbered.iter().map(|&(number, depth)| (found.worker(number).unwrap(), depth)).collect();
        for scores in [found.scores(view), kept.scores(view), named, found.best(view, 1_000, None)] {
            assert!(scores.is_sorted_by_key(|(_, depth)| std::cmp::Reverse(*depth)));
            let mut depths = vec![0; 1_000];
            scores.iter().for_each(|(name, depth)| depths[name[1..].parse::<usize>().unwrap()] += depth);
            assert_eq!(depths, (0..1_000).map(expected).collect::<Vec<_>>());
            assert_eq!(scores.len(), 1_000);
        }
    }
    assert_eq!(found.by_rank(View::Device).len(), 1_100);
    assert_eq!(found.best(View::Device, 2, Some(&["w1", "w2", "nobody"])), [(&"w2".into(), 3), (&"w1".into(), 2)]);
    assert_eq!(found.worker(u32::MAX), None);
}

#[test]
fn a_worker_keeps_its_number_until_it_is_dropped() {
    let index = fleet();
    let number = |index: &BlockIndex, worker: &str| {
        let (found, mut scores) = (index.find(&CHAIN[..1]), Vec::new());
        found.scores_into(View::AnyTier, &mut scores);
        scores.into_iter().map(|(number, _)| number).find(|&number| &**found.worker(number).unwrap() == worker)
    };
    let first = number(&index, "w500");
    assert!(first.is_some());
    index.store("w500", 7, Tier::Gpu, None, &[BlockHash(1)], &[1]).unwrap();
    index.store("w500", 0, Tier::Cpu, None, &[BlockHash(1)], &[1]).unwrap();
    index.clear("w500", Some(0), None);
    index.drop_worker("w499");
    assert_eq!(number(&index, "w500"), first);
    index.drop_worker("w500");
    assert_eq!(number(&index, "w500"), None);
}

#[test]
fn kept_matches_outlive_the_workers_they_name_on_any_thread() {
    let index = fleet();
    let kept: Vec<OwnedMatch> = thread::scope(|scope| {
        let ask = || scope.spawn(|| (0..100).map(|_| index.find(&CHAIN).to_owned()).collect::<Vec<_>>());
        let threads: Vec<_> = (0..4).map(|_| ask()).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    (0..1_000).for_each(|n| index.drop_worker(&format!("w{n}")));
    drop(index);
    assert!(kept.iter().all(|found| found.scores(View::Device).len() == 1_000));
}

#[test]
fn an_index_and_a_kept_match_go_to_other_threads() {
    fn goes<T: Send + Sync>() {}
    goes::<BlockIndex>();
    goes::<OwnedMatch>();
}
