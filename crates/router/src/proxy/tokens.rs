//! Completions whose prompt goes to the engine as token ids: it then makes no tokens of the text a second time.
//!
//! Only where the ids are those that the engine would make itself: for one text, with nothing asked for that works on the
//! text, and at an engine whose `/tokenize` makes the same tokens of a text of many kinds as the router. Else the text goes
//! on as it came, and is counted.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use kvatlas_prompt::{Endpoint, TOKENIZE_PATH, tokenize_answer};
use serde_json::json;
use serde_json::value::RawValue;

use crate::app::App;
use crate::control::ask;
use crate::engine::Engine;
use crate::lock;
use crate::prompts::Known;

/// How often an engine is asked whether it still makes the same tokens, and within which it must answer.
const AGAIN: Duration = Duration::from_secs(30);
const PATIENCE: Duration = Duration::from_secs(5);

/// Engines and models that are kept in mind.
const MOST: usize = 4096;

/// What is asked of the text itself, or changes what of it is used.
const OF_TEXT: [&str; 4] = ["truncate_prompt_tokens", "echo", "suffix", "prompt_embeds"];

/// Scripts, spaces, digits, signs, and what some models take for tokens of their own: tokenizers that differ at all differ
/// here.
const PROBE: &str = "The quick brown fox's 1234567890 jumps,  over\tthe\n\n lazy dog.\r\n   (x+=1)!= {\"a\": [0.5e-3]} \
    naïve Übergröße Жизнь прекрасна 中文字符 日本語のテスト 한국어 العربية עברית हिन्दी ไทย 👩‍👩‍👧‍👦🏳️‍🌈 ½ﬁ\u{200b}\u{feff} \
    <s> </s> <unk> <pad> <bos> <eos> [INST] [/INST] <|endoftext|> <|im_start|>user<|im_end|> <|eot_id|> \
    <|begin_of_text|> <start_of_turn> <think></think> <tool_call> <|user|> aaaaaaaaaaaaaaaaaaaaaaaa  ";

/// What became of a completion, in order of its number.
pub(crate) const RESULTS: [&str; 7] =
    ["tokens", "not_a_text", "works_on_text", "no_tokens", "adapter", "apart", "not_proven"];

/// Prompts as token ids.
#[derive(Default)]
pub(crate) struct Tokens {
    proofs: Mutex<HashMap<(Arc<str>, String), Proof>>,
    /// Completions, by [`RESULTS`].
    pub(crate) counts: [AtomicU64; RESULTS.len()],
}

/// Whether an engine makes the same tokens as the router.
#[derive(Default)]
struct Proof {
    asked: Option<Instant>,
    is_equal: bool,
    /// Its failures when it was asked: one that fails may be another one afterwards.
    faults: u64,
}

impl Tokens {
    /// An engine has gone or come back: it may make other tokens now.
    pub(crate) fn forget(&self, engine: &Engine) {
        lock(&self.proofs).retain(|(name, _), _| *name != engine.name);
    }

    /// A completion whose prompt another engine computes: both get the text.
    pub(crate) fn goes_apart(&self) {
        self.counts[5].fetch_add(1, Relaxed);
    }

    /// The body of a completion for an engine.
    pub(crate) fn body(&self, app: &Arc<App>, engine: &Arc<Engine>, known: &Known, body: &Bytes) -> Bytes {
        let (result, body) = match self.rewritten(app, engine, known, body) {
            Ok(made) => (0, made),
            Err(result) => (result, body.clone()),
        };
        self.counts[result].fetch_add(1, Relaxed);
        body
    }

    /// The body with ids, or the number of the reason why not.
    fn rewritten(&self, app: &Arc<App>, engine: &Arc<Engine>, known: &Known, body: &[u8]) -> Result<Bytes, usize> {
        let mut fields: BTreeMap<String, &RawValue> = serde_json::from_slice(body).map_err(|_| 1usize)?;
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
        if !self.is_proven(app, engine, model) {
            return Err(6);
        }
        let ids = serde_json::value::to_raw_value(&**ids).map_err(|_| 3usize)?;
        fields.insert("prompt".to_owned(), &ids);
        serde_json::to_vec(&fields).map(Bytes::from).map_err(|_| 3)
    }

    /// Whether the engine is known to make the same tokens; it is asked, beside this request, if it is time to.
    fn is_proven(&self, app: &Arc<App>, engine: &Arc<Engine>, model: &str) -> bool {
        let faults = engine.counts.faults.iter().map(|count| count.load(Relaxed)).sum();
        let mut proofs = lock(&self.proofs);
        if proofs.len() >= MOST {
            proofs.clear();
        }
        let proof = proofs.entry((engine.name.clone(), model.to_owned())).or_default();
        if proof.faults != faults {
            *proof = Proof { faults, ..Proof::default() };
        }
        if proof.asked.is_none_or(|asked| asked.elapsed() > AGAIN) {
            proof.asked = Some(Instant::now());
            tokio::spawn(prove(app.clone(), engine.clone(), model.to_owned()));
        }
        proof.is_equal
    }
}

/// Has an engine make tokens of the probe, and notes whether they are the router's.
async fn prove(app: Arc<App>, engine: Arc<Engine>, model: String) {
    let body = json!({ "model": model, "prompt": PROBE }).to_string();
    let asked = tokio::time::timeout(PATIENCE, ask(&engine, "POST", TOKENIZE_PATH, body.as_bytes())).await;
    let theirs = match asked {
        Ok(Ok((200, answer))) => tokenize_answer(&answer),
        _ => None,
    };
    let body = body.as_bytes();
    let recalled = app.prompts.recall(Endpoint::Completions, body);
    let ours = app.prompts.read(app.service.as_ref(), Endpoint::Completions, body, &recalled).ids;
    let is_equal = theirs.is_some() && theirs.as_deref() == ours.as_deref();
    if let Some(proof) = lock(&app.tokens.proofs).get_mut(&(engine.name.clone(), model.clone())) {
        if proof.is_equal != is_equal {
            let engine = &*engine.name;
            tracing::info!(engine, model, is_equal, "checked whether the engine makes the same tokens as the router");
        }
        proof.is_equal = is_equal;
    }
}
