//! Forwarding of one client's request to an engine, up to the head of the engine's answer.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Method, Request, Response};
use kvatlas_http::RequestBody;
use kvatlas_prompt::Endpoint;

use super::adapters::{self, AdapterChange};
use super::attempts::Attempts;
use super::body_fields::ask_for_usage;
use super::comments::{self, Work};
use super::flight::Arrival;
use super::job::Job;
use super::{Forwarder, attempts, boxed, transfer_field};
use crate::answers::Answer;
use crate::answers::observe::{AnswerFormat, Dialect};
use crate::answers::refusal::Refusal;
use crate::answers::stored::{KeptItem, is_kept};
use crate::counts;
use crate::engines::request_head::{EngineRequest, REQUEST_ID, hide_keys};
use crate::ids;
use crate::requests::encoding::Encoding;
use crate::requests::facts::{BodyFields, PromptFacts, ReadBody, RequestFacts, RoutingHints, WaitTime};
use crate::requests::long_work::{self, takes_long};
use crate::requests::read_body::{BodySource, Client};
use crate::requests::reserved;
use crate::requests::routes::{ForwardRule, ModelAt, Route, of_query, take_off_slash};
use crate::requests::sessions::has_turns;
use crate::requests::task::Task;
use crate::spans::{AskedFacts, operation};

impl Forwarder {
    /// Forwards a request to an engine and returns its answer. `may_write_fields`: true if the client may write the
    /// request fields reserved for the router.
    #[expect(clippy::too_many_arguments, reason = "a request, where it goes, and what is known of its client")]
    pub(crate) async fn forward(
        self: &Arc<Self>,
        shard: usize,
        request: Request<RequestBody>,
        route: &Route,
        forwarded: ForwardRule,
        until: Instant,
        counted: &counts::Request<'_>,
        client: Client,
        may_write_fields: bool,
    ) -> Result<Response<Answer>, Refusal> {
        let endpoint = forwarded.endpoint;
        let (mut head, body) = request.into_parts();
        hide_keys(&mut head.headers, &self.gate);
        if route.takes_off_slash() {
            take_off_slash(&mut head.uri);
        }
        if !may_write_fields {
            reserved::check_head(&head.headers)?;
        }
        let body = self.reader.receive(body, self.config.http.max_body, until).await?;
        let takes_long = takes_long(&body);
        reserved::check_body(&self.reader.threads, may_write_fields, &body, takes_long).await?;
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
            let changing = adapters::change(
                &self.fleet,
                self.config.upstream.first_byte_timeout,
                shard,
                &outgoing,
                change,
                model.as_deref(),
                &body,
            );
            return Box::pin(changing).await;
        }
        let reading = BodyReading { client, may_write_fields, as_is: false, takes_long };
        let mut facts = self.facts(&head, route, forwarded, reading, &body).await?;
        facts.hints.tells = transfer_field::can_tell(endpoint, &facts.body, &head.headers, may_write_fields, &body);
        counted.is_for(&facts.model);
        if let Some(span) = &counted.span {
            span.asks(|| AskedFacts {
                operation: endpoint.map(operation),
                model: facts.body.model.clone(),
                max_tokens: facts.body.max_tokens,
                prompt_tokens: facts.prompt.tokens,
                streams: facts.body.streams,
            });
        }
        let repeatable = route.may_repeat(&head.method) && !facts.body.in_background;
        let keeps = endpoint == Some(Endpoint::Responses) || is_kept(&head.method, head.uri.path());

        let named = facts.prompt.pictured.as_ref().and_then(|pictured| pictured.pictures.written(&body));
        let body = named.map_or(body, Bytes::from);
        // An answer about what an engine keeps may tell of an error that was another request's.
        let finds_errors = head.method == Method::POST && route.may_repeat(&head.method);
        let mut reading = AnswerFormat { dialect: Dialect::of(endpoint), hides_usage: false, finds_errors };
        let asking = if facts.body.lacks_usage && self.config.ask_usage {
            ask_for_usage(&body, facts.body.has_stream_options)
        } else {
            None
        };
        reading.hides_usage = asking.is_some();
        let body = asking.unwrap_or(body);

        // What goes on from an answer that one engine keeps, and what cannot be read here, cannot be at two engines.
        let is_shared = forwarded.task == Task::Generate && facts.body.previous.is_none() && !is_encoded(&head.headers);
        let task = if is_shared || forwarded.task != Task::Generate { forwarded.task } else { Task::Alone };
        let split = is_shared && self.fleet.is_split();
        let takes_over = split && matches!(endpoint, Some(Endpoint::Chat | Endpoint::Completions));
        let forwards_ids = self.config.forward_tokens && endpoint == Some(Endpoint::Completions);
        let attempts =
            Attempts::new(repeatable, if facts.hints.only_engine.is_none() { self.config.upstream.retries } else { 0 });
        let hedges_after = (repeatable && facts.hints.only_engine.is_none() && facts.body.streams && !split)
            .then(|| attempts::wait(&self.config, &self.counts))
            .flatten();
        let every = self.config.comment_after;
        let is_commented = facts.body.streams && !every.is_zero();
        let model = is_commented.then(|| facts.model.name.clone());
        let id = is_commented.then(|| new_id.as_ref().or_else(|| head.headers.get(REQUEST_ID)).cloned()).flatten();
        let read = Box::new(ReadRequest {
            proxy: self.clone(),
            shard,
            head,
            new_id,
            plain: endpoint.is_some(),
            body,
            facts,
            reading,
            task,
            takes_over,
            forwards_ids,
            keeps,
            model: forwarded.model,
            arrival: Arrival { at: counted.arrived, span: counted.span.clone() },
            attempts,
            hedges_after,
        });
        let sending = read.send();
        if let Some(model) = model {
            return comments::run(&self.counts, sending, every, reading.dialect, id, model).await;
        }
        sending.await
    }
}

/// Rules for reading the body of a request.
#[derive(Clone, Copy)]
pub(crate) struct BodyReading {
    pub(crate) client: Client,
    /// True if the client may write the request fields reserved for the router.
    pub(crate) may_write_fields: bool,
    /// True if the body is forwarded to the engine unchanged.
    pub(crate) as_is: bool,
    /// True if processing the body [takes long](takes_long), so that it is done on another thread.
    pub(crate) takes_long: bool,
}

/// Parsed request, with all data needed to send it to engines.
struct ReadRequest {
    proxy: Arc<Forwarder>,
    shard: usize,
    head: Parts,
    new_id: Option<HeaderValue>,
    plain: bool,
    body: Bytes,
    facts: Box<RequestFacts>,
    reading: AnswerFormat,
    task: Task,
    takes_over: bool,
    forwards_ids: bool,
    keeps: bool,
    model: ModelAt,
    arrival: Arrival,
    attempts: Attempts,
    hedges_after: Option<Duration>,
}

impl ReadRequest {
    /// Sends the request to one engine, or to several in succession, and returns the answer.
    fn send(self: Box<Self>) -> Work {
        let read = self;
        boxed(|| async move {
            let attempts = read.attempts;
            let outgoing = EngineRequest {
                method: &read.head.method,
                uri: &read.head.uri,
                headers: &read.head.headers,
                id: read.new_id.as_ref(),
                plain: read.plain,
            };
            let job = Job {
                proxy: &read.proxy,
                shard: read.shard,
                outgoing,
                body: &read.body,
                facts: &read.facts,
                reading: read.reading,
                task: read.task,
                takes_over: read.takes_over,
                forwards_ids: read.forwards_ids,
                keeps: read.keeps,
                model: read.model,
                arrival: &read.arrival,
            };
            match read.hedges_after {
                None => job.run(attempts, &OnceLock::new()).await,
                Some(after) => Box::pin(attempts::run(&job, attempts, after)).await,
            }
        })
    }
}

/// True if a body is compressed, so that the router cannot add fields to it.
fn is_encoded(headers: &HeaderMap) -> bool {
    headers.contains_key(CONTENT_ENCODING) && !Encoding::of(headers).is_plain()
}

/// Reads the fields and the prompt of a request, even from a compressed body.
async fn look(
    proxy: &Arc<Forwarder>,
    headers: &HeaderMap,
    query: Option<&str>,
    forwarded: ForwardRule,
    reading: BodyReading,
    body: &Bytes,
) -> Result<ReadBody, Refusal> {
    let unpacked = proxy.reader.unpack(headers, body, proxy.config.http.max_body).await?;
    let mut takes_long = reading.takes_long;
    if let Some(unpacked) = &unpacked {
        takes_long = long_work::takes_long(&unpacked.body);
        let (threads, may_write_fields) = (&proxy.reader.threads, reading.may_write_fields);
        Box::pin(reserved::check_body(threads, may_write_fields, &unpacked.body, takes_long)).await?;
    }
    let plain = unpacked.as_ref().map_or(body, |unpacked| &unpacked.body);
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let as_is = reading.as_is || unpacked.is_some();
    let source = BodySource { endpoint: forwarded.endpoint, model: forwarded.model, kind, query, as_is, takes_long };
    proxy.reader.look_at(reading.client, source, plain).await
}

/// Returns the id of the input file of a new batch; None if the request does not create a batch.
fn input_file(method: &Method, path: &str, body: &[u8]) -> Option<String> {
    #[derive(serde::Deserialize)]
    struct Batch {
        input_file_id: String,
    }
    let is_batch = *method == Method::POST && path.strip_suffix('/').unwrap_or(path) == "/v1/batches";
    is_batch.then(|| serde_json::from_slice::<Batch>(body).ok()).flatten().map(|batch| batch.input_file_id)
}

impl Forwarder {
    /// Reads the facts about a request that decide which engine gets it, such as its model and its prompt.
    ///
    /// # Errors
    /// [`Refusal`] if the body cannot be read, or has fields that only the router may write.
    pub(crate) async fn facts(
        self: &Arc<Self>,
        head: &Parts,
        route: &Route,
        forwarded: ForwardRule,
        reading: BodyReading,
        body: &Bytes,
    ) -> Result<Box<RequestFacts>, Refusal> {
        let read = look(self, &head.headers, head.uri.query(), forwarded, reading, body).await?;
        let (fields, prompt) = *read;
        let hints = self.hints(&head.headers, forwarded.endpoint, &fields, &prompt);
        let file = input_file(&head.method, head.uri.path(), body);
        let kept = match (fields.previous.as_deref(), &file) {
            (Some(answer), _) => KeptItem::answer(answer),
            (None, Some(file)) => KeptItem::file(file),
            // What is computed is not kept, and what is not named here is not known to be.
            (None, None) if forwarded.repeats || route.is_unnamed() => None,
            (None, None) => KeptItem::of_path(head.uri.path()),
        };
        let only_engine = match kept {
            Some(item) => Box::pin(self.answer_engines.engine_of(&self.fleet, item, &head.headers)).await,
            None => None,
        };
        let model = self.counts.models.of(fields.model.as_deref(), |name| self.fleet.counted_as(name));
        let hints = RoutingHints { only_engine, ..hints };
        Ok(Box::new(RequestFacts { body: fields, prompt, hints, model, waited: WaitTime::default() }))
    }

    /// Reads routing hints from the headers: session and priority.
    fn hints(
        &self,
        headers: &HeaderMap,
        endpoint: Option<Endpoint>,
        fields: &BodyFields,
        prompt: &PromptFacts,
    ) -> RoutingHints {
        let (named, hints) = self.sessions.identify(headers, &fields.session_names);
        let turn = if has_turns(endpoint) { self.sessions.begin(named, hints, prompt.in_session()) } else { None };
        let name = &self.config.priority_header;
        let priority = (!name.is_empty()).then(|| headers.get(name)?.to_str().ok()).flatten();
        let priority = priority.and_then(|text| text.trim().parse().ok());
        let priority = priority.or_else(|| self.objectives.priority(headers)).unwrap_or(fields.priority);
        RoutingHints { session: named.map(|identity| identity.name), turn, priority, tells: false, only_engine: None }
    }
}
