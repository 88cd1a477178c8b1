//! What an index learns by a request: what its prompt's blocks are, and what its engine says that it had of them. An index
//! in the same process learns while a stream has begun late: otherwise no prompt is kept. One in another process says
//! whether it could use what it was told ([`crate::observed`]).

use std::sync::Arc;
use std::time::Instant;

use kvatlas_service::state::Keyspace;

use crate::observe::Usage;
use crate::observed::{Answered, Observed};

/// A prompt that may tell the index something.
pub(crate) struct Telling {
    to: To,
    tokens: Box<[u32]>,
    adapter: Option<Arc<str>>,
    salt: Option<String>,
}

/// Who learns.
enum To {
    Here(Arc<Keyspace>),
    /// By the name of the model.
    Elsewhere(Arc<Observed>, String),
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
            to: To::Here(keyspace.clone()),
            tokens: tokens().into(),
            adapter: adapter.cloned(),
            salt: salt.map(str::to_owned),
        };
        keyspace.learns().then(|| Arc::new(new()))
    }

    /// The same for an index in another process, which knows of adapters by the model's name.
    pub(crate) fn elsewhere<'t>(
        observed: &Arc<Observed>,
        model: &str,
        tokens: impl FnOnce() -> &'t [u32],
        salt: Option<&str>,
    ) -> Option<Arc<Self>> {
        let new = || Self {
            to: To::Elsewhere(observed.clone(), model.to_owned()),
            tokens: tokens().into(),
            adapter: None,
            salt: salt.map(str::to_owned),
        };
        observed.wants().then(|| Arc::new(new()))
    }

    /// Its request is placed: the index may look at it now.
    pub(crate) fn asked(&self) {
        if let To::Here(keyspace) = &self.to {
            keyspace.asked(&self.tokens, self.adapter.as_deref(), self.salt.as_deref());
        }
    }

    /// It is about to be sent to a worker's rank. None if nothing can be learnt by the answer.
    pub(crate) fn sent(self: &Arc<Self>, worker: &str, rank: u32) -> Option<Sent> {
        let new = || Sent { telling: self.clone(), rank, at: Instant::now() };
        let is_wanted = match &self.to {
            To::Here(keyspace) => keyspace.wants_answers(worker, rank),
            To::Elsewhere(..) => true,
        };
        is_wanted.then(new)
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
        let Telling { to, tokens, adapter, salt } = &*self.telling;
        let (Some(cached), Some(prompt)) = (usage.cached, usage.prompt) else { return };
        // If the engine counts other tokens than were counted here, what it says is of another prompt.
        if prompt as usize != tokens.len() {
            return;
        }
        match to {
            To::Here(keyspace) => {
                let prompt = (&**tokens, adapter.as_deref(), salt.as_deref());
                keyspace.answered(worker, self.rank, prompt, cached as usize, self.at);
            }
            To::Elsewhere(observed, model) => observed.tell(Answered {
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
