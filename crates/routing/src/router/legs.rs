//! The calls for a prompt that one worker computes and another goes on with: see [`crate::PrefillDecode`].

use std::cmp::Reverse;

use crate::candidates::Candidates;
use crate::depths::Depths;
use crate::request::Request;
use crate::router::Router;
use crate::router::outcome::{ChoiceReason, Decision, FinishedRequest, RequestId, Usage, WorkerId};
use crate::time::Time;

impl Router {
    /// The candidates of `allowed` for a request, as a policy would see them. None: nobody of them is up.
    pub(crate) fn seen(
        &mut self,
        request: &Request<'_>,
        depths: &Depths,
        allowed: &[WorkerId],
        now: f64,
    ) -> Option<Candidates> {
        let now = self.at(now);
        self.expire_until(now);
        let request = Request { number: self.number + 1, ..self.complete(request) };
        if !self.gather(&request, depths, Some(allowed), now) {
            return None;
        }
        self.hold_back(now);
        Some(self.fleet.candidates(depths, Some(&self.expected), Some(&self.who), now).clone())
    }

    /// Returns what workers should hold of a request's prompt, where no events tell.
    pub(crate) fn guessed(&mut self, request: &Request<'_>, now: f64) -> Option<Depths> {
        let now = self.at(now);
        let request = self.complete(request);
        self.guess(&request, now)
    }

    /// A leg that was just placed gets its prompt's blocks from another worker: it has nothing to compute.
    pub(crate) fn fetches(&mut self, id: RequestId, now: f64) {
        self.has_first_token(id, false, now);
    }

    /// Returns the worker of the request's session, if sessions stick.
    pub(crate) fn home(&self, request: &Request<'_>, now: f64) -> Option<WorkerId> {
        let session = request.session.filter(|_| self.config.session_ttl > 0.0)?;
        self.sessions.get(session, now).map(WorkerId)
    }

    /// Reserves a worker that was chosen already. None: it is not up.
    pub(crate) fn place_at(
        &mut self,
        request: &Request<'_>,
        depths: &Depths,
        worker: WorkerId,
        now: f64,
    ) -> Option<Decision> {
        let now = self.at(now);
        if !self.gather(&self.complete(request), depths, Some(&[worker]), now) {
            return None;
        }
        self.number += 1;
        let request = Request { number: self.number, ..self.complete(request) };
        self.fleet.candidates(depths, Some(&self.expected), Some(&self.who), now);
        Some(self.reserve(&request, 0, ChoiceReason::Policy, now))
    }

    /// The prompt of a prefill leg is computed, and its blocks can be fetched: the leg is over. It generated nothing, so
    /// nothing is learnt of how much requests generate. `None`: it was over already.
    pub fn end_prefill(&mut self, id: RequestId, usage: Usage, now: f64) -> Option<FinishedRequest> {
        self.first_token(id, now);
        let now = self.at(now);
        if let Some(unheard) = &mut self.unheard {
            unheard.ended(id.0, 0, now);
        }
        let its = self.release(id.0, now)?;
        Some(self.count_finished(&its, usage))
    }

    /// The decode leg has its first token: from now on the time between tokens is its worker's own.
    pub fn hand_over(&mut self, id: RequestId, now: f64) {
        let now = self.at(now);
        let Some(its) = self.placed.get_mut(&id.0) else { return };
        its.heard = now;
        its.steps = 0.0;
        its.steps_since = now;
        its.deadline = now + self.config.idle_timeout;
        self.due.push(Reverse((Time(its.deadline), id.0)));
    }
}
