//! Bodies of completions whose prompt goes to the engine as token ids: it then makes no tokens of the text a second time.
//!
//! Only where the ids are those that the engine would make itself: for one text, with nothing asked for that works on the
//! text, and at an engine whose `/tokenize` makes the same tokens of a text of many kinds as the router. Else the text goes
//! on as it came, and is counted.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use bytes::Bytes;
use kvatlas_prompt::{Endpoint, TOKENIZE_PATH, tokenize_answer};
use serde_json::json;

use super::fields::fields;
use crate::app::App;
use crate::engines::fleet::Dialects;
use crate::engines::{Engine, ask};
use crate::requests::facts::RequestFacts;
use crate::requests::prompts::PromptLimits;

/// Time within which an engine must say what the probe's tokens are.
const PATIENCE: Duration = Duration::from_secs(5);

/// Fields that are about the text itself, or change what of it is used.
const OF_TEXT: [&str; 4] = ["truncate_prompt_tokens", "echo", "suffix", "prompt_embeds"];

/// Scripts, spaces, digits, signs, and what some models take for tokens of their own: tokenizers that differ at all differ
/// here.
const PROBE: &str = "The quick brown fox's 1234567890 jumps,  over\tthe\n\n lazy dog.\r\n   (x+=1)!= {\"a\": [0.5e-3]} \
    naïve Übergröße Жизнь прекрасна 中文字符 日本語のテスト 한국어 العربية עברית हिन्दी ไทย 👩‍👩‍👧‍👦🏳️‍🌈 ½ﬁ\u{200b}\u{feff} \
    <s> </s> <unk> <pad> <bos> <eos> [INST] [/INST] <|endoftext|> <|im_start|>user<|im_end|> <|eot_id|> \
    <|begin_of_text|> <start_of_turn> <think></think> <tool_call> <|user|> aaaaaaaaaaaaaaaaaaaaaaaa  ";

/// Makes the body of a completion for an engine.
pub(crate) fn body_of_ids(app: &Arc<App>, engine: &Arc<Engine>, known: &RequestFacts, body: &Bytes) -> Bytes {
    let (result, body) = match rewritten(app, engine, known, body) {
        Ok(made) => (0, made),
        Err(result) => (result, body.clone()),
    };
    app.tokens.counts[result].fetch_add(1, Relaxed);
    body
}

/// Makes the body with ids, or returns the number of the reason why not.
fn rewritten(app: &Arc<App>, engine: &Arc<Engine>, known: &RequestFacts, body: &[u8]) -> Result<Bytes, usize> {
    let mut fields = fields(body).ok_or(1usize)?;
    if !fields.get("prompt").is_some_and(|prompt| prompt.get().starts_with('"')) {
        return Err(1);
    }
    if OF_TEXT.iter().any(|name| fields.get(*name).is_some_and(|value| !matches!(value.get(), "null" | "false"))) {
        return Err(2);
    }
    let ids = known.ids.as_ref().ok_or(3usize)?;
    let model = known.model.as_deref().ok_or(6usize)?;
    if known.has_adapter() || engine.models.load().base(model) != model {
        return Err(4);
    }
    if !is_proven(app, engine, model) {
        return Err(6);
    }
    let ids = serde_json::value::to_raw_value(&**ids).map_err(|_| 3usize)?;
    fields.insert("prompt".to_owned(), &ids);
    serde_json::to_vec(&fields).map(Bytes::from).map_err(|_| 3)
}

/// True if the engine is known to make the same tokens; it is asked, beside this request, if it is time to.
fn is_proven(app: &Arc<App>, engine: &Arc<Engine>, model: &str) -> bool {
    let (is_equal, is_due) = app.tokens.proof(engine, model);
    if is_due {
        tokio::spawn(prove(app.clone(), engine.clone(), model.to_owned()));
    }
    is_equal
}

/// Asks an engine for the tokens of the probe, and notes whether they are the router's.
async fn prove(app: Arc<App>, engine: Arc<Engine>, model: String) {
    let body = json!({ "model": model, "prompt": PROBE }).to_string();
    let asked = tokio::time::timeout(PATIENCE, ask(&engine, "POST", TOKENIZE_PATH, body.as_bytes())).await;
    let theirs = match asked {
        Ok(Ok((200, answer))) => tokenize_answer(&answer),
        _ => None,
    };
    let body = body.as_bytes();
    let recalled = app.prompts.recall(Endpoint::Completions, body);
    // Completions are alike for all engines.
    let any = |_: Option<&str>| Dialects { main: engine.dialect(), others: Vec::new(), only_model: None };
    let limits = PromptLimits::until(Instant::now() + PATIENCE);
    let read = app.prompts.read(app.service.as_ref(), any, |_| false, Endpoint::Completions, body, &recalled, limits);
    let ours = read.ids;
    let is_equal = theirs.is_some() && theirs.as_deref() == ours.as_deref();
    app.tokens.note(&engine, model, is_equal);
}
