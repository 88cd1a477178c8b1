//! Kinds of work that requests are, and the engines that can do it where prefill and decode are separate.

use crate::config::{Handover, Role};
use crate::engines::Engine;

/// Kind of work that a request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Task {
    /// An answer is generated; another engine may compute the prompt.
    Generate,
    /// A result is computed by one engine alone.
    Alone,
    /// Nothing is computed with the model: the tokens of a text, or something that an engine stores or knows.
    Tell,
    /// A prompt is computed for an engine that takes it over by this protocol.
    Prefill(Handover),
}

impl Task {
    /// True if the task is to compute a prompt for another engine.
    pub(crate) fn is_prefill(self) -> bool {
        matches!(self, Self::Prefill(_))
    }
}

impl Engine {
    /// True if the engine's role includes the task. Engines that do only prefill get no whole requests.
    pub(crate) fn is_for(&self, task: Task) -> bool {
        match task {
            // One that does both can do it when it is asked for the answer.
            Task::Prefill(Handover::Vllm) => self.config.role != Role::Decode,
            // SGLang's do one or the other.
            Task::Prefill(Handover::Sglang) => self.config.role == Role::Prefill,
            Task::Generate | Task::Alone | Task::Tell => self.config.role != Role::Prefill,
        }
    }

    /// True if the engine, by its kind, can do a task of its role. Decode engines of vLLM can do everything; those of
    /// SGLang compute nothing without a prefill engine.
    pub(crate) fn can_do(&self, task: Task) -> bool {
        match (self.config.role, task) {
            (_, Task::Tell) | (Role::Both, _) => true,
            (_, Task::Generate) => self.handover().is_some(),
            (_, Task::Alone) => self.handover() == Some(Handover::Vllm),
            (_, Task::Prefill(handover)) => self.handover() == Some(handover),
        }
    }
}
