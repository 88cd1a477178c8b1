//! Endpoints: addresses of engines' sockets.

use std::fmt;
use std::str::FromStr;

use crate::error::Error;

/// Address of an engine's socket in ZeroMQ's form, `tcp://host:port` or `ipc://path`; or `bind://port` for an engine
/// that connects to a port of the service.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Endpoint(Box<str>);

impl Endpoint {
    /// Returns the text of the address in ZeroMQ's form.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the port at which the service accepts the engine's connection; `None` for an endpoint to which the
    /// service connects.
    #[must_use]
    pub fn bound_port(&self) -> Option<u16> {
        self.0.strip_prefix("bind://")?.parse().ok()
    }

    /// Creates the endpoint of a stream that is read from the NATS log, under the given NATS subject. Clients cannot
    /// register endpoints of this kind.
    pub(crate) fn log(subject: &str) -> Self {
        Self(format!("nats:{subject}").into())
    }

    /// Returns the NATS subject of a stream that is read from the NATS log; `None` for other endpoints.
    #[must_use]
    pub fn log_subject(&self) -> Option<&str> {
        self.0.strip_prefix("nats:")
    }

    /// Returns the host, without the brackets of an IPv6 address; `None` for an endpoint without a host: an `ipc://`
    /// path, or a `bind://` port of the service, to which the engine connects.
    #[must_use]
    pub fn host(&self) -> Option<&str> {
        let (host, _) = self.0.strip_prefix("tcp://")?.rsplit_once(':')?;
        Some(host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host))
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Endpoint {
    type Err = Error;

    fn from_str(address: &str) -> Result<Self, Error> {
        let bad = |why: &str| {
            let wanted = "an endpoint is tcp://HOST:PORT, ipc://PATH, or bind://PORT for an engine that connects to us";
            Error::invalid("invalid_endpoint", format!("{address:?}: {why}; {wanted}"))
        };
        if address.chars().any(|c| c.is_whitespace() || c.is_control()) {
            return Err(bad("it has white space or control characters"));
        }
        if let Some(path) = address.strip_prefix("ipc://") {
            return if path.is_empty() { Err(bad("the path is missing")) } else { Ok(Self(address.into())) };
        }
        if let Some(port) = address.strip_prefix("bind://") {
            return match port.parse::<u16>() {
                Ok(port) if port > 0 => Ok(Self(format!("bind://{port}").into())),
                _ => Err(bad("the port is not a number from 1 to 65535")),
            };
        }
        if address.starts_with("inproc://") {
            return Err(bad("inproc works only inside the engine's own process and cannot be reached from here"));
        }
        let Some(rest) = address.strip_prefix("tcp://") else { return Err(bad("the transport is missing or unknown")) };
        let Some((host, port)) = rest.rsplit_once(':') else { return Err(bad("the port is missing")) };
        if host.is_empty() || (host.contains(':') && !(host.starts_with('[') && host.ends_with(']'))) {
            return Err(bad("the host is missing, or an IPv6 address without brackets"));
        }
        // ZMQ and the system's resolver read some of these in ways of their own.
        if !host.starts_with('[')
            && host.chars().any(|c| c.is_ascii_punctuation() && !matches!(c, '-' | '.' | '_' | '*'))
        {
            return Err(bad("the host has characters that are not allowed in a host name"));
        }
        if matches!(host, "*" | "[::]" | "0.0.0.0") {
            return Err(bad("this is an address to listen at, not to connect to; give the engine's host"));
        }
        if port.parse::<u16>().map_or(true, |port| port == 0) {
            return Err(bad("the port is not a number from 1 to 65535"));
        }
        Ok(Self(address.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_what_can_be_reached() {
        for good in ["tcp://host:5557", "tcp://10.0.0.1:1", "tcp://[::1]:5557", "ipc:///tmp/events"] {
            assert_eq!(good.parse::<Endpoint>().map(|e| e.to_string()), Ok(good.to_owned()));
        }
    }

    #[test]
    fn ports_of_ours() {
        let bound: Endpoint = "bind://5557".parse().expect("an endpoint");
        assert_eq!((bound.bound_port(), bound.host(), bound.as_str()), (Some(5557), None, "bind://5557"));
        assert_eq!("tcp://host:1".parse::<Endpoint>().expect("an endpoint").bound_port(), None);
    }

    #[test]
    fn says_what_is_wrong_with_others() {
        for (bad, why) in [
            ("", "transport"),
            ("host:5557", "transport"),
            ("http://host:5557", "transport"),
            ("tcp://host", "port is missing"),
            ("tcp://host:", "not a number"),
            ("tcp://host:0", "not a number"),
            ("tcp://host:70000", "not a number"),
            ("tcp://:5557", "host is missing"),
            ("tcp://::1:5557", "without brackets"),
            ("tcp://*:5557", "give the engine's host"),
            ("tcp://0.0.0.0:5557", "give the engine's host"),
            ("tcp://eth0;10.0.0.1:5557", "not allowed in a host name"),
            ("tcp://user@host:5557", "not allowed in a host name"),
            ("tcp://host/path:5557", "not allowed in a host name"),
            ("ipc://", "path is missing"),
            ("inproc://events", "cannot be reached"),
            ("bind://", "not a number"),
            ("bind://0", "not a number"),
            ("bind://host:5557", "not a number"),
            ("tcp://host :1", "white space"),
        ] {
            let error = bad.parse::<Endpoint>().expect_err(bad);
            assert_eq!(error.code(), "invalid_endpoint");
            assert!(error.to_string().contains(why), "{error}");
        }
    }
}
