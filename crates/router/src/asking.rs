//! Prompts whose tokens engines are asked for: by the engine's own rendering of the request where it has one, else by its
//! `/tokenize`, of the chat that it makes of the request.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bytes::Bytes;
use kvatlas_prompt::{Dialect, Endpoint, PromptFailure, Question, Request, tokenize_answer};

use crate::app::App;
use crate::aside::aside_if_long;
use crate::engine::{Engine, ask};
use crate::fleet::Dialects;
use crate::prompts::{EngineTokens, Silence};
use crate::refusal::Refusal;
use crate::request_facts::RequestFacts;

/// Time within which an engine must say what a prompt's tokens are: a request does not wait longer to be placed well.
const PATIENCE: Duration = Duration::from_millis(500);

/// Statuses of an engine that does not have a route, or cannot use it.
const NO_ROUTE: [u16; 3] = [404, 405, 501];

/// Asks for a prompt's tokens: an engine of the dialect that most engines of the model have, and, if others make
/// another prompt of it, one of each of these.
pub(crate) async fn ask_for_tokens(
    app: &Arc<App>,
    endpoint: Endpoint,
    body: &Bytes,
    known: &mut RequestFacts,
) -> Result<(), Refusal> {
    let Dialects { main, others, .. } = app.fleet.dialects(known.model.as_deref());
    let told = tokens(app, endpoint, body, known, main).await?;
    app.prompts.take_engine_tokens(endpoint, told, known);
    if known.is_alike || known.hashes.is_empty() {
        return Ok(());
    }
    for dialect in others {
        let told = tokens(app, endpoint, body, known, dialect).await?;
        app.prompts.take_other_dialect(dialect, told.ok().as_ref(), known);
    }
    Ok(())
}

/// Asks an engine of a dialect.
async fn tokens(
    app: &Arc<App>,
    endpoint: Endpoint,
    body: &Bytes,
    known: &RequestFacts,
    dialect: Dialect,
) -> Result<Result<EngineTokens, Silence>, Refusal> {
    let (model, has_media) = (known.model.clone(), known.media.is_some());
    let Some(engine) = app.fleet.one_for(model.as_deref(), dialect) else {
        let said = Some("no engine of the model is up".to_owned());
        return Ok(Err(Silence { why_not: PromptFailure::NotAnswered, said }));
    };
    // What is not text has no tokens there that its blocks are known by.
    let is_rendered = !has_media && !engine.lacks_render.load(Relaxed);
    let question = {
        let model = model.clone();
        move |_: &App, body: &[u8]| {
            let request = Request::parse(endpoint, body)?;
            let rendered = if is_rendered { Question::rendered(&request, dialect, model.as_deref())? } else { None };
            rendered.map_or_else(|| Question::of(&request, dialect, model.as_deref(), has_media), Ok)
        }
    };
    let question = match aside_if_long(app, body, question).await? {
        Ok(question) => question,
        Err(why_not) => return Ok(Err(Silence::from(why_not))),
    };
    let mut told = ask_engine(&engine, &question).await;
    if question.is_render
        && match told {
            Err(Answer::Status(status)) => NO_ROUTE.contains(&status),
            Err(Answer::NoTokens) => true,
            _ => false,
        }
    {
        engine.lacks_render.store(true, Relaxed);
        let again = move |_: &App, body: &[u8]| {
            Question::of(&Request::parse(endpoint, body)?, dialect, model.as_deref(), has_media)
        };
        told = match aside_if_long(app, body, again).await? {
            Ok(question) => ask_engine(&engine, &question).await,
            Err(why_not) => return Ok(Err(Silence::from(why_not))),
        };
    }
    Ok(told.map_err(|answer| Silence {
        why_not: PromptFailure::NotAnswered,
        said: Some(match answer {
            Answer::Status(status) => format!("{} answered {status} at {}", engine.name, question.path),
            Answer::NoTokens => format!("{} answered no tokens at {}", engine.name, question.path),
            Answer::Nothing => format!("{} did not answer at {} in {PATIENCE:?}", engine.name, question.path),
        }),
    }))
}

/// An engine's answer that is not the tokens.
enum Answer {
    Status(u16),
    NoTokens,
    Nothing,
}

async fn ask_engine(engine: &Engine, question: &Question) -> Result<EngineTokens, Answer> {
    match tokio::time::timeout(PATIENCE, ask(engine, "POST", question.path, &question.body)).await {
        Ok(Ok((200, answer))) => {
            let tokens = tokenize_answer(&answer).ok_or(Answer::NoTokens)?;
            Ok(EngineTokens { tokens, prompts: question.prompts, cut: question.cut })
        }
        Ok(Ok((status, _))) => Err(Answer::Status(status)),
        Ok(Err(_)) | Err(_) => Err(Answer::Nothing),
    }
}
