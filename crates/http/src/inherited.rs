//! Listening sockets that the process was started with: systemd's protocol for socket activation (`LISTEN_FDS`).
//!
//! A program takes them over once, when it starts. A server then uses the socket that listens at the server's address.
//! As the socket is systemd's, a second process can accept from it before the first has ended, and no connection is
//! lost between the two.

use std::net::{SocketAddr, TcpListener};

use listenfd::ListenFd;
use parking_lot::Mutex;

use crate::Error;

/// Sockets passed to the process that no server has taken yet.
static SOCKETS: Mutex<Vec<(SocketAddr, TcpListener)>> = Mutex::new(Vec::new());

/// Takes over the sockets that the process was started with, and returns their addresses.
///
/// # Errors
/// If one of them is not a TCP socket.
pub fn adopt() -> Result<Vec<SocketAddr>, Error> {
    let mut passed = ListenFd::from_env();
    let mut sockets = SOCKETS.lock();
    for number in 0..passed.len() {
        let unusable = |error: std::io::Error| {
            Error(format!(
                "socket {} of those in LISTEN_FDS cannot be used: {error}; it must be one of TCP that listens \
                 (ListenStream=ADDRESS:PORT and Accept=no in systemd's unit)",
                number + 1
            ))
        };
        if let Some(socket) = passed.take_tcp_listener(number).map_err(unusable)? {
            sockets.push((socket.local_addr().map_err(unusable)?, socket));
        }
    }
    Ok(sockets.iter().map(|(address, _)| *address).collect())
}

/// Takes the socket that listens at an address; None if the process was started without one.
pub(crate) fn take(at: SocketAddr) -> Option<TcpListener> {
    let mut sockets = SOCKETS.lock();
    let number = sockets.iter().position(|(address, _)| *address == at)?;
    Some(sockets.swap_remove(number).1)
}

/// Addresses of the sockets that no server has taken.
#[must_use]
pub fn unused() -> Vec<SocketAddr> {
    SOCKETS.lock().iter().map(|(address, _)| *address).collect()
}
