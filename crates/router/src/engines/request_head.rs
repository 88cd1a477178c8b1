//! Heads of requests to engines and of answers from them, without the headers that concern only the router or a single
//! connection.

use std::borrow::Cow;

use hyper::header::{
    ACCEPT_ENCODING, AUTHORIZATION, CONNECTION, CONTENT_LENGTH, CONTENT_SECURITY_POLICY, CONTENT_TYPE, EXPECT, HOST,
    HeaderMap, HeaderName, HeaderValue, LOCATION, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER,
    TRANSFER_ENCODING, UPGRADE, X_CONTENT_TYPE_OPTIONS,
};
use hyper::{Method, Uri};
use kvatlas_http::Gate;

use crate::engines::Engine;

pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const TRACE_PARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACE_STATE: HeaderName = HeaderName::from_static("tracestate");
const RANK: HeaderName = HeaderName::from_static("x-data-parallel-rank");
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

/// True for hop-by-hop headers (RFC 9110, 7.6.1), which the router does not forward.
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

/// Prefixes of names of headers by which a client could change a request's path, method, host or origin at the engine.
const REWRITING: [&str; 8] = [
    "x-forwarded",
    "x-original-",
    "x-rewrite-",
    "x-http-method",
    "x-method-override",
    "x-override-",
    "x-envoy-",
    "x-real-",
];

/// True for headers that only a proxy may set, because engines, and proxies before them, may use their values as the
/// request's path, method, host or client.
fn is_for_proxies(name: &HeaderName) -> bool {
    let name = name.as_str();
    if !matches!(name.as_bytes().first(), Some(b'x' | b'f' | b'c' | b't' | b'p')) {
        return false;
    }
    // Servers that hand names on as variables take both signs for one.
    let dashed = if name.contains('_') { Cow::Owned(name.replace('_', "-")) } else { Cow::Borrowed(name) };
    let is_other = || {
        matches!(
            &*dashed,
            "forwarded"
                | "forwarded-for"
                | "front-end-https"
                | "fastly-client-ip"
                | "client-ip"
                | "cf-connecting-ip"
                | "cf-connecting-ipv6"
                | "true-client-ip"
                | "proxy"
                | "x-client-ip"
                | "x-cluster-client-ip"
                | "x-appengine-user-ip"
                | "x-azure-clientip"
                | "x-azure-socketip"
                | "x-host"
                | "x-http-host-override"
                | "x-http-destinationurl"
                | "x-proxy-url"
                | "x-proxyuser-ip"
                | "x-script-name"
                | "x-url-scheme"
        )
    };
    (dashed.starts_with("x-") && REWRITING.iter().any(|beginning| dashed.starts_with(beginning))) || is_other()
}

/// Returns the header names that a `Connection` header declares to be hop-by-hop.
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

/// Removes the router's own keys from a request's headers, so that no engine sees them.
pub(crate) fn hide_keys(headers: &mut HeaderMap, gate: &Gate) {
    if !gate.asks_for_key_to_change() {
        return;
    }
    if gate.asks_for_key() {
        headers.remove(AUTHORIZATION);
    }
    for name in gate.names_with_keys(headers) {
        headers.remove(name);
    }
}

/// True for headers of an answer that instruct a browser, or a proxy in front of the router, about the whole server.
/// Engines may not set these headers.
fn is_for_the_server(name: &HeaderName) -> bool {
    let name = name.as_str();
    let beginnings = ["access-control-", "cross-origin-", "content-security-policy", "x-sendfile"];
    if beginnings.iter().any(|beginning| name.starts_with(beginning)) {
        return true;
    }
    matches!(
        name,
        "set-cookie"
            | "set-cookie2"
            | "clear-site-data"
            | "strict-transport-security"
            | "public-key-pins"
            | "public-key-pins-report-only"
            | "expect-ct"
            | "service-worker-allowed"
            | "service-worker-navigation-preload"
            | "refresh"
            | "link"
            | "content-location"
            | "alt-svc"
            | "alt-used"
            | "nel"
            | "report-to"
            | "reporting-endpoints"
            | "permissions-policy"
            | "permissions-policy-report-only"
            | "feature-policy"
            | "document-policy"
            | "document-policy-report-only"
            | "require-document-policy"
            | "referrer-policy"
            | "origin-agent-cluster"
            | "origin-trial"
            | "accept-ch"
            | "accept-ch-lifetime"
            | "critical-ch"
            | "speculation-rules"
            | "supports-loading-mode"
            | "use-as-dictionary"
            | "set-login"
            | "activate-storage-access"
            | "observe-browsing-topics"
            | "attribution-reporting-register-source"
            | "attribution-reporting-register-trigger"
            | "timing-allow-origin"
            | "sourcemap"
            | "x-sourcemap"
            | "x-frame-options"
            | "x-content-type-options"
            | "x-dns-prefetch-control"
            | "x-permitted-cross-domain-policies"
            | "www-authenticate"
            | "authentication-info"
            | "x-accel-redirect"
            | "x-accel-expires"
            | "x-accel-limit-rate"
            | "x-accel-charset"
            | "x-reproxy-url"
            | "x-lighttpd-send-file"
    )
}

/// Removes and adds headers so that a browser can display an engine's answer without harm. Protection is needed as the
/// answer comes from the same origin as the router's own web page.
fn make_harmless(headers: &mut HeaderMap) {
    let unwanted: Vec<HeaderName> = headers.keys().filter(|name| is_for_the_server(name)).cloned().collect();
    for name in unwanted {
        headers.remove(name);
    }
    // Another place at this router, not another server.
    let is_here =
        |to: &HeaderValue| to.as_bytes().starts_with(b"/") && !matches!(to.as_bytes().get(1), Some(b'/' | b'\\'));
    if headers.get_all(LOCATION).iter().any(|to| !is_here(to)) {
        headers.remove(LOCATION);
    }
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    let mut kinds = headers.get_all(CONTENT_TYPE).iter();
    if !kinds.next().is_some_and(|kind| is_data(kind.as_bytes())) || kinds.next().is_some() {
        headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox; default-src 'none'"));
    }
}

/// True for content types that browsers do not display as a page.
fn is_data(kind: &[u8]) -> bool {
    // Of several types, browsers take the last.
    if kind.contains(&b',') {
        return false;
    }
    let kind = kind.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    kind.eq_ignore_ascii_case(b"application/json") || kind.eq_ignore_ascii_case(b"text/event-stream")
}

/// Removes hop-by-hop headers from an answer, and the headers that only the router may set.
pub(crate) fn strip(headers: &mut HeaderMap) {
    make_harmless(headers);
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

/// Head of a request to an engine.
pub(crate) struct EngineRequest<'a> {
    pub(crate) method: &'a Method,
    pub(crate) uri: &'a Uri,
    pub(crate) headers: &'a HeaderMap,
    /// Request id that the router adds as a header; None if the client has sent an id.
    pub(crate) id: Option<&'a HeaderValue>,
    /// True to ask the engine for an answer without compression.
    pub(crate) plain: bool,
}

impl EngineRequest<'_> {
    /// Writes the request's head. `rank`: rank of the engine, which a header selects; `body`: size of the body in
    /// bytes; `trace`: header lines with a trace context, which replace the client's.
    pub(crate) fn write(
        &self,
        engine: &Engine,
        rank: Option<u32>,
        body: usize,
        trace: Option<&str>,
        out: &mut Vec<u8>,
    ) {
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
                || (*name == AUTHORIZATION && engine.authorization.is_some())
                || (*name == ACCEPT_ENCODING && self.plain)
                || (trace.is_some() && (*name == TRACE_PARENT || *name == TRACE_STATE))
                // The rank that was decided on has the room.
                || (*name == RANK && rank.is_some());
            if is_ours || is_for_one_hop(name) || is_for_proxies(name) || named.contains(name) {
                continue;
            }
            put(&[name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"]);
        }
        if let Some(key) = &engine.authorization {
            put(&[b"authorization: ", key.as_bytes(), b"\r\n"]);
        }
        if let Some(lines) = trace {
            put(&[lines.as_bytes()]);
        }
        if let Some(id) = self.id {
            put(&[b"x-request-id: ", id.as_bytes(), b"\r\n"]);
        }
        let mut digits = itoa::Buffer::new();
        if let Some(rank) = rank {
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
            ("traceparent", "00-1-2-01"),
            ("tracestate", "a=b"),
        ] {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        let (method, uri) = (Method::POST, Uri::from_static("/v1/x?y=z"));
        let outgoing = EngineRequest { method: &method, uri: &uri, headers: &headers, id: None, plain: true };
        let mut out = Vec::new();
        outgoing.write(&engine, Some(3), 5, Some("traceparent: 00-1-3-01\r\n"), &mut out);
        let text = String::from_utf8(out).expect("ascii");
        let wanted = "POST /b/v1/x?y=z HTTP/1.1\r\nhost: a:1\r\nx-yours: 2\r\nauthorization: Bearer x\r\n\
            traceparent: 00-1-3-01\r\nx-data-parallel-rank: 3\r\ncontent-length: 5\r\n\r\n";
        assert_eq!(text, wanted);
        strip(&mut headers);
        let mut left: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        let harmless = ["content-security-policy", "x-content-type-options"];
        assert_eq!(
            left,
            [
                "authorization",
                "content-length",
                harmless[0],
                "host",
                "traceparent",
                "tracestate",
                harmless[1],
                "x-yours"
            ]
        );
    }

    #[test]
    fn headers_that_only_proxies_may_write() {
        for name in [
            "x-original-url",
            "x-rewrite-url",
            "x-http-method-override",
            "x-http-method",
            "x-method-override",
            "x-forwarded-for",
            "x_forwarded_host",
            "x-original_url",
            "forwarded",
            "x-real-ip",
            "true-client-ip",
            "proxy",
        ] {
            assert!(is_for_proxies(&HeaderName::from_static(name)), "{name}");
        }
        for name in ["x-request-id", "traceparent", "content-type", "x-api-key", "x-mine", "forward", "priority"] {
            assert!(!is_for_proxies(&HeaderName::from_static(name)), "{name}");
        }
    }

    #[test]
    fn answers_in_a_browser() {
        let left = |given: &[(&'static str, &'static str)]| {
            let pairs =
                given.iter().map(|&(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
            let mut headers: HeaderMap = pairs.collect();
            strip(&mut headers);
            assert_eq!(headers.remove(X_CONTENT_TYPE_OPTIONS).expect("always"), "nosniff");
            let is_caged = headers.remove(CONTENT_SECURITY_POLICY).is_some();
            let mut names: Vec<_> = headers.keys().map(|name| name.as_str().to_owned()).collect();
            names.sort_unstable();
            (names.join(" "), is_caged)
        };
        let json = ("content-type", "application/json; charset=utf-8");
        assert!(!left(&[json, ("server", "uvicorn"), ("retry-after", "1"), ("x-accel-buffering", "no")]).1);
        assert!(!left(&[("content-type", "Text/Event-Stream")]).1);
        for page in [
            "text/html",
            "image/svg+xml",
            "text/plain",
            "application/xml",
            "application/jsonp",
            "application/json, text/html",
            "application/json; charset=utf-8, text/html",
        ] {
            assert_eq!(left(&[("content-type", page)]), ("content-type".to_owned(), true), "{page}");
        }
        assert!(left(&[]).1);
        for (name, value) in [
            ("access-control-allow-origin", "*"),
            ("access-control-allow-credentials", "true"),
            ("set-cookie", "a=b"),
            ("clear-site-data", "\"*\""),
            ("content-security-policy-report-only", "default-src 'none'; report-uri https://evil.example"),
            ("location", "https://evil.example/"),
            ("location", "//evil.example/"),
            ("location", "/\\evil.example/"),
            ("location", "javascript:alert(1)"),
        ] {
            assert_eq!(left(&[json, (name, value)]).0, "content-type", "{name}: {value}");
        }
        assert_eq!(left(&[json, ("location", "/v1/files/f")]).0, "content-type location");
    }
}
