//! Readers of a relay without NATS that show no key, say nothing, or read nothing.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use kvatlas_fake_engine::zmtp::{greeting, message};
use kvatlas_fake_engine::{Publisher, free_port};
use kvatlas_follow::{Config, Follower};

use crate::nodes::Node;

fn relay(port: u16, engine: &Publisher, more: &str) -> Node {
    Node::new(&format!(r#""publish": "tcp://127.0.0.1:{port}" {more}"#), "").following(engine)
}

fn reader(port: u16, more: &str) -> Node {
    Node::new(&format!(r#""from": "tcp://127.0.0.1:{port}" {more}"#), "")
}

fn connected(port: u16) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("an option");
    stream
}

#[test]
fn who_asks_and_does_not_read_is_answered_little() {
    let (port, engine) = (free_port(), Publisher::start(10_000));
    let relay = relay(port, &engine, "");
    engine.publish(2000);
    relay.whole(1, 2000);
    let follow = [&b"F"[..], &0_u64.to_be_bytes()].concat();
    let kept = [&b"K"[..], b"0123456789abcdef"].concat();
    for question in [follow, kept] {
        let mut stranger = connected(port);
        stranger.write_all(&greeting("DEALER")).expect("sent");
        let many = message(&[b"", &question]).repeat(100_000 / question.len());
        // It may be closed in the middle.
        let _ = stranger.write_all(&many).and_then(|()| stranger.shutdown(std::net::Shutdown::Write));
        let mut answers = Vec::new();
        let _ = stranger.read_to_end(&mut answers);
        // What the sockets' buffers take, the relay does not hold.
        assert!(answers.len() < 8 << 20, "{} bytes in answer to {}", answers.len(), many.len());
    }
    let good = reader(port, "");
    good.whole(1, 2000);
}

#[test]
fn the_last_messages_are_asked_for_once() {
    let (port, engine) = (free_port(), Publisher::start(10_000));
    let relay = relay(port, &engine, "");
    engine.publish(10);
    relay.whole(1, 10);
    let mut stranger = connected(port);
    let follow = message(&[b"", &[&b"F"[..], &0_u64.to_be_bytes()].concat()]);
    stranger.write_all(&[greeting("DEALER"), follow.clone(), follow].concat()).expect("sent");
    let mut answers = Vec::new();
    let ended = stranger.read_to_end(&mut answers);
    assert!(ended.is_ok() || ended.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionReset));
    // A frame that no question has is refused before it comes.
    let mut stranger = connected(port);
    stranger.write_all(&greeting("DEALER")).expect("sent");
    stranger.write_all(&[2, 0, 0, 0, 0, 1, 0, 0, 0]).expect("sent");
    let ended = stranger.read_to_end(&mut answers);
    assert!(ended.is_ok() || ended.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionReset));
}

#[test]
fn silent_connections_give_way_to_readers() {
    let (port, engine) = (free_port(), Publisher::start(10_000));
    let relay = relay(port, &engine, "");
    engine.publish(100);
    relay.whole(1, 100);
    let mut silent: Vec<TcpStream> = (0..300).map(|_| connected(port)).collect();
    for stranger in silent.iter_mut().skip(150) {
        let _ = stranger.write_all(&greeting("DEALER"));
    }
    let good = reader(port, "");
    good.whole(1, 100);
    relay.until("rid of some", |relay| relay.metric("relay_readers_gave_way") >= 300 - 256);
    // The others have shaken no hands, or followed nothing, in time.
    relay.until("rid of all", |relay| {
        let ended = relay.metric("relay_readers_gave_way") + relay.metric("relay_silent_readers");
        ended >= 150
    });
    engine.publish(1);
    good.whole(1, 101);
}

#[test]
fn a_reader_shows_the_key() {
    let (port, engine) = (free_port(), Publisher::start(10_000));
    let key = r#", "reader_key": "s3cret""#;
    let relay = relay(port, &engine, key);
    engine.publish(50);
    relay.whole(1, 50);
    let good = reader(port, key);
    good.whole(1, 50);
    for (wrong, why) in [("", "none is set here"), (r#", "reader_key": "s3cre""#, "right key")] {
        let bad = reader(port, wrong);
        bad.until("refused", |node| {
            let health = node.log();
            health.contains(why) && health.contains("relay.reader_key_file")
        });
        assert!(bad.stream().is_none(), "it has read nothing");
    }
    relay.until("counted", |relay| relay.metric("relay_reader_keys_refused") > 1);
    // As libzmq shows it.
    let socket = zmq::Context::new().socket(zmq::DEALER).expect("a socket");
    socket.set_rcvtimeo(60_000).expect("an option");
    socket.set_linger(0).expect("an option");
    socket.set_plain_username(Some("reader")).expect("an option");
    socket.set_plain_password(Some("s3cret")).expect("an option");
    socket.connect(&format!("tcp://127.0.0.1:{port}")).expect("an address");
    socket.send_multipart([&b""[..], b"Kquestion"], 0).expect("sent");
    assert!(socket.recv_multipart(0).expect("an answer")[3].ends_with(b"question"));
    let open = free_port();
    let _open = Node::new(&format!(r#""publish": "tcp://127.0.0.1:{open}""#), "");
    let careful = reader(open, key);
    careful.until("refused", |node| node.log().contains("asks for no key"));
}

#[test]
fn who_listens_for_other_machines_needs_a_key() {
    let started = |more: &str| {
        let json = format!(
            r#"{{ "log": {{ "level": "off" }},
                 "relay": {{ "publish": "tcp://0.0.0.0:{}" {more} }} }}"#,
            free_port()
        );
        Config::from_json(&json).and_then(|config| Follower::start(config, false)).map(drop)
    };
    let why = started("").expect_err("anybody could read").to_string();
    assert!(why.contains("relay.reader_key_file") && why.contains("relay.insecure_readers"), "{why}");
    started(r#", "reader_key": "s3cret""#).expect("with a key");
    started(r#", "insecure_readers": true"#).expect("on purpose");
    let long = format!(r#", "reader_key": "{}""#, "k".repeat(300));
    assert!(started(&long).is_err_and(|why| why.to_string().contains("255")));
    assert!(started(r#", "reader_key_file": "/nowhere""#).is_err_and(|why| why.to_string().contains("/nowhere")));
}
