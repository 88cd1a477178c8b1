//! The sockets against publishers that send without end.

use std::future::{Future, poll_fn};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use kvatlas_fake_engine::zmtp::{flood, frame, message};

use super::transport::{Transport, TransportEvent, ZmqTransport};
use crate::config::StreamConfig;
use crate::state::Registration;

/// Bytes that an engine's messages may take of this process, with what the system keeps for the connection.
const BOUND: u64 = 64 << 20;

fn registration(port: u16) -> Registration {
    Registration {
        worker: "a".to_owned(),
        model: "m".to_owned(),
        routing_group: "g".to_owned(),
        block_size: 16,
        rank: 0,
        endpoint: format!("tcp://127.0.0.1:{port}").parse().expect("an endpoint"),
        replay_endpoint: None,
        topic: String::new(),
        count_copies: true,
        host_chunk: None,
        names: None,
        source: "test".to_owned(),
    }
}

fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").expect("this system has it");
    4096 * text.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).expect("pages")
}

async fn connected(port: u16) -> ZmqTransport {
    let mut transport = ZmqTransport::new(&registration(port), &StreamConfig::default().into(), None);
    let incoming = tokio::time::timeout(Duration::from_secs(60), poll_fn(|cx| transport.poll_next(cx))).await;
    assert!(matches!(incoming, Ok(TransportEvent::Connected)), "{:?}", incoming.is_ok());
    transport
}

/// Returns how much is taken once nobody has taken more for a second.
async fn all_taken(written: &AtomicU64) -> u64 {
    let mut before = u64::MAX;
    loop {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let now = written.swap(written.load(Relaxed), Relaxed);
        if now == before {
            return now;
        }
        before = now;
    }
}

#[tokio::test]
async fn what_is_not_read_stays_at_the_engine() {
    let (engine, written) = flood(message(&[b"", &[0; 8], &vec![0; 15 << 20]]), 2 << 30);
    let mut transport = connected(engine.port()).await;
    let first = poll_fn(|cx| transport.poll_next(cx)).await;
    assert!(matches!(&first, TransportEvent::Live { seq: 0, .. }));
    let taken = all_taken(&written).await;
    assert!(taken < BOUND, "{taken} bytes were taken of a reader that reads nothing");
    for _ in 0..8 {
        assert!(matches!(poll_fn(|cx| transport.poll_next(cx)).await, TransportEvent::Live { seq: 0, .. }));
    }
}

#[tokio::test]
async fn a_message_without_end_takes_no_memory() {
    let (engine, written) = flood(frame(true, &vec![0; 1 << 20]), 1 << 30);
    let mut transport = connected(engine.port()).await;
    let before = resident();
    let mut read = Box::pin(poll_fn(|cx| transport.poll_next(cx)));
    while written.load(Relaxed) < 1 << 30 {
        let mut incoming = std::pin::pin!(tokio::time::timeout(Duration::from_millis(50), &mut read));
        if poll_fn(|cx| incoming.as_mut().poll(cx)).await.is_ok() {
            break;
        }
        let grown = resident().saturating_sub(before);
        assert!(grown < 4 * BOUND, "{grown} bytes for a message without end");
    }
}
