//! ZeroMQ's protocol as bytes, for tests that violate it.

use std::io::{ErrorKind, Read as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crate::net::Listener;

/// The greeting and the handshake of a socket of the given type (`PUB`, `DEALER`), without a key.
#[must_use]
pub fn greeting(socket: &str) -> Vec<u8> {
    let mut bytes = vec![0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 0];
    bytes.extend(b"NULL");
    bytes.resize(64, 0);
    let mut ready = b"\x05READY\x0bSocket-Type".to_vec();
    ready.extend((socket.len() as u32).to_be_bytes());
    ready.extend(socket.bytes());
    bytes.extend([4, ready.len() as u8]);
    bytes.extend(ready);
    bytes
}

/// A frame, with a short or a long head depending on its length.
#[must_use]
pub fn frame(more: bool, body: &[u8]) -> Vec<u8> {
    let mut bytes = match u8::try_from(body.len()) {
        Ok(length) => vec![u8::from(more), length],
        Err(_) => [&[2 | u8::from(more)][..], &(body.len() as u64).to_be_bytes()].concat(),
    };
    bytes.extend(body);
    bytes
}

/// A message of these frames.
#[must_use]
pub fn message(frames: &[&[u8]]) -> Vec<u8> {
    frames.iter().enumerate().flat_map(|(at, body)| frame(at + 1 < frames.len(), body)).collect()
}

/// Listens on a port without being an engine: sends the same bytes to every client, whatever it sends.
pub fn impostor(what: Vec<u8>) -> Listener {
    Listener::start(move |mut peer| {
        let _ = peer.write_all(&what);
        let _ = peer.set_read_timeout(Some(Duration::from_secs(5)));
        let _ = peer.read_to_end(&mut Vec::new());
    })
}

/// A publisher that completes the handshake, then writes `bytes` again and again, until the reader stops or `enough`
/// bytes are written. The second value is the number of bytes written.
pub fn flood(bytes: Vec<u8>, enough: u64) -> (Listener, Arc<AtomicU64>) {
    let written = Arc::new(AtomicU64::new(0));
    let count = written.clone();
    let listener = Listener::start(move |mut peer| {
        peer.write_all(&greeting("PUB")).expect("the handshake");
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
        let _ = peer.read_to_end(&mut Vec::new());
    });
    (listener, written)
}
