//! Sending of completions to engines as token ids, so that engines need not tokenize the text again, and the check that
//! an engine's tokenizer agrees with the router's.
//!
//! Ids are sent only where the engine would compute the same: for a single text, without fields that refer to the text,
//! and at an engine whose `/tokenize` returns the router's tokens for a probe text with many kinds of characters.
//! Otherwise the text is sent unchanged, and the case is counted.

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

/// Time after which the router checks again whether an engine's tokenizer agrees with its own.
const AGAIN: Duration = Duration::from_secs(30);

/// Maximum number of pairs of engine and model for which the result of the comparison of tokenizers is stored.
const MOST: usize = 4096;

/// Names, in the metrics, of the outcomes for the prompt of a completion: sent as token ids, or the reason for sending
/// text. The positions are the numbers used in the code.
pub(crate) const RESULTS: [&str; 7] =
    ["tokens", "not_a_text", "works_on_text", "no_tokens", "adapter", "apart", "not_proven"];

/// State for sending completions to engines as token ids, with the results of checks of engines' tokenizers.
#[derive(Default)]
pub(crate) struct Tokens {
    proofs: Mutex<HashMap<(Arc<str>, String), Proof>>,
    /// Number of completions by the way in which their prompts were sent ([`RESULTS`]): as token ids, or as text for a
    /// reason.
    pub(crate) counts: [AtomicU64; RESULTS.len()],
}

/// Result of the check whether an engine's tokenizer agrees with the router's.
#[derive(Default)]
struct Proof {
    asked: Option<Instant>,
    is_equal: bool,
    /// Number of the engine's faults at the time of the check. If the number has grown, another engine may be running
    /// now.
    faults: u64,
}

impl Tokens {
    /// Drops the results of comparisons of tokenizers for an engine that has left or returned, as its tokenizer may
    /// differ now.
    pub(crate) fn forget(&self, engine: &Engine) {
        self.proofs.lock().retain(|(name, _), _| *name != engine.name);
    }

    /// Counts a completion that is sent as text because a prefill engine computes its prompt, and decode gets the same
    /// text.
    pub(crate) fn goes_apart(&self) {
        self.counts[5].fetch_add(1, Relaxed);
    }

    /// Returns two values: true if the engine's tokenizer agrees with the router's, and true if a new comparison is
    /// due, which the caller must make.
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

    /// Records the result of the check whether the engine's tokenizer agrees with the router's.
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

/// Time limit for an engine's answer with the tokens of the probe text.
const PATIENCE: Duration = Duration::from_secs(5);

/// Request fields that need the prompt's text, or change the part of the text that is used.
const OF_TEXT: [&str; 4] = ["truncate_prompt_tokens", "echo", "suffix", "prompt_embeds"];

/// Probe text for comparing tokenizers, with many scripts, spaces, digits, punctuation, and special tokens of some
/// models. Any two different tokenizers are expected to disagree on this text.
const PROBE: &str = "The quick brown fox's 1234567890 jumps,  over\tthe\n\n lazy dog.\r\n   (x+=1)!= {\"a\": [0.5e-3]} \
    naïve Übergröße Жизнь прекрасна 中文字符 日本語のテスト 한국어 العربية עברית हिन्दी ไทย 👩‍👩‍👧‍👦🏳️‍🌈 ½ﬁ\u{200b}\u{feff} \
    <s> </s> <unk> <pad> <bos> <eos> [INST] [/INST] <|endoftext|> <|im_start|>user<|im_end|> <|eot_id|> \
    <|begin_of_text|> <start_of_turn> <think></think> <tool_call> <|user|> aaaaaaaaaaaaaaaaaaaaaaaa  ";

/// Makes the body of a completion for an engine: with token ids in place of text if the engine's tokenizer agrees with
/// the router's and the request allows this, else unchanged.
pub(crate) fn body_of_ids(proxy: &Arc<Forwarder>, engine: &Arc<Engine>, facts: &RequestFacts, body: &Bytes) -> Bytes {
    let (result, body) = match rewritten(proxy, engine, facts, body) {
        Ok(made) => (0, made),
        Err(result) => (result, body.clone()),
    };
    proxy.tokens.counts[result].fetch_add(1, Relaxed);
    body
}

/// Makes the body of a completion with token ids. The error is the reason for sending text, as a position in
/// [`RESULTS`].
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

/// True if a check found that the engine's tokenizer agrees with the router's. Starts a check in the background when
/// one is due.
fn is_proven(proxy: &Arc<Forwarder>, engine: &Arc<Engine>, model: &str) -> bool {
    let (is_equal, is_due) = proxy.tokens.proof(engine, model);
    if is_due {
        tokio::spawn(prove(proxy.clone(), engine.clone(), model.to_owned()));
    }
    is_equal
}

/// Compares the engine's tokens of the probe text with the router's, and records the result.
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
