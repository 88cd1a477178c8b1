//! Tokens of prompts as computed by engines: by the engine's own rendering of the request if the engine offers one,
//! else by `/tokenize` with the text of the chat as rendered by the router.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use bytes::Bytes;
use kvatlas_index::hash::content_hashes;
use kvatlas_prompt::{Dialect, Endpoint, PromptFailure, Question, Request, TOKENIZE_PATH, tokenize_answer};

use crate::answers::refusal::Refusal;
use crate::engines::fleet::{Dialects, Fleet, ToAsk};
use crate::engines::{Engine, Outcome, ask};
use crate::requests::facts::{BodyFields, DialectBlocks, PromptFacts};
use crate::requests::long_work::{LongWork, takes_long};
use crate::requests::prompts::{Prompts, is_given_so};

/// Time limit for an answer with a prompt's tokens from one engine.
const PATIENCE: Duration = Duration::from_millis(500);
/// Time limit for answers with a prompt's tokens from all engines that are asked.
const LONGEST: Duration = Duration::from_secs(1);

/// Maximum number of engines that are asked for a prompt's tokens; a second engine is asked if the first one fails.
const ENGINES: usize = 2;

/// Tokens of a prompt, as returned by an engine.
pub(crate) struct EngineTokens {
    pub(crate) tokens: Vec<u32>,
    pub(crate) prompts: u32,
    /// Reason why the tokens cover only the beginning of the prompt; None if they are complete.
    pub(crate) cut: Option<PromptFailure>,
    /// True if the engine rendered the request itself; false if the router rendered it.
    pub(crate) is_rendered: bool,
}

/// Reason why no engine returned the tokens of a prompt, with the engines' answers.
pub(crate) struct Silence {
    pub(crate) why_not: PromptFailure,
    pub(crate) said: Option<String>,
}

impl From<PromptFailure> for Silence {
    fn from(why_not: PromptFailure) -> Self {
        Self { why_not, said: None }
    }
}

/// Returns the prompt with tokens from an engine of the most frequent dialect (way of rendering chats), and from one
/// engine of each other dialect that renders the request differently.
pub(crate) async fn ask_for_tokens(
    prompts: &Prompts,
    fleet: &Fleet,
    threads: &LongWork,
    endpoint: Endpoint,
    body: &Bytes,
    fields: &BodyFields,
    prompt: PromptFacts,
) -> Result<PromptFacts, Refusal> {
    let model = fields.model.as_deref();
    let has_media = prompt.media.is_some();
    let Dialects { main, others, .. } = fleet.dialects(model);
    let told = tokens(fleet, threads, endpoint, body, model, has_media, main).await?;
    let mut prompt = prompts.with_engine_tokens(endpoint, fields, prompt, told);
    if prompt.is_alike || prompt.hashes.is_empty() {
        return Ok(prompt);
    }
    for dialect in others {
        let told = tokens(fleet, threads, endpoint, body, model, has_media, dialect).await?;
        prompt = prompts.with_other_dialect(prompt, dialect, told.ok().as_ref());
    }
    Ok(prompt)
}

/// Asks engines of one dialect (way of rendering chats) for a prompt's tokens: first for their own rendering of the
/// request, then for the tokens of the router's rendering.
async fn tokens(
    fleet: &Fleet,
    threads: &LongWork,
    endpoint: Endpoint,
    body: &Bytes,
    model: Option<&str>,
    has_media: bool,
    dialect: Dialect,
) -> Result<Result<EngineTokens, Silence>, Refusal> {
    let own_name = model.and_then(|model| fleet.own_name(model, dialect));
    let named = own_name.or_else(|| model.map(str::to_owned));
    let until = Instant::now() + LONGEST;
    let mut said: Vec<String> = Vec::new();
    // What is not text has no tokens there that its blocks are known by.
    if let Some(path) = Question::render_path(endpoint, dialect).filter(|_| !has_media) {
        let to_ask = fleet.to_ask(model, dialect, path, None);
        if !to_ask.is_empty() {
            let model = named.clone();
            let question =
                move |body: &[u8]| Question::rendered(&Request::parse(endpoint, body)?, dialect, model.as_deref());
            match threads.run_on(body, takes_long(body), question).await? {
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
        move |body: &[u8]| Question::of(&Request::parse(endpoint, body)?, dialect, model.as_deref(), has_media)
    };
    let question = match threads.run_on(body, takes_long(body), question).await? {
        Ok(question) => Arc::new(question),
        Err(why_not) => return Ok(Err(Silence { why_not, said: words(said) })),
    };
    let mut asked: Option<Arc<Engine>> = None;
    for _ in 0..ENGINES {
        let to_ask = fleet.to_ask(model, dialect, TOKENIZE_PATH, asked.as_ref());
        asked = to_ask.now.clone();
        match put(to_ask, &question, until).await {
            Some(Ok(tokens)) => return Ok(Ok(tokens)),
            Some(Err(why)) => said.push(why),
            None => break,
        }
    }
    if said.is_empty() {
        let is_any_up = fleet.one_for(model, dialect).is_some();
        let why = if is_any_up { "no engine tells tokens at present" } else { "no engine of the model is up" };
        said.push(why.to_owned());
    }
    Ok(Err(Silence { why_not: PromptFailure::NotAnswered, said: words(said) }))
}

/// Joins the engines' answers without tokens into one text, for the log; None if no engine was asked.
fn words(said: Vec<String>) -> Option<String> {
    (!said.is_empty()).then(|| said.join("; "))
}

/// Asks an engine for a prompt's tokens and, in the background, other engines whose route is due for a test. None if no
/// time is left, or no engine is available.
async fn put(to_ask: ToAsk, question: &Arc<Question>, until: Instant) -> Option<Result<EngineTokens, String>> {
    for engine in to_ask.due {
        let question = question.clone();
        tokio::spawn(async move { ask_engine(&engine, &question, PATIENCE).await });
    }
    let patience = PATIENCE.min(until.saturating_duration_since(Instant::now()));
    let engine = to_ask.now.filter(|_| !patience.is_zero())?;
    Some(ask_engine(&engine, question, patience).await)
}

/// Asks one engine for a prompt's tokens.
///
/// # Errors
/// A text with the engine's answer if it has no tokens, or with the fault.
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

impl Prompts {
    /// Returns the prompt with the tokens that an engine computed; a prompt without tokens is counted.
    pub(crate) fn with_engine_tokens(
        &self,
        endpoint: Endpoint,
        fields: &BodyFields,
        mut prompt: PromptFacts,
        told: Result<EngineTokens, Silence>,
    ) -> PromptFacts {
        let why_not = match told {
            Ok(told) => {
                let counted = u32::try_from(told.tokens.len()).unwrap_or(u32::MAX);
                // Of one text or chat the engine has counted all; of others, what it has not is estimated.
                let is_all = told.prompts == 1 && told.cut.is_none();
                prompt.tokens = if is_all { counted } else { prompt.tokens.max(counted) };
                prompt.is_exact =
                    is_all && counted > 0 && !fields.may_be_cut && (told.is_rendered || is_given_so(endpoint));
                let hashes = |size, adapter: Option<&str>, salt: Option<&str>| {
                    content_hashes(&told.tokens, size as usize, adapter, salt)
                };
                let (model, reporter) = (fields.model.as_deref(), self.cache_reporter.as_ref());
                prompt = prompt.with_blocks(model, hashes, || &told.tokens, reporter);
                told.cut.map(|cut| (cut, None))
            }
            Err(Silence { why_not, said }) => Some((why_not, said)),
        };
        prompt.why_not = None;
        if let Some((why_not, said)) = why_not {
            self.count_as(endpoint, why_not, said.as_deref());
        }
        prompt
    }

    /// Returns the prompt with its blocks for engines of another dialect (way of rendering chats), or without these
    /// blocks if no engine returned tokens.
    pub(crate) fn with_other_dialect(
        &self,
        mut prompt: PromptFacts,
        dialect: Dialect,
        told: Option<&EngineTokens>,
    ) -> PromptFacts {
        self.again.fetch_add(1, Relaxed);
        prompt.is_exact = false;
        let hashes = told.map_or_else(Arc::default, |told| {
            let hashes = |size, adapter: Option<&str>, salt: Option<&str>| {
                content_hashes(&told.tokens, size as usize, adapter, salt)
            };
            prompt.block_names(prompt.salts.of(dialect.engine()), hashes, || &told.tokens)
        });
        prompt.others.push(DialectBlocks { dialect, hashes });
        prompt
    }
}
