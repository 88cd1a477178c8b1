//! The routes of the router, in one table: its own and those that it forwards, with what each needs.
//!
//! A path below `/v1/` that the table does not name is forwarded for the admin key only: engines have routes there that
//! change them for everybody (`/v1/load_lora_adapter`), and get new ones with each release.

use std::borrow::Cow;
use std::sync::LazyLock;

use hyper::Method;
use kvatlas_prompt::Endpoint;
use kvatlas_service::gate::Wants;
use memchr::memmem;
use serde::Deserialize;

/// A row of the table: some methods of a path.
#[derive(Debug)]
pub(crate) struct Route {
    pub(crate) methods: Methods,
    path: Pattern,
    /// Which key it needs, where there are keys.
    pub(crate) wants: Wants,
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

/// Where a body names the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ModelAt {
    /// In the field `model` of a JSON object.
    Json,
    /// In the field `model` of a form (`multipart/form-data`).
    Form,
    Nowhere,
}

impl ModelAt {
    /// The model that a body names, if it names one.
    pub(crate) fn of(self, body: &[u8]) -> Option<Cow<'_, str>> {
        #[derive(Deserialize)]
        struct Asked<'a> {
            #[serde(borrow, default)]
            model: Option<Cow<'a, str>>,
        }
        match self {
            Self::Json => serde_json::from_slice::<Asked<'_>>(body).ok()?.model,
            Self::Form => form_field(body, "model").map(Cow::Borrowed),
            Self::Nowhere => None,
        }
    }
}

/// A short field of a form, which is between the blank line of its part and the next line's end (RFC 7578).
fn form_field<'b>(body: &'b [u8], name: &str) -> Option<&'b str> {
    let part = memmem::find(body, format!("form-data; name=\"{name}\"\r\n").as_bytes())?;
    let rest = &body[part..];
    let value = &rest[memmem::find(rest, b"\r\n\r\n")? + 4..];
    std::str::from_utf8(&value[..memmem::find(value, b"\r\n")?]).ok()
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
        let is_change = |it: &Route| it.wants == Wants::ToChange && !it.is_unnamed() && it.path.is(&plain);
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

const fn own(methods: Methods, path: &'static str, wants: Wants, what: Own, about: &'static str) -> Route {
    Route { methods, path: Pattern::new(path), wants, to: To::Own(what), about }
}

const fn forwarded(methods: Methods, path: &'static str, about: &'static str, forwarded: Forwarded) -> Route {
    let wants = if matches!(forwarded.allowed, Allowed::Always) { Wants::ToAsk } else { Wants::ToChange };
    Route { methods, path: Pattern::new(path), wants, to: To::Engine(forwarded), about }
}

/// A prompt in JSON.
const fn prompt(path: &'static str, endpoint: Endpoint) -> Route {
    let what = Forwarded { endpoint: Some(endpoint), model: ModelAt::Json, repeats: true, allowed: Allowed::Always };
    forwarded(POST, path, "a prompt that is read", what)
}

/// What an engine computes, and does not keep.
const fn work(path: &'static str, model: ModelAt) -> Route {
    let what = Forwarded { endpoint: None, model, repeats: true, allowed: Allowed::Always };
    forwarded(POST, path, "computed by the engine", what)
}

/// What an engine knows, or keeps for a client.
const fn kept(methods: Methods, path: &'static str, about: &'static str) -> Route {
    let what = Forwarded { endpoint: None, model: ModelAt::Nowhere, repeats: false, allowed: Allowed::Always };
    forwarded(methods, path, about, what)
}

/// What changes an engine for all its clients, or tells how it is run.
const fn change(path: &'static str, allowed: Allowed) -> Route {
    let what = Forwarded { endpoint: None, model: ModelAt::Nowhere, repeats: false, allowed };
    forwarded(ANY, path, "changes an engine for everybody", what)
}

use Allowed::{IfListed, ToAdmins};
use ModelAt::{Form, Json};
use Wants::{Anything, ToAsk, ToChange};

/// The paths below `/v1/` that have no row of their own.
const UNNAMED: &str = "/v1/{path*}";

/// What the setting `forward` adds, unless it is known to change engines.
static LISTED: Route = kept(ANY, "", "a path that the setting `forward` adds");
static LISTED_CHANGE: Route = change("", IfListed);

/// All routes: the most frequent ones first.
static ROUTES: &[Route] = &[
    prompt("/v1/chat/completions", Endpoint::Chat),
    prompt("/v1/completions", Endpoint::Completions),
    prompt("/v1/responses", Endpoint::Responses),
    prompt("/v1/messages", Endpoint::Messages),
    prompt("/v1/embeddings", Endpoint::Embeddings),
    own(POST, "/peers/work", ToChange, Own::PeersWork, "for other routers: report their requests at the engines"),
    own(GET, "/", ToAsk, Own::Welcome, "this text"),
    own(GET, "/health", Anything, Own::Health, "200 while the router's threads are running"),
    own(GET, "/ping", Anything, Own::Health, "the same"),
    own(GET, "/ready", Anything, Own::Ready, "200 while the router should get requests"),
    own(GET, "/version", Anything, Own::Version, "the version of the router"),
    own(GET, "/metrics", ToAsk, Own::Metrics, "metrics for Prometheus"),
    own(GET, "/v1/models", ToAsk, Own::Models, "the models of all engines"),
    own(GET, "/models", ToAsk, Own::Models, "the same"),
    own(GET, "/v1/models/{name*}", ToAsk, Own::Model, "one of them"),
    own(GET, "/workers", ToAsk, Own::Workers, "engines and their state"),
    own(GET, "/engines", ToAsk, Own::Workers, "the same"),
    own(GET, "/router", ToAsk, Own::Router, "the router's own state"),
    own(GET, "/streams", ToAsk, Own::Streams, "the engines' event streams, if they are followed here"),
    own(GET, "/decisions", ToAsk, Own::Decisions, "the last decisions; ?limit=N"),
    own(STREAM, "/ui/events", ToAsk, Own::PageEvents, "the contents of the page, as server-sent events"),
    own(STREAM, "/ui/decision", ToAsk, Own::PageDecision, "one decision for the page; ?number=N"),
    own(GET, "/ui", Anything, Own::Page, "a web page that shows engines and decisions live"),
    own(GET, "/ui/{file}", Anything, Own::Page, "files of the page"),
    own(POST, "/explain", ToAsk, Own::Explain, "how each engine compares for a prompt; nothing is sent"),
    own(GET, "/snapshot", ToChange, Own::Snapshot, "for other routers and services: every block that the index holds"),
    own(POST, "/engines", ToChange, Own::AddEngine, "add an engine: {\"url\": \"http://host:port\", …}"),
    own(POST, "/engines/{name*}/drain", ToChange, Own::Drain, "send an engine no new requests"),
    own(POST, "/engines/{name*}/undrain", ToChange, Own::Undrain, "send it new requests again"),
    own(DELETE, "/engines/{name*}", ToChange, Own::RemoveEngine, "remove an engine"),
    prompt("/chat/completions", Endpoint::Chat),
    prompt("/completions", Endpoint::Completions),
    prompt("/responses", Endpoint::Responses),
    prompt("/messages", Endpoint::Messages),
    prompt("/embeddings", Endpoint::Embeddings),
    kept(Methods(1 | 2 | 32), "/v1/responses/{id}", "an answer that an engine keeps"),
    kept(GET, "/v1/responses/{id}/input_items", "what it was made from"),
    kept(POST, "/v1/responses/{id}/cancel", "end an answer in the background"),
    work("/v1/responses/render", Json),
    work("/v1/chat/completions/render", Json),
    work("/v1/chat/completions/batch", Json),
    work("/v1/completions/render", Json),
    work("/v1/messages/render", Json),
    work("/v1/messages/count_tokens", Json),
    work("/v1/responses/input_tokens", Json),
    work("/v1/rerank", Json),
    work("/v1/score", Json),
    work("/v1/classify", Json),
    work("/v1/pooling", Json),
    work("/v1/moderations", Json),
    work("/v1/tokenize", Json),
    work("/v1/detokenize", Json),
    work("/v1/audio/transcriptions", Form),
    work("/v1/audio/translations", Form),
    work("/v1/audio/speech", Json),
    work("/v1/images/generations", Json),
    work("/v1/images/edits", Form),
    work("/v1/images/variations", Form),
    work("/tokenize", Json),
    work("/detokenize", Json),
    work("/score", Json),
    work("/rerank", Json),
    work("/pooling", Json),
    work("/classify", Json),
    work("/generate", Json),
    work("/encode", Json),
    work("/v2/embed", Json),
    work("/v2/rerank", Json),
    work("/inference/v1/generate", Json),
    kept(GET, "/get_model_info", "what an engine says of its model"),
    kept(GET, "/model_info", "the same"),
    kept(GET, "/v1/loads", "what an engine says of its load"),
    kept(ANY, "/v1/files", "files that an engine keeps"),
    kept(ANY, "/v1/files/{path*}", "one of them"),
    kept(ANY, "/v1/batches", "batches that an engine keeps"),
    kept(ANY, "/v1/batches/{path*}", "one of them"),
    kept(ANY, "/v1/fine_tuning/{path*}", "training that an engine keeps"),
    kept(ANY, "/v1/videos", "videos that an engine makes"),
    kept(ANY, "/v1/videos/{path*}", "one of them"),
    change("/v1/load_lora_adapter", ToAdmins),
    change("/v1/unload_lora_adapter", ToAdmins),
    change(UNNAMED, ToAdmins),
    change("/load_lora_adapter", IfListed),
    change("/load_lora_adapter_from_tensors", IfListed),
    change("/unload_lora_adapter", IfListed),
    change("/sleep", IfListed),
    change("/wake_up", IfListed),
    change("/pause", IfListed),
    change("/resume", IfListed),
    change("/pause_generation", IfListed),
    change("/continue_generation", IfListed),
    change("/abort_request", IfListed),
    change("/abort_requests", IfListed),
    change("/reset_prefix_cache", IfListed),
    change("/reset_mm_cache", IfListed),
    change("/reset_encoder_cache", IfListed),
    change("/flush_cache", IfListed),
    change("/clear_hicache_storage_backend", IfListed),
    change("/hicache/{path*}", IfListed),
    change("/collective_rpc", IfListed),
    change("/update_weights", IfListed),
    change("/update_weights_from_disk", IfListed),
    change("/update_weights_from_tensor", IfListed),
    change("/update_weights_from_distributed", IfListed),
    change("/update_weights_from_ipc", IfListed),
    change("/update_weight_version", IfListed),
    change("/start_weight_update", IfListed),
    change("/finish_weight_update", IfListed),
    change("/init_weight_transfer_engine", IfListed),
    change("/init_weights_update_group", IfListed),
    change("/destroy_weights_update_group", IfListed),
    change("/init_weights_send_group_for_remote_instance", IfListed),
    change("/send_weights_to_remote_instance", IfListed),
    change("/get_weights_by_name", IfListed),
    change("/weights_checker", IfListed),
    change("/release_memory_occupation", IfListed),
    change("/resume_memory_occupation", IfListed),
    change("/scale_elastic_ep", IfListed),
    change("/fault_tolerance/{path*}", IfListed),
    change("/set_internal_state", IfListed),
    change("/configure_logging", IfListed),
    change("/slow_down", IfListed),
    change("/freeze_gc", IfListed),
    change("/start_profile", IfListed),
    change("/stop_profile", IfListed),
    change("/start_expert_distribution_record", IfListed),
    change("/stop_expert_distribution_record", IfListed),
    change("/dump_expert_distribution_record", IfListed),
    change("/open_session", IfListed),
    change("/close_session", IfListed),
    change("/server_info", IfListed),
    change("/get_server_info", IfListed),
];

/// What `GET /` says.
pub(crate) static WELCOME: LazyLock<String> = LazyLock::new(|| {
    let mut text = String::from("kvatlas: a router in front of inference engines\n\n");
    for route in ROUTES.iter().filter(|route| matches!(route.to, To::Own(_))) {
        let methods = METHODS.iter().filter(|method| route.methods.has(method) && **method != Method::HEAD);
        let method = methods.map(Method::as_str).next().unwrap_or_default();
        text += &format!("{method:<6} {:<28} {}\n", route.path.text, route.about);
    }
    text += "\nForwarded to an engine:\n";
    let always = |route: &&Route| matches!(route.to, To::Engine(forwarded) if forwarded.allowed == Allowed::Always);
    for route in ROUTES.iter().filter(always) {
        text += &format!("{} {}\n", route.methods.list(), route.path.text);
    }
    text += "Other paths below /v1/: for the admin key. The setting `forward` adds paths.\n";
    text
});

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
            ("POST /v1/chat/completions", "ToAsk Always"),
            ("POST /v1/chat/completions/", "ToAsk Always"),
            ("GET /v1/chat/completions", "405 POST"),
            ("TRACE /v1/chat/completions", "405 POST"),
            ("TRACE /v1/new", "405 GET, HEAD, POST, PUT, PATCH, DELETE"),
            ("TRACE /nowhere", "405 GET, HEAD, POST, PUT, PATCH, DELETE"),
            ("PROPFIND /v1/models", "405 GET, HEAD"),
            ("HEAD /v1/models", "Models()"),
            ("GET /v1/models/org/name", "Model(org/name)"),
            ("POST /v1/load_lora_adapter", "ToChange ToAdmins"),
            ("POST /v1/load%5Flora_adapter", "ToChange ToAdmins"),
            ("POST /v1//load_lora_adapter/", "ToChange ToAdmins"),
            ("GET /v1/new", "ToChange ToAdmins"),
            ("DELETE /v1/files/a.b", "ToAsk Always"),
            ("GET /v1/responses/resp_1", "ToAsk Always"),
            ("POST /v1/responses/resp_1/cancel", "ToAsk Always"),
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
            ("POST /sleep", &["/sleep"][..], "ToChange IfListed"),
            ("POST /sleep", all, "ToChange IfListed"),
            ("POST /%73leep", all, "ToChange IfListed"),
            ("POST //SLEEP/", all, "ToChange IfListed"),
            ("POST /v1/load_lora_adapter", all, "ToChange ToAdmins"),
            ("POST /v1/load%5Flora_adapter", all, "ToChange IfListed"),
            ("GET /custom/x", &["/custom/*"], "ToAsk Always"),
            ("POST /v1/new", &["/v1/new"], "ToAsk Always"),
            ("POST /v1/newer", &["/v1/new"], "ToChange ToAdmins"),
            ("TRACE /custom/x", all, "405 GET, HEAD, POST, PUT, PATCH, DELETE"),
            ("GET /custom/../x", &["/custom/*"], "404"),
        ] {
            let (method, path) = asked.split_once(' ').expect("two words");
            assert_eq!(found(method, path, listed), wanted, "{asked} {listed:?}");
        }
    }

    /// The rows of a kind as a table of the documentation, those that are alike in one line.
    fn documented(allowed: Option<Allowed>) -> String {
        let mut lines: Vec<(String, Vec<String>, String)> = Vec::new();
        for route in ROUTES {
            let (key, about) = match (route.to, allowed) {
                (To::Own(_), None) => (route.wants, route.about.replace("{", "`{").replace("}", "}`")),
                (To::Engine(forwarded), Some(allowed)) if forwarded.allowed == allowed => {
                    let model = match forwarded.model {
                        ModelAt::Json => "field `model`",
                        ModelAt::Form => "form field `model`",
                        ModelAt::Nowhere => "not read",
                    };
                    let again = match (forwarded.repeats, route.methods == GET) {
                        (true, _) | (_, true) => "yes",
                        (false, _) if route.methods.has(&Method::GET) && route.may_repeat(&Method::GET) => "`GET` only",
                        _ => "no",
                    };
                    (route.wants, format!("{model} | {again}"))
                }
                _ => continue,
            };
            let who = match key {
                Wants::Anything => "anyone",
                Wants::ToAsk => "key",
                Wants::ToChange => "admin key",
            };
            let methods = if route.methods == ANY { "any".to_owned() } else { format!("`{}`", route.methods.list()) };
            let path = format!("`{}`", route.path.text.replace("*}", "}"));
            let rest = if allowed.is_none() { format!("{who} | {about}") } else { about };
            match lines.last_mut() {
                Some((first, paths, last)) if allowed.is_some() && *first == methods && *last == rest => {
                    paths.push(path)
                }
                _ => lines.push((methods, vec![path], rest)),
            }
        }
        lines.iter().map(|(methods, paths, rest)| format!("| {methods} | {} | {rest} |\n", paths.join(", "))).collect()
    }

    #[test]
    fn the_page_on_security_has_the_table() {
        let page = include_str!("../../../docs/guides/security.md");
        let parts = [None, Some(Allowed::Always), Some(Allowed::ToAdmins), Some(Allowed::IfListed)].map(documented);
        assert!(
            parts.iter().all(|rows| page.contains(rows)),
            "docs/guides/security.md should have these rows:\n{}",
            parts.join("---\n")
        );
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

    #[test]
    fn models_in_bodies() {
        let form = b"--x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\nRIFF\r\n--x\r\n\
            Content-Disposition: form-data; name=\"model\"\r\n\r\nwhisper\r\n--x--\r\n";
        assert_eq!(ModelAt::Form.of(form).as_deref(), Some("whisper"));
        assert_eq!(ModelAt::Form.of(b"--x").as_deref(), None);
        assert_eq!(ModelAt::Json.of(br#"{"query": "x", "model": "m"}"#).as_deref(), Some("m"));
        for none in [&br#"{"model": null}"#[..], b"{}", b"[", br#"{"model": 5}"#] {
            assert_eq!(ModelAt::Json.of(none), None);
        }
        assert_eq!(ModelAt::Nowhere.of(br#"{"model": "m"}"#), None);
    }
}
