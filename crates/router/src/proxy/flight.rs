//! Record of a request at an engine from its sending until its end, with all counts for it, and of the work of a
//! prefill engine for the same request.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use hyper::StatusCode;
use hyper::header::HeaderMap;

use crate::answers::observe::{AnswerFacts, Failure, Usage};
use crate::config::Role;
use crate::engines::{Engine, Fault, denies_model};
use crate::placing::Placement;
use crate::proxy::Forwarder;
use crate::spans::{AttemptSpan, RequestSpan};

/// Number of generated tokens of a stream after which the decision core (which chooses engines) is informed again.
const PROGRESS: u32 = 32;

/// Arrival of a request at the router, common to all attempts to serve it.
pub(crate) struct Arrival {
    /// Time at which the client's request arrived at the router.
    pub(crate) at: Instant,
    /// Trace span of the request; None if spans are not recorded.
    pub(crate) span: Option<Arc<RequestSpan>>,
}

/// Record of a request at one engine. If dropped before the request's end, the request is counted as cancelled by the
/// client.
pub(crate) struct Flight {
    proxy: Arc<Forwarder>,
    placement: Placement,
    /// True if the engine refused the request, or answered with an error.
    refused: bool,
    arrived: Instant,
    has_byte: bool,
    has_token: bool,
    ended: bool,
    /// Number of generated tokens of which the decision core (which chooses engines) has been informed.
    told: u32,
    /// Trace span of this attempt at the engine; None if spans are not recorded.
    span: Option<AttemptSpan>,
}

impl Flight {
    pub(crate) fn new(proxy: Arc<Forwarder>, placement: Placement, arrival: &Arrival) -> Self {
        placement.engine.sent();
        let arrived = arrival.at;
        let span = arrival.span.as_ref().map(|request| request.attempt(&placement.sent_request(proxy.places.policy())));
        Self {
            proxy,
            placement,
            refused: false,
            arrived,
            has_byte: false,
            has_token: false,
            ended: false,
            told: 0,
            span,
        }
    }

    /// Returns header lines with the trace context of the attempt, for the engine; None if spans are not recorded.
    pub(crate) fn trace_context(&self) -> Option<String> {
        self.span.as_ref().map(AttemptSpan::headers)
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.placement.engine
    }

    pub(crate) fn placement(&self) -> &Placement {
        &self.placement
    }

    /// True if the engine refused the request, or answered with an error.
    pub(crate) fn is_refused(&self) -> bool {
        self.refused
    }

    /// Records that the prefill engine has refused this request.
    pub(crate) fn note_refusal_elsewhere(&mut self) {
        self.refused = true;
        self.engine().health.unknown();
        self.note_end(AnswerFacts::default());
    }

    /// Records that data, even if only a comment, have arrived from the engine.
    pub(crate) fn note_sign_of_life(&self) {
        self.placement.engine.note_sign_of_life();
    }

    /// Records that the head of the engine's answer, with the status `status`, has arrived. The body may still be an
    /// error.
    pub(crate) fn note_head(&mut self, status: u16) {
        self.note_sign_of_life();
        if let Some(span) = &mut self.span {
            span.answered(status);
        }
    }

    /// Records that a piece of the body of the engine's answer has arrived.
    pub(crate) fn note_piece(&mut self) {
        self.note_sign_of_life();
        if !self.has_byte {
            self.has_byte = true;
            self.placement.engine.counts.waiting.fetch_sub(1, Relaxed);
        }
    }

    /// Records the number of a stream's tokens so far, as far as the router can count them. `now`: time of their
    /// arrival.
    pub(crate) fn note_tokens(&mut self, tokens: u32, now: Instant) {
        if tokens > 0 && !self.has_token {
            self.has_token = true;
            if let Some(span) = &mut self.span {
                span.first_token();
            }
            // What a prefill engine makes is not what the client waits for.
            if self.engine().config.role != Role::Prefill {
                let took = now.duration_since(self.arrived);
                self.proxy.counts.first_token.add(took);
                self.placement.counted.first_token.add(took);
            }
            self.proxy.places.first_token(&self.placement);
        }
        if tokens >= self.told + PROGRESS {
            self.proxy.places.progress(&self.placement, tokens - self.told);
            self.told = tokens;
        }
    }

    /// Records that the engine has answered with the HTTP status `status`.
    pub(crate) fn answered(&mut self, status: u16) {
        self.refused |= status >= 400;
        if let Some(span) = &mut self.span {
            span.answered(status);
        }
        let class = usize::from(status / 100).clamp(1, 5) - 1;
        let counts = &self.engine().counts;
        self.placement.counted.answers[class].fetch_add(1, Relaxed);
        if let Some(at) = [429, 503].iter().position(|busy| *busy == status) {
            counts.not_taken[at].fetch_add(1, Relaxed);
        }
        self.engine().note_sign_of_life();
        if status < 500 {
            self.engine().health.note_answer();
        }
    }

    /// Records the id under which the engine stores its answer.
    pub(crate) fn note_kept_answer(&self, id: &str) {
        self.proxy.answer_engines.insert(id, &self.engine().name);
    }

    /// Records that the engine's answer is an error or ends with an error.
    pub(crate) fn note_error(&mut self, failure: Failure) {
        self.refused = true;
        if failure.is_of_the_request() {
            return;
        }
        let fault = Fault::Error(failure.status);
        if failure.is_first { self.note_failure(&fault) } else { self.broke(&fault) }
    }

    /// Records the end of an engine's answer that was received completely. `seen`: facts read from the answer.
    pub(crate) fn note_end(&mut self, seen: AnswerFacts) {
        if let Some(failure) = seen.failure {
            self.note_error(failure);
        }
        if self.end() {
            let Usage { prompt, cached, output } = seen.usage;
            if let Some(span) = &mut self.span {
                span.end(prompt, cached, output.or((seen.events > 0).then_some(seen.events)));
            }
            if let (Some(media), Some(prompt)) = (&self.placement.media, prompt) {
                self.proxy.reader.prompts.media.learn(media, prompt);
            }
            let counts = &self.placement.counted;
            if let (Some(prompt), Some(cached)) = (prompt, cached) {
                counts.prompt_tokens.fetch_add(u64::from(prompt), Relaxed);
                counts.cached_tokens.fetch_add(u64::from(cached), Relaxed);
            }
            counts.output_tokens.fetch_add(u64::from(output.unwrap_or(seen.events)), Relaxed);
            if self.refused {
                self.proxy.places.fail(&self.placement);
            } else {
                if self.engine().config.role != Role::Prefill {
                    counts.duration.add(self.arrived.elapsed());
                }
                self.placement.answered(&self.proxy.sessions, &seen);
                self.proxy.places.finish(&self.placement, seen);
            }
        }
    }

    /// Records that the engine's answer broke off in the middle. `fault`: reason for the break.
    pub(crate) fn broke(&mut self, fault: &Fault) {
        if self.end() {
            self.engine().counts.broken.fetch_add(1, Relaxed);
            self.fail_span(fault);
            self.placement.counted.faults[fault.number()].fetch_add(1, Relaxed);
            self.hold_against(fault);
            self.proxy.places.fail(&self.placement);
            if let Some(left_out) = self.proxy.counts.broken_lines.take() {
                let engine = &*self.engine().name;
                tracing::warn!(engine, reason = fault.name(), left_out, "an answer broke off: {fault}");
            }
        }
    }

    fn fail_span(&mut self, fault: &Fault) {
        if let Some(span) = &mut self.span {
            span.fail(fault.name());
        }
    }

    /// Records that the engine did not answer the request. `fault`: reason for the missing answer.
    pub(crate) fn note_failure(&mut self, fault: &Fault) {
        if self.end() {
            self.fail_span(fault);
            // It is no fault of an engine that it serves other models.
            if *fault != Fault::NoModel {
                self.placement.counted.faults[fault.number()].fetch_add(1, Relaxed);
            }
            self.hold_against(fault);
            self.proxy.places.fail(&self.placement);
            tracing::debug!(engine = &*self.engine().name, reason = fault.name(), "a request failed: {fault}");
        }
    }

    /// Records a fault in the health of the engine to which the request was sent.
    fn hold_against(&self, fault: &Fault) {
        let engine = self.engine();
        match fault {
            fault if fault.is_of_connecting() => engine.blame(),
            fault if fault.is_unclear() => engine.health.doubt(),
            _ => engine.health.unknown(),
        }
    }

    /// Marks the request as ended. Returns true at the first call, false at later ones.
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
            self.proxy.places.cancel(&self.placement);
        }
    }
}

/// Work of a prefill engine on a request, which is cancelled on drop.
pub(crate) struct Leg {
    pub(crate) engine: Arc<Engine>,
    pub(super) work: Option<tokio::task::JoinHandle<Result<PrefillResult, Fault>>>,
}

/// Result of a prefill engine's work on a request.
pub(super) enum PrefillResult {
    /// The engine has computed the prompt; the bytes are the body of its answer.
    Done(Vec<u8>),
    /// The engine refused the request because of an error in the request, so that the decode engine would refuse it
    /// too.
    Refused(Verdict),
}

/// Error answer of an engine whose cause is the request, not the engine.
pub(crate) struct Verdict {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Vec<u8>,
}

impl Verdict {
    /// True if the error answer states that the engine does not have the requested model.
    pub(super) fn denies_model(&self) -> bool {
        denies_model(self.status.as_u16(), &self.body)
    }
}

/// Reason why the router stopped waiting for the decode engine's answer.
pub(crate) enum DecodeFailure {
    /// The decode or the prefill engine failed.
    Failed(Fault),
    /// The prefill engine refused the request.
    Refused(Verdict),
}

/// Returns the decode engine's answer, unless the prefill engine for the same request fails or refuses the request
/// first. The caller pins `answered`: see [`Patience::wait`](super::exchange::Patience::wait).
pub(crate) async fn beside_prefill<T>(
    mut answered: Pin<&mut impl Future<Output = Result<T, Fault>>>,
    prefill: &mut Option<Leg>,
) -> Result<T, DecodeFailure> {
    if let Some(work) = prefill.as_mut().and_then(|leg| leg.work.as_mut()) {
        tokio::select! {
            biased;
            answer = answered.as_mut() => return answer.map_err(DecodeFailure::Failed),
            done = work => {
                *prefill = None;
                match done {
                    Ok(Ok(PrefillResult::Done(_))) => {}
                    Ok(Ok(PrefillResult::Refused(verdict))) => return Err(DecodeFailure::Refused(verdict)),
                    Ok(Err(fault)) => {
                        return Err(DecodeFailure::Failed(Fault::Prefill { sent: fault.may_have_been_sent() }));
                    }
                    Err(_) => return Err(DecodeFailure::Failed(Fault::Prefill { sent: true })),
                }
            }
        }
    }
    answered.await.map_err(DecodeFailure::Failed)
}

impl Leg {
    /// Lets the prefill engine's work continue in the background, without cancelling it on drop.
    pub(crate) fn let_finish(mut self) {
        self.work = None;
    }
}

impl Drop for Leg {
    fn drop(&mut self) {
        if let Some(work) = &self.work {
            work.abort();
        }
    }
}
