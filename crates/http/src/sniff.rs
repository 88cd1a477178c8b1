//! Detection of the HTTP version of a connection without TLS: HTTP/2 begins with a fixed preface (RFC 9113, 3.4).

use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

/// The protocol that a client speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http1,
    Http2,
}

const HTTP2: &[u8] = b"PRI * HTTP/2.0\r\n";

/// The number of attempts, and the interval between them, while too few bytes have arrived.
const LOOKS: usize = 50;
const PAUSE: Duration = Duration::from_millis(10);

/// The number of bytes that the client has sent so far, once there are any; none if it sent nothing in time, or left,
/// or the server ends first. `start`: receives the bytes, without taking them off the socket.
pub(crate) async fn first(
    stream: &TcpStream,
    start: &mut [u8],
    first_byte: Duration,
    mut stop: watch::Receiver<bool>,
) -> Option<usize> {
    let first = async {
        let peeked = tokio::select! {
            biased;
            peeked = stream.peek(start) => peeked,
            // A client that has sent nothing has asked nothing; but a request may be on its way.
            _ = async { let _ = stop.wait_for(|stop| *stop).await; sleep(PAUSE * 20).await } => return None,
        };
        peeked.ok().filter(|length| *length > 0)
    };
    timeout(first_byte, first).await.ok()?
}

/// The protocol of the client's first bytes, if they arrive in time.
pub(crate) async fn protocol(
    stream: &TcpStream,
    first_byte: Duration,
    stop: watch::Receiver<bool>,
) -> Option<Protocol> {
    let mut start = [0; HTTP2.len()];
    let mut length = first(stream, &mut start, first_byte, stop).await?;
    for _ in 0..LOOKS {
        if start[..length] != HTTP2[..length] {
            return Some(Protocol::Http1);
        }
        if length == HTTP2.len() {
            return Some(Protocol::Http2);
        }
        sleep(PAUSE).await;
        length = stream.peek(&mut start).await.ok()?;
    }
    Some(Protocol::Http1)
}
