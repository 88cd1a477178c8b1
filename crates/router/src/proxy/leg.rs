//! The work of a prefill engine for a request that another engine decodes.

use std::sync::Arc;

use hyper::StatusCode;
use hyper::header::HeaderMap;

use crate::engines::{Engine, Fault, denies_model};

/// A prefill engine at work. If it is dropped, the work ends there too.
pub(crate) struct Leg {
    pub(crate) engine: Arc<Engine>,
    pub(super) work: Option<tokio::task::JoinHandle<Result<PrefillResult, Fault>>>,
}

/// The end of a prefill engine's work.
pub(super) enum PrefillResult {
    /// The engine has computed the prompt, and said this.
    Done(Vec<u8>),
    /// The engine refused the request itself, as the decode engine would.
    Refused(Verdict),
}

/// An answer of status 4xx: it is about the request, not about the engine.
pub(crate) struct Verdict {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Vec<u8>,
}

impl Verdict {
    /// True if it says that there is no model of the name that the request has.
    pub(super) fn denies_model(&self) -> bool {
        denies_model(self.status.as_u16(), &self.body)
    }
}

/// Reason why the decode engine's answer is not waited for any longer.
pub(crate) enum DecodeFailure {
    /// Something went wrong, there or at the prefill engine.
    Failed(Fault),
    /// The prefill engine refused the request.
    Refused(Verdict),
}

/// Returns what a decode engine answers, unless the prefill engine that it waits for fails first or refuses the
/// request.
pub(crate) async fn beside_prefill<T>(
    answered: impl Future<Output = Result<T, Fault>>,
    prefill: &mut Option<Leg>,
) -> Result<T, DecodeFailure> {
    let mut answered = std::pin::pin!(answered);
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
    /// Lets the prefill engine's work come to its end: the decode engine has what it needs of it.
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
