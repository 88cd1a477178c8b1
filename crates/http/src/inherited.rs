//! Listening sockets that the process inherited at its start, by systemd's protocol for socket activation
//! (`LISTEN_FDS`).
//!
//! A program adopts the sockets once, when it starts. A server then uses the socket that listens at the server's
//! address. As systemd keeps the socket open, a second process can accept connections from it before the first process
//! has ended, and no connection is lost between the two.

use std::net::{SocketAddr, TcpListener};

use listenfd::ListenFd;
use parking_lot::Mutex;

use crate::Error;

/// Listening sockets inherited at the start of the process that no server uses yet, with their addresses.
static SOCKETS: Mutex<Vec<(SocketAddr, TcpListener)>> = Mutex::new(Vec::new());

/// Adopts the sockets that the process inherited at its start, and returns their addresses.
///
/// # Errors
/// A socket that is not a TCP socket is an error.
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

/// Removes and returns the inherited socket that listens at the address `at`; None if there is no such socket.
pub(crate) fn take(at: SocketAddr) -> Option<TcpListener> {
    let mut sockets = SOCKETS.lock();
    let number = sockets.iter().position(|(address, _)| *address == at)?;
    Some(sockets.swap_remove(number).1)
}

/// Returns the addresses of the inherited sockets that no server uses.
#[must_use]
pub fn unused() -> Vec<SocketAddr> {
    SOCKETS.lock().iter().map(|(address, _)| *address).collect()
}
