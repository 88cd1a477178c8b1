//! A service that publishes what it follows, and others that hold the same without following anybody, with a real
//! `nats-server` between them that is killed, emptied and away for a while.

use std::time::{Duration, Instant};

use kvatlas_fake_engine::{BLOCK_SIZE, Publisher};
use kvatlas_wire::compact::{Frame, MessageWriter, Status};
use tokio::runtime::Runtime;

use crate::WORKER;
use crate::nodes::{Nats, Node};

/// A scenario with an engine; nothing if there is no `nats-server`.
fn scenario(scenario: impl FnOnce(Nats, &Publisher)) {
    let Some(nats) = Nats::start() else { return };
    scenario(nats, &Publisher::start(10_000));
}

#[test]
fn a_reader_holds_what_the_relay_holds_whenever_it_comes() {
    scenario(|nats, engine| {
        let (relay, early) = (Node::relay(&nats, engine, ""), Node::reader(&nats));
        engine.publish(500);
        relay.whole(1, 500);
        early.whole(1, 500);
        let late = Node::reader(&nats);
        late.whole(1, 500);
        engine.publish(100);
        for reader in [&early, &late] {
            reader.whole(1, 600);
            assert_eq!((reader.count("gaps"), reader.count("undecodable_batches")), (0, 0));
            assert!(reader.stream().is_some_and(|stream| stream.status.lag().is_some()));
        }
        engine.restart();
        engine.publish(50);
        for reader in [&early, &late] {
            reader.whole(2, 50);
            assert_eq!(reader.depth(1, 600), Some(0), "the engine has restarted");
        }
        early.leaves_nothing(engine, 2, 50);
    });
}

#[test]
fn nats_is_killed_away_and_emptied() {
    scenario(|mut nats, engine| {
        let (relay, reader) = (Node::relay(&nats, engine, ""), Node::reader(&nats));
        engine.publish(200);
        reader.whole(1, 200);
        nats.kill();
        reader.until("untrusted", |node| !node.is_trusted());
        engine.publish(300);
        relay.whole(1, 500);
        nats.up();
        reader.whole(1, 500);
        assert_eq!(reader.count("resets"), 0, "nothing was lost");
        // With all that it kept.
        nats.kill();
        nats.empty();
        engine.publish(100);
        relay.whole(1, 600);
        nats.up();
        reader.whole(1, 600);
        reader.leaves_nothing(engine, 1, 600);
    });
}

#[test]
fn what_does_not_fit_into_the_queue_is_told_anew() {
    scenario(|mut nats, engine| {
        let (relay, reader) = (Node::relay(&nats, engine, r#", "buffer_bytes": 20000"#), Node::reader(&nats));
        engine.publish(100);
        reader.whole(1, 100);
        nats.kill();
        reader.until("untrusted", |node| !node.is_trusted());
        engine.publish(2000);
        relay.whole(1, 2100);
        nats.up();
        reader.whole(1, 2100);
        assert!(reader.count("resets") > 0, "something was lost, and it was noticed");
        reader.leaves_nothing(engine, 1, 2100);
    });
}

#[test]
fn a_relay_ends_in_the_middle_and_another_takes_its_place() {
    scenario(|nats, engine| {
        let (relay, reader) = (Node::relay(&nats, engine, ""), Node::reader(&nats));
        let meanwhile = engine.publish_meanwhile(3000);
        reader.until("begun", |node| node.depth(1, 3000).is_some_and(|depth| depth > 0));
        relay.0.drain(Duration::ZERO);
        drop(relay);
        let _relay = Node::relay(&nats, engine, "");
        meanwhile.recv().expect("all is published");
        reader.whole(1, 3000);
        reader.leaves_nothing(engine, 1, 3000);
    });
}

#[test]
fn of_two_relays_one_wins_and_it_is_said() {
    scenario(|nats, engine| {
        let (_first, reader) = (Node::relay(&nats, engine, ""), Node::reader(&nats));
        engine.publish(100);
        reader.whole(1, 100);
        let second = Node::relay(&nats, engine, "");
        reader.until("noticed", |node| node.count("other_relays") > 0);
        engine.publish(100);
        reader.whole(1, 200);
        reader.until("told", |node| {
            let error = node.stream().and_then(|stream| stream.status.last_error());
            error.is_some_and(|error| error.contains("another relay"))
        });
        second.0.drain(Duration::ZERO);
        engine.publish(100);
        reader.whole(1, 300);
        reader.leaves_nothing(engine, 1, 300);
    });
}

/// A relay that has ended without a word is not trusted by who comes after, whatever it said at last.
#[test]
fn what_a_relay_said_before_it_ended_is_not_trusted_later() {
    let Some(nats) = Nats::start() else { return };
    // It makes the log, and answers nobody for the other.
    let relay = Node::new(&format!(r#""publish": "{}""#, nats.url()), "");
    let runtime = Runtime::new().expect("a runtime");
    let _entered = runtime.enter();
    let connecting = async_nats::ConnectOptions::new().retry_on_initial_connect().connect(nats.url());
    let log = async_nats::jetstream::new(runtime.block_on(connecting).expect("an address"));
    let say = |id| {
        let mut message = MessageWriter { life: 7, block_size: BLOCK_SIZE, key: 0 }.begin(id, 0.0, 0);
        if id == 0 {
            MessageWriter::put(&mut message, Frame::Forgotten);
        }
        MessageWriter::put(&mut message, Frame::Status(Status { trusted: true, ..Status::default() }));
        runtime.block_on(async {
            for _ in 0..100 {
                let sent = log.publish(format!("kvatlas.default.model.{WORKER}.0"), message.clone().into()).await;
                if let Ok(sent) = sent
                    && sent.await.is_ok()
                {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            panic!("there is no log");
        });
    };
    say(0);
    let reader = Node::reader(&nats);
    reader.until("read", |node| node.stream().is_some_and(|stream| stream.status.last_seq() == Some(0)));
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(600) {
        assert!(!reader.is_trusted(), "nobody knows what the engine holds now");
        std::thread::sleep(Duration::from_millis(2));
    }
    say(1);
    reader.until("trusted", Node::is_trusted);
    drop(relay);
}

#[test]
fn a_log_that_is_deleted_is_made_anew_and_read() {
    scenario(|nats, engine| {
        let (_relay, reader) = (Node::relay(&nats, engine, ""), Node::reader(&nats));
        engine.publish(300);
        reader.whole(1, 300);
        let runtime = Runtime::new().expect("a runtime");
        runtime.block_on(async {
            let client = async_nats::connect(nats.url()).await.expect("it is there");
            async_nats::jetstream::new(client).delete_stream("kvatlas").await.expect("deleted");
        });
        engine.publish(100);
        reader.whole(1, 400);
        reader.leaves_nothing(engine, 1, 400);
    });
}

#[test]
fn a_reader_goes_on_from_its_snapshot_unless_the_log_was_purged() {
    scenario(|nats, engine| {
        let relay = Node::relay(&nats, engine, "");
        let directory = nats.directory.with_extension("snapshots");
        let snapshot = format!(r#", "snapshot": {{ "dir": "{}", "every": 3600 }}"#, directory.display());
        let reader = || Node::new(&format!(r#""from": "{}""#, nats.url()), &snapshot);
        let outcome = |node: &Node| node.stream().and_then(|stream| stream.status.from_snapshot()?.outcome);
        let first = reader();
        engine.publish(400);
        first.whole(1, 400);
        first.0.drain(Duration::from_secs(60));
        drop(first);
        engine.publish(100);
        let second = reader();
        second.whole(1, 500);
        second.until("told", |node| outcome(node).is_some());
        assert_eq!(outcome(&second).map(|outcome| outcome.name()), Some("kept"));
        second.0.drain(Duration::from_secs(60));
        drop(second);
        engine.publish(100);
        relay.whole(1, 600);
        let runtime = Runtime::new().expect("a runtime");
        runtime.block_on(async {
            let client = async_nats::connect(nats.url()).await.expect("it is there");
            tokio::time::sleep(Duration::from_millis(300)).await;
            let log = async_nats::jetstream::new(client);
            log.get_stream("kvatlas").await.expect("it is there").purge().await.expect("purged");
        });
        let third = reader();
        third.whole(1, 600);
        third.until("told", |node| outcome(node).is_some());
        assert_eq!(outcome(&third).map(|outcome| outcome.name()), Some("restarted"));
        third.leaves_nothing(engine, 1, 600);
        let _ = std::fs::remove_dir_all(directory);
    });
}

#[test]
fn a_new_reader_begins_with_the_snapshot_in_the_object_store_and_the_log_is_no_longer_than_it_needs() {
    scenario(|nats, engine| {
        let _relay = Node::relay(&nats, engine, "");
        let relay = format!(r#""from": "{}", "snapshots": true"#, nats.url());
        let reader = || Node::new(&relay, r#", "snapshot": { "every": 0.3 }"#);
        let outcome = |node: &Node| node.stream().and_then(|stream| stream.status.from_snapshot()?.outcome);
        let runtime = Runtime::new().expect("a runtime");
        let log = async || async_nats::jetstream::new(async_nats::connect(nats.url()).await.expect("it is there"));
        let first = reader();
        engine.publish(400);
        first.whole(1, 400);
        let stored = first.metric("relay_stored_snapshots");
        // The second from now on has all, and with the next the log is purged up to its place.
        first.until("purged", |node| node.metric("relay_stored_snapshots") >= stored + 4);
        let (messages, last) = runtime.block_on(async {
            let mut stream = log().await.get_stream("kvatlas").await.expect("it is there");
            let state = stream.info().await.expect("it is there").state.clone();
            (state.messages, state.last_sequence)
        });
        // A sign of life each 0.2 s, for about 0.6 s; it is no matter of time that these are not all.
        assert!(first.metric("relay_purged") > 0 && messages < last, "{messages} of {last}");
        first.0.drain(Duration::ZERO);
        let second = reader();
        second.whole(1, 400);
        second.until("told", |node| outcome(node).is_some());
        assert_eq!(outcome(&second).map(|outcome| outcome.name()), Some("kept"));
        assert_eq!((second.metric("relay_asked"), second.count("gaps")), (0, 0), "nobody was asked");
        engine.publish(100);
        second.whole(1, 500);
        second.until("written", |node| node.metric("relay_stored_snapshots") > 0);
        second.0.drain(Duration::ZERO);
        runtime.block_on(async {
            let bucket = log().await.get_object_store("kvatlas").await.expect("it is there");
            bucket.put("kvatlas.snapshot", &mut &b"nonsense"[..]).await.expect("written");
        });
        let third = reader();
        third.whole(1, 500);
        assert_eq!((third.metric("relay_failed_snapshots"), outcome(&third)), (1, None), "relays were asked instead");
        third.leaves_nothing(engine, 1, 500);
    });
}

/// Contents under one key are nothing under another: who took them up would answer that nothing is held, and be sure.
#[test]
fn a_snapshot_under_another_key_is_left_out() {
    scenario(|nats, engine| {
        let directory = nats.directory.with_extension("keys");
        std::fs::create_dir_all(&directory).expect("a directory");
        let snapshot = format!(r#", "snapshot": {{ "dir": "{}", "every": 3600 }}"#, directory.display());
        let node = |key: &str, is_in_file: bool| {
            let file = directory.join("key");
            std::fs::write(&file, key.repeat(64)).expect("a file");
            let file = format!(r#""key_file": "{}""#, file.display());
            let given = if is_in_file { file } else { format!(r#""key": "{}""#, key.repeat(64)) };
            let relay = format!(r#""publish": "{}", {given}"#, nats.url());
            Node::new(&relay, &snapshot).following(engine)
        };
        let outcome = |node: &Node| node.stream().and_then(|stream| stream.status.from_snapshot()?.outcome);
        let mut begun = Vec::new();
        engine.publish(200);
        for (key, outcome_of) in [("a", None), ("b", None), ("b", Some("kept"))] {
            // The same key, be it given itself or in a file.
            let node = node(key, outcome_of.is_some());
            node.whole(1, 200);
            if outcome_of.is_some() {
                node.until("told", |node| outcome(node).is_some());
            }
            begun.push(outcome(&node).map(|outcome| outcome.name()));
            node.0.drain(Duration::from_secs(60));
        }
        assert_eq!(begun, [None, None, Some("kept")]);
        let _ = std::fs::remove_dir_all(directory);
    });
}
