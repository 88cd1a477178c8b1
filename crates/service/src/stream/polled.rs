//! A libzmq socket that tokio waits for. The only `unsafe` of this crate.

#![expect(unsafe_code, reason = "tokio must be told that a descriptor outlives its registration")]

use std::io;
use std::os::fd::RawFd;
use std::task::{Context, Poll, ready};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A socket and the news of its file descriptor.
pub(crate) struct Polled {
    // Dropped first, so that no closed descriptor is watched.
    fd: AsyncFd<RawFd>,
    pub(crate) socket: zmq::Socket,
    /// Whether there may be messages.
    pub(crate) ready: bool,
}

impl Polled {
    pub(crate) fn new(socket: zmq::Socket) -> io::Result<Self> {
        // SAFETY: the descriptor is the socket's own; the socket moves in beside it, never leaves, and is dropped after it.
        let fd = unsafe { AsyncFd::register_with_interest(socket.get_fd()?, Interest::READABLE) }?;
        Ok(Self { fd, socket, ready: true })
    }

    pub(crate) fn into_socket(self) -> zmq::Socket {
        drop(self.fd);
        self.socket
    }

    /// The frames of the next message, into `frames`.
    pub(crate) fn poll_message(
        &mut self,
        cx: &mut Context<'_>,
        frames: &mut Vec<zmq::Message>,
    ) -> Poll<io::Result<()>> {
        loop {
            // The descriptor only tells of changes: whatever there is must be taken before it is waited for.
            if self.ready {
                match receive(&self.socket, frames) {
                    Err(zmq::Error::EAGAIN) => self.ready = false,
                    result => return Poll::Ready(result.map_err(io::Error::from)),
                }
            }
            ready!(self.fd.poll_read_ready(cx))?.clear_ready();
            self.ready = true;
        }
    }
}

fn receive(socket: &zmq::Socket, frames: &mut Vec<zmq::Message>) -> Result<(), zmq::Error> {
    frames.clear();
    loop {
        let mut frame = zmq::Message::new();
        match socket.recv(&mut frame, zmq::DONTWAIT) {
            Err(zmq::Error::EINTR) => continue,
            result => result?,
        }
        let more = frame.get_more();
        // No message of ours has so many; what is behind is read and dropped.
        if frames.len() < 8 {
            frames.push(frame);
        }
        if !more {
            return Ok(());
        }
    }
}
