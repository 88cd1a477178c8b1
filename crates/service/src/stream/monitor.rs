//! News of a connection, from libzmq's socket monitor.
//!
//! libzmq sends that news with a blocking call, in the thread that serves all connections of the context. A receiver that
//! goes away before the monitored socket is quite gone stops that thread, and so all streams, for good. So a receiver
//! stays until libzmq says that the monitor has stopped, which is the last thing it does with a socket.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use super::polled::Polled;

const CLOSED: u16 = 0x0080;
const DISCONNECTED: u16 = 0x0200;
const STOPPED: u16 = 0x0400;
const HANDSHAKE_FAILED: u16 = 0x0800 | 0x2000 | 0x4000;
const HANDSHAKE_SUCCEEDED: u16 = 0x1000;

/// Receivers whose sockets are closed but not gone.
static LEAVING: Mutex<Vec<zmq::Socket>> = Mutex::new(Vec::new());

pub(crate) enum News {
    Connected,
    /// The connection has ended, or could not be made; why.
    Ended(&'static str),
}

/// The receiver. To be dropped after the monitored socket.
pub(crate) struct Monitor {
    receiver: Option<Polled>,
    started: bool,
}

impl Monitor {
    /// The receiver, and the name to be given to [`start`](Self::start).
    pub(crate) fn new(context: &zmq::Context) -> io::Result<(Self, String)> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let name = format!("inproc://monitor-{}", NUMBER.fetch_add(1, Relaxed));
        let socket = context.socket(zmq::PAIR)?;
        socket.set_linger(0)?;
        socket.connect(&name)?;
        Ok((Self { receiver: Some(Polled::new(socket)?), started: false }, name))
    }

    /// Watches a socket that is not connected yet.
    pub(crate) fn start(&mut self, socket: &zmq::Socket, name: &str) -> io::Result<()> {
        socket.monitor(name, i32::from(CLOSED | DISCONNECTED | STOPPED | HANDSHAKE_FAILED | HANDSHAKE_SUCCEEDED))?;
        self.started = true;
        Ok(())
    }

    pub(crate) fn poll(&mut self, cx: &mut Context<'_>, frames: &mut Vec<zmq::Message>) -> Poll<News> {
        loop {
            let Some(receiver) = &mut self.receiver else { return Poll::Pending };
            if ready!(receiver.poll_message(cx, frames)).is_err() {
                return Poll::Ready(News::Ended("it cannot be watched"));
            }
            match event(frames) {
                HANDSHAKE_SUCCEEDED => return Poll::Ready(News::Connected),
                CLOSED => return Poll::Ready(News::Ended("nobody answers there")),
                DISCONNECTED => return Poll::Ready(News::Ended("the connection was lost")),
                other if other & HANDSHAKE_FAILED != 0 => {
                    return Poll::Ready(News::Ended(
                        "what listens there completes no ZMTP handshake: it hangs, or is no ZMQ socket",
                    ));
                }
                _ => {}
            }
        }
    }
}

fn event(frames: &[zmq::Message]) -> u16 {
    frames.first().and_then(|frame| frame.first_chunk::<2>()).map_or(0, |event| u16::from_le_bytes(*event))
}

impl Drop for Monitor {
    fn drop(&mut self) {
        let receiver = self.receiver.take().filter(|_| self.started).map(Polled::into_socket);
        let mut leaving = LEAVING.lock().unwrap_or_else(PoisonError::into_inner);
        leaving.extend(receiver);
        leaving.retain(|receiver| {
            loop {
                match receiver.recv_multipart(zmq::DONTWAIT) {
                    Ok(frames) if frames.first().is_some_and(|frame| frame.starts_with(&STOPPED.to_le_bytes())) => {
                        return false;
                    }
                    Ok(_) => {}
                    Err(error) => return matches!(error, zmq::Error::EAGAIN | zmq::Error::EINTR),
                }
            }
        });
    }
}
