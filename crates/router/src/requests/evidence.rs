//! Prompts as evidence for an index: the tokens of a prompt, with the number of them that its engine reports as cached,
//! show an index which blocks the engine holds. An index in the same process learns from prompts while it lacks the
//! beginning of an event stream; at other times no prompts are stored. An index in another process answers whether a
//! report was useful ([`crate::remote::cache_reports`]).

use std::sync::Arc;
use std::time::Instant;

use kvatlas_follow::state::Keyspace;

use crate::answers::observe::Usage;
use crate::remote::cache_reports::{CacheReport, CacheReporter};

/// Prompt from which an index may learn which blocks an engine holds.
pub(crate) struct PromptEvidence {
    to: LearningIndex,
    tokens: Box<[u32]>,
    adapter: Option<Arc<str>>,
    salt: Option<String>,
}

/// Index that learns which blocks engines hold from a prompt and its cached tokens: in this process, or in another one.
enum LearningIndex {
    Here(Arc<Keyspace>),
    /// Index in another process, with the name of the model or adapter there.
    Process(Arc<CacheReporter>, String),
}

impl PromptEvidence {
    /// Makes the prompt's record for an index in this process; None if this index has nothing to learn from prompts
    /// now.
    pub(crate) fn of<'t>(
        keyspace: &Arc<Keyspace>,
        tokens: impl FnOnce() -> &'t [u32],
        adapter: Option<&Arc<str>>,
        salt: Option<&str>,
    ) -> Option<Arc<Self>> {
        let new = || Self {
            to: LearningIndex::Here(keyspace.clone()),
            tokens: tokens().into(),
            adapter: adapter.cloned(),
            salt: salt.map(str::to_owned),
        };
        keyspace.learns().then(|| Arc::new(new()))
    }

    /// Makes the prompt's record for an index in another process, which identifies adapters by the model's name; None
    /// if no report to this index is due.
    pub(crate) fn of_process<'t>(
        cache_reporter: &Arc<CacheReporter>,
        model: &str,
        tokens: impl FnOnce() -> &'t [u32],
        salt: Option<&str>,
    ) -> Option<Arc<Self>> {
        let new = || Self {
            to: LearningIndex::Process(cache_reporter.clone(), model.to_owned()),
            tokens: tokens().into(),
            adapter: None,
            salt: salt.map(str::to_owned),
        };
        cache_reporter.wants().then(|| Arc::new(new()))
    }

    /// Notifies the index that an engine has been chosen for a request with the prompt.
    pub(crate) fn note_query(&self) {
        if let LearningIndex::Here(keyspace) = &self.to {
            keyspace.note_query(&self.tokens, self.adapter.as_deref(), self.salt.as_deref());
        }
    }

    /// Records that the request is about to be sent to a worker's rank. Returns None if the index cannot learn which
    /// blocks the rank holds from the answer.
    pub(crate) fn sent(self: &Arc<Self>, worker: &str, rank: u32) -> Option<SentPrompt> {
        let new = || SentPrompt { telling: self.clone(), rank, at: Instant::now() };
        let is_wanted = match &self.to {
            LearningIndex::Here(keyspace) => keyspace.wants_answers(worker, rank),
            LearningIndex::Process(..) => true,
        };
        is_wanted.then(new)
    }
}

/// Prompt that was sent to an engine, together with the index that learns from the engine's report of cached tokens.
pub(crate) struct SentPrompt {
    telling: Arc<PromptEvidence>,
    rank: u32,
    at: Instant,
}

impl SentPrompt {
    /// Passes the engine's report of cached tokens to the index.
    pub(crate) fn answered(&self, worker: &str, usage: Usage) {
        let PromptEvidence { to, tokens, adapter, salt } = &*self.telling;
        let (Some(cached), Some(prompt)) = (usage.cached, usage.prompt) else { return };
        // If the engine counts other tokens than were counted here, what it says is of another prompt.
        if prompt as usize != tokens.len() {
            return;
        }
        match to {
            LearningIndex::Here(keyspace) => {
                let prompt = (&**tokens, adapter.as_deref(), salt.as_deref());
                keyspace.answered(worker, self.rank, prompt, cached as usize, self.at);
            }
            LearningIndex::Process(cache_reporter, model) => cache_reporter.tell(CacheReport {
                worker: worker.to_owned(),
                rank: self.rank,
                model: model.clone(),
                tokens: tokens.clone(),
                salt: salt.clone(),
                cached,
                sent: self.at,
            }),
        }
    }
}
