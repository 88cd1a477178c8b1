//! Addresses of engines: for requests, and for other engines that pull blocks.

use std::str::FromStr;

use hyper::Uri;

use crate::error::Error;

/// Maximum length of an engine's URL in bytes; the path of the URL is in the head of each request.
const MAX_URL: usize = 2 << 10;

/// Address of an engine: `http://host:port/path`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Address {
    /// True if the engine uses TLS.
    pub https: bool,
    /// Host name or IP address of the engine; an IPv6 address has no brackets.
    pub host: String,
    /// Port at which the engine listens.
    pub port: u16,
    /// Value of the `Host` header in requests to the engine.
    pub authority: String,
    /// Path prefix of the engine's API; empty for most engines.
    pub base: String,
    /// Name that the engine's TLS certificate must be for; None to require `host`.
    pub certified: Option<String>,
}

impl FromStr for Address {
    type Err = Error;

    fn from_str(url: &str) -> Result<Self, Error> {
        let wrong = |why: &str| {
            let shown = without_password(url);
            Error::config(format!("an engine's url must be http://host:port or https://…, got {shown:?}: {why}"))
        };
        if url.len() > MAX_URL {
            let got = url.len();
            return Err(Error::config(format!("an engine's url must have {MAX_URL} bytes at most, got {got}")));
        }
        if url.contains('#') {
            return Err(wrong("it must not have a fragment"));
        }
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
        let base = base(uri.path()).map_err(|why| wrong(&why))?.to_owned();
        Ok(Self { https, host, port, authority: authority.as_str().to_owned(), base, certified: None })
    }
}

/// Returns the path prefix of an engine's API from the path of its URL. A path that ends in `/v1`, as in the base URL
/// for clients of OpenAI's API, is accepted; any other path of the API is an error.
fn base(path: &str) -> Result<&str, String> {
    let bare = path.trim_end_matches('/');
    let bare = bare.strip_suffix("/v1").unwrap_or(bare).trim_end_matches('/');
    let is_odd = |segment: &str| matches!(segment.to_ascii_lowercase().replace("%2e", ".").as_str(), "" | "." | "..");
    match bare.split('/').skip(1).find(|segment| segment.eq_ignore_ascii_case("v1") || is_odd(segment)) {
        None => Ok(bare),
        Some("v1" | "V1") => Err(format!("leave out what begins with /v1 in {path:?}: kvatlas adds the paths itself")),
        Some(_) => Err(format!("the path {path:?} has an empty part, or one of dots")),
    }
}

/// Returns a URL with its user and password, if any, replaced by asterisks.
fn without_password(url: &str) -> String {
    let (scheme, rest) = url.split_once("//").map_or(("", url), |(scheme, rest)| (scheme, rest));
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    match rest[..end].rfind('@') {
        Some(at) if !scheme.is_empty() => format!("{scheme}//***{}", &rest[at..]),
        Some(at) => format!("***{}", &rest[at..]),
        None => url.to_owned(),
    }
}

/// Address for pulling blocks from an engine: a host, and the port of the first rank; each further rank has the next
/// port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PullAddress {
    host: String,
    port: u16,
}

impl PullAddress {
    /// Parses an address `HOST:PORT` for pulling blocks. `engine`: the engine's name.
    ///
    /// # Errors
    /// [`Error::Config`] if the text has another form.
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

    /// Returns the host and the port of a rank, by its position among the engine's ranks; None if the port would be
    /// above 65535.
    pub(crate) fn of_rank(&self, place: usize) -> Option<(&str, u16)> {
        Some((&self.host, self.port.checked_add(u16::try_from(place).ok()?)?))
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
        for bad in ["", "a:8000", "ftp://a", "http://", "http://u:p@a", "http://a/?x", "tcp://a:1", "http://a/#x"] {
            assert!(at(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn base_urls_of_clients() {
        let base = |path: &str| format!("http://a:1{path}").parse::<Address>().map(|address| address.base);
        for (path, wanted) in
            [("/v1", ""), ("/v1/", ""), ("/v1//", ""), ("//", ""), ("/x/v1", "/x"), ("/x/", "/x"), ("/v1x", "/v1x")]
        {
            assert_eq!(base(path).expect(path), wanted, "{path}");
        }
        for path in ["/v1/chat/completions", "/v1/models", "/v1/v1", "/V1", "/a//b", "/a/../b", "/%2e%2e/b", "/x/v1/y"]
        {
            assert!(base(path).is_err(), "{path}");
        }
    }

    #[test]
    fn passwords_are_not_shown() {
        for url in ["http://user:secret@a:1/?q", "user:secret@a", "http://u:secret@b@a#x", "ftp://u:secret@a"] {
            let said = url.parse::<Address>().expect_err("it is wrong").to_string();
            assert!(!said.contains("secret"), "{said}");
        }
    }

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
