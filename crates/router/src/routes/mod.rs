//! The routes of the router, in one table: its own and those that it forwards, with what each needs.
//!
//! A path below `/v1/` that the table does not name is forwarded for the admin key only: engines have routes there that
//! change them for everybody (`/v1/load_lora_adapter`), and get new ones with each release.

mod model;
mod table;

use hyper::Method;
use kvatlas_http::Access;
use kvatlas_prompt::Endpoint;

pub(crate) use self::model::{ModelAt, of_query};
pub(crate) use self::table::WELCOME;
use self::table::{LISTED, LISTED_CHANGE, ROUTES, UNNAMED};

/// A row of the table: some methods of a path.
#[derive(Debug)]
pub(crate) struct Route {
    pub(crate) methods: Methods,
    path: Pattern,
    /// Which key it needs, where there are keys.
    pub(crate) wants: Access,
    pub(crate) to: To,
    /// What it does, in a few words.
    about: &'static str,
}

/// Who answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum To {
    /// The router.
    Own(Own),
    /// An engine.
    Engine(Forwarded),
}

/// What an engine is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Forwarded {
    /// What the body is, if it has a prompt that is read.
    pub(crate) endpoint: Option<Endpoint>,
    /// Where the body names the model.
    pub(crate) model: ModelAt,
    /// True if a POST leaves nothing behind at the engine: it may be sent again, though it was sent as a whole before.
    pub(crate) repeats: bool,
    pub(crate) allowed: Allowed,
}

/// When a path is forwarded at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Allowed {
    Always,
    /// If a client shows a key that allows changes, or the setting `forward` names the path.
    ToAdmins,
    /// If the setting `forward` names the path.
    IfListed,
}

/// What the router answers itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Own {
    Welcome,
    Health,
    Ready,
    Version,
    Metrics,
    Workers,
    Router,
    Streams,
    Decisions,
    Models,
    Model,
    Page,
    PageEvents,
    PageDecision,
    Explain,
    Snapshot,
    PeersWork,
    AddEngine,
    RemoveEngine,
    Drain,
    Undrain,
}

impl Own {
    /// True if a body says what is to be done.
    pub(crate) fn wants_body(self) -> bool {
        matches!(self, Self::Explain | Self::PeersWork | Self::AddEngine)
    }

    /// True if a body must be JSON, where there is one.
    pub(crate) fn takes_json(self) -> bool {
        self.wants_body() || matches!(self, Self::RemoveEngine | Self::Drain | Self::Undrain)
    }
}

impl Route {
    /// The parameter in a path that matches, as it is written there.
    pub(crate) fn parameter<'p>(&self, path: &'p str) -> &'p str {
        self.path.parameter(path.strip_suffix('/').unwrap_or(path)).unwrap_or_default()
    }

    /// True if a request may be sent again after an engine had it as a whole.
    pub(crate) fn may_repeat(&self, method: &Method) -> bool {
        match self.to {
            // Some engines are changed by GET too.
            To::Engine(forwarded) if forwarded.allowed != Allowed::Always => false,
            To::Engine(forwarded) => forwarded.repeats || matches!(*method, Method::GET | Method::HEAD),
            To::Own(_) => false,
        }
    }

    /// True for the row of the paths below `/v1/` that have no row of their own.
    pub(crate) fn is_unnamed(&self) -> bool {
        self.path.text == UNNAMED
    }

    /// True if it is answered at the door of administrators, without a key.
    pub(crate) fn is_for_probes(&self) -> bool {
        matches!(self.to, To::Own(Own::Health | Own::Ready | Own::Version | Own::Metrics))
    }
}

/// The route of a request.
#[derive(Debug)]
pub(crate) enum Found {
    Route(&'static Route),
    /// There is such a path, for other methods: these.
    WrongMethod(Methods),
    Unknown,
}

/// The route of a request. `listed`: the paths that the setting `forward` adds.
pub(crate) fn find(method: &Method, path: &str, listed: &[String]) -> Found {
    let mut others = Methods(0);
    // A slash at the end does not count.
    let bare = path.strip_suffix('/').filter(|bare| !bare.is_empty()).unwrap_or(path);
    for route in ROUTES.iter().filter(|route| route.path.parameter(bare).is_some()) {
        if let To::Engine(forwarded) = route.to {
            // Whoever stands before the engine may make another path of it, which nobody has allowed.
            if climbs(path) {
                return Found::Unknown;
            }
            let is_out = match forwarded.allowed {
                Allowed::Always => false,
                // The setting says of a path that has no row of its own that it is like others.
                Allowed::ToAdmins => route.is_unnamed() && is_listed(path, listed),
                Allowed::IfListed => !is_listed(path, listed),
            };
            if is_out {
                continue;
            }
        }
        // A path that has a row is not what the rows for all the rest are about.
        if others.0 > 0 && route.path.is_rest {
            break;
        }
        if route.methods.has(method) {
            return Found::Route(route);
        }
        others.0 |= route.methods.0;
    }
    if others.0 > 0 {
        return Found::WrongMethod(others);
    }
    if is_listed(path, listed) && !climbs(path) {
        // However it is written: an engine decodes it.
        let plain = plain(path);
        let is_change = |it: &Route| it.wants == Access::Admin && !it.is_unnamed() && it.path.is(&plain);
        let changes = plain != bare && ROUTES.iter().any(is_change);
        let route = if changes { &LISTED_CHANGE } else { &LISTED };
        return if ANY.has(method) { Found::Route(route) } else { Found::WrongMethod(ANY) };
    }
    if ANY.has(method) || *method == Method::OPTIONS { Found::Unknown } else { Found::WrongMethod(ANY) }
}

/// True if the setting `forward` has a path, or a beginning of it that ends in `*`.
pub(crate) fn is_listed(path: &str, listed: &[String]) -> bool {
    listed.iter().any(|rule| match rule.strip_suffix('*') {
        Some(start) => path.starts_with(start),
        None => path == rule,
    })
}

/// A path as an engine may read it.
fn plain(path: &str) -> String {
    let decoded = percent_encoding::percent_decode_str(path).decode_utf8_lossy().to_ascii_lowercase();
    let segments = decoded.split('/').filter(|segment| !segment.is_empty());
    segments.fold(String::new(), |path, segment| path + "/" + segment)
}

/// True if a path has `.` or `..` among its segments, however it writes them (RFC 3986, 5.2.4).
fn climbs(path: &str) -> bool {
    let is_dots = |segment: &str| {
        let lower = segment.to_ascii_lowercase().replace("%2e", ".");
        matches!(lower.as_str(), "." | "..")
    };
    path.contains(['.', '%']) && path.replace("%2f", "/").replace("%2F", "/").split(['/', '\\']).any(is_dots)
}

/// A path, with at most one parameter: `{id}` is one segment, `{name*}` one or more.
#[derive(Debug)]
struct Pattern {
    text: &'static str,
    /// Bytes before the parameter, and behind it.
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

    fn is(&self, path: &str) -> bool {
        self.parameter(path).is_some()
    }

    /// The parameter of a path that matches: an empty one if there is none.
    fn parameter<'p>(&self, path: &'p str) -> Option<&'p str> {
        let Some((before, behind)) = self.around else { return (path == self.text).then_some("") };
        let (head, tail) = (&self.text[..before], &self.text[self.text.len() - behind..]);
        let found = path.strip_prefix(head)?.strip_suffix(tail)?;
        (!found.is_empty() && (self.is_rest || !found.contains('/'))).then_some(found)
    }
}

/// A set of methods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Methods(u8);

/// The methods that a route can have.
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

    /// As in a header `Allow`.
    pub(crate) fn list(self) -> String {
        let names = METHODS.iter().filter(|method| self.has(method)).map(Method::as_str);
        names.collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(method: &str, path: &str, listed: &[&str]) -> String {
        let listed: Vec<String> = listed.iter().map(|&path| path.to_owned()).collect();
        let method = Method::from_bytes(method.as_bytes()).expect("a method");
        match find(&method, path, &listed) {
            Found::Unknown => "404".to_owned(),
            Found::WrongMethod(methods) => format!("405 {}", methods.list()),
            Found::Route(route) => match route.to {
                To::Own(own) => format!("{own:?}({})", route.parameter(path)),
                To::Engine(forwarded) => format!("{:?} {:?}", route.wants, forwarded.allowed),
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
        for path in ["/v1/../x", "/v1/..", "/v1/./x", "/v1/%2e%2E/x", "/v1/.%2e/x", "/v1/a%2f..%2Fx", "/v1\\..\\x"] {
            assert!(climbs(path), "{path}");
        }
        for path in ["/v1/files/a.b", "/v1/models/x..y", "/v1/...", "/v1/a%20b", "/v1/responses/%2e1"] {
            assert!(!climbs(path), "{path}");
        }
    }
}
