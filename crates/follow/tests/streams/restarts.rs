//! A service that ends without a word and another that begins with its snapshot, over real sockets.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use kvatlas_fake_engine::{BLOCK_SIZE, Chain, Publisher, eventually, until};
use kvatlas_follow::snapshot::Outcome;
use kvatlas_follow::state::Stream;
use kvatlas_follow::{Config, Follower};
use kvatlas_index::{View, hash};

static DIRECTORIES: AtomicUsize = AtomicUsize::new(0);

/// A directory that goes with this.
struct Place(PathBuf);

impl Place {
    fn new() -> Self {
        let number = DIRECTORIES.fetch_add(1, Relaxed);
        Self(std::env::temp_dir().join(format!("kvatlas-restarts-{}-{number}", std::process::id())))
    }

    fn file(&self) -> PathBuf {
        self.0.join("kvatlas.snapshot")
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

struct Bench(Follower);

impl Bench {
    fn start(place: &Place, keep: f64) -> Result<Self, kvatlas_follow::Error> {
        let config = format!(
            r#"{{ "log": {{ "level": "off" }},
                "streams": {{ "replay_timeout": 1.0, "reconnect_max": 0.2, "probe_interval": 0.5 }},
                "snapshot": {{ "dir": {:?}, "every": 0.05, "keep": {keep} }} }}"#,
            place.0.display().to_string()
        );
        Follower::start(Config::from_json(&config).expect("a configuration"), false).map(Self)
    }

    fn of(place: &Place, engine: &Publisher) -> Self {
        let bench = Self::start(place, 60.0).expect("it starts");
        bench.register(engine);
        bench
    }

    fn register(&self, engine: &Publisher) {
        self.0.register(&engine.registration("engine-0", "model"), None).expect("registered");
    }

    fn stream(&self) -> std::sync::Arc<Stream> {
        self.0.fleet().workers()[0].streams[0].1.clone()
    }

    fn depth(&self, life: u32, of: u64) -> u64 {
        let prompt = hash::content_hashes(&Chain::new(life).tokens(of + 1), BLOCK_SIZE as usize, None, None);
        let keyspace = self.0.fleet().keyspace("model", "default").expect("registered");
        let found = keyspace.index().find(&prompt).to_owned();
        found.scores(View::Device).first().map_or(0, |(_, depth)| u64::from(*depth))
    }

    #[track_caller]
    fn until(&self, what: &str, condition: impl Fn(&Self) -> bool) {
        until(|| condition(self), || format!("not {what}: {:?}", self.stream().status));
    }

    #[track_caller]
    fn whole(&self, life: u32, blocks: u64) {
        self.until("whole", |bench| bench.stream().status.is_trusted() && bench.depth(life, blocks) == blocks);
    }

    /// Waits for a snapshot that was begun after this was called.
    fn saved(&self) {
        let writes = self.0.fleet().snapshots().writes();
        self.until("written", |bench| bench.0.fleet().snapshots().writes() >= writes + 2);
    }

    fn outcome(&self) -> Option<&'static str> {
        self.stream().status.from_snapshot()?.outcome.map(Outcome::name)
    }

    fn is_partial(&self) -> bool {
        self.stream().status.partial.load(Relaxed)
    }

    /// Ends the service as `kill -9` leaves it: no last snapshot.
    fn killed(self) {
        drop(self.0);
    }
}

/// An engine that keeps so many batches, a service that knows 50 blocks and has written them, and is gone.
fn after_fifty(keeps: usize) -> (Publisher, Place) {
    let (engine, place) = (Publisher::start(keeps), Place::new());
    let bench = Bench::of(&place, &engine);
    bench.until("live", |bench| bench.stream().status.is_trusted());
    (0..50).for_each(|_| engine.publish(1));
    bench.whole(1, 50);
    bench.saved();
    bench.killed();
    (engine, place)
}

#[test]
fn what_the_engine_has_forgotten_is_known_from_the_snapshot() {
    let (engine, place) = after_fifty(20);
    engine.publish(10);
    let bench = Bench::of(&place, &engine);
    bench.whole(1, 60);
    assert_eq!((bench.outcome(), bench.is_partial()), (Some("kept"), false));
    // It goes on from one snapshot to the next.
    engine.publish(15);
    bench.whole(1, 75);
    bench.saved();
    bench.killed();
    let bench = Bench::of(&place, &engine);
    bench.whole(1, 75);
    assert_eq!((bench.outcome(), bench.is_partial()), (Some("kept"), false));
    engine.evict();
    bench.until("empty", |bench| bench.depth(1, 75) == 0 && bench.stream().status.is_trusted());
}

#[test]
fn an_engine_that_has_restarted_holds_nothing_of_it() {
    let (engine, place) = after_fifty(10_000);
    engine.restart();
    engine.publish(80);
    let bench = Bench::of(&place, &engine);
    bench.until("told", |bench| bench.outcome().is_some());
    bench.whole(2, 80);
    assert_eq!((bench.outcome(), bench.depth(1, 50), bench.is_partial()), (Some("restarted"), 0, false));
}

#[test]
fn a_buffer_that_has_turned_over_costs_it() {
    let (engine, place) = after_fifty(20);
    // What was removed meanwhile is not in the buffer any more.
    engine.evict();
    engine.publish(100);
    let bench = Bench::of(&place, &engine);
    bench.until("told", |bench| bench.outcome().is_some() && bench.stream().status.is_trusted());
    assert_eq!((bench.outcome(), bench.depth(1, 50), bench.is_partial()), (Some("turned_over"), 0, true));
}

#[test]
fn without_an_answer_nothing_of_it_is_trusted() {
    let (engine, place) = after_fifty(10_000);
    engine.kill_replay();
    let bench = Bench::of(&place, &engine);
    bench.until("connected", |bench| {
        engine.publish(1);
        bench.outcome().is_some() && bench.stream().status.is_trusted()
    });
    assert_eq!((bench.outcome(), bench.depth(1, 50), bench.is_partial()), (Some("no_answer"), 0, true));
}

#[test]
fn a_damaged_snapshot_is_put_aside_and_the_rest_goes_on() {
    let (engine, place) = after_fifty(10_000);
    let mut bytes = std::fs::read(place.file()).expect("written");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(place.file(), &bytes).expect("writable");
    let bench = Bench::of(&place, &engine);
    bench.whole(1, 50);
    assert_eq!((bench.outcome(), bench.is_partial()), (None, false));
    assert_eq!(std::fs::read(place.0.join("kvatlas.snapshot.damaged")).expect("put aside"), bytes);
    bench.saved();
    bench.killed();
    let bench = Bench::of(&place, &engine);
    bench.whole(1, 50);
    assert_eq!(bench.outcome(), Some("kept"));
}

#[test]
fn a_directory_is_for_one_service() {
    let place = Place::new();
    let first = Bench::start(&place, 60.0).expect("it starts");
    let error = Bench::start(&place, 60.0).err().expect("it is taken").to_string();
    assert!(error.contains("in use by another kvatlas"), "{error}");
    first.killed();
    Bench::start(&place, 60.0).expect("it is free").killed();
}

#[test]
fn what_nobody_comes_for_is_kept_for_a_while_and_through_another_restart() {
    let (engine, place) = after_fifty(20);
    // Nobody has registered the engine yet when this one is killed, too.
    let bench = Bench::start(&place, 60.0).expect("it starts");
    let written = || std::fs::metadata(place.file()).and_then(|it| it.modified()).expect("written");
    let before = written();
    eventually("it is written again", || written() != before);
    bench.killed();
    let bench = Bench::of(&place, &engine);
    bench.whole(1, 50);
    assert_eq!(bench.outcome(), Some("kept"));
    bench.saved();
    bench.killed();
    let bench = Bench::start(&place, 0.2).expect("it starts");
    eventually("it is given up", || bench.0.fleet().snapshots().outcome(Outcome::NotRegistered) > 0);
    bench.register(&engine);
    bench.until("live", |bench| bench.stream().status.is_trusted());
    assert_eq!((bench.outcome(), bench.depth(1, 50)), (None, 0), "the engine keeps less");
}

#[test]
fn the_last_snapshot_is_of_the_end() {
    let (engine, place) = (Publisher::start(3), Place::new());
    let bench = Bench::of(&place, &engine);
    bench.until("live", |bench| bench.stream().status.is_trusted());
    (0..30).for_each(|_| engine.publish(1));
    bench.whole(1, 30);
    assert!(bench.0.drain(Duration::from_secs(60)));
    bench.killed();
    let bench = Bench::of(&place, &engine);
    bench.whole(1, 30);
    assert_eq!((bench.outcome(), bench.is_partial()), (Some("kept"), false));
}

#[test]
fn a_new_replica_begins_with_what_another_one_has() {
    let (engine, place) = (Publisher::start(20), Place::new());
    let first = Bench::of(&place, &engine);
    first.until("live", |bench| bench.stream().status.is_trusted());
    (0..50).for_each(|_| engine.publish(1));
    first.whole(1, 50);
    first.saved();
    let config = r#"{ "log": { "level": "off" }, "snapshot": { "from_peer": true } }"#;
    let second = Bench(Follower::start(Config::from_json(config).expect("a configuration"), false).expect("it starts"));
    second.register(&engine);
    let fetched = place.0.join("fetched");
    copy(&place.file(), &fetched);
    engine.publish(5);
    assert_eq!(second.0.load_snapshot(&fetched, "http://first"), Ok(1));
    second.whole(1, 55);
    assert_eq!((second.outcome(), second.is_partial()), (Some("kept"), false));
    first.whole(1, 55);
    let words = |bench: &Bench| -> Vec<u64> {
        let keyspace = bench.0.fleet().keyspace("model", "default").expect("registered");
        keyspace.index().ranks().iter().map(|rank| rank.fingerprint).collect()
    };
    assert_eq!(words(&first), words(&second));
}

fn copy(from: &Path, to: &Path) {
    std::fs::copy(from, to).expect("copied");
}
