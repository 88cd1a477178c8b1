//! Bounds and marks against the exact indexes they are of: random fleets, lost digests, restarts, liars, and marks that
//! only one worker has.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use kvatlas_digest::{Answer, Digest, Error, Proof, Publisher, Sites, State, marks_of_prompt, marks_of_rank};
use kvatlas_index::hash::prefix_hashes;
use kvatlas_index::{BlockHash, BlockIndex, Config, CopyState, RankCopier, RankCopy, Tier, View};
use kvatlas_testing::{Random, seeds};

const GRAIN: u32 = 4;
const NOW: Duration = Duration::from_secs(1);

/// A prompt out of few that share beginnings.
fn prompt(random: &mut Random) -> Vec<u64> {
    let (family, fork) = (random.below(4), random.below(30));
    let blocks = random.below(40);
    (0..blocks).map(|at| if at < fork { family << 32 | at } else { family << 32 | (fork + 1) << 16 | at }).collect()
}

struct Site {
    index: Arc<BlockIndex>,
    publisher: Publisher,
}

impl Site {
    fn new(name: &str, life: u64) -> Self {
        let index = Arc::new(BlockIndex::new(Config::default()).unwrap());
        Self { index, publisher: Publisher::new(name, life, GRAIN).unwrap() }
    }

    fn event(&self, random: &mut Random) {
        let worker = ["a", "b", "c"][random.index(3)];
        let rank = random.below(2) as u32;
        let contents = prompt(random);
        let names: Vec<BlockHash> = prefix_hashes(&contents).into_iter().map(BlockHash).collect();
        let from = random.index(contents.len() + 1);
        match random.below(20) {
            0 => self.index.clear(worker, None, None),
            1 => self.index.drop_worker(worker),
            2..9 => self.index.remove(worker, rank, Tier::Gpu, &names[from..]),
            9 => {
                let parent = from.checked_sub(1).map(|at| names[at]);
                let (names, contents) = (&names[from..], &contents[from..]);
                self.index.store(worker, rank, Tier::Cpu, parent, names, contents).unwrap();
            }
            // Some below a parent that is not there.
            10 => {
                let parent = from.checked_sub(1).map(|at| names[at]);
                let (names, contents) = (&names[from..], &contents[from..]);
                self.index.store(worker, rank, Tier::Gpu, parent, names, contents).unwrap();
            }
            _ => self.index.store(worker, rank, Tier::Gpu, None, &names, &contents).unwrap(),
        }
    }

    fn depth(&self, prompt: &[u64]) -> u32 {
        self.index.find(prompt).depth(View::Device)
    }
}

fn bounds(sites: &Sites, answer: &Answer, name: &str) -> Option<(u32, u32)> {
    let is = |&&site: &&u32| sites.name(site) == name;
    if answer.unknown.iter().any(|site| is(&site)) {
        return None;
    }
    let level = answer.levels.iter().find(|level| level.sites.iter().any(|site| is(&site)));
    Some(level.map_or((0, answer.rest_at_most), |level| (level.at_least, level.at_most)))
}

#[test]
fn bounds_hold_at_the_moment_of_the_digests_and_lost_ones_are_noticed() {
    for seed in 0..seeds(24) {
        let mut random = Random(seed);
        let mut fleet: Vec<Site> = (0..70).map(|at| Site::new(&format!("s{at}"), 1)).collect();
        let mut sites = Sites::new(GRAIN, Duration::from_secs(10), seed).unwrap();
        for round in 0..12_u64 {
            for (at, site) in fleet.iter_mut().enumerate() {
                if random.chance(2) {
                    // It restarts with nothing.
                    *site = Site::new(&format!("s{at}"), round + 2);
                }
                (0..random.below(6)).for_each(|_| site.event(&mut random));
                site.publisher.look(&site.index, |_, _| true, || {});
                let delta = site.publisher.delta();
                if random.chance(5) {
                    continue;
                }
                let bytes = delta.encode();
                let delta = Digest::decode(&bytes).unwrap();
                match sites.apply(&delta, bytes.len(), NOW) {
                    Ok(_) => {}
                    Err(Error::WholeWanted { .. }) => {
                        let name = site.publisher.site().to_owned();
                        let answer = sites.find(&[], 9, NOW);
                        assert!(
                            sites.list(NOW).iter().all(|it| it.site != name)
                                || bounds(&sites, &answer, &name).is_none()
                        );
                        let whole = Digest::decode(&site.publisher.whole().encode()).unwrap();
                        sites.apply(&whole, 0, NOW).unwrap();
                    }
                    Err(error) => panic!("seed {seed}: {error}"),
                }
                // A second time changes nothing.
                assert!(random.chance(80) || sites.apply(&site.publisher.whole(), 0, NOW).is_ok());
            }
            assert!(sites.is_consistent(), "seed {seed}");
            // Lost digests are found out by the next: all have come now.
            for site in &mut fleet {
                if sites.apply(&site.publisher.delta(), 0, NOW).is_err() {
                    sites.apply(&site.publisher.whole(), 0, NOW).unwrap();
                }
            }
            for _ in 0..10 {
                let prompt = prompt(&mut random);
                let answer = sites.find(&marks_of_prompt(&prompt, GRAIN), prompt.len() as u32, NOW);
                assert!(answer.levels.is_sorted_by(|a, b| a.at_least > b.at_least));
                for site in &fleet {
                    let (least, most) = bounds(&sites, &answer, site.publisher.site()).expect("known");
                    let depth = site.depth(&prompt);
                    assert!(least <= depth && depth <= most, "seed {seed}: {least} <= {depth} <= {most}");
                }
            }
        }
        for at in 0..70 {
            assert!(sites.forget(&format!("s{at}")));
        }
        assert!(!sites.forget("s0"));
        assert_eq!((sites.counts().marks, sites.counts().sets, sites.counts().sites), (0, 0, 0));
    }
}

#[test]
fn a_site_that_is_cut_off_may_have_anything() {
    let mut sites = Sites::new(GRAIN, Duration::from_secs(10), 0).unwrap();
    let mut site = Site::new("far", 1);
    let contents: Vec<u64> = (0..9).collect();
    let names: Vec<BlockHash> = (0..9).map(BlockHash).collect();
    site.index.store("w", 0, Tier::Gpu, None, &names, &contents).unwrap();
    site.publisher.look(&site.index, |_, _| true, || {});
    sites.apply(&site.publisher.whole(), 0, NOW).unwrap();
    let marks = marks_of_prompt(&contents, GRAIN);
    let find = |sites: &Sites, at| bounds(sites, &sites.find(&marks, 9, Duration::from_secs(at)), "far");
    assert_eq!(find(&sites, 11), Some((8, 9)));
    assert_eq!(find(&sites, 12), None);
    // An empty digest says that it is there.
    sites.apply(&site.publisher.delta(), 0, Duration::from_secs(20)).unwrap();
    assert_eq!(find(&sites, 29), Some((8, 9)));
    let grain = sites.apply(&Digest { grain: 5, ..site.publisher.delta() }, 0, NOW);
    assert_eq!(grain, Err(Error::OtherGrain { got: 5, expected: 4 }));
}

#[test]
fn a_liar_is_asked_a_few_times_and_then_once_in_a_while() {
    let mut sites = Sites::new(GRAIN, Duration::from_secs(10), 0).unwrap();
    let contents: Vec<u64> = (0..40).collect();
    let marks = marks_of_prompt(&contents, GRAIN);
    let mut added = marks.clone();
    added.sort_unstable();
    let claim = |site: &str, added: &[u64]| {
        let mut publisher = Publisher::new(site, 1, GRAIN).unwrap();
        let mut digest = Digest { whole: true, ..publisher.delta() };
        // It may say what it likes, and no sum tells.
        digest.added = added.to_vec();
        digest
    };
    let mut good: Vec<u64> = marks[..6].to_vec();
    good.sort_unstable();
    for (site, added) in [("liar", &added), ("good", &good)] {
        let mut digest = claim(site, added);
        let mut probe = Sites::new(GRAIN, NOW, 0).unwrap();
        // The word that these marks come to: that with which they are not refused.
        let index = Arc::new(BlockIndex::new(Config::default()).unwrap());
        let held = if site == "liar" { &contents[..] } else { &contents[..24] };
        let names: Vec<BlockHash> = prefix_hashes(held).into_iter().map(BlockHash).collect();
        index.store("w", 0, Tier::Gpu, None, &names, held).unwrap();
        let mut publisher = Publisher::new(site, 1, GRAIN).unwrap();
        publisher.look(&index, |_, _| true, || {});
        digest.word = publisher.whole().word;
        probe.apply(&digest, 0, NOW).unwrap();
        sites.apply(&digest, 0, NOW).unwrap();
    }
    let (mut asked, mut wasted) = (0, 0);
    for _ in 0..1_000 {
        let answer = sites.find(&marks, 40, NOW);
        let (best, least) = answer.levels.first().map(|level| (level.sites[0], level.at_least)).unwrap();
        let name = sites.name(best).to_owned();
        let was = if name == "liar" { 0 } else { 24 };
        assert!(sites.compare(&name, least, 40, was, Proof::Answer));
        wasted += u32::from(name == "liar");
        if let Some((probe, least)) = answer.probe {
            assert_eq!((sites.name(probe), least), ("liar", 40));
            asked += 1;
            sites.compare("liar", least, 40, 0, Proof::Answer);
        }
    }
    assert!((1..=5).contains(&wasted), "{wasted}");
    assert!((29..=32).contains(&asked), "{asked}");
    let status = sites.list(NOW);
    assert_eq!([status[0].state, status[1].state], [State::Known, State::Doubted]);
    assert_eq!(sites.counts().doubted, 1);
    // It mends its ways.
    for _ in 0..2_000 {
        if let Some((_, least)) = sites.find(&marks, 40, NOW).probe {
            sites.compare("liar", least, 40, 40, Proof::Answer);
        }
    }
    assert_eq!(sites.list(NOW)[1].state, State::Known);
}

const WORKERS: [&str; 3] = ["a", "b", "c"];

fn copy(index: &Arc<BlockIndex>, worker: &str, rank: u32) -> RankCopy {
    let mut copier = RankCopier::new(index.clone(), worker, rank);
    loop {
        match copier.step(BlockIndex::SLICE) {
            CopyState::More(more) => copier = more,
            CopyState::Done(done) => return done.sorted(),
        }
    }
}

/// Numbers of marks that no other worker has, by worker.
fn expected(index: &Arc<BlockIndex>) -> BTreeMap<Arc<str>, usize> {
    let mut holders: BTreeMap<u64, BTreeSet<Arc<str>>> = BTreeMap::new();
    let mut counts = BTreeMap::new();
    for stats in index.ranks() {
        counts.insert(stats.worker.clone(), 0);
        for mark in marks_of_rank(&copy(index, &stats.worker, stats.rank), GRAIN) {
            holders.entry(mark).or_default().insert(stats.worker.clone());
        }
    }
    for workers in holders.into_values().filter(|workers| workers.len() == 1) {
        for worker in workers {
            *counts.entry(worker).or_default() += 1;
        }
    }
    counts
}

#[test]
fn a_mark_counts_for_the_only_worker_that_has_it_on_however_many_ranks() {
    for seed in 0..seeds(200) {
        let mut random = Random(seed);
        let index = Arc::new(BlockIndex::new(Config::default()).unwrap());
        let mut publisher = Publisher::new("own", 0, GRAIN).unwrap();
        for _ in 0..random.below(40) {
            let (worker, rank) = (WORKERS[random.index(WORKERS.len())], random.below(2) as u32);
            let family = random.below(3);
            let contents: Vec<u64> = (0..random.below(30)).map(|at| family << 32 | at).collect();
            let names: Vec<BlockHash> = prefix_hashes(&contents).into_iter().map(BlockHash).collect();
            match random.below(6) {
                0 => index.remove(worker, rank, Tier::Gpu, &names[random.index(names.len() + 1)..]),
                1 if random.below(4) == 0 => index.drop_worker(worker),
                _ => index.store(worker, rank, Tier::Gpu, None, &names, &contents).unwrap(),
            }
            if random.below(3) == 0 {
                publisher.look(&index, |_, _| true, || {});
            }
        }
        publisher.look(&index, |_, _| true, || {});
        let found: BTreeMap<_, _> = publisher.sole_marks().into_iter().collect();
        assert_eq!(found, expected(&index), "seed {seed}");
    }
}
