//! Tests of the prefix table: random events against plain maps, with a recount after each event; limits, ages and
//! threads; and each wrong answer of AIBrix's table that is corrected.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Duration;

use kvatlas_testing::Random;

use super::*;

const MODEL: &str = "m";

fn table(change: impl FnOnce(&mut Config)) -> SyncPrefixHashTable {
    let mut config = Config { block_size: 4, seed: Some(9), max_prefixes_per_context: 1 << 20, ..Config::default() };
    change(&mut config);
    SyncPrefixHashTable::new(config).unwrap()
}

/// Tokens of one 4-byte block for each value, all bytes equal to the value.
fn blocks(values: &[u8]) -> Vec<u8> {
    values.iter().flat_map(|&value| [value; 4]).collect()
}

fn store(table: &SyncPrefixHashTable, pod: &str, parent: Option<u64>, names: &[u64], values: &[u8]) -> usize {
    let bytes = blocks(values);
    let tokens: Vec<&[u8]> = bytes.chunks(4 * values.len() / names.len()).collect();
    table.process_block_stored(MODEL, -1, pod, parent, names, &tokens).unwrap()
}

fn percents(table: &SyncPrefixHashTable, values: &[u8]) -> BTreeMap<String, u32> {
    let found = table.match_prefix(MODEL, -1, &blocks(values), None).0;
    found.into_iter().map(|(pod, percent)| (pod.to_string(), percent)).collect()
}

fn expect(pods: &[(&str, u32)]) -> BTreeMap<String, u32> {
    pods.iter().map(|&(pod, percent)| (pod.to_owned(), percent)).collect()
}

fn recount(table: &SyncPrefixHashTable) {
    table.inner.read().values().for_each(|shared| shared.read().recount());
}

fn later(table: &SyncPrefixHashTable, seconds: u32) {
    table.inner.later.fetch_add(seconds * 10, Ordering::Relaxed);
}

type Meaning = (Vec<Vec<u8>>, u32);

#[derive(Default)]
struct Model {
    /// Blocks, from the root on, that a pod announced under a block hash, with the number of copies; by pod and block
    /// hash.
    names: BTreeMap<(usize, u64), Meaning>,
    added: BTreeSet<(usize, Vec<u8>)>,
}

impl Model {
    fn holds(&self, pod: usize, prefix: &[u8]) -> bool {
        self.added.contains(&(pod, prefix.to_vec())) || self.announced(pod, prefix)
    }

    fn announced(&self, pod: usize, prefix: &[u8]) -> bool {
        let mut mine = self.names.range((pod, 0)..=(pod, u64::MAX));
        mine.any(|(_, (prefixes, _))| prefixes.iter().any(|known| known == prefix))
    }

    fn forget(&mut self, pod: usize) {
        self.names.retain(|&(whose, _), _| whose != pod);
        self.added.retain(|&(whose, _)| whose != pod);
    }

    fn remove(&mut self, pod: usize, name: u64) {
        let Some((_, copies)) = self.names.get_mut(&(pod, name)) else { return };
        *copies -= 1;
        if *copies == 0 {
            let (prefixes, _) = self.names.remove(&(pod, name)).unwrap();
            for prefix in prefixes {
                if !self.announced(pod, &prefix) {
                    self.added.remove(&(pod, prefix));
                }
            }
        }
    }
}

const CONTEXTS: [(&str, i64); 3] = [(MODEL, -1), (MODEL, 2), ("n", -1)];

fn random_run(seed: u64) {
    let random = &mut Random(seed);
    let contexts = [1, 1, 3][random.index(3)];
    let (pods, values, names) = (1 + random.index(5), 1 + random.index(3), 2 + random.below(40));
    let table = table(|_| {});
    let mut models: Vec<Model> = (0..contexts).map(|_| Model::default()).collect();
    for _ in 0..250 {
        let context = random.index(contexts);
        let ((name, lora), model) = (CONTEXTS[context], &mut models[context]);
        let pod = random.index(pods);
        let pod_name = format!("pod{pod}");
        let length = 1 + random.index(4);
        let per = 1 + random.index(10) / 8;
        let content: Vec<u8> = (0..length * per).map(|_| random.index(values) as u8).collect();
        let event: Vec<u64> = (0..length).map(|_| random.below(names)).collect();
        match random.index(12) {
            0..5 => {
                let parent = random.chance(50).then(|| random.below(names));
                let bytes = blocks(&content);
                let tokens: Vec<&[u8]> = bytes.chunks(4 * per).collect();
                let stored = table.process_block_stored(name, lora, &pod_name, parent, &event, &tokens).unwrap();
                let before = match parent {
                    None => Some(Vec::new()),
                    Some(parent) => model.names.get(&(pod, parent)).map(|(known, _)| known.last().unwrap().clone()),
                };
                assert_eq!(stored, if before.is_some() { length } else { 0 });
                let Some(mut prefix) = before else { continue };
                for (&name, part) in event.iter().zip(content.chunks(per)) {
                    let mut prefixes = Vec::new();
                    for &value in part {
                        prefix.push(value);
                        prefixes.push(prefix.clone());
                    }
                    let known = model.names.entry((pod, name)).or_insert((prefixes.clone(), 0));
                    *known = if known.0 == prefixes { (prefixes, known.1 + 1) } else { (prefixes, 1) };
                }
            }
            5..9 => {
                table.process_block_removed(name, lora, &pod_name, &event);
                event.iter().for_each(|&name| model.remove(pod, name));
            }
            9 => {
                table.add_prefix(name, lora, &pod_name, &table.get_prefix_hashes(&blocks(&content)));
                model.added.extend((1..=content.len()).map(|end| (pod, content[..end].to_vec())));
            }
            10 if random.chance(33) => match random.index(3) {
                0 => {
                    table.remove_prefix(name, lora, &pod_name);
                    model.forget(pod);
                }
                1 => {
                    table.process_all_blocks_cleared(Some((name, lora)), &pod_name);
                    model.forget(pod);
                }
                _ => {
                    table.process_all_blocks_cleared(None, &pod_name);
                    models.iter_mut().for_each(|model| model.forget(pod));
                }
            },
            _ => {
                let ready: Vec<String> =
                    (0..pods).filter(|_| random.chance(67)).map(|pod| format!("pod{pod}")).collect();
                let names: Vec<&str> = ready.iter().map(String::as_str).collect();
                let only = random.chance(67);
                // An incomplete block at the end does not count.
                let prompt = [blocks(&content), vec![7; random.index(4)]].concat();
                let (found, hashes) = table.match_prefix(name, lora, &prompt, only.then_some(names.as_slice()));
                assert_eq!(hashes, table.get_prefix_hashes(&blocks(&content)));
                let depth = |pod| (1..=content.len()).take_while(|&end| model.holds(pod, &content[..end])).count();
                let expected: BTreeMap<_, _> = (0..pods)
                    .map(|pod| (format!("pod{pod}"), depth(pod) * 100 / content.len()))
                    .filter(|(pod, percent)| (!only || ready.contains(pod)) && *percent > 0)
                    .map(|(pod, percent)| (pod, percent as u32))
                    .collect();
                assert_eq!(
                    found.into_iter().map(|(pod, n)| (pod.to_string(), n)).collect::<BTreeMap<_, _>>(),
                    expected
                );
            }
        }
        recount(&table);
    }
    let held = |model: &Model| {
        let known = model.names.iter().flat_map(|(_, (prefixes, _))| prefixes);
        known.chain(model.added.iter().map(|(_, prefix)| prefix)).collect::<BTreeSet<_>>().len()
    };
    assert_eq!(table.stats().prefixes, models.iter().map(held).sum::<usize>());
    (0..pods).for_each(|pod| table.process_all_blocks_cleared(None, &format!("pod{pod}")));
    assert_eq!((table.stats().prefixes, table.stats().contexts), (0, 0));
}

#[test]
fn random_events_are_those_of_the_model() {
    for seed in 0..300 {
        if let Err(panic) = std::panic::catch_unwind(|| random_run(seed)) {
            panic!("seed {seed}: {}", panic.downcast_ref::<String>().map_or("see above", |text| text));
        }
    }
}

#[test]
fn blocks_of_one_event_are_chained() {
    let table = table(|_| {});
    assert_eq!(store(&table, "a", None, &[1, 2, 3], &[1, 2, 3]), 3);
    assert_eq!(percents(&table, &[1, 2, 3]), expect(&[("a", 100)]));
    assert_eq!(percents(&table, &[2]), expect(&[]));
}

#[test]
fn an_unknown_parent_is_not_the_root() {
    let table = table(|_| {});
    assert_eq!(store(&table, "a", Some(7), &[1], &[1]), 0);
    store(&table, "a", None, &[2], &[2]);
    store(&table, "b", None, &[3], &[2]);
    assert_eq!(store(&table, "b", Some(2), &[1], &[1]), 0);
    assert_eq!((percents(&table, &[1]), table.stats().unknown_parents), (expect(&[]), 2));
}

#[test]
fn a_pod_counts_up_to_its_first_missing_block() {
    let table = table(|_| {});
    store(&table, "a", None, &[1, 2, 3], &[1, 2, 3]);
    store(&table, "b", None, &[1, 2, 3], &[1, 2, 3]);
    table.process_block_removed(MODEL, -1, "b", &[1]);
    assert_eq!(percents(&table, &[1, 2, 3]), expect(&[("a", 100)]));
}

#[test]
fn a_removal_is_of_one_pod() {
    let table = table(|_| {});
    store(&table, "a", None, &[1, 2], &[1, 2]);
    store(&table, "b", None, &[1, 2], &[1, 2]);
    table.process_block_removed(MODEL, -1, "a", &[2, 9]);
    assert_eq!(percents(&table, &[1, 2]), expect(&[("a", 50), ("b", 100)]));
    // Its name still leads from b to the following blocks.
    store(&table, "b", Some(2), &[3], &[3]);
    assert_eq!(percents(&table, &[1, 2, 3]), expect(&[("a", 33), ("b", 100)]));
    assert_eq!(table.stats().unknown_removals, 1);
}

#[test]
fn a_second_copy_is_removed_on_its_own() {
    let table = table(|_| {});
    store(&table, "a", None, &[1], &[1]);
    store(&table, "a", None, &[1], &[1]);
    table.process_block_removed(MODEL, -1, "a", &[1]);
    assert_eq!(percents(&table, &[1]), expect(&[("a", 100)]));
    table.process_block_removed(MODEL, -1, "a", &[1]);
    assert_eq!(percents(&table, &[1]), expect(&[]));
}

#[test]
fn counts_survive_a_clear_and_a_removal_after_it() {
    let table = table(|config| config.max_prefixes_per_context = 4);
    store(&table, "a", None, &[1, 2], &[1, 2]);
    table.process_all_blocks_cleared(Some((MODEL, -1)), "a");
    table.process_block_removed(MODEL, -1, "a", &[1, 2]);
    assert_eq!((table.stats().prefixes, table.stats().contexts), (0, 0));
    (0..20).for_each(|value| _ = store(&table, "a", None, &[value], &[value as u8]));
    assert_eq!(table.stats().prefixes, 4);
}

#[test]
fn a_full_context_still_takes_a_second_pod() {
    let table = table(|config| config.max_prefixes_per_context = 10);
    let values: Vec<u8> = (0..30).collect();
    let names: Vec<u64> = (0..30).collect();
    assert_eq!(store(&table, "a", None, &names, &values), 10);
    assert_eq!(table.stats().prefixes, 10);
    table.add_prefix(MODEL, -1, "b", &table.get_prefix_hashes(&blocks(&values[..10])));
    assert_eq!(percents(&table, &values[..10]), expect(&[("a", 100), ("b", 100)]));
}

#[test]
fn the_longest_unseen_and_the_deepest_go_first() {
    let table = table(|config| config.max_prefixes_per_context = 6);
    store(&table, "a", None, &[1, 2, 3], &[1, 2, 3]);
    later(&table, 1);
    store(&table, "a", None, &[4, 5, 6], &[4, 5, 6]);
    later(&table, 1);
    assert_eq!(percents(&table, &[1, 2]), expect(&[("a", 100)]));
    store(&table, "a", None, &[7, 8], &[7, 8]);
    assert_eq!(percents(&table, &[1, 2, 3]), expect(&[("a", 66)]));
    assert_eq!(percents(&table, &[4, 5, 6]), expect(&[("a", 66)]));
    assert_eq!((table.stats().prefixes, table.stats().evicted_by_limit), (6, 2));
    recount(&table);
}

#[test]
fn contexts_are_limited() {
    let table = table(|config| config.max_contexts = 2);
    for lora in 0..20 {
        table.process_block_stored(MODEL, lora, "a", None, &[1], &[&[1; 4]]).unwrap();
        later(&table, 1);
        assert!(!table.match_prefix(MODEL, lora, &[1; 4], None).0.is_empty());
        assert!(table.stats().contexts <= 2);
    }
    assert_eq!((table.stats().contexts, table.stats().evicted_contexts), (2, 18));
    assert!(table.match_prefix(MODEL, 0, &[1; 4], None).0.is_empty());
}

#[test]
fn age_is_of_each_prefix_and_events_count_as_use() {
    let table = table(|config| config.eviction_duration = Duration::from_secs(100));
    store(&table, "a", None, &[1, 2], &[1, 2]);
    later(&table, 60);
    store(&table, "a", None, &[3], &[3]);
    assert_eq!(percents(&table, &[1]), expect(&[("a", 100)]));
    later(&table, 60);
    assert_eq!(table.evict_expired(), 1);
    assert_eq!(percents(&table, &[1, 2]), expect(&[("a", 50)]));
    recount(&table);
    later(&table, 90);
    assert_eq!(table.evict_expired(), 1);
    later(&table, 90);
    assert_eq!(table.evict_expired(), 1);
    assert_eq!((table.stats().contexts, table.stats().evicted_by_age), (0, 3));
}

#[test]
fn what_the_router_added_ends_with_the_engines_word() {
    let table = table(|_| {});
    table.add_prefix(MODEL, -1, "a", &table.get_prefix_hashes(&blocks(&[1, 2])));
    assert_eq!(percents(&table, &[1, 2]), expect(&[("a", 100)]));
    store(&table, "a", None, &[1, 2], &[1, 2]);
    table.process_block_removed(MODEL, -1, "a", &[2]);
    assert_eq!(percents(&table, &[1, 2]), expect(&[("a", 50)]));
}

#[test]
fn a_name_with_new_content_means_that() {
    let table = table(|_| {});
    store(&table, "a", None, &[1], &[1]);
    table.remove_prefix(MODEL, -1, "a");
    store(&table, "a", None, &[1], &[2]);
    assert_eq!((percents(&table, &[1]), percents(&table, &[2])), (expect(&[]), expect(&[("a", 100)])));
    store(&table, "a", None, &[1], &[3]);
    assert_eq!((percents(&table, &[2]), percents(&table, &[3])), (expect(&[]), expect(&[("a", 100)])));
}

#[test]
fn an_engine_block_may_be_several_of_the_table() {
    let table = table(|_| {});
    assert_eq!(store(&table, "a", None, &[1, 2], &[1, 2, 3, 4, 5, 6]), 2);
    assert_eq!(percents(&table, &[1, 2, 3, 4]), expect(&[("a", 100)]));
    store(&table, "a", Some(2), &[3], &[7, 8, 9]);
    table.process_block_removed(MODEL, -1, "a", &[2]);
    assert_eq!(percents(&table, &[1, 2, 3, 4, 5, 6, 7]), expect(&[("a", 42)]));
    recount(&table);
    let refused = table.process_block_stored(MODEL, -1, "a", None, &[1, 2], &[&[0; 4], &[0; 6]]);
    assert_eq!(refused, Err(Error::BlockBytes { block: 1, bytes: 6, block_size: 4 }));
}

#[test]
fn a_short_match_is_at_least_one_percent() {
    let table = table(|_| {});
    store(&table, "a", None, &[1], &[1]);
    assert_eq!(percents(&table, &[1; 300]), expect(&[("a", 1)]));
}

#[test]
fn a_config_of_no_use_is_refused_by_name() {
    let refused = |change: fn(&mut Config)| {
        let mut config = Config::default();
        change(&mut config);
        let error = SyncPrefixHashTable::new(config).unwrap_err();
        assert_eq!(error.code(), "invalid_config");
        error.to_string()
    };
    assert!(refused(|config| config.max_contexts = 0).starts_with("max_contexts"));
    assert!(refused(|config| config.max_prefixes_per_context = 0).starts_with("max_prefixes_per_context"));
    assert!(refused(|config| config.block_size = 0).starts_with("block_size"));
    assert!(refused(|config| config.eviction_interval = Duration::ZERO).starts_with("eviction_interval"));
    assert!(refused(|config| config.eviction_duration = Duration::MAX).starts_with("eviction_duration"));
}

#[test]
fn the_thread_evicts_and_ends() {
    let table = table(|config| {
        config.eviction_interval = Duration::from_millis(5);
        config.eviction_duration = Duration::from_millis(100);
    });
    let weak = Arc::downgrade(&table.inner);
    store(&table, "a", None, &[1], &[1]);
    while table.stats().prefixes > 0 {
        thread::sleep(Duration::from_millis(5));
    }
    assert!(!table.is_closed());
    table.close();
    table.close();
    assert!(table.is_closed());
    store(&table, "a", None, &[1], &[1]);
    assert_eq!(percents(&table, &[1]), expect(&[("a", 100)]));
    drop(table);
    assert!(weak.upgrade().is_none());
}

#[test]
fn memory_goes_back_and_an_entry_is_small() {
    let table = table(|_| {});
    let mut names = 0..;
    let mut most = 0;
    for round in 0..2000_u32 {
        let parts: Vec<u64> = names.by_ref().take(16).collect();
        let bytes: Vec<u8> = (0..16).flat_map(|i| (round * 16 + i).to_le_bytes()).collect();
        let tokens: Vec<&[u8]> = bytes.chunks(4).collect();
        for pod in 0..8 {
            table.process_block_stored(MODEL, -1, &format!("pod{pod}"), None, &parts, &tokens).unwrap();
        }
        if round % 100 == 99 {
            let stats = table.stats();
            most = most.max(stats.bytes / stats.prefixes);
        }
    }
    assert!(most <= 64, "{most} bytes an entry");
    for pod in 0..8 {
        table.remove_prefix(MODEL, -1, &format!("pod{pod}"));
    }
    assert!(table.stats().bytes < 1000, "{}", table.stats().bytes);
}

#[test]
fn threads_lose_nothing() {
    let table = table(|config| {
        config.eviction_interval = Duration::from_millis(1);
        config.max_contexts = 3;
    });
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let writers: Vec<_> = (0..4_u64)
            .map(|pod| {
                let table = &table;
                scope.spawn(move || {
                    let name = format!("pod{pod}");
                    for round in 0..300_u64 {
                        let values: Vec<u8> = (0..8).map(|i| ((round + i) % 7) as u8).collect();
                        let names: Vec<u64> = (0..8).map(|i| round * 8 + i).collect();
                        store(table, &name, None, &names, &values);
                        if round % 3 != 0 {
                            table.process_block_removed(MODEL, -1, &name, &names);
                        }
                        if round % 50 == 49 && pod == 3 {
                            table.process_all_blocks_cleared(None, &name);
                        }
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            let mut lora = 0;
            while !stop.load(Ordering::Relaxed) {
                lora += 1;
                table.add_prefix("other", lora % 2, "pod9", &[1, 2, 3]);
                let found = percents(&table, &[0, 1, 2, 3, 4, 5, 6, 0]);
                assert!(found.values().all(|&percent| (1..=100).contains(&percent)));
            }
        });
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        stop.store(true, Ordering::Relaxed);
    });
    recount(&table);
    // Each name that was not removed is held: rounds 0, 3, 6, ... of the pods that were not cleared.
    for pod in 0..3 {
        for start in [0, 3, 6, 2] {
            let values: Vec<u8> = (start..start + 8).map(|i| i % 7).collect();
            assert_eq!(percents(&table, &values)[&format!("pod{pod}")], 100);
        }
        let names: Vec<u64> =
            (0..300).filter(|round| round % 3 == 0).flat_map(|round| round * 8..round * 8 + 8).collect();
        table.process_block_removed(MODEL, -1, &format!("pod{pod}"), &names);
    }
    table.process_all_blocks_cleared(None, "pod3");
    assert_eq!(table.inner.read().get(&Key { model: MODEL, lora_id: -1 }).map(|shared| shared.read().len()), None);
    assert_eq!(table.stats().unknown_removals, 0);
}
