//! A relay without NATS, and services that read it over ZeroMQ by way of a connection that is cut, held up, and made again.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use kvatlas_fake_engine::{Proxy, Publisher, free_port};
use kvatlas_follow::{Config, Follower};
use kvatlas_wire::compact::{Frame, Message};

use crate::nodes::Node;

/// Follows the engine, and listens for readers at this port.
fn relay(port: u16, engine: &Publisher, more: &str) -> Node {
    Node::new(&format!(r#""publish": "tcp://127.0.0.1:{port}" {more}"#), "").following(engine)
}

fn reader(ports: &[u16], more: &str) -> Node {
    let urls: Vec<String> = ports.iter().map(|port| format!("tcp://127.0.0.1:{port}")).collect();
    Node::new(&format!(r#""from": "{}""#, urls.join(",")), more)
}

#[test]
fn a_reader_holds_what_the_relay_holds_whenever_it_comes() {
    let (port, engine) = (free_port(), Publisher::start(10_000));
    let early = reader(&[port], "");
    let relay = relay(port, &engine, "");
    engine.publish(500);
    relay.whole(1, 500);
    early.whole(1, 500);
    let late = reader(&[port], "");
    late.whole(1, 500);
    assert_eq!(late.metric("relay_asked"), 1);
    engine.publish(100);
    for reader in [&early, &late] {
        reader.whole(1, 600);
        assert_eq!((reader.count("gaps"), reader.count("undecodable_batches")), (0, 0));
        assert!(reader.0.fleet().is_ready());
    }
    engine.restart();
    engine.publish(50);
    for reader in [&early, &late] {
        reader.whole(2, 50);
        assert_eq!(reader.depth(1, 600), Some(0), "the engine has restarted");
    }
    early.leaves_nothing(&engine, 2, 50);
    late.until("empty", |node| node.depth(2, 50) == Some(0));
}

#[test]
fn a_relay_restarts() {
    let (port, engine) = (free_port(), Publisher::start(10_000));
    let (first, reader) = (relay(port, &engine, ""), reader(&[port], ""));
    let meanwhile = engine.publish_meanwhile(3000);
    reader.until("begun", |node| node.depth(1, 3000).is_some_and(|depth| depth > 0));
    first.0.drain(Duration::ZERO);
    drop(first);
    reader.until("untrusted", |node| !node.is_trusted());
    let _second = relay(port, &engine, "");
    meanwhile.recv().expect("all is published");
    reader.whole(1, 3000);
    reader.leaves_nothing(&engine, 1, 3000);
}

#[test]
fn a_connection_is_lost_and_with_it_nothing_or_much() {
    let (port, engine) = (free_port(), Publisher::start(10_000));
    // About 20 messages are kept.
    let relay = relay(port, &engine, r#", "buffer_bytes": 3000"#);
    let between = Proxy::new(port);
    let reader = reader(&[between.port()], "");
    engine.publish(200);
    reader.whole(1, 200);
    let before = (reader.count("resets"), reader.metric("relay_asked"));
    between.cut(true);
    reader.until("untrusted", |node| !node.is_trusted());
    reader.until("told which relay is not there", |node| {
        let error = node.stream().and_then(|stream| stream.status.last_error());
        error.is_some_and(|error| error.contains(&between.port().to_string()))
    });
    engine.publish(1);
    relay.whole(1, 201);
    between.cut(false);
    reader.whole(1, 201);
    assert_eq!((reader.count("resets"), reader.metric("relay_asked")), before, "nothing was lost");
    between.cut(true);
    for more in 1..=40 {
        engine.publish(1);
        relay.whole(1, 201 + more);
    }
    between.cut(false);
    reader.whole(1, 241);
    let after = (reader.count("resets"), reader.metric("relay_asked"));
    assert!(after.0 > before.0 && after.1 > before.1, "something was, and it was noticed: {before:?} {after:?}");
    reader.leaves_nothing(&engine, 1, 241);
}

/// A connection that says nothing, or a reader that does not get on: what it knows is not of now.
#[test]
fn a_slow_reader_is_not_sure() {
    let (port, engine) = (free_port(), Publisher::start(10_000));
    let relay = relay(port, &engine, r#", "buffer_bytes": 3000"#);
    let between = Proxy::new(port);
    let reader = reader(&[between.port()], "");
    engine.publish(100);
    reader.whole(1, 100);
    between.hold(true);
    engine.evict();
    relay.until("empty", |node| node.depth(1, 100) == Some(0));
    let held = Instant::now();
    reader.until("untrusted", |node| !node.is_trusted());
    for more in 1..=60 {
        engine.publish(1);
        relay.until("heard", |node| node.stream().is_some_and(|stream| stream.status.last_seq() == Some(100 + more)));
    }
    while held.elapsed() < Duration::from_secs(3) {
        assert!(!reader.is_trusted());
        std::thread::sleep(Duration::from_millis(2));
    }
    between.hold(false);
    reader.until("known", |node| node.depth(1, 160) == relay.depth(1, 160) && node.is_trusted());
    assert_eq!(relay.depth(1, 100), Some(0), "the first ones are gone");
    engine.restart();
    engine.publish(30);
    reader.whole(2, 30);
    reader.leaves_nothing(&engine, 2, 30);
}

#[test]
fn a_reader_goes_on_from_its_snapshot_unless_the_relay_keeps_no_more_of_it() {
    let (port, engine) = (free_port(), Publisher::start(10_000));
    let relay = relay(port, &engine, r#", "buffer_bytes": 8000"#);
    let directory = std::env::temp_dir().join(format!("kvatlas-zmq-{}-{port}", std::process::id()));
    let snapshot = format!(r#", "snapshot": {{ "dir": "{}", "every": 3600 }}"#, directory.display());
    let outcome = |node: &Node| node.stream().and_then(|stream| stream.status.from_snapshot()?.outcome);
    let mut blocks = 0;
    for (news, expected) in [(400, None), (20, Some("kept")), (500, Some("restarted"))] {
        for _ in 0..news / 10 {
            engine.publish(10);
            blocks += 10;
            relay.whole(1, blocks);
        }
        let node = reader(&[port], &snapshot);
        node.whole(1, blocks);
        if expected.is_some() {
            node.until("told", |node| outcome(node).is_some());
        }
        assert_eq!(outcome(&node).map(|outcome| outcome.name()), expected);
        assert_eq!(node.metric("relay_asked") == 0, expected == Some("kept"));
        if blocks == 920 {
            node.leaves_nothing(&engine, 1, blocks);
        }
        node.0.drain(Duration::from_secs(60));
    }
    let _ = std::fs::remove_dir_all(directory);
}

#[test]
fn several_relays_are_followed_and_of_two_for_one_engine_the_one_that_is_there() {
    let (ports, engine) = ([free_port(), free_port(), free_port()], Publisher::start(10_000));
    let first = relay(ports[0], &engine, "");
    // The third is not there at all.
    let reader = reader(&ports, "");
    engine.publish(100);
    reader.whole(1, 100);
    let second = relay(ports[1], &engine, "");
    let told = |node: &Node| node.stream().and_then(|stream| stream.status.last_error());
    reader.until("told", |node| told(node).is_some_and(|error| error.contains("another relay")));
    reader.until("sure", |node| node.is_trusted() && node.metric("relay_refused") > 0);
    first.0.drain(Duration::ZERO);
    engine.publish(100);
    second.whole(1, 200);
    reader.whole(1, 200);
    reader.leaves_nothing(&engine, 1, 200);
    let log = reader.log();
    assert!(log.contains(&ports[2].to_string()) && log.contains(r#""connected":false"#), "{log}");
}

#[test]
fn addresses_that_are_none_are_refused_at_once() {
    let config = |relay: &str| Config::from_json(&format!(r#"{{ "relay": {{ {relay} }} }}"#));
    let refused = |relay: &str| config(relay).expect_err(relay).to_string();
    assert!(refused(r#""from": "tcp://a:1,tcp://0.0.0.0:2""#).contains("relay.from"));
    assert!(refused(r#""from": "tcp://a:1", "snapshots": true"#).contains("relay.snapshots needs NATS"));
    assert!(refused(r#""publish": "nats://a:1", "snapshots": true"#).contains("it needs relay.from"));
    let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let log = r#""log": { "level": "off" }"#;
    for at in [taken.local_addr().expect("bound").to_string(), "localhost:http".to_owned()] {
        let json = format!(r#"{{ {log}, "relay": {{ "publish": "tcp://{at}" }} }}"#);
        let started = Follower::start(Config::from_json(&json).expect("a configuration"), false);
        assert!(
            started.is_err_and(|error| error.to_string().contains("relay.publish: cannot listen at tcp://")),
            "{at}"
        );
    }
}

/// Faults in any order: after each, the reader holds what the engine does as soon as it is sure; and while nothing comes
/// through, it is not sure for longer than `lost_after`, whatever happens at the engine meanwhile.
#[test]
fn whatever_happens_who_is_sure_is_right() {
    // They wait most of the time.
    std::thread::scope(|scope| {
        for seed in 10..=12 {
            scope.spawn(move || faults_in_any_order(seed));
        }
    });
}

fn faults_in_any_order(seed: u64) {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut draw = move |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let (port, engine) = (free_port(), Publisher::start(10_000));
    let between = Proxy::new(port);
    let directory = std::env::temp_dir().join(format!("kvatlas-any-{}-{port}", std::process::id()));
    let snapshot = format!(r#", "snapshot": {{ "dir": "{}", "every": 0.1 }}"#, directory.display());
    let start = |kept: u64| relay(port, &engine, &format!(r#", "buffer_bytes": {kept}"#));
    let mut first = Some(start(1 << 20));
    let mut node = Some(reader(&[between.port()], &snapshot));
    let (mut life, mut blocks) = (1, 0);
    for step in 0..8 {
        let fault = draw(6);
        match fault {
            0 => between.cut(true),
            1 => between.hold(true),
            2 => {
                // At once, as if it was killed.
                drop(first.take());
                first = Some(start(if draw(2) == 0 { 1 << 20 } else { 4000 }));
            }
            3 => drop(node.take()),
            _ => {}
        }
        match draw(4) {
            0 => {
                engine.restart();
                (life, blocks) = (life + 1, 0);
            }
            1 => between.cut(fault == 0),
            _ => {}
        }
        for _ in 0..draw(4) {
            let more = 1 + draw(60);
            engine.publish(more);
            blocks += more;
        }
        first.as_ref().expect("it is there").whole(life, blocks);
        if let (1, Some(node)) = (fault, &node) {
            node.until("unsure", |node| !node.is_trusted() || node.depth(life, blocks) == Some(blocks));
        }
        between.cut(false);
        between.hold(false);
        let node = node.get_or_insert_with(|| reader(&[between.port()], &snapshot));
        let is_right = |node: &Node| node.is_trusted() && node.depth(life, blocks) == Some(blocks);
        node.until(&format!("right (seed {seed}, step {step}, fault {fault})"), is_right);
        assert!(life == 1 || node.depth(life - 1, 1) != Some(1), "the engine has restarted");
    }
    node.expect("it is there").leaves_nothing(&engine, life, blocks);
    let _ = std::fs::remove_dir_all(directory);
}

/// As the format says it, with libzmq's socket.
#[test]
fn anybody_can_read_a_relay() {
    let (port, engine) = (free_port(), Publisher::start(10_000));
    let relay = relay(port, &engine, "");
    engine.publish(10);
    relay.whole(1, 10);
    let socket = zmq::Context::new().socket(zmq::DEALER).expect("a socket");
    socket.set_rcvtimeo(60_000).expect("an option");
    socket.set_linger(0).expect("an option");
    socket.connect(&format!("tcp://127.0.0.1:{port}")).expect("an address");
    let say = |what: &[u8], more: &[u8]| socket.send_multipart([&b""[..], &[what, more].concat()], 0).expect("sent");
    let hear = || {
        let [empty, subject, place, payload] =
            <[Vec<u8>; 4]>::try_from(socket.recv_multipart(0).expect("an answer")).expect("four frames");
        assert!(empty.is_empty());
        (subject, u64::from_be_bytes(place.try_into().expect("eight bytes")), payload)
    };
    say(b"K", b"question");
    let (subject, behind, answer) = hear();
    let first = u64::from_be_bytes(answer[..8].try_into().expect("eight bytes"));
    assert!(subject.is_empty() && behind > first && &answer[8..] == b"question");
    say(b"F", &first.to_be_bytes());
    let mut next = (first, 0);
    let mut until = |wanted: Frame<'_>| loop {
        let (subject, place, payload) = hear();
        assert!(subject.starts_with(b"kvatlas.default.model."));
        let message = Message::read(&payload).expect("a message");
        assert_eq!((place, message.id), next, "one after the other");
        next = (place + 1, message.id + 1);
        if message.frames().any(|frame| frame.expect("it can be read") == wanted) {
            return subject;
        }
    };
    let subject = until(Frame::Forgotten);
    say(b"A", &subject);
    until(Frame::StateEnd);
    // Who says something else is not listened to any more; others are.
    let mut stranger = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("sent");
    stranger.set_read_timeout(Some(Duration::from_secs(60))).expect("an option");
    let mut answer = Vec::new();
    assert!(stranger.read_to_end(&mut answer).is_ok(), "the connection is ended");
    engine.publish(1);
    until_batch(&hear);
}

fn until_batch(hear: &impl Fn() -> (Vec<u8>, u64, Vec<u8>)) {
    loop {
        let (_, _, payload) = hear();
        let message = Message::read(&payload).expect("a message");
        if message.frames().any(|frame| matches!(frame, Ok(Frame::Batch { .. }))) {
            return;
        }
    }
}
