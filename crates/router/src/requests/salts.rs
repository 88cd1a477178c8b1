//! The salts by which an index tells prompts apart.

use std::borrow::Cow;

use kvatlas_prompt::{Engine, Request};

/// The salts of a request's blocks, which engines of one kind may take from other fields than those of another.
#[derive(Default)]
pub(crate) struct Salts {
    /// The kind of most engines of the model.
    main: Engine,
    vllm: Option<String>,
    sglang: Option<String>,
    /// True if most engines keep the blocks under a key that they do not announce.
    pub(crate) is_own: bool,
}

impl Salts {
    pub(crate) fn new(request: &Request<'_>, main: Engine) -> Self {
        let of = |kind| request.salt(kind).map(Cow::into_owned);
        Self { main, vllm: of(Engine::Vllm), sglang: of(Engine::Sglang), is_own: request.has_own_key(main) }
    }

    pub(crate) fn of(&self, kind: Engine) -> Option<&str> {
        match kind {
            Engine::Vllm => self.vllm.as_deref(),
            Engine::Sglang => self.sglang.as_deref(),
        }
    }

    pub(crate) fn main(&self) -> Option<&str> {
        self.of(self.main)
    }
}
