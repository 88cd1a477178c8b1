//! Sockets as the driver of a stream needs them. A fake does as well: the machine's rules do not depend on ZMQ.

use std::task::{Context, Poll};

/// Event that comes from the sockets.
#[derive(Debug)]
pub(crate) enum TransportEvent<P> {
    /// The live socket is connected, and subscribed.
    Connected,
    /// The live socket was connected, and is not any more; why.
    Disconnected(String),
    /// Another publisher has connected under the same name; from where. It is not read while the first is connected.
    Rival(String),
    /// No other publisher is connected any more.
    Alone,
    /// A socket could not be connected, and will be tried again; why.
    Unreachable(String),
    /// A batch as it was published.
    Live { seq: u64, payload: P },
    /// A batch in answer to the question.
    Reply { seq: u64, payload: P },
    /// The answer is complete.
    ReplyEnd,
    /// A batch of another topic than the stream's, with its topic. It is left out.
    OtherTopic(Box<[u8]>),
    /// A second topic on the connection of a stream that takes any, after the first. Batches of both are read.
    SeveralTopics(Box<[u8]>, Box<[u8]>),
    /// Something that is no batch by its frames alone.
    BadFrames,
}

/// A live socket that connects by itself, again and again, and a replay socket.
pub(crate) trait Transport: Send {
    /// The bytes of a batch.
    type Payload: AsRef<[u8]> + Send;

    /// Returns what comes next. After `Disconnected` nothing of the old connection comes any more.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<TransportEvent<Self::Payload>>;

    /// Asks for all batches from a number on.
    fn ask(&mut self, from: u64);

    /// Forgets the question: no answer to it comes any more.
    fn cancel(&mut self);

    /// Drops the live connection with all that is on its way, and connects anew. No `Disconnected` comes.
    fn reconnect(&mut self);
}
