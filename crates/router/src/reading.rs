//! Bodies of requests, read for what they ask: long ones on threads beside those that serve, or whoever else is on the
//! same thread would wait for it.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use hyper::StatusCode;
use kvatlas_prompt::{Endpoint, Recalled};

use crate::app::App;
use crate::prompts::{Known, Prompts};
use crate::refusal::Refusal;
use crate::routes::ModelAt;
use crate::stored;

/// Bytes of a prompt that were not seen before, beyond which it is turned into tokens aside.
const LONG_PROMPT: usize = 32 << 10;

/// Bytes beyond which a body is parsed aside: about a millisecond.
const LONG_BODY: usize = 512 << 10;

/// What a body of this type (`Content-Type`) asks, whose prompt is that of `endpoint`, or which names the model at `model`.
pub(crate) async fn look_at(
    app: &Arc<App>,
    endpoint: Option<Endpoint>,
    model: ModelAt,
    kind: &str,
    body: &Bytes,
) -> Result<Known, Refusal> {
    let Some(endpoint) = endpoint else {
        let kind = kind.to_owned();
        return aside_if_long(app, body, move |_, body| Known::of_work(model.of(&kind, body), body)).await;
    };
    let recalled = app.prompts.recall(endpoint, body);
    let is_long_prompt = app.places.wants().hashes && recalled.new_bytes() > LONG_PROMPT;
    let mut known = if is_long_prompt || body.len() > LONG_BODY {
        aside(app, body, move |app, body| read(app, endpoint, body, &recalled)).await?
    } else {
        read(app, endpoint, body, &recalled)
    };
    if app.prompts.asks_engines() && known.why_not.take().is_some() {
        let (model, has_media) = (known.model.clone(), known.media.is_some());
        let question = move |_: &App, body: &[u8]| Prompts::question(endpoint, body, model.as_deref(), has_media);
        let question = aside_if_long(app, body, question).await?;
        let engine = app.fleet.one_for(known.model.as_deref());
        app.prompts.ask(engine.as_deref(), endpoint, question, &mut known).await;
    }
    Ok(known)
}

fn read(app: &App, endpoint: Endpoint, body: &[u8], recalled: &Recalled) -> Known {
    let mut known = app.prompts.read(app.service.as_ref(), endpoint, body, recalled);
    if endpoint == Endpoint::Responses {
        let asked = stored::Asked::of(body);
        known.in_background = asked.runs_in_background();
        known.previous = asked.previous_response_id.map(Cow::into_owned);
    }
    known
}

/// What `work` makes of a body, on a thread beside those that serve. As many as there are cores work at once; the others
/// wait for their turn.
pub(crate) async fn aside<T: Send + 'static>(
    app: &Arc<App>,
    body: &Bytes,
    work: impl FnOnce(&App, &[u8]) -> T + Send + 'static,
) -> Result<T, Refusal> {
    let _turn = app.prompts.turn().await;
    let (app, body) = (app.clone(), body.clone());
    tokio::task::spawn_blocking(move || work(&app, &body)).await.map_err(|_| {
        let message = "internal error; the router's log has the details";
        Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message)
    })
}

/// The same, on this thread if the body is short.
pub(crate) async fn aside_if_long<T: Send + 'static>(
    app: &Arc<App>,
    body: &Bytes,
    work: impl FnOnce(&App, &[u8]) -> T + Send + 'static,
) -> Result<T, Refusal> {
    if body.len() <= LONG_BODY { Ok(work(app, body)) } else { aside(app, body, work).await }
}
