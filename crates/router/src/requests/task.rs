//! Kind of work that a request is, and the engines that can do it where prefill and decode are separate.

use crate::config::{Handover, Role};
use crate::engines::Engine;

/// Kind of work that a request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Task {
    /// An answer is generated, and another engine may compute the prompt for it.
    Generate,
    /// Something is computed by one engine alone.
    Alone,
    /// Nothing is computed by the model: tokens of a text, what an engine keeps or knows.
    Tell,
    /// A prompt is computed for an engine that takes it over in this way.
    Prefill(Handover),
}

impl Task {
    /// True if a prompt is computed for another engine.
    pub(crate) fn is_prefill(self) -> bool {
        matches!(self, Self::Prefill(_))
    }
}

impl Engine {
    /// True if the engine's role includes the task. No engine that only computes prompts gets a whole request.
    pub(crate) fn is_for(&self, task: Task) -> bool {
        match task {
            // One that does both can do it when it is asked for the answer.
            Task::Prefill(Handover::Vllm) => self.config.role != Role::Decode,
            // SGLang's do one or the other.
            Task::Prefill(Handover::Sglang) => self.config.role == Role::Prefill,
            Task::Generate | Task::Alone | Task::Tell => self.config.role != Role::Prefill,
        }
    }

    /// True if the engine, by its kind, can do a task of its role. Decode engines of vLLM's can do all that others can;
    /// those of SGLang's compute nothing without a prefill engine.
    pub(crate) fn can_do(&self, task: Task) -> bool {
        match (self.config.role, task) {
            (_, Task::Tell) | (Role::Both, _) => true,
            (_, Task::Generate) => self.handover().is_some(),
            (_, Task::Alone) => self.handover() == Some(Handover::Vllm),
            (_, Task::Prefill(handover)) => self.handover() == Some(handover),
        }
    }
}
