//! Engines whose tokenizers agree with the router's.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::engines::Engine;

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
