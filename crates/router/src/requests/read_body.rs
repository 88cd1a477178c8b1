//! Bodies of requests, read for what they ask: long ones on threads beside those that serve, or whoever else is on the
//! same thread would wait for it.
//!
//! A prompt is worth only so much time and memory: a request whose prompt is not read by then is placed by load. It is
//! then known as far as its other fields tell.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use kvatlas_prompt::{Endpoint, PromptFailure, RecalledBody, reading_memory};
use tokio::time::timeout_at;

use crate::answers::refusal::Refusal;
use crate::app::App;
use crate::requests::engine_tokens::ask_for_tokens;
use crate::requests::facts::RequestFacts;
use crate::requests::long_work::{LONG_BODY, aside_if_long, failed, takes_long};
use crate::requests::prompts::PromptLimits;
use crate::requests::reading_turns::Client;
use crate::requests::routes::ModelAt;

/// Time within which a prompt must be read, its turn included.
const PATIENCE: Duration = Duration::from_millis(500);

/// Time for what cannot look at the clock as it works, before it is left to itself.
const GRACE: Duration = Duration::from_millis(250);

/// Reads what a body of this type (`Content-Type`) asks, whose prompt is that of `endpoint`, or which names the model
/// at `model`.
pub(crate) async fn look_at(
    app: &Arc<App>,
    client: Client,
    endpoint: Option<Endpoint>,
    model: ModelAt,
    kind: &str,
    body: &Bytes,
) -> Result<RequestFacts, Refusal> {
    let Some(endpoint) = endpoint else {
        let kind = kind.to_owned();
        return aside_if_long(app, body, move |_, body| RequestFacts::of_work(model.of(&kind, body), body)).await;
    };
    let until = Instant::now() + PATIENCE;
    let mut known = if body.len() > LONG_BODY {
        read_beside(app, client, endpoint, body, None, until).await?
    } else {
        let recalled = app.prompts.recall(endpoint, body);
        if app.prompts.is_long(&recalled) || takes_long(body) {
            read_beside(app, client, endpoint, body, Some(recalled), until).await?
        } else {
            read(app, endpoint, body, &recalled, PromptLimits::until(until))
        }
    };
    if app.prompts.asks_engines() && known.why_not.take().is_some() {
        ask_for_tokens(app, endpoint, body, &mut known).await?;
    }
    Ok(known)
}

/// Reads a body on another thread, when it is its turn and there is memory for what is made of it. Without its prompt if
/// that takes too long.
async fn read_beside(
    app: &Arc<App>,
    client: Client,
    endpoint: Endpoint,
    body: &Bytes,
    recalled: Option<RecalledBody>,
    until: Instant,
) -> Result<RequestFacts, Refusal> {
    let new_bytes = recalled.as_ref().map_or(body.len(), RecalledBody::new_bytes);
    if !app.prompts.are_read() {
        return without_prompt(app, endpoint, body, None).await;
    }
    let Some(turn) = app.prompts.turns.wait(client, new_bytes, until).await else {
        return without_prompt(app, endpoint, body, Some(PromptFailure::TookTooLong)).await;
    };
    let Some(memory) = app.front.memory.reserve(reading_memory(new_bytes), until).await else {
        return without_prompt(app, endpoint, body, Some(PromptFailure::NoRoom)).await;
    };
    let reading = tokio::task::spawn_blocking({
        let (app, body) = (app.clone(), body.clone());
        move || {
            let recalled = recalled.unwrap_or_else(|| app.prompts.recall(endpoint, &body));
            let made = read(&app, endpoint, &body, &recalled, PromptLimits::until(until));
            drop((recalled, memory, turn));
            made
        }
    });
    match timeout_at((until + GRACE).into(), reading).await {
        Ok(made) => made.map_err(|_| failed()),
        Err(_) => without_prompt(app, endpoint, body, Some(PromptFailure::TookTooLong)).await,
    }
}

/// Reads a body but for its prompt.
async fn without_prompt(
    app: &Arc<App>,
    endpoint: Endpoint,
    body: &Bytes,
    why_not: Option<PromptFailure>,
) -> Result<RequestFacts, Refusal> {
    aside_if_long(app, body, move |app, body| {
        let limits = PromptLimits { unread: why_not, ..PromptLimits::until(Instant::now() + PATIENCE) };
        read(app, endpoint, body, &RecalledBody::nothing(body), limits)
    })
    .await
}

fn read(app: &App, endpoint: Endpoint, body: &[u8], recalled: &RecalledBody, limits: PromptLimits) -> RequestFacts {
    let dialects = |model: Option<&str>| app.fleet.dialects(model);
    let takes_names = |model: Option<&str>| app.fleet.takes_image_ids(model);
    app.prompts.read(app.service.as_ref(), dialects, takes_names, endpoint, body, recalled, limits)
}
