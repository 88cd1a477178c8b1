//! Faults in the communication between the router and an engine.

use std::fmt;

/// Reason for a missing or incomplete answer of an engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Failure to connect to the engine; the text is the reason.
    Connect(String),
    /// Failure to connect because the TLS certificate of the server is not accepted; the text is the reason.
    Certificate(String),
    /// Timeout while connecting to the engine, which may be overloaded.
    ConnectTimeout,
    /// The engine closed a newly opened connection before its answer began.
    Closed,
    /// The engine closed a reused connection before its answer began. The engine may be working, as servers close idle
    /// connections.
    Stale,
    /// The engine closed a reused connection before any part of the request was sent.
    Unsent,
    /// Break of the connection in the middle of the answer; the text is the reason.
    Broken(String),
    /// Answer of the engine that is not valid HTTP; the text is the reason.
    Malformed(&'static str),
    /// Timeout before the first byte of the answer.
    FirstByte,
    /// End of the wait for an engine's answer because the engine failed its health checks, before any byte of the
    /// answer arrived.
    Down,
    /// Timeout in the middle of the answer: no further byte arrived in time.
    Stalled,
    /// Answer in which the engine states that it cannot accept requests now; the number is the HTTP status.
    Busy(u16),
    /// Error in the body of an answer with a status of success; the number is the status that the error states.
    Error(u16),
    /// Answer in which the engine states that it does not have the requested model.
    NoModel,
    /// Failure of the prefill engine, which should have computed the prompt for the decode engine.
    Prefill {
        /// True if the request may have reached the prefill engine.
        sent: bool,
    },
}

impl Fault {
    /// Returns the stable name of the fault in metrics.
    pub(crate) fn name(&self) -> &'static str {
        NAMES[self.number()]
    }

    /// True if the engine may have processed the request, with an unknown result.
    pub(crate) fn may_have_been_sent(&self) -> bool {
        match self {
            // Of one that answered it is known what came of it.
            Self::Connect(_) | Self::Certificate(_) | Self::ConnectTimeout => false,
            Self::Unsent | Self::NoModel | Self::Error(_) => false,
            // A gateway in front of an engine says so of one that closed the connection.
            Self::Busy(status) => matches!(status, 500 | 502 | 504),
            Self::Prefill { sent } => *sent,
            Self::Closed
            | Self::Stale
            | Self::Broken(_)
            | Self::Malformed(_)
            | Self::FirstByte
            | Self::Stalled
            | Self::Down => true,
        }
    }

    /// True if the router could not connect to the engine, so that nothing was sent.
    pub(crate) fn is_of_connecting(&self) -> bool {
        matches!(self, Self::Connect(_) | Self::Certificate(_) | Self::ConnectTimeout)
    }

    /// True if the fault may have been caused by the engine or by the request, which cannot be distinguished.
    pub(crate) fn is_unclear(&self) -> bool {
        match self {
            // One that is only busy says so with these.
            Self::Error(status) => !matches!(status, 429 | 503 | 529),
            _ => self.may_have_been_sent() && !matches!(self, Self::Stale | Self::Prefill { .. } | Self::Down),
        }
    }

    /// Returns the position of the fault's name in [`NAMES`].
    pub(crate) fn number(&self) -> usize {
        match self {
            Self::Connect(_) | Self::ConnectTimeout => 0,
            Self::Closed => 1,
            Self::Stale | Self::Unsent => 2,
            Self::Broken(_) => 3,
            Self::Malformed(_) => 4,
            Self::FirstByte => 5,
            Self::Stalled => 6,
            Self::Busy(_) => 7,
            Self::Prefill { .. } => 8,
            Self::Down => 9,
            Self::Error(_) => 10,
            Self::NoModel => 11,
            Self::Certificate(_) => 12,
        }
    }
}

/// Names of all faults in metrics, in the order of [`Fault::number`].
pub(crate) const NAMES: [&str; 13] = [
    "connect",
    "closed",
    "stale_connection",
    "broken",
    "malformed",
    "first_byte_timeout",
    "stalled",
    "busy",
    "prefill",
    "down",
    "error",
    "no_model",
    "certificate",
];

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect(why) => write!(f, "no connection to the engine: {why}"),
            Self::Certificate(why) => write!(
                f,
                "no connection to the engine: its certificate is not accepted: {why}; upstream.ca has the authorities to trust"
            ),
            Self::ConnectTimeout => f.write_str("no connection to the engine: it took too long"),
            Self::Closed | Self::Stale | Self::Unsent => {
                f.write_str("the engine closed the connection without an answer")
            }
            Self::Broken(why) => write!(f, "the connection to the engine broke: {why}"),
            Self::Malformed(why) => write!(f, "the engine's answer is not HTTP: {why}"),
            Self::FirstByte => f.write_str("the engine did not answer in time"),
            Self::Stalled => f.write_str("the engine stopped sending in the middle of its answer"),
            Self::Down => f.write_str("the engine stopped answering, also when it was asked how it is"),
            Self::Error(status) => {
                write!(f, "the engine answered with an error (status {status}) in place of an answer")
            }
            Self::NoModel => f.write_str("the engine has no such model"),
            Self::Prefill { .. } => f.write_str("the prefill engine failed"),
            Self::Busy(status) => write!(f, "the engine takes no requests at present (status {status})"),
        }
    }
}
