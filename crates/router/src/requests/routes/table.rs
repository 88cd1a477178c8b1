//! Rows of the table of routes, the text of the answer to `GET /`, and tables for the documentation.

use std::sync::LazyLock;

use hyper::Method;
use kvatlas_http::Access;
use kvatlas_prompt::Endpoint;

use super::model::ModelAt;
use super::{ANY, DELETE, GET, METHODS, Methods, POST, Pattern, STREAM, bare};
use crate::requests::task::Task;
use Access::{Admin, Ask, Open};
use ForwardCondition::{IfListed, ToAdmins};
use ModelAt::{Form, Json};

/// Pattern of the paths below `/v1/` for which the table has no row of their own.
const UNNAMED: &str = "/v1/{path*}";

/// Row of the table of routes: a path pattern with some of its methods.
#[derive(Debug)]
pub(crate) struct Route {
    pub(crate) methods: Methods,
    pub(super) path: Pattern,
    /// Key that clients must send for the route.
    pub(crate) wants: Access,
    pub(crate) to: Responder,
    /// Short description of the route for the documentation.
    about: &'static str,
}

/// Responder to a route's requests: the router itself, or an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Responder {
    /// The router answers the request itself.
    Own(RouterAnswer),
    /// An engine answers the request.
    Engine(ForwardRule),
}

/// Rule for a route whose requests are forwarded to engines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ForwardRule {
    /// API whose format the body has, for a body with a prompt that is parsed; None for other bodies.
    pub(crate) endpoint: Option<Endpoint>,
    /// Place where the body names the model.
    pub(crate) model: ModelAt,
    /// Kind of work that the request causes at an engine.
    pub(crate) task: Task,
    /// True if a POST request has no lasting effect at the engine, so that it may be retried after it was sent
    /// completely.
    pub(crate) repeats: bool,
    pub(crate) allowed: ForwardCondition,
}

/// Condition under which a path is forwarded to an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ForwardCondition {
    Always,
    /// The path is forwarded if the client sends a key that permits changes, or the setting `forward` lists the path.
    ToAdmins,
    /// The path is forwarded only if the setting `forward` lists it.
    IfListed,
}

impl Route {
    /// Returns the pattern of the route's paths.
    pub(crate) fn pattern(&self) -> &'static str {
        if self.path.text.is_empty() { "/{path*}" } else { self.path.text }
    }

    /// Returns the value of the pattern's parameter in a path that matches the route.
    pub(crate) fn parameter<'p>(&self, path: &'p str) -> &'p str {
        self.path.parameter(bare(path)).unwrap_or_default()
    }

    /// True if a request of this route may be retried after an engine has received the request completely.
    pub(crate) fn may_repeat(&self, method: &Method) -> bool {
        match self.to {
            // Some engines are changed by GET too.
            Responder::Engine(forwarded) if forwarded.allowed != ForwardCondition::Always => false,
            Responder::Engine(forwarded) => forwarded.repeats || matches!(*method, Method::GET | Method::HEAD),
            Responder::Own(_) => false,
        }
    }

    /// True if a trailing slash is removed from the request's path, as engines do not accept one at the paths in the
    /// table.
    pub(crate) fn takes_off_slash(&self) -> bool {
        !self.path.text.is_empty() && !self.is_unnamed()
    }

    /// True for the row of the table that matches all paths below `/v1/` without a row of their own.
    pub(crate) fn is_unnamed(&self) -> bool {
        self.path.text == UNNAMED
    }

    /// True if the listener for administrators answers the route without a key, as for health probes.
    pub(crate) fn is_for_probes(&self) -> bool {
        matches!(
            self.to,
            Responder::Own(RouterAnswer::Health | RouterAnswer::Ready | RouterAnswer::Version | RouterAnswer::Metrics)
        )
    }
}

/// Requests that the router answers itself, with the functions in `dispatch`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RouterAnswer {
    Welcome,
    Health,
    Ready,
    Version,
    Metrics,
    Workers,
    Router,
    Streams,
    Decisions,
    Reuse,
    Models,
    Model,
    Page,
    PageEvents,
    PageDecision,
    Explain,
    Snapshot,
    PeersRequests,
    FleetChanges,
    AddEngine,
    RemoveEngine,
    Drain,
    Undrain,
}

impl RouterAnswer {
    /// True if a request that the router answers in this way needs a body.
    pub(crate) fn wants_body(self) -> bool {
        matches!(self, Self::Explain | Self::PeersRequests | Self::AddEngine)
    }

    /// True if the body of a request that the router answers in this way must be JSON.
    pub(crate) fn takes_json(self) -> bool {
        self.wants_body() || matches!(self, Self::RemoveEngine | Self::Drain | Self::Undrain)
    }
}

const fn own(methods: Methods, path: &'static str, wants: Access, what: RouterAnswer, about: &'static str) -> Route {
    Route { methods, path: Pattern::new(path), wants, to: Responder::Own(what), about }
}

const fn forwarded(methods: Methods, path: &'static str, about: &'static str, forwarded: ForwardRule) -> Route {
    let wants = if matches!(forwarded.allowed, ForwardCondition::Always) { Access::Ask } else { Access::Admin };
    Route { methods, path: Pattern::new(path), wants, to: Responder::Engine(forwarded), about }
}

/// Makes the route of a request with a prompt in JSON.
const fn prompt(path: &'static str, endpoint: Endpoint) -> Route {
    let what = ForwardRule {
        endpoint: Some(endpoint),
        model: ModelAt::Json,
        task: if matches!(endpoint, Endpoint::Embeddings) { Task::Alone } else { Task::Generate },
        repeats: true,
        allowed: ForwardCondition::Always,
    };
    forwarded(POST, path, "a prompt that is read", what)
}

/// Makes the route of a request whose result an engine computes with a model and does not store.
const fn work(path: &'static str, model: ModelAt) -> Route {
    computed(path, model, Task::Alone)
}

/// Makes the route of a request that an engine answers from its body without computing with a model, such as
/// tokenizing.
const fn said(path: &'static str) -> Route {
    computed(path, Json, Task::Tell)
}

const fn computed(path: &'static str, model: ModelAt, task: Task) -> Route {
    let what = ForwardRule { endpoint: None, model, task, repeats: true, allowed: ForwardCondition::Always };
    forwarded(POST, path, "computed by the engine", what)
}

/// Makes the route of a request by which an engine creates and stores an item.
const fn made(path: &'static str, about: &'static str) -> Route {
    let what = ForwardRule {
        endpoint: None,
        model: Json,
        task: Task::Tell,
        repeats: false,
        allowed: ForwardCondition::Always,
    };
    forwarded(ANY, path, about, what)
}

/// Makes the route of a request for information that an engine has, or for an item that it stores for a client.
const fn kept(methods: Methods, path: &'static str, about: &'static str) -> Route {
    let what = ForwardRule {
        endpoint: None,
        model: ModelAt::Nowhere,
        task: Task::Tell,
        repeats: false,
        allowed: ForwardCondition::Always,
    };
    forwarded(methods, path, about, what)
}

/// Makes the route of a request that changes an engine for all its clients, or reveals its settings.
const fn change(path: &'static str, allowed: ForwardCondition) -> Route {
    let what = ForwardRule { endpoint: None, model: ModelAt::Nowhere, task: Task::Tell, repeats: false, allowed };
    forwarded(ANY, path, "changes an engine for everybody", what)
}

/// Makes the route of all other paths below `/v1/`, whose requests may be work for a model.
const fn unnamed() -> Route {
    let what = ForwardRule { endpoint: None, model: Json, task: Task::Tell, repeats: false, allowed: ToAdmins };
    forwarded(ANY, UNNAMED, "what no other row is about", what)
}

/// Route of the paths in the setting `forward` that do not change an engine.
pub(super) static LISTED: Route = made("", "a path that the setting `forward` adds");
/// Route of the paths in the setting `forward` that change an engine.
pub(super) static LISTED_CHANGE: Route = change("", IfListed);

/// All routes, the most frequently requested ones first.
pub(super) static ROUTES: &[Route] = &[
    prompt("/v1/chat/completions", Endpoint::Chat),
    prompt("/v1/completions", Endpoint::Completions),
    prompt("/v1/responses", Endpoint::Responses),
    prompt("/v1/messages", Endpoint::Messages),
    prompt("/v1/embeddings", Endpoint::Embeddings),
    prompt("/generate", Endpoint::Generate),
    prompt("/inference/v1/generate", Endpoint::Tokens),
    prompt("/v1/chat/completions/tokens", Endpoint::ChatTokens),
    own(POST, "/peers/requests", Admin, RouterAnswer::PeersRequests, "for other routers: report their requests there"),
    own(GET, "/", Ask, RouterAnswer::Welcome, "this text"),
    own(GET, "/health", Open, RouterAnswer::Health, "200 while the router's threads are running"),
    own(GET, "/ping", Open, RouterAnswer::Health, "the same"),
    own(GET, "/ready", Open, RouterAnswer::Ready, "200 while the router should get requests"),
    own(GET, "/version", Open, RouterAnswer::Version, "the version of the router"),
    own(GET, "/metrics", Ask, RouterAnswer::Metrics, "metrics for Prometheus"),
    own(GET, "/v1/models", Ask, RouterAnswer::Models, "the models of all engines"),
    own(GET, "/models", Ask, RouterAnswer::Models, "the same"),
    own(GET, "/v1/models/{name*}", Ask, RouterAnswer::Model, "one of them"),
    own(GET, "/models/{name*}", Ask, RouterAnswer::Model, "the same"),
    own(GET, "/workers", Ask, RouterAnswer::Workers, "engines and their state"),
    own(GET, "/engines", Ask, RouterAnswer::Workers, "the same"),
    own(GET, "/router", Ask, RouterAnswer::Router, "the router's own state"),
    own(GET, "/streams", Ask, RouterAnswer::Streams, "the engines' event streams, if they are followed here"),
    own(GET, "/decisions", Ask, RouterAnswer::Decisions, "the last decisions; ?limit=N"),
    own(
        GET,
        "/reuse",
        Ask,
        RouterAnswer::Reuse,
        "what share of the last hour's prompts a cache of any size could hold",
    ),
    own(STREAM, "/ui/events", Ask, RouterAnswer::PageEvents, "the contents of the page, as server-sent events"),
    own(STREAM, "/ui/decision", Ask, RouterAnswer::PageDecision, "one decision for the page; ?number=N"),
    own(GET, "/ui", Open, RouterAnswer::Page, "a web page that shows engines and decisions live"),
    own(GET, "/ui/{file}", Open, RouterAnswer::Page, "files of the page"),
    own(POST, "/explain", Ask, RouterAnswer::Explain, "how each engine compares for a prompt; nothing is sent"),
    own(
        GET,
        "/snapshot",
        Admin,
        RouterAnswer::Snapshot,
        "for other routers and services: every block that the index holds",
    ),
    own(
        GET,
        "/peers/engines",
        Admin,
        RouterAnswer::FleetChanges,
        "for other routers: engines that were added, removed and drained over HTTP",
    ),
    own(POST, "/engines", Admin, RouterAnswer::AddEngine, "add an engine: {\"url\": \"http://host:port\", …}"),
    own(POST, "/engines/{name*}/drain", Admin, RouterAnswer::Drain, "send an engine no new requests"),
    own(POST, "/engines/{name*}/undrain", Admin, RouterAnswer::Undrain, "send it new requests again"),
    own(DELETE, "/engines/{name*}", Admin, RouterAnswer::RemoveEngine, "remove an engine"),
    prompt("/chat/completions", Endpoint::Chat),
    prompt("/completions", Endpoint::Completions),
    prompt("/responses", Endpoint::Responses),
    prompt("/messages", Endpoint::Messages),
    prompt("/embeddings", Endpoint::Embeddings),
    kept(Methods(1 | 2 | 32), "/v1/responses/{id}", "an answer that an engine keeps"),
    kept(GET, "/v1/responses/{id}/input_items", "what it was made from"),
    kept(POST, "/v1/responses/{id}/cancel", "end an answer in the background"),
    said("/v1/responses/render"),
    said("/v1/chat/completions/render"),
    work("/v1/chat/completions/batch", Json),
    said("/v1/completions/render"),
    said("/v1/messages/render"),
    said("/v1/messages/count_tokens"),
    said("/v1/responses/input_tokens"),
    work("/v1/rerank", Json),
    work("/v1/score", Json),
    work("/v1/classify", Json),
    work("/v1/pooling", Json),
    work("/v1/moderations", Json),
    said("/v1/tokenize"),
    said("/v1/detokenize"),
    work("/v1/audio/transcriptions", Form),
    work("/v1/audio/translations", Form),
    work("/v1/audio/speech", Json),
    work("/v1/images/generations", Json),
    work("/v1/images/edits", Form),
    work("/v1/images/variations", Form),
    said("/tokenize"),
    said("/detokenize"),
    work("/score", Json),
    work("/rerank", Json),
    work("/pooling", Json),
    work("/classify", Json),
    work("/encode", Json),
    work("/v2/embed", Json),
    work("/v2/rerank", Json),
    kept(GET, "/get_model_info", "what an engine says of its model"),
    kept(GET, "/model_info", "the same"),
    kept(GET, "/v1/loads", "what an engine says of its load"),
    kept(ANY, "/v1/files", "files that an engine keeps"),
    kept(ANY, "/v1/files/{path*}", "one of them"),
    kept(ANY, "/v1/batches", "batches that an engine keeps"),
    kept(ANY, "/v1/batches/{path*}", "one of them"),
    made("/v1/fine_tuning/{path*}", "training that an engine keeps"),
    made("/v1/videos", "videos that an engine makes"),
    made("/v1/videos/{path*}", "one of them"),
    change("/v1/load_lora_adapter", ToAdmins),
    change("/v1/unload_lora_adapter", ToAdmins),
    unnamed(),
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

/// Text of the answer to `GET /`.
pub(crate) static WELCOME: LazyLock<String> = LazyLock::new(|| {
    let mut text = String::from("kvatlas: a router in front of inference engines\n\n");
    for route in ROUTES.iter().filter(|route| matches!(route.to, Responder::Own(_))) {
        let methods = METHODS.iter().filter(|method| route.methods.has(method) && **method != Method::HEAD);
        let method = methods.map(Method::as_str).next().unwrap_or_default();
        text += &format!("{method:<6} {:<28} {}\n", route.path.text, route.about);
    }
    text += "\nForwarded to an engine:\n";
    let always = |route: &&Route| matches!(route.to, Responder::Engine(forwarded) if forwarded.allowed == ForwardCondition::Always);
    for route in ROUTES.iter().filter(always) {
        text += &format!("{} {}\n", route.methods.list(), route.path.text);
    }
    text += "Other paths below /v1/: for the admin key. The setting `forward` adds paths.\n";
    text
});

#[cfg(test)]
mod tests {
    use super::*;

    /// Formats rows of the table of routes for the documentation, with similar rows combined.
    fn documented(allowed: Option<ForwardCondition>) -> String {
        let mut lines: Vec<(String, Vec<String>, String)> = Vec::new();
        for route in ROUTES {
            let (key, about) = match (route.to, allowed) {
                (Responder::Own(_), None) => (route.wants, route.about.replace("{", "`{").replace("}", "}`")),
                (Responder::Engine(forwarded), Some(allowed)) if forwarded.allowed == allowed => {
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
                Access::Open => "anyone",
                Access::Ask => "key",
                Access::Admin => "admin key",
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
    fn the_page_of_routes_has_the_tables() {
        let page = include_str!("routes.md");
        let parts =
            [None, Some(ForwardCondition::Always), Some(ForwardCondition::ToAdmins), Some(ForwardCondition::IfListed)]
                .map(documented);
        assert!(
            parts.iter().all(|rows| page.contains(rows)),
            "crates/router/src/requests/routes/routes.md should have these rows:\n{}",
            parts.join("---\n")
        );
    }
}
