//! Engines whose tokenizers agree with the router's, and bodies of completions whose prompt goes to them as token ids: they
//! then make no tokens of the text a second time.
//!
//! Only where the ids are those that the engine would make itself: for one text, with nothing asked for that works on the
//! text, and at an engine whose `/tokenize` makes the same tokens of a text of many kinds as the router. Else the text goes
//! on as it came, and is counted.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use bytes::Bytes;
use kvatlas_prompt::{TOKENIZE_PATH, tokenize_answer};
use parking_lot::Mutex;
use serde_json::json;

use super::Forwarder;
use super::body_fields::fields;
use crate::engines::{Engine, ask};
use crate::requests::facts::RequestFacts;

/// Time after which an engine's tokenizer is checked again.
const AGAIN: Duration = Duration::from_secs(30);

/// Engines and models that are kept in mind.
const MOST: usize = 4096;

/// Names of what can become of a completion, in order of their numbers.
pub(crate) const RESULTS: [&str; 7] =
    ["tokens", "not_a_text", "works_on_text", "no_tokens", "adapter", "apart", "not_proven"];

/// Prompts as token ids.
#[derive(Default)]
pub(crate) struct Tokens {
    proofs: Mutex<HashMap<(Arc<str>, String), Proof>>,
    /// Completions, by [`RESULTS`].
    pub(crate) counts: [AtomicU64; RESULTS.len()],
}

/// Knowledge whether an engine makes the same tokens as the router.
#[derive(Default)]
struct Proof {
    asked: Option<Instant>,
    is_equal: bool,
    /// The engine's failures when it was asked: one that fails may be another one afterwards.
    faults: u64,
}

impl Tokens {
    /// Forgets an engine that has left or returned, as its tokenizer may differ now.
    pub(crate) fn forget(&self, engine: &Engine) {
        self.proofs.lock().retain(|(name, _), _| *name != engine.name);
    }

    /// Counts a completion whose prompt another engine computes: both get the text.
    pub(crate) fn goes_apart(&self) {
        self.counts[5].fetch_add(1, Relaxed);
    }

    /// Returns whether the engine's tokenizer agrees, and whether a check is due.
    pub(super) fn proof(&self, engine: &Engine, model: &str) -> (bool, bool) {
        let faults = engine.counts.faults().iter().sum();
        let mut proofs = self.proofs.lock();
        if proofs.len() >= MOST {
            proofs.clear();
        }
        let proof = proofs.entry((engine.name.clone(), model.to_owned())).or_default();
        if proof.faults != faults {
            *proof = Proof { faults, ..Proof::default() };
        }
        let is_due = proof.asked.is_none_or(|asked| asked.elapsed() > AGAIN);
        if is_due {
            proof.asked = Some(Instant::now());
        }
        (proof.is_equal, is_due)
    }

    /// Records whether the engine's tokenizer agrees.
    pub(super) fn note(&self, engine: &Engine, model: String, is_equal: bool) {
        if let Some(proof) = self.proofs.lock().get_mut(&(engine.name.clone(), model.clone())) {
            if proof.is_equal != is_equal {
                let engine = &*engine.name;
                tracing::info!(
                    engine,
                    model,
                    is_equal,
                    "checked whether the engine makes the same tokens as the router"
                );
            }
            proof.is_equal = is_equal;
        }
    }
}

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
