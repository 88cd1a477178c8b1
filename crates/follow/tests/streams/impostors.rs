//! Impostors: they listen at an address and are no engines.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use kvatlas_fake_engine::zmtp::{greeting, impostor, message};

use crate::bench::{registration, with_blocks};

/// A correct greeting and handshake of a PUB socket, and then this.
fn as_publisher(then: &[u8]) -> Vec<u8> {
    [&greeting("PUB"), then].concat()
}

#[test]
fn what_is_no_engine_hurts_nobody() {
    with_blocks(0, async |engine, bench| {
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
        let impostors = impostors.map(impostor);
        for (number, impostor) in impostors.iter().enumerate() {
            let address = impostor.endpoint();
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
