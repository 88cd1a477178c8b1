//! The addresses of engines.

use std::str::FromStr;

use hyper::Uri;

use crate::error::Error;

/// Address of an engine: `http://host:port/path`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// True if the engine speaks TLS.
    pub https: bool,
    /// The host's name or address, an IPv6 address without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The value of the `Host` header in requests.
    pub authority: String,
    /// Prefix of each path; empty for most.
    pub base: String,
}

impl FromStr for Address {
    type Err = Error;

    fn from_str(url: &str) -> Result<Self, Error> {
        let wrong = |why: &str| {
            Error::config(format!("an engine's url must be http://host:port or https://…, got {url:?}: {why}"))
        };
        let uri: Uri = url.parse().map_err(|error| wrong(&format!("{error}")))?;
        let https = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(wrong("the scheme must be http or https")),
        };
        let authority = uri.authority().ok_or_else(|| wrong("the host is missing"))?;
        if authority.as_str().contains('@') {
            return Err(wrong("it must not hold a user or password; give the engine's key instead"));
        }
        if uri.query().is_some() {
            return Err(wrong("it must not have a query"));
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        if host.is_empty() {
            return Err(wrong("the host is missing"));
        }
        let port = authority.port_u16().unwrap_or(if https { 443 } else { 80 });
        let base = uri.path().trim_end_matches('/').to_owned();
        Ok(Self { https, host, port, authority: authority.as_str().to_owned(), base })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses() {
        let at = |url: &str| url.parse::<Address>();
        let plain = at("http://a:8000/").expect("one");
        assert_eq!((plain.https, &*plain.host, plain.port, &*plain.base), (false, "a", 8000, ""));
        let deep = at("https://[::1]/engines/1").expect("one");
        assert_eq!((deep.https, &*deep.host, deep.port, &*deep.base), (true, "::1", 443, "/engines/1"));
        assert_eq!(deep.authority, "[::1]");
        for bad in ["", "a:8000", "ftp://a", "http://", "http://u:p@a", "http://a/?x", "tcp://a:1"] {
            assert!(at(bad).is_err(), "{bad}");
        }
    }
}
