//! One request, from the client's head to the head of the answer.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Method, Request, Response};
use kvatlas_http::{BodyLimits, RequestBody, body};
use kvatlas_prompt::Endpoint;

use super::adapters::{self, AdapterChange};
use super::attempts::Attempts;
use super::comments;
use super::headers::{EngineRequest, REQUEST_ID, hide_keys, take_off_slash};
use super::hedging;
use super::job::Job;
use super::usage;
use crate::answers::body::Answer;
use crate::answers::observe::{AnswerFormat, Dialect};
use crate::answers::refusal::Refusal;
use crate::answers::stored::{KeptItem, is_kept};
use crate::app::App;
use crate::ids;
use crate::requests::encoding::{Encoding, unpack};
use crate::requests::facts::RequestFacts;
use crate::requests::read_body::look_at;
use crate::requests::reading_turns::Client;
use crate::requests::reserved;
use crate::requests::routes::{ForwardRule, ModelAt, Route, of_query};
use crate::requests::sessions::has_turns;
use crate::requests::task::Task;

/// Passes a request on, and its answer back. `may_write_fields`: whether its client may write what is between the router
/// and its engines.
#[expect(clippy::too_many_arguments, reason = "a request, where it goes, and what is known of its client")]
pub(crate) async fn forward(
    app: &Arc<App>,
    shard: usize,
    request: Request<RequestBody>,
    route: &Route,
    forwarded: ForwardRule,
    until: Instant,
    arrived: Instant,
    client: Client,
    may_write_fields: bool,
) -> Result<Response<Answer>, Refusal> {
    let endpoint = forwarded.endpoint;
    let (mut head, body) = request.into_parts();
    hide_keys(&mut head.headers, &app.gate);
    if route.takes_off_slash() {
        take_off_slash(&mut head.uri);
    }
    if !may_write_fields {
        reserved::check_head(&head.headers)?;
    }
    let body = read(app, body, app.config.http.max_body, until).await?;
    reserved::check_body(app, may_write_fields, &body).await?;
    let new_id = (!head.headers.contains_key(REQUEST_ID)).then(ids::request_id);
    if let Some(change) = AdapterChange::of(&head.method, head.uri.path()) {
        let outgoing = EngineRequest {
            method: &head.method,
            uri: &head.uri,
            headers: &head.headers,
            id: new_id.as_ref(),
            plain: endpoint.is_some(),
        };
        let model = head.uri.query().and_then(of_query);
        return adapters::change(app, shard, &outgoing, change, model.as_deref(), &body).await;
    }
    let mut known = look(app, client, &head.headers, head.uri.query(), forwarded, may_write_fields, &body).await?;
    hints(app, &head.headers, endpoint, &mut known);
    let repeatable = route.may_repeat(&head.method) && !known.in_background;
    let file = input_file(&head.method, head.uri.path(), &body);
    let kept = match (known.previous.as_deref(), &file) {
        (Some(answer), _) => KeptItem::answer(answer),
        (None, Some(file)) => KeptItem::file(file),
        // What is computed is not kept, and what is not named here is not known to be.
        (None, None) if forwarded.repeats || route.is_unnamed() => None,
        (None, None) => KeptItem::of_path(head.uri.path()),
    };
    if let Some(item) = kept {
        known.only = app.answer_engines.engine_of(&app.fleet, item, &head.headers).await;
    }
    let keeps = endpoint == Some(Endpoint::Responses) || is_kept(&head.method, head.uri.path());

    let named = known.pictured.as_ref().and_then(|pictured| pictured.pictures.written(&body));
    let body = named.map_or(body, Bytes::from);
    // An answer about what an engine keeps may tell of an error that was another request's.
    let finds_errors = head.method == Method::POST && route.may_repeat(&head.method);
    let mut reading = AnswerFormat { dialect: Dialect::of(endpoint), hides_usage: false, finds_errors };
    let asking = if known.lacks_usage && app.config.ask_usage {
        usage::ask_for_usage(&body, known.has_stream_options)
    } else {
        None
    };
    reading.hides_usage = asking.is_some();
    let body = asking.unwrap_or(body);

    // What goes on from an answer that one engine keeps, and what cannot be read here, cannot be at two engines.
    let is_shared = forwarded.task == Task::Generate && known.previous.is_none() && !is_encoded(&head.headers);
    let task = if is_shared || forwarded.task != Task::Generate { forwarded.task } else { Task::Alone };
    let split = is_shared && app.fleet.is_split();
    let takes_over = split && matches!(endpoint, Some(Endpoint::Chat | Endpoint::Completions));
    let forwards_ids = app.config.forward_tokens && endpoint == Some(Endpoint::Completions);
    let attempts = Attempts::new(repeatable, if known.only.is_none() { app.config.upstream.retries } else { 0 });
    let hedges_after =
        (repeatable && known.only.is_none() && known.streams && !split).then(|| hedging::wait(app)).flatten();
    let every = app.config.comment_after;
    let is_commented = known.streams && !every.is_zero();
    let id = is_commented.then(|| new_id.as_ref().or_else(|| head.headers.get(REQUEST_ID)).cloned()).flatten();
    let read = ReadRequest {
        app: app.clone(),
        shard,
        head,
        new_id,
        plain: endpoint.is_some(),
        body,
        known,
        reading,
        task,
        takes_over,
        forwards_ids,
        keeps,
        model: forwarded.model,
        arrived,
        attempts,
        hedges_after,
    };
    if is_commented {
        return comments::run(app, Box::pin(read.send()), every, reading.dialect, id).await;
    }
    read.send().await
}

/// A request that has been read, with all that it takes to send it to engines.
struct ReadRequest {
    app: Arc<App>,
    shard: usize,
    head: Parts,
    new_id: Option<HeaderValue>,
    plain: bool,
    body: Bytes,
    known: RequestFacts,
    reading: AnswerFormat,
    task: Task,
    takes_over: bool,
    forwards_ids: bool,
    keeps: bool,
    model: ModelAt,
    arrived: Instant,
    attempts: Attempts,
    hedges_after: Option<Duration>,
}

impl ReadRequest {
    /// Sends it to an engine, or to several, and returns the answer.
    async fn send(self) -> Result<Response<Answer>, Refusal> {
        let Self { app, shard, head, new_id, plain, body, known, reading, task, takes_over, .. } = self;
        let Self { forwards_ids, keeps, model, arrived, .. } = self;
        let outgoing =
            EngineRequest { method: &head.method, uri: &head.uri, headers: &head.headers, id: new_id.as_ref(), plain };
        let job = Job {
            app: &app,
            shard,
            outgoing,
            body,
            known,
            reading,
            task,
            takes_over,
            forwards_ids,
            keeps,
            model,
            arrived,
        };
        match self.hedges_after {
            None => job.run(self.attempts, &OnceLock::new()).await,
            Some(after) => hedging::run(&job, self.attempts, after).await,
        }
    }
}

/// True if a body is compressed: fields cannot be added to it.
fn is_encoded(headers: &HeaderMap) -> bool {
    headers.contains_key(CONTENT_ENCODING) && !Encoding::of(headers).is_plain()
}

/// Reads what a request asks. A body that is compressed is read all the same.
async fn look(
    app: &Arc<App>,
    client: Client,
    headers: &HeaderMap,
    query: Option<&str>,
    forwarded: ForwardRule,
    may_write_fields: bool,
    body: &Bytes,
) -> Result<RequestFacts, Refusal> {
    let unpacked = match Encoding::of(headers) {
        Encoding::Plain => None,
        Encoding::One(coding) => Some(unpack(coding, body, app.config.http.max_body, &app.front.memory).await?),
        Encoding::Several => return Err(Refusal::several_encodings()),
        Encoding::Unknown => return Err(Refusal::unreadable()),
    };
    if let Some(unpacked) = &unpacked {
        reserved::check_body(app, may_write_fields, &unpacked.body).await?;
    }
    let plain = unpacked.as_ref().map_or(body, |unpacked| &unpacked.body);
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let mut known = look_at(app, client, forwarded.endpoint, forwarded.model, kind, plain).await?;
    // It is passed on as it came.
    if unpacked.is_some() {
        known.is_passed_as_it_came();
    }
    if known.model.is_none() && forwarded.endpoint.is_none() {
        known.model = query.and_then(of_query);
    }
    Ok(known)
}

/// The file that a batch to be made is of.
fn input_file(method: &Method, path: &str, body: &[u8]) -> Option<String> {
    #[derive(serde::Deserialize)]
    struct Batch {
        input_file_id: String,
    }
    let is_batch = *method == Method::POST && path.strip_suffix('/').unwrap_or(path) == "/v1/batches";
    is_batch.then(|| serde_json::from_slice::<Batch>(body).ok()).flatten().map(|batch| batch.input_file_id)
}

/// Reads in the headers where a request should go, and when: its session and its priority.
fn hints(app: &App, headers: &HeaderMap, endpoint: Option<Endpoint>, known: &mut RequestFacts) {
    let (named, hints) = app.sessions.identify(headers, &known.in_body);
    known.session = named.map(|identity| identity.name);
    if has_turns(endpoint) {
        known.turn = app.sessions.begin(named, hints, known.prompt());
    }
    let name = &app.config.priority_header;
    let priority = (!name.is_empty()).then(|| headers.get(name)?.to_str().ok()).flatten();
    if let Some(priority) = priority.and_then(|text| text.trim().parse().ok()) {
        known.priority = priority;
    }
}

/// Reads a body as a whole, of `most` bytes at most.
pub(crate) async fn read(app: &App, body: RequestBody, most: usize, until: Instant) -> Result<Bytes, Refusal> {
    let limits = BodyLimits { most, thrown_away: 0, until };
    body::read(body, limits, &app.front.memory).await.map_err(|fault| Refusal::of_body(&fault, most))
}
