//! Progress and end of a request at its engine.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use kvatlas_routing as core;

use super::{Placement, Places};
use crate::answers::observe::{AnswerFacts, Usage};
use crate::clock::seconds;
use crate::engines::OtherCount;
use crate::model_counts::OFF_BY;
use crate::placing::reuse::EndedPrompt;

impl Places {
    /// Notes that the first token of a stream has come.
    pub(crate) fn first_token(&self, placement: &Placement) {
        let _ = placement.first_token.set(Instant::now());
        let mut core = self.core();
        let now = seconds();
        core.router.first_token(placement.id, now);
        self.call(&core);
    }

    /// Records `tokens` more generated tokens.
    pub(crate) fn progress(&self, placement: &Placement, tokens: u32) {
        self.core().router.progress(placement.id, tokens, seconds());
    }

    /// Records the successful end of a request.
    pub(crate) fn finish(&self, placement: &Placement, seen: AnswerFacts) {
        let output = seen.usage.output.or((seen.events > 0).then_some(seen.events));
        let cached = cached_of(placement, &seen.usage);
        let computed_tokens = seen.usage.prompt.zip(cached).map(|(prompt, cached)| prompt.saturating_sub(cached));
        let usage = core::Usage { cached_tokens: seen.usage.cached, output_tokens: output, computed_tokens };
        let belief = placement.judge(&seen.usage, cached);
        let mismatch = placement.mismatch(&seen.usage);
        let agrees = seen.usage.prompt.zip(placement.tokens).and_then(|(by_engine, by_router)| {
            placement.engine.token_agreement.note(mismatch.map(|_| OtherCount { by_engine, by_router }))
        });
        {
            let mut core = self.core();
            let now = seconds();
            core.router.finish(placement.id, usage, now);
            if let Some(belief) = belief {
                core.router.set_belief(placement.worker, belief);
            }
            if let Some(agrees) = agrees {
                placement.engine.ids.get().into_iter().flatten().for_each(|id| core.router.set_measured(*id, agrees));
            }
            let blocks = output.unwrap_or(0) / placement.block_size.max(1);
            if let Some(unheard) = &mut core.unheard {
                unheard.ended(placement.id.0, blocks as usize, now);
            }
            self.call(&core);
        }
        if let Some(cached) = seen.usage.cached {
            let model = &placement.model;
            model.expected_cached.fetch_add(u64::from(placement.cached), Relaxed);
            model.reported_cached.fetch_add(u64::from(cached), Relaxed);
            let (why, off) = placement.off_by(cached, mismatch.is_some());
            let at = OFF_BY.partition_point(|bound| *bound < off);
            model.off[why][at].fetch_add(1, Relaxed);
        }
        if mismatch.is_some() {
            placement.engine.makes_other_tokens.store(true, Relaxed);
        }
        if let Some(claim) = placement.claim.lock().take() {
            claim.report(cached_of(placement, &seen.usage), mismatch.is_some());
        }
        if let Some(sent) = &placement.sent {
            sent.answered(&placement.engine.name, seen.usage);
        }
        if let Some(record) = &placement.record {
            let prompt = EndedPrompt {
                model: record.model.as_deref(),
                tokens: record.tokens,
                output: output.unwrap_or(0),
                block_size: record.block_size,
                hashes: &record.hashes,
                cached: cached_of(placement, &seen.usage),
            };
            self.reuse.add(&prompt, seconds());
        }
        placement.note_end("finished", &Usage { output, ..seen.usage }, seen.stop);
        self.put_down(placement);
    }

    /// Notes that a request has failed at an engine.
    pub(crate) fn fail(&self, placement: &Placement) {
        self.end(placement, "failed");
    }

    /// Notes that a client has given a request up.
    pub(crate) fn cancel(&self, placement: &Placement) {
        self.end(placement, "cancelled");
    }

    fn end(&self, placement: &Placement, how: &'static str) {
        let mut core = self.core();
        let now = seconds();
        core.router.fail(placement.id, now);
        if let Some(unheard) = &mut core.unheard {
            unheard.failed(placement.id.0, now);
        }
        self.call(&core);
        drop(core);
        placement.note_end(how, &Usage::default(), None);
        self.put_down(placement);
    }

    /// Puts the request into the record of decisions, if one is kept.
    fn put_down(&self, placement: &Placement) {
        if let (Some(recorder), Some(record)) = (&self.recorder, &placement.record) {
            recorder.push(record.clone());
        }
    }
}

/// Prompt tokens that the engine had cached. vLLM says nothing where that is nothing: of one that has said something
/// before, nothing is none.
fn cached_of(placement: &Placement, usage: &Usage) -> Option<u32> {
    let says = placement.engine.counts.cached_tokens() > 0;
    usage.cached.or_else(|| usage.prompt.filter(|_| says).map(|_| 0))
}
