//! Sockets of a connection: TCP, or a path in the file system.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::net::{TcpStream, UnixStream};

/// Longest time of an attempt to connect.
const TIMEOUT: Duration = Duration::from_secs(5);

/// An attempt to connect.
pub type ConnectAttempt = Pin<Box<dyn Future<Output = io::Result<Socket>> + Send>>;

/// A connected socket.
pub enum Socket {
    /// A TCP connection.
    Tcp(TcpStream),
    /// A connection to a socket in the file system.
    Path(UnixStream),
}

impl Socket {
    /// Connects to an address in ZeroMQ's form, with a number and not a name for the host.
    pub fn dial(address: String) -> ConnectAttempt {
        Box::pin(async move {
            let connected = tokio::time::timeout(TIMEOUT, connect(&address)).await;
            connected.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
        })
    }

    /// Takes a connection made by a peer.
    pub fn of_peer(peer: TcpStream) -> Self {
        let _ = peer.set_nodelay(true);
        Self::Tcp(peer)
    }

    /// Address of the peer, as text.
    pub(super) fn peer(&self) -> String {
        match self {
            Self::Tcp(socket) => socket.peer_addr().map_or_else(|_| "gone".to_owned(), |at| at.to_string()),
            Self::Path(_) => "this machine".to_owned(),
        }
    }

    /// Reads into the spare capacity of `into`. 0 bytes mean the end.
    pub(super) fn poll_read(&self, cx: &mut Context<'_>, into: &mut Vec<u8>) -> Poll<io::Result<usize>> {
        loop {
            let read = match self {
                Self::Tcp(socket) => {
                    ready!(socket.poll_read_ready(cx))?;
                    socket.try_read_buf(into)
                }
                Self::Path(socket) => {
                    ready!(socket.poll_read_ready(cx))?;
                    socket.try_read_buf(into)
                }
            };
            match read {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return Poll::Ready(read),
            }
        }
    }

    pub(super) fn poll_write(&self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            let written = match self {
                Self::Tcp(socket) => {
                    ready!(socket.poll_write_ready(cx))?;
                    socket.try_write(bytes)
                }
                Self::Path(socket) => {
                    ready!(socket.poll_write_ready(cx))?;
                    socket.try_write(bytes)
                }
            };
            match written {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => return Poll::Ready(written),
            }
        }
    }
}

async fn connect(address: &str) -> io::Result<Socket> {
    if let Some(path) = address.strip_prefix("ipc://") {
        // As libzmq has it: no file, but a name of the system's.
        let path = path.strip_prefix('@').map_or_else(|| path.to_owned(), |name| format!("\0{name}"));
        return Ok(Socket::Path(UnixStream::connect(path).await?));
    }
    let address: SocketAddr = address
        .strip_prefix("tcp://")
        .and_then(|address| address.parse().ok())
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, format!("{address} is not an address")))?;
    let socket = TcpStream::connect(address).await?;
    // The system may connect a socket to itself, where nobody listens, and so keep an engine from listening there.
    if socket.local_addr()? == socket.peer_addr()? {
        return Err(io::Error::from(io::ErrorKind::ConnectionRefused));
    }
    Ok(Socket::of_peer(socket))
}
