//! The sockets against publishers that send without end.

use std::future::{Future, poll_fn};
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use super::transport::{Transport, TransportEvent};
use super::zmq_transport::ZmqTransport;
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
        names: None,
        source: "test".to_owned(),
    }
}

/// Shakes hands as a PUB socket, then writes `bytes` again and again, until nobody takes them or they are enough.
fn publisher(bytes: Vec<u8>, enough: u64) -> (u16, Arc<AtomicU64>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    let port = listener.local_addr().expect("it listens").port();
    let written = Arc::new(AtomicU64::new(0));
    let count = written.clone();
    std::thread::spawn(move || {
        let (mut peer, _) = listener.accept().expect("somebody connects");
        shake_hands(&mut peer);
        peer.set_write_timeout(Some(Duration::from_secs(2))).expect("a timeout");
        while count.load(Relaxed) < enough {
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                match peer.write(rest) {
                    Ok(0) => return,
                    Ok(n) => {
                        rest = &rest[n..];
                        count.fetch_add(n as u64, Relaxed);
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
                    Err(_) => return,
                }
            }
        }
        let _ = peer.read(&mut [0; 1024]);
    });
    (port, written)
}

fn shake_hands(peer: &mut TcpStream) {
    let mut greeting = [0; 64];
    (greeting[0], greeting[9], greeting[10]) = (0xFF, 0x7F, 3);
    greeting[12..16].copy_from_slice(b"NULL");
    peer.write_all(&greeting).expect("the greeting");
    peer.read_exact(&mut [0; 64]).expect("theirs");
    peer.write_all(b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03PUB").expect("the handshake");
    let mut head = [0; 2];
    peer.read_exact(&mut head).expect("theirs");
    peer.read_exact(&mut vec![0; usize::from(head[1])]).expect("theirs");
}

/// A long frame, of zeros.
fn frame(more: bool, size: usize) -> Vec<u8> {
    let mut frame = vec![2 | u8::from(more)];
    frame.extend((size as u64).to_be_bytes());
    frame.resize(frame.len() + size, 0);
    frame
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
    let batch = [frame(true, 0), frame(true, 8), frame(false, 15 << 20)].concat();
    let (port, written) = publisher(batch, 2 << 30);
    let mut transport = connected(port).await;
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
    let (port, written) = publisher(frame(true, 1 << 20), 1 << 30);
    let mut transport = connected(port).await;
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
