//! Table of the router's routes: the requests that the router answers itself, and those that it forwards to engines.
//!
//! A path below `/v1/` that is not in the table is forwarded only with the admin key, because engines have routes there
//! that change them for all clients (`/v1/load_lora_adapter`), and get new ones with each release.

mod model;
mod table;

use hyper::{Method, Uri};
use kvatlas_http::{Access, ShownKey};

pub(crate) use self::model::{ModelAt, of_query};
use self::table::{ForwardCondition, LISTED, LISTED_CHANGE, ROUTES};
pub(crate) use self::table::{ForwardRule, Responder, Route, RouterAnswer, WELCOME};

/// Result of the search for a request's route.
#[derive(Debug)]
pub(crate) enum RouteMatch {
    Route(&'static Route),
    /// Route that requires the admin key for the request's method; other clients may use the listed methods.
    ForAdmins(&'static Route, Methods),
    /// Known path that does not accept the request's method, only the listed methods.
    WrongMethod(Methods),
    Unknown,
}

/// Finds the route of a request. `listed`: paths that the setting `forward` adds.
pub(crate) fn find(method: &Method, path: &str, listed: &[String]) -> RouteMatch {
    let mut others = Methods(0);
    // True if the path has a row to itself, which says all of it.
    let mut is_named = false;
    let bare = bare(path);
    for route in ROUTES.iter().filter(|route| route.path.parameter(bare).is_some()) {
        if let Responder::Engine(forwarded) = route.to {
            // A proxy before the engine may make another path of it, which no key allows.
            if climbs(path) {
                return RouteMatch::Unknown;
            }
            let is_out = match forwarded.allowed {
                ForwardCondition::Always => false,
                // The setting says of a path that has no row of its own that it is like others.
                ForwardCondition::ToAdmins => route.is_unnamed() && is_listed(path, listed),
                ForwardCondition::IfListed => !is_listed(path, listed),
            };
            if is_out {
                continue;
            }
        }
        // A path that has a row is not what the rows for all the rest are about; one that has only a row with a parameter
        // may be a path that no row is about.
        if others.0 > 0 && route.path.is_rest && (is_named || !route.is_unnamed()) {
            continue;
        }
        if route.methods.has(method) {
            let has_others = route.is_unnamed() && others.0 > 0;
            return if has_others { RouteMatch::ForAdmins(route, others) } else { RouteMatch::Route(route) };
        }
        if !route.is_unnamed() {
            others.0 |= route.methods.0;
        }
        is_named |= route.path.is_literal();
    }
    let is_open = others.0 == 0 || (!is_named && ANY.has(method));
    if is_open && is_listed(path, listed) && !climbs(path) {
        // However it is written: an engine decodes it.
        let plain = plain(path);
        let is_change = |it: &Route| it.wants == Access::Admin && !it.is_unnamed() && it.path.is(&plain);
        let changes = plain != bare && ROUTES.iter().any(is_change);
        let route = if changes { &LISTED_CHANGE } else { &LISTED };
        return if ANY.has(method) { RouteMatch::Route(route) } else { RouteMatch::WrongMethod(ANY) };
    }
    if others.0 > 0 {
        return RouteMatch::WrongMethod(others);
    }
    if ANY.has(method) || *method == Method::OPTIONS { RouteMatch::Unknown } else { RouteMatch::WrongMethod(ANY) }
}

/// True if a path is forwarded only for clients with a key, and the client has sent no key.
pub(crate) fn lacks_key(forwarded: ForwardRule, shown: ShownKey, path: &str, listed: &[String]) -> bool {
    forwarded.allowed == ForwardCondition::ToAdmins && shown == ShownKey::Nothing && !is_listed(path, listed)
}

/// True if the setting `forward` lists a path, or a prefix of it followed by `*`.
fn is_listed(path: &str, listed: &[String]) -> bool {
    listed.iter().any(|rule| match rule.strip_suffix('*') {
        Some(start) => path.starts_with(start),
        None => path == rule,
    })
}

/// Returns a request's path as an engine may interpret the path: decoded, in lower case, without empty segments.
fn plain(path: &str) -> String {
    let decoded = kvatlas_http::plain(path.as_bytes());
    let decoded = String::from_utf8_lossy(&decoded).to_ascii_lowercase();
    let segments = decoded.split('/').filter(|segment| !segment.is_empty());
    segments.fold(String::new(), |path, segment| path + "/" + segment)
}

/// True if a path has a segment `.` or `..`, however encoded (RFC 3986, 5.2.4).
fn climbs(path: &str) -> bool {
    if !path.bytes().any(|byte| matches!(byte, b'.' | b'%') || !byte.is_ascii()) {
        return false;
    }
    let plain = kvatlas_http::plain(path.as_bytes());
    plain.split(|byte| matches!(byte, b'/' | b'\\')).any(|segment| {
        // Some servers do not count what stands behind a semicolon, and cut a path at a zero or drop what is not seen.
        let name = segment.split(|byte| matches!(byte, b';' | 0)).next().unwrap_or_default();
        let seen = name.iter().filter(|byte| **byte > b' ' && **byte != 0x7f);
        name.contains(&b'.') && seen.clone().count() <= 2 && seen.clone().all(|byte| *byte == b'.')
    })
}

/// Pattern of a route's path with at most one parameter: `{id}` matches one segment, `{name*}` one or more.
#[derive(Debug)]
struct Pattern {
    text: &'static str,
    /// Number of bytes before and after the parameter; None for a pattern without a parameter.
    around: Option<(usize, usize)>,
    is_rest: bool,
}

impl Pattern {
    const fn new(text: &'static str) -> Self {
        let bytes = text.as_bytes();
        let (mut at, mut before, mut is_rest, mut around) = (0, 0, false, None);
        while at < bytes.len() {
            match bytes[at] {
                b'{' => before = at,
                b'*' => is_rest = true,
                b'}' => around = Some((before, bytes.len() - at - 1)),
                _ => {}
            }
            at += 1;
        }
        Self { text, around, is_rest }
    }

    /// True if the pattern matches a single path, as it has no parameter.
    const fn is_literal(&self) -> bool {
        self.around.is_none()
    }

    fn is(&self, path: &str) -> bool {
        self.parameter(path).is_some()
    }

    /// Returns the parameter's value in a matching path, empty if the pattern has none; None if the path does not
    /// match.
    fn parameter<'p>(&self, path: &'p str) -> Option<&'p str> {
        let Some((before, behind)) = self.around else { return (path == self.text).then_some("") };
        let (head, tail) = (&self.text[..before], &self.text[self.text.len() - behind..]);
        let found = path.strip_prefix(head)?.strip_suffix(tail)?;
        (!found.is_empty() && (self.is_rest || !found.contains('/'))).then_some(found)
    }
}

/// Returns a path without its trailing slash.
pub(crate) fn bare(path: &str) -> &str {
    path.strip_suffix('/').filter(|bare| !bare.is_empty()).unwrap_or(path)
}

/// Set of HTTP methods that a route accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Methods(u8);

/// All methods that a route can accept; the position is the method's bit in [`Methods`].
const METHODS: [Method; 6] = [Method::GET, Method::HEAD, Method::POST, Method::PUT, Method::PATCH, Method::DELETE];

const STREAM: Methods = Methods(1);
const GET: Methods = Methods(1 | 2);
const POST: Methods = Methods(4);
const DELETE: Methods = Methods(32);
const ANY: Methods = Methods(63);

impl Methods {
    pub(crate) fn has(self, method: &Method) -> bool {
        METHODS.iter().position(|other| other == method).is_some_and(|at| self.0 & (1 << at) != 0)
    }

    /// Lists the methods in the form of an `Allow` header.
    pub(crate) fn list(self) -> String {
        let names = METHODS.iter().filter(|method| self.has(method)).map(Method::as_str);
        names.collect::<Vec<_>>().join(", ")
    }
}

/// Removes the trailing slash of a request's path, as engines would answer the path with the slash by a redirect.
pub(crate) fn take_off_slash(uri: &mut Uri) {
    let bare = bare(uri.path());
    if bare.len() < uri.path().len() {
        let path = uri.query().map_or_else(|| bare.to_owned(), |query| format!("{bare}?{query}"));
        // They are parts of those that it came with.
        let mut parts = std::mem::take(uri).into_parts();
        parts.path_and_query = path.parse().ok();
        *uri = Uri::from_parts(parts).unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(method: &str, path: &str, listed: &[&str]) -> String {
        let listed: Vec<String> = listed.iter().map(|&path| path.to_owned()).collect();
        let method = Method::from_bytes(method.as_bytes()).expect("a method");
        match find(&method, path, &listed) {
            RouteMatch::Unknown => "404".to_owned(),
            RouteMatch::WrongMethod(methods) => format!("405 {}", methods.list()),
            RouteMatch::ForAdmins(_, methods) => format!("admins, else 405 {}", methods.list()),
            RouteMatch::Route(route) => match route.to {
                Responder::Own(own) => format!("{own:?}({})", route.parameter(path)),
                Responder::Engine(forwarded) => format!("{:?} {:?}", route.wants, forwarded.allowed),
            },
        }
    }

    #[test]
    fn paths_and_methods() {
        for (asked, wanted) in [
            ("POST /v1/chat/completions", "Ask Always"),
            ("POST /v1/chat/completions/", "Ask Always"),
            ("GET /v1/chat/completions", "405 POST"),
            ("TRACE /v1/chat/completions", "405 POST"),
            ("TRACE /v1/new", "405 GET, HEAD, POST, PUT, PATCH, DELETE"),
            ("TRACE /nowhere", "405 GET, HEAD, POST, PUT, PATCH, DELETE"),
            ("PROPFIND /v1/models", "405 GET, HEAD"),
            ("HEAD /v1/models", "Models()"),
            ("GET /v1/models/org/name", "Model(org/name)"),
            ("GET /v1/models/org%2Fname/", "Model(org%2Fname)"),
            ("GET /models/org%2Fname", "Model(org%2Fname)"),
            ("GET /models/", "Models()"),
            ("POST /models/load", "405 GET, HEAD"),
            ("POST /v1/models/load", "admins, else 405 GET, HEAD"),
            ("DELETE /v1/models/org/name", "admins, else 405 GET, HEAD"),
            ("POST /v1/responses/compact", "admins, else 405 GET, HEAD, DELETE"),
            ("PUT /v1/responses/resp_1/cancel", "admins, else 405 POST"),
            ("POST /v1/responses/..", "404"),
            ("POST /v1/models", "405 GET, HEAD"),
            ("OPTIONS /v1/responses/compact", "405 GET, HEAD, DELETE"),
            ("TRACE /v1/models/load", "405 GET, HEAD"),
            ("POST /v1/load_lora_adapter", "Admin ToAdmins"),
            ("POST /v1/load%5Flora_adapter", "Admin ToAdmins"),
            ("POST /v1//load_lora_adapter/", "Admin ToAdmins"),
            ("GET /v1/new", "Admin ToAdmins"),
            ("DELETE /v1/files/a.b", "Ask Always"),
            ("GET /v1/responses/resp_1", "Ask Always"),
            ("POST /v1/responses/resp_1/cancel", "Ask Always"),
            ("POST /v1/files/../load_lora_adapter", "404"),
            ("POST /v1/files/%2e%2e/load_lora_adapter", "404"),
            ("POST /sleep", "404"),
            ("POST /", "405 GET, HEAD"),
            ("POST /engines/a%2Fb/drain", "Drain(a%2Fb)"),
            ("POST /engines/a/b/undrain/", "Undrain(a/b)"),
            ("DELETE /engines/a", "RemoveEngine(a)"),
            ("GET /engines/a/drain", "405 POST"),
            ("PUT /engines/a", "405 DELETE"),
            ("PUT /engines", "405 GET, HEAD, POST"),
            ("OPTIONS /nowhere", "404"),
        ] {
            let (method, path) = asked.split_once(' ').expect("two words");
            assert_eq!(found(method, path, &[]), wanted, "{asked}");
        }
    }

    #[test]
    fn paths_that_the_setting_adds() {
        let all = &["/*"];
        for (asked, listed, wanted) in [
            ("POST /sleep", &["/sleep"][..], "Admin IfListed"),
            ("POST /sleep", all, "Admin IfListed"),
            ("POST /%73leep", all, "Admin IfListed"),
            ("POST //SLEEP/", all, "Admin IfListed"),
            ("POST /v1/load_lora_adapter", all, "Admin ToAdmins"),
            ("POST /v1/load%5Flora_adapter", all, "Admin IfListed"),
            ("GET /custom/x", &["/custom/*"], "Ask Always"),
            ("POST /v1/new", &["/v1/new"], "Ask Always"),
            ("POST /v1/newer", &["/v1/new"], "Admin ToAdmins"),
            ("TRACE /custom/x", all, "405 GET, HEAD, POST, PUT, PATCH, DELETE"),
            ("GET /custom/../x", &["/custom/*"], "404"),
            ("POST /v1/responses/compact", &["/v1/responses/compact"], "Ask Always"),
            ("POST /v1/models/load", all, "Ask Always"),
            ("POST /models/load", &["/models/load"], "Ask Always"),
            ("POST /models/%2e%2e/sleep", all, "405 GET, HEAD"),
            ("POST /v1/models", all, "405 GET, HEAD"),
            ("GET /v1/responses/resp_1", all, "Ask Always"),
            ("PUT /workers", all, "405 GET, HEAD"),
        ] {
            let (method, path) = asked.split_once(' ').expect("two words");
            assert_eq!(found(method, path, listed), wanted, "{asked} {listed:?}");
        }
    }

    #[test]
    fn no_row_hides_another() {
        for (at, row) in ROUTES.iter().enumerate() {
            let path = row.path.text.replace("{name*}", "a/b").replace("{path*}", "a/b");
            let path = path.replace("{id}", "a").replace("{file}", "style.css");
            let first = ROUTES.iter().position(|other| other.methods.0 & row.methods.0 != 0 && other.path.is(&path));
            assert_eq!(first, Some(at), "{}", row.path.text);
        }
    }

    #[test]
    fn paths_that_climb() {
        for path in [
            "/v1/../x",
            "/v1/..",
            "/v1/./x",
            "/v1/%2e%2E/x",
            "/v1/.%2e/x",
            "/v1/a%2f..%2Fx",
            "/v1\\..\\x",
            "/v1/..;/x",
            "/v1/..%3Ba/x",
            "/v1/%252e%25252e/x",
            "/v1/a%5C..%5cx",
            "/v1/%25%32%65.;x/y",
            "/v1/%c0%ae%c0%ae/x",
            "/v1/%u002e%u002e/x",
            "/v1/a%c0%af..%c0%afx",
            "/v1/..%00/x",
            "/v1/..%20/x",
            "/v1/.%09./x",
            "/v1/..%2500%252fx",
        ] {
            assert!(climbs(path), "{path}");
        }
        for path in
            ["/v1/files/a.b", "/v1/models/x..y", "/v1/...", "/v1/a%20b", "/v1/responses/%2e1", "/v1/a;b", "/v1/a..;x"]
        {
            assert!(!climbs(path), "{path}");
        }
    }

    #[test]
    fn slashes_at_the_end() {
        for (given, wanted) in [
            ("/v1/chat/completions/", "/v1/chat/completions"),
            ("/v1/chat/completions/?a=/", "/v1/chat/completions?a=/"),
            ("/v1/rerank?a=1", "/v1/rerank?a=1"),
            ("http://host/v1/rerank/?a=1", "http://host/v1/rerank?a=1"),
            ("/", "/"),
        ] {
            let mut uri: Uri = given.parse().expect("a URI");
            take_off_slash(&mut uri);
            assert_eq!(uri.to_string(), wanted);
        }
    }
}
