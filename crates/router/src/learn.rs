//! What an index in the same process learns by a request: what its prompt's blocks are, and what its engine says that it
//! had of them. Only while a stream has begun late: otherwise no prompt is kept.

use std::sync::Arc;
use std::time::Instant;

use kvatlas_service::state::Keyspace;

use crate::observe::Usage;

/// A prompt that may tell the index something.
pub(crate) struct Telling {
    keyspace: Arc<Keyspace>,
    tokens: Box<[u32]>,
    adapter: Option<Arc<str>>,
    salt: Option<String>,
}

impl Telling {
    /// None if nothing can be learnt by it.
    pub(crate) fn of<'t>(
        keyspace: &Arc<Keyspace>,
        tokens: impl FnOnce() -> &'t [u32],
        adapter: Option<&Arc<str>>,
        salt: Option<&str>,
    ) -> Option<Arc<Self>> {
        let new = || Self {
            keyspace: keyspace.clone(),
            tokens: tokens().into(),
            adapter: adapter.cloned(),
            salt: salt.map(str::to_owned),
        };
        keyspace.learns().then(|| Arc::new(new()))
    }

    /// Its request is placed: the index may look at it now.
    pub(crate) fn asked(&self) {
        self.keyspace.asked(&self.tokens, self.adapter.as_deref(), self.salt.as_deref());
    }

    /// It is about to be sent to a worker's rank. None if nothing can be learnt by the answer.
    pub(crate) fn sent(self: &Arc<Self>, worker: &str, rank: u32) -> Option<Sent> {
        let new = || Sent { telling: self.clone(), rank, at: Instant::now() };
        self.keyspace.wants_answers(worker, rank).then(new)
    }
}

/// One that was sent to an engine.
pub(crate) struct Sent {
    telling: Arc<Telling>,
    rank: u32,
    at: Instant,
}

impl Sent {
    /// The engine has said what it had cached.
    pub(crate) fn answered(&self, worker: &str, usage: Usage) {
        let Telling { keyspace, tokens, adapter, salt } = &*self.telling;
        let (Some(cached), Some(prompt)) = (usage.cached, usage.prompt) else { return };
        // If the engine counts other tokens than were counted here, what it says is of another prompt.
        if prompt as usize == tokens.len() {
            let prompt = (&**tokens, adapter.as_deref(), salt.as_deref());
            keyspace.answered(worker, self.rank, prompt, cached as usize, self.at);
        }
    }
}
