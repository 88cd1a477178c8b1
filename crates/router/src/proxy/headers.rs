//! Heads of requests, as engines get them: without what is between the client and the router only.

use hyper::header::{
    ACCEPT_ENCODING, AUTHORIZATION, CONNECTION, CONTENT_LENGTH, EXPECT, HOST, HeaderMap, HeaderName, HeaderValue,
    PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use hyper::{Method, Uri};

use crate::engine::Engine;

pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const RANK: HeaderName = HeaderName::from_static("x-data-parallel-rank");
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

/// Headers that are for the next hop only (RFC 9110, 7.6.1), and those that are written anew for it.
fn is_for_one_hop(name: &HeaderName) -> bool {
    // One comparison of numbers for each known name.
    *name == CONNECTION
        || *name == TRANSFER_ENCODING
        || *name == TE
        || *name == TRAILER
        || *name == UPGRADE
        || *name == PROXY_AUTHENTICATE
        || *name == PROXY_AUTHORIZATION
        || *name == KEEP_ALIVE
        || *name == PROXY_CONNECTION
}

/// The names that a `Connection` header declares to be for one hop.
fn named_for_one_hop(headers: &HeaderMap) -> Vec<HeaderName> {
    let mut names = Vec::new();
    for value in headers.get_all(CONNECTION) {
        for word in value.as_bytes().split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
            if word.eq_ignore_ascii_case(b"close") || word.eq_ignore_ascii_case(b"keep-alive") {
                continue;
            }
            names.extend(HeaderName::from_bytes(word));
        }
    }
    names
}

/// Takes what is for one hop only out of an answer's headers.
pub(crate) fn strip(headers: &mut HeaderMap) {
    if headers.contains_key(CONNECTION) {
        for name in named_for_one_hop(headers) {
            headers.remove(name);
        }
        headers.remove(CONNECTION);
    }
    for name in [KEEP_ALIVE, PROXY_CONNECTION, PROXY_AUTHENTICATE, TE, TRAILER, TRANSFER_ENCODING, UPGRADE] {
        headers.remove(name);
    }
}

/// A request, apart from its body.
pub(crate) struct Outgoing<'a> {
    pub(crate) method: &'a Method,
    pub(crate) uri: &'a Uri,
    pub(crate) headers: &'a HeaderMap,
    /// Its name, where the client gave it none.
    pub(crate) id: Option<&'a HeaderValue>,
    /// Whether the client's key is the router's, and not for engines.
    pub(crate) hides_key: bool,
    /// Whether the answer's body must come as it is.
    pub(crate) plain: bool,
}

impl Outgoing<'_> {
    /// As bytes for an engine, and for a rank of it if it has several.
    pub(crate) fn write(&self, engine: &Engine, rank: Option<u32>, body: usize, out: &mut Vec<u8>) {
        let path = self.uri.path_and_query().map_or("/", |path| path.as_str());
        out.reserve(256 + path.len() + 48 * self.headers.len());
        let mut put = |pieces: &[&[u8]]| pieces.iter().for_each(|piece| out.extend_from_slice(piece));
        put(&[self.method.as_str().as_bytes(), b" ", engine.address.base.as_bytes(), path.as_bytes()]);
        put(&[b" HTTP/1.1\r\nhost: ", engine.address.authority.as_bytes(), b"\r\n"]);
        let named = if self.headers.contains_key(CONNECTION) { named_for_one_hop(self.headers) } else { Vec::new() };
        for (name, value) in self.headers {
            let is_ours = *name == HOST
                || *name == CONTENT_LENGTH
                || *name == EXPECT
                || (*name == AUTHORIZATION && (self.hides_key || engine.authorization.is_some()))
                || (*name == ACCEPT_ENCODING && self.plain);
            if is_ours || is_for_one_hop(name) || named.contains(name) {
                continue;
            }
            put(&[name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"]);
        }
        if let Some(key) = &engine.authorization {
            put(&[b"authorization: ", key.as_bytes(), b"\r\n"]);
        }
        if let Some(id) = self.id {
            put(&[b"x-request-id: ", id.as_bytes(), b"\r\n"]);
        }
        let mut digits = itoa::Buffer::new();
        if let Some(rank) = rank.filter(|_| !self.headers.contains_key(RANK)) {
            put(&[b"x-data-parallel-rank: ", digits.format(rank).as_bytes(), b"\r\n"]);
        }
        if body > 0 || !matches!(*self.method, Method::GET | Method::HEAD | Method::DELETE | Method::OPTIONS) {
            put(&[b"content-length: ", digits.format(body).as_bytes(), b"\r\n"]);
        }
        put(&[b"\r\n"]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, EngineConfig};

    #[test]
    fn what_engines_get() {
        let engine = Engine::new(EngineConfig::at("http://a:1/b"), &Config::default(), 1, None).expect("one");
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("host", "router"),
            ("connection", "close, X-Mine"),
            ("x-mine", "1"),
            ("x-yours", "2"),
            ("te", "trailers"),
            ("keep-alive", "1"),
            ("content-length", "99"),
            ("transfer-encoding", "chunked"),
            ("authorization", "Bearer x"),
        ] {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        let (method, uri) = (Method::POST, Uri::from_static("/v1/x?y=z"));
        let mut outgoing =
            Outgoing { method: &method, uri: &uri, headers: &headers, id: None, hides_key: false, plain: true };
        let mut out = Vec::new();
        outgoing.write(&engine, Some(3), 5, &mut out);
        let text = String::from_utf8(out).expect("ascii");
        let wanted = "POST /b/v1/x?y=z HTTP/1.1\r\nhost: a:1\r\nx-yours: 2\r\nauthorization: Bearer x\r\n\
            x-data-parallel-rank: 3\r\ncontent-length: 5\r\n\r\n";
        assert_eq!(text, wanted);
        outgoing.hides_key = true;
        let mut out = Vec::new();
        outgoing.write(&engine, None, 5, &mut out);
        assert!(!String::from_utf8(out).expect("ascii").contains("authorization"));
        strip(&mut headers);
        let mut left: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["authorization", "content-length", "host", "x-yours"]);
    }
}
