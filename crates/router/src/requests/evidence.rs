//! The prompts that an index learns by: what the blocks of a request's prompt are, and what its engine says that it had
//! of them. An index in the same process learns while a stream has begun late: otherwise no prompt is kept. One in
//! another process says whether it could use what it was told ([`crate::remote::cache_reports`]).

use std::sync::Arc;
use std::time::Instant;

use kvatlas_follow::state::Keyspace;

use crate::answers::observe::Usage;
use crate::remote::cache_reports::{CacheReport, CacheReporter};

/// A prompt that may tell the index something.
pub(crate) struct PromptEvidence {
    to: LearningIndex,
    tokens: Box<[u32]>,
    adapter: Option<Arc<str>>,
    salt: Option<String>,
}

/// The index that learns.
enum LearningIndex {
    Here(Arc<Keyspace>),
    /// An index in another process, which knows of adapters by this name of the model.
    Process(Arc<CacheReporter>, String),
}

impl PromptEvidence {
    /// None if nothing can be learnt by it.
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

    /// Like [`of`](Self::of), for an index in another process, which knows of adapters by the model's name.
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

    /// Lets the index look at the prompt, as its request is placed.
    pub(crate) fn note_query(&self) {
        if let LearningIndex::Here(keyspace) = &self.to {
            keyspace.note_query(&self.tokens, self.adapter.as_deref(), self.salt.as_deref());
        }
    }

    /// Notes that the request is about to be sent to a worker's rank. None if nothing can be learnt by the answer.
    pub(crate) fn sent(self: &Arc<Self>, worker: &str, rank: u32) -> Option<SentPrompt> {
        let new = || SentPrompt { telling: self.clone(), rank, at: Instant::now() };
        let is_wanted = match &self.to {
            LearningIndex::Here(keyspace) => keyspace.wants_answers(worker, rank),
            LearningIndex::Process(..) => true,
        };
        is_wanted.then(new)
    }
}

/// A prompt that was sent to an engine.
pub(crate) struct SentPrompt {
    telling: Arc<PromptEvidence>,
    rank: u32,
    at: Instant,
}

impl SentPrompt {
    /// The engine has said what it had cached.
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
