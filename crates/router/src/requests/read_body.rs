//! Reading of request bodies; long ones are read on other threads, so that they do not delay other connections.
//!
//! A prompt is worth only so much time and memory: a request whose prompt is not read by then is placed by load. It is
//! then known as far as its other fields tell.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::header::HeaderMap;
use kvatlas_follow::Follower;
use kvatlas_http::{BodyLimits, Memory, RequestBody, body};
use kvatlas_prompt::{Dialect, Endpoint, PromptFailure, RecalledBody, reading_memory};

use crate::answers::refusal::Refusal;
use crate::engines::fleet::{Dialects, Fleet};
use crate::requests::encoding::{DecodedBody, Encoding, unpack};
use crate::requests::engine_tokens::ask_for_tokens;
use crate::requests::facts::{BodyFields, PromptFacts, ReadBody};
use crate::requests::long_work::{LONG_BODY, LongWork, failed, takes_long};
use crate::requests::prompts::{PromptLimits, Prompts};
use crate::requests::reading_turns::{Client, NoResult};
use crate::requests::routes::{ModelAt, of_query};

/// Time within which a prompt must be read, its turn included.
const PATIENCE: Duration = Duration::from_millis(500);

/// Time within which the tokens of a probe must be made.
const PROBE_PATIENCE: Duration = Duration::from_secs(5);

/// Description of a body by its request.
pub(crate) struct BodySource<'a> {
    /// The endpoint whose prompt it has, if it has one.
    pub(crate) endpoint: Option<Endpoint>,
    /// The place of the model's name, if it has no prompt.
    pub(crate) model: ModelAt,
    /// The header `Content-Type`.
    pub(crate) kind: &'a str,
    /// The query of the path, which may name the model, too.
    pub(crate) query: Option<&'a str>,
    /// True if engines get the body without changes.
    pub(crate) as_is: bool,
    /// True if work on the body [takes long](crate::requests::long_work::takes_long).
    pub(crate) takes_long: bool,
}

/// Reads the bodies of requests.
pub(crate) struct BodyReader {
    pub(crate) prompts: Prompts,
    fleet: Arc<Fleet>,
    /// The engines' event streams, if this router follows them.
    follower: Option<Arc<Follower>>,
    /// Memory for the bodies of all requests.
    memory: Arc<Memory>,
    pub(crate) threads: LongWork,
}

impl BodyReader {
    pub(crate) fn new(
        prompts: Prompts,
        fleet: Arc<Fleet>,
        follower: Option<Arc<Follower>>,
        memory: Arc<Memory>,
        threads: LongWork,
    ) -> Arc<Self> {
        Arc::new(Self { prompts, fleet, follower, memory, threads })
    }

    /// Receives a body as a whole, of `most` bytes at most.
    ///
    /// # Errors
    /// [`Refusal`] if it is longer, breaks off, or has not come until `until`.
    pub(crate) async fn receive(&self, body: RequestBody, most: usize, until: Instant) -> Result<Bytes, Refusal> {
        let limits = BodyLimits { most, thrown_away: 0, until };
        body::read(body, limits, &self.memory).await.map_err(|fault| Refusal::of_body(&fault, most))
    }

    /// Unpacks a body that is compressed, to at most `most` bytes. None if it is not.
    ///
    /// # Errors
    /// [`Refusal`] if it is compressed more than once, in an unknown encoding, or cannot be unpacked.
    pub(crate) async fn unpack(
        &self,
        headers: &HeaderMap,
        body: &Bytes,
        most: usize,
    ) -> Result<Option<DecodedBody>, Refusal> {
        match Encoding::of(headers) {
            Encoding::Plain => Ok(None),
            Encoding::One(coding) => Box::pin(unpack(coding, body, most, &self.memory)).await.map(Some),
            Encoding::Several => Err(Refusal::several_encodings()),
            Encoding::Unknown => Err(Refusal::unreadable()),
        }
    }

    /// Reads what a body asks.
    pub(crate) async fn look_at(
        self: &Arc<Self>,
        client: Client,
        source: BodySource<'_>,
        body: &Bytes,
    ) -> Result<ReadBody, Refusal> {
        let BodySource { endpoint, model, kind, query, as_is, takes_long } = source;
        let Some(endpoint) = endpoint else {
            let (kind, of_query) = (kind.to_owned(), query.and_then(of_query));
            let read = move |body: &[u8]| {
                let model = model.of(&kind, body).or(of_query);
                Box::new((BodyFields::unread(model, false), PromptFacts::of_work(body)))
            };
            return self.threads.run_on(body, takes_long, read).await;
        };
        let limits = PromptLimits { as_is, ..PromptLimits::until(Instant::now() + PATIENCE) };
        let read = if body.len() > LONG_BODY {
            Box::pin(self.read_beside(client, endpoint, body, None, limits)).await?
        } else {
            let recalled = self.prompts.recall(endpoint, body);
            if self.prompts.is_long(&recalled) || takes_long {
                Box::pin(self.read_beside(client, endpoint, body, Some(recalled), limits)).await?
            } else {
                self.read(endpoint, body, &recalled, limits)
            }
        };
        if self.prompts.asks_engines() && read.1.why_not.is_some() {
            let (fields, prompt) = *read;
            let asking = ask_for_tokens(&self.prompts, &self.fleet, &self.threads, endpoint, body, &fields, prompt);
            let prompt = Box::pin(asking).await?;
            return Ok(Box::new((fields, prompt)));
        }
        Ok(read)
    }

    /// Reads a body on another thread, after waiting for a turn and for memory. Without its prompt if that takes too
    /// long.
    async fn read_beside(
        self: &Arc<Self>,
        client: Client,
        endpoint: Endpoint,
        body: &Bytes,
        recalled: Option<RecalledBody>,
        limits: PromptLimits,
    ) -> Result<ReadBody, Refusal> {
        let PromptLimits { until, as_is, .. } = limits;
        let new_bytes = recalled.as_ref().map_or(body.len(), RecalledBody::new_bytes);
        if !self.prompts.are_read() {
            return self.without_prompt(endpoint, body, as_is, None).await;
        }
        let read = {
            let (reader, body, runtime) = (self.clone(), body.clone(), tokio::runtime::Handle::current());
            move || {
                let memory = runtime.block_on(reader.memory.reserve(reading_memory(new_bytes), until))?;
                let recalled = recalled.unwrap_or_else(|| reader.prompts.recall(endpoint, &body));
                let read = reader.read(endpoint, &body, &recalled, limits);
                drop((recalled, memory));
                Some(read)
            }
        };
        let why_not = match self.prompts.turns.run(client, new_bytes, until, read).await {
            Ok(Some(read)) => return Ok(read),
            Ok(None) => PromptFailure::NoRoom,
            Err(NoResult::TookTooLong) => PromptFailure::TookTooLong,
            Err(NoResult::Panicked) => return Err(failed()),
        };
        self.without_prompt(endpoint, body, as_is, Some(why_not)).await
    }

    /// Reads a body but for its prompt.
    async fn without_prompt(
        self: &Arc<Self>,
        endpoint: Endpoint,
        body: &Bytes,
        as_is: bool,
        why_not: Option<PromptFailure>,
    ) -> Result<ReadBody, Refusal> {
        let reader = self.clone();
        let read = move |body: &[u8]| {
            let limits = PromptLimits { until: Instant::now() + PATIENCE, unread: why_not, as_is };
            reader.read(endpoint, body, &RecalledBody::nothing(body), limits)
        };
        self.threads.run_on(body, takes_long(body), read).await
    }

    fn read(&self, endpoint: Endpoint, body: &[u8], recalled: &RecalledBody, limits: PromptLimits) -> ReadBody {
        let dialects = |model: Option<&str>| self.fleet.dialects(model);
        let takes_names = |model: Option<&str>| self.fleet.takes_image_ids(model);
        self.prompts.read(self.follower.as_deref(), dialects, takes_names, endpoint, body, recalled, limits)
    }

    /// Returns the token ids of a completion's prompt, as the router makes them for engines of a dialect.
    pub(crate) fn completion_tokens(&self, dialect: Dialect, body: &[u8]) -> Option<Vec<u32>> {
        let recalled = self.prompts.recall(Endpoint::Completions, body);
        // Completions are alike for all engines.
        let any = |_: Option<&str>| Dialects { main: dialect, others: Vec::new(), only_model: None };
        let limits = PromptLimits::until(Instant::now() + PROBE_PATIENCE);
        let follower = self.follower.as_deref();
        let read = self.prompts.read(follower, any, |_| false, Endpoint::Completions, body, &recalled, limits);
        read.1.ids
    }
}
