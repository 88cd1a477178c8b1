//! A request at an engine, from when it is sent there until it has ended, however it ends: what is counted when.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use crate::answers::observe::{AnswerFacts, Failure, Usage};
use crate::app::App;
use crate::engines::{Engine, Fault};
use crate::placing::Placement;

/// Tokens of a stream after which the decision core is told of them.
const PROGRESS: u32 = 32;

/// A request at an engine. If it is dropped before it has ended, the client gave it up.
pub(crate) struct Flight {
    app: Arc<App>,
    placement: Placement,
    /// True if the engine refused the request.
    refused: bool,
    arrived: Instant,
    has_byte: bool,
    has_token: bool,
    ended: bool,
    /// Events that the decision core knows of.
    told: u32,
}

impl Flight {
    /// `arrived`: when the request came to the router.
    pub(crate) fn new(app: Arc<App>, placement: Placement, arrived: Instant) -> Self {
        placement.engine.sent();
        Self { app, placement, refused: false, arrived, has_byte: false, has_token: false, ended: false, told: 0 }
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.placement.engine
    }

    pub(crate) fn placement(&self) -> &Placement {
        &self.placement
    }

    /// True if the engine refused the request.
    pub(crate) fn is_refused(&self) -> bool {
        self.refused
    }

    /// Notes that another engine that works for this one has refused the request.
    pub(crate) fn note_refusal_elsewhere(&mut self) {
        self.refused = true;
        self.engine().health.unknown();
        self.note_end(AnswerFacts::default());
    }

    /// Notes that something came from the engine, be it a comment.
    pub(crate) fn note_sign_of_life(&self) {
        self.placement.engine.note_sign_of_life();
    }

    /// Notes that a piece of the answer's body came.
    pub(crate) fn note_piece(&mut self) {
        self.note_sign_of_life();
        if !self.has_byte {
            self.has_byte = true;
            self.placement.engine.counts.waiting.fetch_sub(1, Relaxed);
        }
    }

    /// Notes that so many tokens of a stream have come, as far as can be seen.
    pub(crate) fn note_tokens(&mut self, tokens: u32, now: Instant) {
        if tokens > 0 && !self.has_token {
            self.has_token = true;
            self.app.counts.first_token.add(now.duration_since(self.arrived));
            self.app.places.first_token(&self.placement);
        }
        if tokens >= self.told + PROGRESS {
            self.app.places.progress(&self.placement, tokens - self.told);
            self.told = tokens;
        }
    }

    /// Notes that the engine has answered, with this status.
    pub(crate) fn answered(&mut self, status: u16) {
        self.refused |= status >= 400;
        let class = usize::from(status / 100).clamp(1, 5) - 1;
        self.engine().counts.answers[class].fetch_add(1, Relaxed);
        self.engine().note_sign_of_life();
        if status < 500 {
            self.engine().health.note_answer();
        }
    }

    /// Notes that the engine keeps its answer under this name.
    pub(crate) fn note_kept_answer(&self, id: &str) {
        self.app.answer_engines.insert(id, &self.engine().name);
    }

    /// Notes that the answer is an error, or has come to one.
    pub(crate) fn note_error(&mut self, failure: Failure) {
        self.refused = true;
        if failure.is_of_the_request() {
            return;
        }
        let fault = Fault::Error(failure.status);
        if failure.is_first { self.note_failure(&fault) } else { self.broke(&fault) }
    }

    /// Notes that the answer is whole.
    pub(crate) fn note_end(&mut self, seen: AnswerFacts) {
        if let Some(failure) = seen.failure {
            self.note_error(failure);
        }
        if self.end() {
            let Usage { prompt, cached, output } = seen.usage;
            if let (Some(media), Some(prompt)) = (&self.placement.media, prompt) {
                self.app.prompts.media.learn(media, prompt);
            }
            let counts = &self.placement.engine.counts;
            if let (Some(prompt), Some(cached)) = (prompt, cached) {
                counts.prompt_tokens.fetch_add(u64::from(prompt), Relaxed);
                counts.cached_tokens.fetch_add(u64::from(cached), Relaxed);
            }
            counts.output_tokens.fetch_add(u64::from(output.unwrap_or(seen.events)), Relaxed);
            if self.refused {
                self.app.places.fail(&self.placement);
            } else {
                self.placement.answered(&self.app.sessions, &seen);
                self.app.places.finish(&self.placement, seen);
            }
        }
    }

    /// Notes that the answer broke off.
    pub(crate) fn broke(&mut self, fault: &Fault) {
        if self.end() {
            self.engine().counts.broken.fetch_add(1, Relaxed);
            self.engine().counts.faults[fault.number()].fetch_add(1, Relaxed);
            self.hold_against(fault);
            self.app.places.fail(&self.placement);
            if let Some(left_out) = self.app.counts.broken_lines.take() {
                let engine = &*self.engine().name;
                tracing::warn!(engine, reason = fault.name(), left_out, "an answer broke off: {fault}");
            }
        }
    }

    /// Notes that there is no answer.
    pub(crate) fn note_failure(&mut self, fault: &Fault) {
        if self.end() {
            // It is no fault of an engine that it serves other models.
            if *fault != Fault::NoModel {
                self.engine().counts.faults[fault.number()].fetch_add(1, Relaxed);
            }
            self.hold_against(fault);
            self.app.places.fail(&self.placement);
            tracing::debug!(engine = &*self.engine().name, reason = fault.name(), "a request failed: {fault}");
        }
    }

    /// Notes in the engine's health what a fault says of it.
    fn hold_against(&self, fault: &Fault) {
        let engine = self.engine();
        match fault {
            fault if fault.is_of_connecting() => engine.blame(),
            fault if fault.is_unclear() => engine.health.doubt(),
            _ => engine.health.unknown(),
        }
    }

    /// True the first time.
    fn end(&mut self) -> bool {
        if self.ended {
            return false;
        }
        self.ended = true;
        let counts = &self.placement.engine.counts;
        if !self.has_byte {
            counts.waiting.fetch_sub(1, Relaxed);
        }
        counts.in_flight.fetch_sub(1, Relaxed);
        true
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        if self.end() {
            self.engine().counts.cancelled.fetch_add(1, Relaxed);
            self.engine().health.unknown();
            self.app.places.cancel(&self.placement);
        }
    }
}
