//! Streams over real sockets, against an engine's sockets with faults.

mod engine;

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use engine::{BLOCK_SIZE, Engine, tokens};
use kvatlas_index::{View, hash};
use kvatlas_service::fleet::{Fleet, Registration, Stream};
use kvatlas_service::settings::StreamSettings;
use kvatlas_service::status::State;
use tokio::runtime::Handle;

const WORKER: &str = "engine-0";

/// As by default, with less patience.
fn settings() -> StreamSettings {
    StreamSettings {
        stale_after: Duration::from_secs(2),
        probe_interval: Duration::from_millis(500),
        replay_timeout: Duration::from_millis(300),
        reconnect_max: Duration::from_millis(200),
        settle_timeout: Duration::from_secs(60),
        ..StreamSettings::default()
    }
}

fn registration(events: &str, replay: Option<&str>) -> Registration {
    Registration {
        worker: WORKER.to_owned(),
        model: "model".to_owned(),
        group: "default".to_owned(),
        block_size: BLOCK_SIZE,
        rank: 0,
        endpoint: events.parse().expect("an endpoint"),
        replay_endpoint: replay.map(|replay| replay.parse().expect("an endpoint")),
        topic: String::new(),
        source: "test".to_owned(),
    }
}

struct Bench {
    fleet: Arc<Fleet>,
    stream: Arc<Stream>,
}

impl Bench {
    async fn new(registration: Registration, settings: StreamSettings) -> Self {
        let fleet = Fleet::new(settings, &[], Handle::current());
        fleet.register(registration).await.expect("it is registered");
        let stream = fleet.workers()[0].streams[0].1.clone();
        Self { fleet, stream }
    }

    async fn of(engine: &Engine) -> Self {
        Self::new(registration(&engine.events, Some(&engine.replay)), settings()).await
    }

    async fn without_replay(engine: &Engine) -> Self {
        Self::new(registration(&engine.events, None), settings()).await
    }

    /// How many blocks of a life are known, of so many.
    fn depth(&self, life: u32, of: u64) -> u64 {
        let prompt = hash::content_hashes(&tokens(life, of + 1), BLOCK_SIZE as usize, None, None);
        let found = self.stream.keyspace.index.find(&prompt).to_owned();
        found
            .scores(View::Device)
            .iter()
            .find(|(worker, _)| &**worker == WORKER)
            .map_or(0, |(_, depth)| u64::from(*depth))
    }

    fn count(&self, name: &str) -> u64 {
        let names = kvatlas_service::status::Counters::NAMES;
        let at = names.iter().position(|(known, _)| *known == name).expect("a counter");
        self.stream.status.counters.values()[at]
    }

    fn is_trusted(&self) -> bool {
        self.stream.status.is_trusted()
    }

    fn is_partial(&self) -> bool {
        self.stream.status.partial.load(Relaxed)
    }

    /// Waits until so many blocks of a life are known, neither more nor less, and trusted.
    #[track_caller]
    fn whole(&self, life: u32, blocks: u64) -> impl Future<Output = ()> {
        self.until("whole", move |bench| {
            bench.is_trusted() && bench.depth(life, blocks) == blocks && bench.stream.status.last_seq().is_some()
        })
    }

    #[track_caller]
    fn until(&self, what: &str, condition: impl Fn(&Self) -> bool) -> impl Future<Output = ()> {
        let caller = std::panic::Location::caller();
        async move {
            let start = Instant::now();
            while !condition(self) {
                assert!(start.elapsed() < Duration::from_secs(20), "not {what}, {caller}: {:?}", self.stream.status);
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    }

    /// All blocks evicted once: whatever was applied twice remains.
    async fn leaves_nothing(&self, engine: &Engine, life: u32, blocks: u64) {
        engine.evict();
        self.until("empty", |bench| bench.is_trusted() && bench.depth(life, blocks) == 0).await;
        let prompt = hash::content_hashes(&tokens(life, blocks), BLOCK_SIZE as usize, None, None);
        assert_eq!(self.stream.keyspace.index.find(&prompt).to_owned().scores(View::Device).len(), 0);
    }
}

/// Tests with threads of their own.
fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    runtime.expect("a runtime").block_on(test);
}

#[test]
fn a_late_joiner_knows_what_was_before() {
    run(async {
        let engine = Engine::start(10_000);
        engine.publish(500);
        let bench = Bench::of(&engine).await;
        bench.whole(1, 500).await;
        assert!(!bench.is_partial() && bench.stream.status.is_settled());
        engine.publish(100);
        bench.whole(1, 600).await;
        assert!(bench.stream.status.lag().is_some_and(|lag| lag < Duration::from_secs(30)));
        bench.leaves_nothing(&engine, 1, 600).await;
    });
}

#[test]
fn a_late_joiner_without_replay_says_that_it_is_partial() {
    run(async {
        let engine = Engine::start(10_000);
        engine.publish(5);
        let bench = Bench::without_replay(&engine).await;
        bench.until("live", Bench::is_trusted).await;
        // The subscription takes effect at some time after that.
        bench
            .until("heard", |bench| {
                engine.publish(1);
                bench.stream.status.last_seq().is_some()
            })
            .await;
        assert!(bench.is_partial() && bench.is_trusted());
        assert_eq!(bench.depth(1, 5), 0);
    });
}

#[test]
fn a_burst_leaves_nothing_missing() {
    run(async {
        // What engines keep by default.
        let engine = Engine::start(10_000);
        let bench = Bench::of(&engine).await;
        bench.until("live", Bench::is_trusted).await;
        engine.publish(100_000);
        bench.whole(1, 100_000).await;
        assert!(!bench.is_partial());
        bench.leaves_nothing(&engine, 1, 100_000).await;
    });
}

#[test]
fn a_burst_during_the_connection_leaves_nothing_missing() {
    run(async {
        let engine = Engine::start(200_000);
        engine.publish(20_000);
        let bench = Bench::of(&engine).await;
        engine.publish(100_000);
        bench.whole(1, 120_000).await;
        assert!(!bench.is_partial());
        bench.leaves_nothing(&engine, 1, 120_000).await;
    });
}

#[test]
fn a_small_buffer_is_made_up_for_by_replays() {
    run(async {
        let engine = Engine::start(200_000);
        engine.publish(20_000);
        let settings = StreamSettings { buffer_batches: 10, ..settings() };
        let bench = Bench::new(registration(&engine.events, Some(&engine.replay)), settings).await;
        engine.publish(20_000);
        bench.whole(1, 40_000).await;
        bench.leaves_nothing(&engine, 1, 40_000).await;
    });
}

#[test]
fn a_gap_is_filled() {
    run(async {
        let engine = Engine::start(10_000);
        let bench = Bench::of(&engine).await;
        engine.publish(10);
        bench.whole(1, 10).await;
        engine.lose(5);
        engine.publish(1);
        bench.whole(1, 16).await;
        assert_eq!((bench.count("gaps"), bench.count("resets"), bench.is_partial()), (1, 0, false));
        assert_eq!(bench.count("recovered_batches"), 5);
        bench.leaves_nothing(&engine, 1, 16).await;
    });
}

#[test]
fn batches_lost_at_the_end_are_found_in_silence() {
    run(async {
        let engine = Engine::start(10_000);
        let bench = Bench::of(&engine).await;
        engine.publish(10);
        bench.whole(1, 10).await;
        engine.lose(5);
        bench.whole(1, 15).await;
        assert_eq!(bench.count("resets"), 0);
    });
}

#[test]
fn a_gap_without_replay_costs_the_holdings() {
    run(async {
        let engine = Engine::start(10_000);
        let bench = Bench::without_replay(&engine).await;
        bench
            .until("heard", |bench| {
                engine.publish(1);
                bench.stream.status.last_seq().is_some()
            })
            .await;
        engine.lose(5);
        engine.publish(3);
        bench.until("reset", |bench| bench.count("resets") == 1 && bench.is_trusted()).await;
        assert_eq!((bench.is_partial(), bench.count("lost_batches")), (true, 5));
    });
}

#[test]
fn a_gap_that_the_engine_has_forgotten_costs_the_holdings() {
    run(async {
        let engine = Engine::start(3);
        let bench = Bench::of(&engine).await;
        engine.publish(3);
        bench.whole(1, 3).await;
        engine.lose(10);
        engine.publish(1);
        bench.until("reset", |bench| bench.count("resets") == 1 && bench.is_trusted()).await;
        assert!(bench.is_partial());
        assert_eq!((bench.depth(1, 14), bench.stream.status.last_seq()), (0, Some(13)));
    });
}

#[test]
fn repeated_and_swapped_batches_do_no_harm() {
    run(async {
        let engine = Engine::start(10_000);
        let bench = Bench::of(&engine).await;
        engine.publish(10);
        bench.whole(1, 10).await;
        // What came by the replay socket only is not told twice.
        let repeated = |bench: &Bench| {
            engine.repeat(5);
            bench.count("duplicate_batches") >= 5
        };
        bench.until("repeated", repeated).await;
        engine.swap();
        engine.publish(1);
        bench.whole(1, 13).await;
        assert_eq!(bench.count("resets"), 0);
        bench.leaves_nothing(&engine, 1, 13).await;
    });
}

#[test]
fn a_restart_is_a_new_epoch() {
    run(async {
        let engine = Engine::start(10_000);
        let bench = Bench::of(&engine).await;
        engine.publish(50);
        bench.whole(1, 50).await;
        engine.restart();
        engine.publish(20);
        bench.whole(2, 20).await;
        assert_eq!((bench.depth(1, 50), bench.stream.status.epoch.load(Relaxed)), (0, 1));
        assert!(bench.count("reconnects") >= 1);
        // With more batches than the life before.
        engine.restart();
        engine.publish(80);
        bench.whole(3, 80).await;
        assert_eq!((bench.depth(2, 20), bench.is_partial()), (0, false));
        bench.leaves_nothing(&engine, 3, 80).await;
    });
}

#[test]
fn an_engine_that_restarted_and_says_nothing_holds_nothing() {
    run(async {
        let engine = Engine::start(10_000);
        let bench = Bench::of(&engine).await;
        engine.publish(50);
        bench.whole(1, 50).await;
        engine.restart();
        bench.until("empty", |bench| bench.is_trusted() && bench.depth(1, 50) == 0).await;
        assert_eq!(bench.stream.status.last_seq(), None);
    });
}

#[test]
fn an_engine_that_is_gone_is_not_trusted_and_comes_back() {
    run(async {
        let engine = Engine::start(10_000);
        let bench = Bench::of(&engine).await;
        engine.publish(50);
        bench.whole(1, 50).await;
        engine.down();
        bench.until("stale", |bench| bench.stream.status.state() == State::Stale).await;
        assert!(!bench.is_trusted());
        engine.restart();
        engine.publish(3);
        bench.whole(2, 3).await;
    });
}

#[test]
fn an_engine_can_come_after_its_registration() {
    run(async {
        let engine = Engine::start(10_000);
        engine.down();
        let bench = Bench::of(&engine).await;
        bench.until("refused", |bench| bench.stream.status.last_error().is_some()).await;
        assert!(!bench.is_trusted() && !bench.stream.status.is_settled());
        engine.restart();
        engine.publish(3);
        bench.whole(2, 3).await;
        assert!(bench.stream.status.is_settled());
    });
}

#[test]
fn an_engine_that_never_comes_holds_back_readiness_for_a_while_only() {
    run(async {
        let engine = Engine::start(10_000);
        engine.down();
        let settings = StreamSettings { settle_timeout: Duration::from_millis(300), ..settings() };
        let bench = Bench::new(registration(&engine.events, Some(&engine.replay)), settings).await;
        bench.until("settled", |bench| bench.stream.status.is_settled()).await;
        assert!(!bench.is_trusted());
    });
}

#[test]
fn an_engine_that_hangs_is_stale_until_it_answers() {
    run(async {
        let engine = Engine::start(10_000);
        let bench = Bench::of(&engine).await;
        engine.publish(50);
        bench.whole(1, 50).await;
        let pause = engine.pause();
        bench.until("stale", |bench| bench.stream.status.state() == State::Stale && !bench.is_trusted()).await;
        drop(pause);
        bench.whole(1, 50).await;
        assert_eq!((bench.count("resets"), bench.stream.status.epoch.load(Relaxed)), (0, 0));
    });
}

#[test]
fn a_dead_replay_stops_nothing_and_heals_when_it_returns() {
    run(async {
        let engine = Engine::start(10_000);
        engine.publish(20);
        engine.kill_replay();
        let bench = Bench::of(&engine).await;
        bench.until("partial", |bench| bench.is_trusted() && bench.is_partial()).await;
        engine.publish(10);
        bench.until("live", |bench| bench.is_trusted() && bench.stream.status.last_seq() == Some(29)).await;
        engine.lose(1);
        engine.publish(10);
        bench.until("live", |bench| bench.is_trusted() && bench.stream.status.last_seq() == Some(40)).await;
        assert_eq!((bench.count("resets"), bench.depth(1, 41)), (1, 0));
        engine.revive_replay();
        bench.whole(1, 41).await;
        assert!(!bench.is_partial());
        bench.leaves_nothing(&engine, 1, 41).await;
    });
}

#[test]
fn poison_costs_itself() {
    run(async {
        let engine = Engine::start(10_000);
        let bench = Bench::of(&engine).await;
        engine.publish(10);
        engine.poison();
        engine.bad_frames();
        engine.publish(10);
        bench.whole(1, 20).await;
        // The live socket may still have to take up its work.
        let noticed = |bench: &Bench| {
            engine.bad_frames();
            bench.count("malformed_messages") >= 1
        };
        bench.until("noticed", noticed).await;
        engine.publish(1);
        bench.whole(1, 21).await;
        assert_eq!((bench.count("gaps"), bench.count("resets"), bench.count("undecodable_batches")), (0, 0, 1));
        assert!(bench.stream.status.last_error().is_some());
    });
}

#[test]
fn nothing_is_applied_after_the_removal() {
    run(async {
        let engine = Arc::new(Engine::start(10_000));
        for _ in 0..5 {
            let bench = Bench::of(&engine).await;
            bench.until("live", Bench::is_trusted).await;
            let publisher = {
                let engine = engine.clone();
                std::thread::spawn(move || engine.publish(20_000))
            };
            let before = bench.count("batches");
            bench.until("busy", |bench| bench.count("batches") > before + 100).await;
            assert_eq!(bench.fleet.unregister(WORKER, None, None).await, Ok(1));
            let after = bench.count("batches");
            publisher.join().expect("published");
            assert_eq!(bench.stream.status.state(), State::Stopped);
            assert_eq!((bench.count("batches"), bench.fleet.workers().len()), (after, 0));
            let prompt = hash::content_hashes(&tokens(1, 10), BLOCK_SIZE as usize, None, None);
            assert_eq!(bench.stream.keyspace.index.find(&prompt).to_owned().scores(View::Device).len(), 0);
        }
    });
}

/// Sends the same to all who connect.
fn impostor(what: Vec<u8>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
    let address = format!("tcp://{}", listener.local_addr().expect("bound"));
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let Ok(mut connection) = connection else { return };
            let what = what.clone();
            std::thread::spawn(move || {
                let _ = connection.write_all(&what);
                let _ = connection.set_read_timeout(Some(Duration::from_secs(5)));
                let _ = connection.read_to_end(&mut Vec::new());
            });
        }
    });
    address
}

/// A correct greeting and handshake of a PUB socket, and then this.
fn as_publisher(then: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 0];
    bytes.extend(b"NULL");
    bytes.resize(64, 0);
    let ready = b"\x05READY\x0bSocket-Type\x00\x00\x00\x03PUB";
    bytes.extend([4, ready.len() as u8]);
    bytes.extend(ready);
    bytes.extend(then);
    bytes
}

#[test]
fn what_is_no_engine_hurts_nobody() {
    run(async {
        let message = |frames: &[&[u8]]| {
            let mut bytes = Vec::new();
            for (at, frame) in frames.iter().enumerate() {
                bytes.extend([u8::from(at + 1 < frames.len()), frame.len() as u8]);
                bytes.extend(*frame);
            }
            bytes
        };
        let impostors = [
            b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(),
            (0..4000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect(),
            as_publisher(&[0x02, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, b'x']),
            as_publisher(&[0x04, 0x03, 0x09, b'a', b'b']),
            as_publisher(&message(&[b"", b"seq", b""])),
            as_publisher(&message(&[b"", &[0xff; 8], b"payload"])),
            as_publisher(&message(&[b"", b"", b"", b"", b"", b"", b"", b"", b"", b"", b""])),
            as_publisher(&message(&[b"", &[0x7f; 8], b"\x93"]).repeat(100)),
        ];
        let engine = Engine::start(10_000);
        let bench = Bench::of(&engine).await;
        for (number, what) in impostors.iter().enumerate() {
            let address = impostor(what.clone());
            let mut registration = registration(&address, Some(&address));
            registration.worker = format!("impostor-{number}");
            bench.fleet.register(registration).await.expect("it is registered");
        }
        for round in 1..=40 {
            engine.publish(10);
            bench.whole(1, 10 * round).await;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        for worker in bench.fleet.workers().iter().filter(|worker| worker.name.starts_with("impostor")) {
            let status = &worker.streams[0].1.status;
            bench.until("noticed", |_| status.last_error().is_some()).await;
            assert_eq!(status.counters.task_restarts.load(Relaxed), 0, "{}", worker.name);
        }
        assert_eq!((bench.count("reconnects"), bench.count("resets")), (0, 0));
        for number in 0..impostors.len() {
            assert_eq!(bench.fleet.unregister(&format!("impostor-{number}"), None, None).await, Ok(1));
        }
    });
}

#[test]
fn names_and_files_are_addresses_too() {
    run(async {
        let engine = Engine::start(10_000);
        engine.publish(3);
        let named = |address: &str| address.replace("127.0.0.1", "localhost");
        let registration = registration(&named(&engine.events), Some(&named(&engine.replay)));
        let bench = Bench::new(registration, settings()).await;
        bench.whole(1, 3).await;
        engine.publish(3);
        bench.whole(1, 6).await;
    });
}
