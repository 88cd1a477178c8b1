//! Bodies of requests, read for what they ask: long ones on threads beside those that serve, or whoever else is on the
//! same thread would wait for it.

use std::sync::Arc;

use bytes::Bytes;
use kvatlas_prompt::{Endpoint, RecalledBody};

use crate::app::App;
use crate::aside::{LONG_BODY, aside, aside_if_long};
use crate::asking::ask_for_tokens;
use crate::refusal::Refusal;
use crate::request_facts::RequestFacts;
use crate::routes::ModelAt;

/// Reads what a body of this type (`Content-Type`) asks, whose prompt is that of `endpoint`, or which names the model
/// at `model`.
pub(crate) async fn look_at(
    app: &Arc<App>,
    endpoint: Option<Endpoint>,
    model: ModelAt,
    kind: &str,
    body: &Bytes,
) -> Result<RequestFacts, Refusal> {
    let Some(endpoint) = endpoint else {
        let kind = kind.to_owned();
        return aside_if_long(app, body, move |_, body| RequestFacts::of_work(model.of(&kind, body), body)).await;
    };
    let recalled = app.prompts.recall(endpoint, body);
    let mut known = if app.prompts.is_long(&recalled) || body.len() > LONG_BODY {
        aside(app, body, move |app, body| read(app, endpoint, body, &recalled)).await?
    } else {
        read(app, endpoint, body, &recalled)
    };
    if app.prompts.asks_engines() && known.why_not.take().is_some() {
        ask_for_tokens(app, endpoint, body, &mut known).await?;
    }
    Ok(known)
}

fn read(app: &App, endpoint: Endpoint, body: &[u8], recalled: &RecalledBody) -> RequestFacts {
    let dialects = |model: Option<&str>| app.fleet.dialects(model);
    let takes_names = |model: Option<&str>| app.fleet.takes_image_ids(model);
    app.prompts.read(app.service.as_ref(), dialects, takes_names, endpoint, body, recalled)
}
