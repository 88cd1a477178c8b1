//! Impostors: they listen at an address and are no engines.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use crate::bench::{registration, with_blocks};

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
    with_blocks(0, async |engine, bench| {
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
