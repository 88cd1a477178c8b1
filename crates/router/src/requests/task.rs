//! Kinds of work that requests cause at engines, and the engines that can do each kind if prefill and decode are
//! separate.

use crate::config::{Handover, Role};
use crate::engines::Engine;

/// Kind of work that a request causes at an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Task {
    /// Generation of an answer, for which another engine may compute the prompt.
    Generate,
    /// Computation of a result, such as an embedding, by one engine alone.
    Alone,
    /// Information without computing with a model: the tokens of a text, or an item that an engine stores.
    Tell,
    /// Computation of a prompt whose blocks another engine gets by the given protocol.
    Prefill(Handover),
}

impl Task {
    /// True if the work is to compute a prompt for another engine.
    pub(crate) fn is_prefill(self) -> bool {
        matches!(self, Self::Prefill(_))
    }
}

impl Engine {
    /// True if the engine's role includes the kind of work `task`. Engines that do only prefill get no complete
    /// requests.
    pub(crate) fn is_for(&self, task: Task) -> bool {
        match task {
            // One that does both can do it when it is asked for the answer.
            Task::Prefill(Handover::Vllm) => self.config.role != Role::Decode,
            // SGLang's do one or the other.
            Task::Prefill(Handover::Sglang) => self.config.role == Role::Prefill,
            Task::Generate | Task::Alone | Task::Tell => self.config.role != Role::Prefill,
        }
    }

    /// True if the engine, by its kind, can do work that its role includes. Decode engines of vLLM can do all work;
    /// those of SGLang cannot compute without a prefill engine.
    pub(crate) fn can_do(&self, task: Task) -> bool {
        match (self.config.role, task) {
            (_, Task::Tell) | (Role::Both, _) => true,
            (_, Task::Generate) => self.handover().is_some(),
            (_, Task::Alone) => self.handover() == Some(Handover::Vllm),
            (_, Task::Prefill(handover)) => self.handover() == Some(handover),
        }
    }
}
