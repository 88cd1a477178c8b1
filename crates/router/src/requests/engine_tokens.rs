//! Prompts whose tokens engines are asked for: by the engine's own rendering of the request where it has one, else by its
//! `/tokenize`, of the chat that it makes of the request.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use kvatlas_prompt::{Dialect, Endpoint, PromptFailure, Question, Request, TOKENIZE_PATH, tokenize_answer};

use crate::answers::refusal::Refusal;
use crate::app::App;
use crate::engines::fleet::{Dialects, ToAsk};
use crate::engines::{Engine, Outcome, ask};
use crate::requests::facts::RequestFacts;
use crate::requests::long_work::aside_if_long;
use crate::requests::prompts::{EngineTokens, Silence};

/// Time within which an engine must say what a prompt's tokens are, and time within which one of those asked for a
/// prompt must have said it: a request does not wait longer to be placed well.
const PATIENCE: Duration = Duration::from_millis(500);
const LONGEST: Duration = Duration::from_secs(1);

/// Number of engines whose `/tokenize` is asked for a prompt, if the first does not tell the tokens.
const ENGINES: usize = 2;

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

/// Asks engines of a dialect: first for what they make of the request itself, then for the tokens of the chat that the
/// router makes of it.
async fn tokens(
    app: &Arc<App>,
    endpoint: Endpoint,
    body: &Bytes,
    known: &RequestFacts,
    dialect: Dialect,
) -> Result<Result<EngineTokens, Silence>, Refusal> {
    let own_name = known.model.as_deref().and_then(|model| app.fleet.own_name(model, dialect));
    let (model, has_media) = (known.model.as_deref(), known.media.is_some());
    let named = own_name.or_else(|| known.model.clone());
    let until = Instant::now() + LONGEST;
    let mut said: Vec<String> = Vec::new();
    // What is not text has no tokens there that its blocks are known by.
    if let Some(path) = Question::render_path(endpoint, dialect).filter(|_| !has_media) {
        let to_ask = app.fleet.to_ask(model, dialect, path, None);
        if !to_ask.is_empty() {
            let model = named.clone();
            let question = move |_: &App, body: &[u8]| {
                Question::rendered(&Request::parse(endpoint, body)?, dialect, model.as_deref())
            };
            match aside_if_long(app, body, question).await? {
                Ok(Some(question)) => match put(to_ask, &Arc::new(question), until).await {
                    Some(Ok(tokens)) => return Ok(Ok(tokens)),
                    Some(Err(why)) => said.push(why),
                    None => {}
                },
                Ok(None) => {}
                Err(why_not) => return Ok(Err(Silence::from(why_not))),
            }
        }
    }
    let question = {
        let model = named.clone();
        move |_: &App, body: &[u8]| Question::of(&Request::parse(endpoint, body)?, dialect, model.as_deref(), has_media)
    };
    let question = match aside_if_long(app, body, question).await? {
        Ok(question) => Arc::new(question),
        Err(why_not) => return Ok(Err(Silence { why_not, said: words(said) })),
    };
    let mut asked: Option<Arc<Engine>> = None;
    for _ in 0..ENGINES {
        let to_ask = app.fleet.to_ask(model, dialect, TOKENIZE_PATH, asked.as_ref());
        asked = to_ask.now.clone();
        match put(to_ask, &question, until).await {
            Some(Ok(tokens)) => return Ok(Ok(tokens)),
            Some(Err(why)) => said.push(why),
            None => break,
        }
    }
    if said.is_empty() {
        let is_any_up = app.fleet.one_for(model, dialect).is_some();
        let why = if is_any_up { "no engine tells tokens at present" } else { "no engine of the model is up" };
        said.push(why.to_owned());
    }
    Ok(Err(Silence { why_not: PromptFailure::NotAnswered, said: words(said) }))
}

/// The words of all engines that were asked, instead of tokens.
fn words(said: Vec<String>) -> Option<String> {
    (!said.is_empty()).then(|| said.join("; "))
}

/// Asks an engine, and beside the request those whose route may be of use again. None: there is no time, or no engine.
async fn put(to_ask: ToAsk, question: &Arc<Question>, until: Instant) -> Option<Result<EngineTokens, String>> {
    for engine in to_ask.due {
        let question = question.clone();
        tokio::spawn(async move { ask_engine(&engine, &question, PATIENCE).await });
    }
    let patience = PATIENCE.min(until.saturating_duration_since(Instant::now()));
    let engine = to_ask.now.filter(|_| !patience.is_zero())?;
    Some(ask_engine(&engine, question, patience).await)
}

/// Asks an engine.
///
/// # Errors
/// The words of the engine instead of tokens.
async fn ask_engine(engine: &Engine, question: &Question, patience: Duration) -> Result<EngineTokens, String> {
    let path = question.path;
    let answered = tokio::time::timeout(patience, ask(engine, "POST", path, &question.body)).await;
    let (outcome, said) = match answered {
        Ok(Ok((status, answer))) => match tokenize_answer(&answer).filter(|_| status == 200) {
            Some(tokens) => {
                engine.side_routes.of(path).note(Outcome::Tokens);
                let (prompts, cut, is_rendered) = (question.prompts, question.cut, question.is_render);
                return Ok(EngineTokens { tokens, prompts, cut, is_rendered });
            }
            None if status == 200 => (Outcome::Refused, "answered no tokens".to_owned()),
            None => (Outcome::without_tokens(status, &answer), format!("answered {status}")),
        },
        Ok(Err(why)) => (Outcome::Failed, format!("failed ({why})")),
        Err(_) => (Outcome::Late, format!("did not answer in {patience:?}")),
    };
    let said = format!("{} {said} at {path}", engine.name);
    if engine.side_routes.of(path).note(outcome) {
        let advice = if question.is_render {
            "the router makes chats of such requests itself and asks /tokenize; vLLM renders them if it is started with \
             --enable-scale-out"
        } else {
            "without it, prompts are placed with less knowledge of caches; a tokenizer of the router's own (--tokenizer \
             PATH) needs no engine for them"
        };
        tracing::warn!(engine = &*engine.name, path, "{said}: it is tried again later; {advice}");
    }
    Err(said)
}
