//! Bodies of completions whose prompt goes to the engine as token ids: it then makes no tokens of the text a second time.
//!
//! Only where the ids are those that the engine would make itself: for one text, with nothing asked for that works on the
//! text, and at an engine whose `/tokenize` makes the same tokens of a text of many kinds as the router. Else the text goes
//! on as it came, and is counted.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bytes::Bytes;
use kvatlas_prompt::{TOKENIZE_PATH, tokenize_answer};
use serde_json::json;

use super::Forwarder;
use super::body_fields::fields;
use crate::engines::{Engine, ask};
use crate::requests::facts::RequestFacts;

/// Time within which an engine must say what the probe's tokens are.
const PATIENCE: Duration = Duration::from_secs(5);

/// Fields that concern the text itself, or change which part of it is used.
const OF_TEXT: [&str; 4] = ["truncate_prompt_tokens", "echo", "suffix", "prompt_embeds"];

/// Scripts, spaces, digits, signs, and what some models take for tokens of their own: tokenizers that differ at all differ
/// here.
const PROBE: &str = "The quick brown fox's 1234567890 jumps,  over\tthe\n\n lazy dog.\r\n   (x+=1)!= {\"a\": [0.5e-3]} \
    naïve Übergröße Жизнь прекрасна 中文字符 日本語のテスト 한국어 العربية עברית हिन्दी ไทย 👩‍👩‍👧‍👦🏳️‍🌈 ½ﬁ\u{200b}\u{feff} \
    <s> </s> <unk> <pad> <bos> <eos> [INST] [/INST] <|endoftext|> <|im_start|>user<|im_end|> <|eot_id|> \
    <|begin_of_text|> <start_of_turn> <think></think> <tool_call> <|user|> aaaaaaaaaaaaaaaaaaaaaaaa  ";

/// Makes the body of a completion for an engine.
pub(crate) fn body_of_ids(proxy: &Arc<Forwarder>, engine: &Arc<Engine>, facts: &RequestFacts, body: &Bytes) -> Bytes {
    let (result, body) = match rewritten(proxy, engine, facts, body) {
        Ok(made) => (0, made),
        Err(result) => (result, body.clone()),
    };
    proxy.tokens.counts[result].fetch_add(1, Relaxed);
    body
}

/// Makes the body with ids, or returns the number of the reason why not.
fn rewritten(proxy: &Arc<Forwarder>, engine: &Arc<Engine>, facts: &RequestFacts, body: &[u8]) -> Result<Bytes, usize> {
    let mut fields = fields(body).ok_or(1usize)?;
    if !fields.get("prompt").is_some_and(|prompt| prompt.get().starts_with('"')) {
        return Err(1);
    }
    if OF_TEXT.iter().any(|name| fields.get(*name).is_some_and(|value| !matches!(value.get(), "null" | "false"))) {
        return Err(2);
    }
    let ids = facts.prompt.ids.as_ref().ok_or(3usize)?;
    let model = facts.body.model.as_deref().ok_or(6usize)?;
    if facts.prompt.adapter.is_some() || engine.models.load().base(model) != model {
        return Err(4);
    }
    if !is_proven(proxy, engine, model) {
        return Err(6);
    }
    let ids = serde_json::value::to_raw_value(&**ids).map_err(|_| 3usize)?;
    fields.insert("prompt".to_owned(), &ids);
    serde_json::to_vec(&fields).map(Bytes::from).map_err(|_| 3)
}

/// True if the engine's tokenizer was seen to agree; asks it in the background when a check is due.
fn is_proven(proxy: &Arc<Forwarder>, engine: &Arc<Engine>, model: &str) -> bool {
    let (is_equal, is_due) = proxy.tokens.proof(engine, model);
    if is_due {
        tokio::spawn(prove(proxy.clone(), engine.clone(), model.to_owned()));
    }
    is_equal
}

/// Compares the engine's tokens of the probe with the router's, and records the result.
async fn prove(proxy: Arc<Forwarder>, engine: Arc<Engine>, model: String) {
    let body = json!({ "model": model, "prompt": PROBE }).to_string();
    let asked = tokio::time::timeout(PATIENCE, ask(&engine, "POST", TOKENIZE_PATH, body.as_bytes())).await;
    let theirs = match asked {
        Ok(Ok((200, answer))) => tokenize_answer(&answer),
        _ => None,
    };
    let ours = proxy.reader.completion_tokens(engine.dialect(), body.as_bytes());
    let is_equal = theirs.is_some() && theirs.as_deref() == ours.as_deref();
    proxy.tokens.note(&engine, model, is_equal);
}
