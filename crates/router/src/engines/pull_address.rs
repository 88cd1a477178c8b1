//! The address at which other engines pull blocks from one.

use crate::error::Error;

/// A host, and the port of an engine's first rank there; each further rank has the next port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PullAddress {
    host: String,
    port: u16,
}

impl PullAddress {
    /// Reads `HOST:PORT`. `engine`: the engine's name.
    ///
    /// # Errors
    /// [`Error::Config`] if it is none.
    pub(crate) fn parse(engine: &str, text: &str) -> Result<Self, Error> {
        let parts = text.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse::<u16>().ok()?)));
        let is_host = |host: &str| {
            // An IPv6 address is in brackets, as in a URL.
            let inner = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
            match inner {
                Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
                None => {
                    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
                    !host.is_empty() && host.bytes().all(is_part)
                }
            }
        };
        match parts.filter(|(host, port)| is_host(host) && *port > 0) {
            Some((host, port)) => Ok(Self { host: host.trim_matches(['[', ']']).to_owned(), port }),
            None => Err(Error::config(format!("engine {engine}: pull must be HOST:PORT, got {text:?}"))),
        }
    }

    /// The host and the port of a rank, by its place among the engine's ranks; none if there is no such port.
    pub(crate) fn of_rank(&self, place: usize) -> Option<(&str, u16)> {
        Some((&self.host, self.port.checked_add(u16::try_from(place).ok()?)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_ranks() {
        let parse = |text: &str| PullAddress::parse("a", text).ok();
        let of_rank = |text: &str, place| parse(text)?.of_rank(place).map(|(host, port)| format!("{host} {port}"));
        assert_eq!(of_rank("10.0.0.1:5710", 0), Some("10.0.0.1 5710".to_owned()));
        assert_eq!(of_rank("host-a.llm:5710", 3), Some("host-a.llm 5713".to_owned()));
        assert_eq!(of_rank("[::1]:5710", 1), Some("::1 5711".to_owned()));
        assert_eq!(of_rank("a:65535", 1), None);
        for wrong in ["", "a", "a:", ":5710", "a:0", "a:65536", "http://a:5710", "::1:5710", "a b:1", "[a]:1", "[::1:5"]
        {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
