//! Completions whose prompt is sent to engines as token ids, so that engines need not tokenize the text again; and the
//! check that an engine's tokenizer agrees with the router's.
//!
//! Ids are sent only where the engine would compute the same: for a single text, without fields that work on the text,
//! and at an engine whose `/tokenize` returns the router's tokens for a probe text of many kinds. Otherwise the text is
//! sent unchanged, and counted.

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

/// Maximum number of pairs of engine and model whose check is remembered.
const MOST: usize = 4096;

/// Names of what can happen to the prompt of a completion, in the metrics; the positions are the numbers used in the
/// code.
pub(crate) const RESULTS: [&str; 7] =
    ["tokens", "not_a_text", "works_on_text", "no_tokens", "adapter", "apart", "not_proven"];

/// Completions sent as token ids, and the checks of engines' tokenizers.
#[derive(Default)]
pub(crate) struct Tokens {
    proofs: Mutex<HashMap<(Arc<str>, String), Proof>>,
    /// Number of completions, by whether and why token ids were sent ([`RESULTS`]).
    pub(crate) counts: [AtomicU64; RESULTS.len()],
}

/// Result of the check of an engine's tokenizer.
#[derive(Default)]
struct Proof {
    asked: Option<Instant>,
    is_equal: bool,
    /// Number of the engine's faults at the time of the check; after a fault, the engine may be another one.
    faults: u64,
}

impl Tokens {
    /// Drops the checks of an engine that has left or returned, as its tokenizer may differ now.
    pub(crate) fn forget(&self, engine: &Engine) {
        self.proofs.lock().retain(|(name, _), _| *name != engine.name);
    }

    /// Counts a completion whose prompt is computed by a prefill engine, where both engines get the text.
    pub(crate) fn goes_apart(&self) {
        self.counts[5].fetch_add(1, Relaxed);
    }

    /// Returns whether the engine's tokenizer agrees with the router's, and whether a check is due, which the caller
    /// makes.
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

    /// Records whether the engine's tokenizer agrees with the router's.
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

/// Time limit for an engine's answer with the probe's tokens.
const PATIENCE: Duration = Duration::from_secs(5);

/// Fields that need the text itself, or change which part of it is used.
const OF_TEXT: [&str; 4] = ["truncate_prompt_tokens", "echo", "suffix", "prompt_embeds"];

/// Text with scripts, spaces, digits, punctuation, and special tokens of some models, on which any two different
/// tokenizers disagree.
const PROBE: &str = "The quick brown fox's 1234567890 jumps,  over\tthe\n\n lazy dog.\r\n   (x+=1)!= {\"a\": [0.5e-3]} \
    naïve Übergröße Жизнь прекрасна 中文字符 日本語のテスト 한국어 العربية עברית हिन्दी ไทย 👩‍👩‍👧‍👦🏳️‍🌈 ½ﬁ\u{200b}\u{feff} \
    <s> </s> <unk> <pad> <bos> <eos> [INST] [/INST] <|endoftext|> <|im_start|>user<|im_end|> <|eot_id|> \
    <|begin_of_text|> <start_of_turn> <think></think> <tool_call> <|user|> aaaaaaaaaaaaaaaaaaaaaaaa  ";

/// Makes the body of a completion for an engine: with token ids if possible, else unchanged.
pub(crate) fn body_of_ids(proxy: &Arc<Forwarder>, engine: &Arc<Engine>, facts: &RequestFacts, body: &Bytes) -> Bytes {
    let (result, body) = match rewritten(proxy, engine, facts, body) {
        Ok(made) => (0, made),
        Err(result) => (result, body.clone()),
    };
    proxy.tokens.counts[result].fetch_add(1, Relaxed);
    body
}

/// Makes the body with token ids, or returns the number of the reason why not, as in [`RESULTS`].
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

/// True if a check found that the engine's tokenizer agrees; starts a check in the background when one is due.
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
