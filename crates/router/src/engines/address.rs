//! The addresses of engines.

use std::str::FromStr;

use hyper::Uri;

use crate::error::Error;

/// Bytes of an address at most: its path is in the head of each request.
const MAX_URL: usize = 2 << 10;

/// Address of an engine: `http://host:port/path`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Address {
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
    /// Name that its certificate must have, if not the host.
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

/// Returns the path prefix of an engine's API. Clients of OpenAI's API call the address with `/v1` the base URL: it is
/// understood, and any other path of the API is refused.
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

/// An address without the user and password that it may have.
fn without_password(url: &str) -> String {
    let (scheme, rest) = url.split_once("//").map_or(("", url), |(scheme, rest)| (scheme, rest));
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    match rest[..end].rfind('@') {
        Some(at) if !scheme.is_empty() => format!("{scheme}//***{}", &rest[at..]),
        Some(at) => format!("***{}", &rest[at..]),
        None => url.to_owned(),
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
}
