//! Interface of routing policies, and the entries by which policies are found by name.

use crate::candidates::Candidates;
use crate::options::{Error, Options};
use crate::request::Request;
use crate::transfers::Ways;

/// Decision of a policy for one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// Index of the candidate that takes the request.
    Row(usize),
    /// Index of the candidate that takes the request because the policy's own code failed.
    Failed(usize),
    /// The request waits in the router, as all workers are busy; the policy is asked again when a request at one of
    /// them has ended.
    Wait,
    /// The request waits in the router for the candidate `row`, which is the best but would not start the request soon.
    /// The policy is asked again when a request at this candidate has ended, or after a while.
    WaitFor {
        /// Index of the candidate that should take the request.
        row: usize,
        /// Index of the best candidate that would start soon, used if the request cannot wait in the router; equals
        /// `row` if there is none.
        instead: usize,
    },
}

/// Request that was placed at a worker, as reported to policies.
#[derive(Debug, Clone, Copy)]
pub struct Placement {
    /// Number of the placed request.
    pub number: u64,
    /// Number of the worker, as in [`Candidates::worker`].
    pub worker: u32,
    /// Number of prompt tokens that are not expected in the worker's cache.
    pub uncached: u32,
    /// Number of the request's blocks that no other request at the worker uses any longer after its end; 0 until then.
    pub freed: u32,
}

/// Explanation of a policy's decision: a table with the values of its terms for each candidate.
#[derive(Debug, Clone, Default)]
pub struct Terms {
    /// Names of the terms, with their units, such as `ttft` or `delay to others`. The last one is the value by which
    /// candidates were compared.
    pub names: Vec<&'static str>,
    /// Values of the policy's terms: for each candidate in turn, one value for each name.
    pub values: Vec<f64>,
}

/// Routing policy, which picks a worker for each request. One policy serves one router; calls are never concurrent.
pub trait Policy: Send {
    /// Name of the policy, as users give it.
    fn name(&self) -> &str;

    /// True if the policy uses the index of cached blocks. If false, callers need not look up the prompt.
    fn uses_index(&self) -> bool;

    /// True if the policy weighs loading and pulling blocks against computing them, in [`Policy::choose_way`].
    fn weighs_transfers(&self) -> bool {
        false
    }

    /// True if the policy reads the prompt's text, [`Request::text`], at least for prompts without content hashes. A
    /// router then keeps the text of every prompt.
    fn needs_text(&self) -> bool {
        false
    }

    /// Picks a row of the table `candidates`, which has at least one. `now`: time in seconds, never decreasing.
    ///
    /// The request may not be sent to this candidate in the end; [`Policy::sent`] reports if it is.
    fn choose(&mut self, request: &Request<'_>, candidates: &Candidates, now: f64) -> Choice;

    /// Picks a candidate like [`Policy::choose`], for a request that may not wait in the router. None if the policy has
    /// no preference; the least loaded worker then takes the request.
    fn choose_now(&mut self, request: &Request<'_>, candidates: &Candidates, now: f64) -> Option<usize> {
        let _ = (request, candidates, now);
        None
    }

    /// Picks a row like [`Policy::choose`], for a request whose blocks candidates may load or pull. Called instead of
    /// `choose` if the policy weighs transfers and any are possible.
    fn choose_way(&mut self, request: &Request<'_>, candidates: &Candidates, ways: &Ways<'_>, now: f64) -> Choice {
        let _ = ways;
        self.choose(request, candidates, now)
    }

    /// Picks a candidate like [`Policy::choose_way`], for a request that may not wait in the router.
    fn choose_way_now(
        &mut self,
        request: &Request<'_>,
        candidates: &Candidates,
        ways: &Ways<'_>,
        now: f64,
    ) -> Option<usize> {
        let _ = ways;
        self.choose_now(request, candidates, now)
    }

    /// True if the policy might place a waiting request now; if false, the router need not call it for each waiting
    /// request. Columns of `candidates` that depend on the prompt are 0.
    fn has_room(&self, candidates: &Candidates) -> bool {
        let _ = candidates;
        true
    }

    /// Share, from 0 to 1, of the computed blocks that had been computed before and were evicted since.
    fn undone(&self) -> f64 {
        0.0
    }

    /// Records that the request of the last call of [`Policy::choose`] is sent to the candidate `row`.
    fn sent(&mut self, request: &Request<'_>, candidates: &Candidates, row: usize, now: f64) {
        let _ = (request, candidates, row, now);
    }

    /// Records that another router has sent a request to the worker of `row`, the only row of the table `candidates`.
    /// Returns true if the policy remembers the request and must be informed of its first token and its end.
    fn heard(&mut self, request: &Request<'_>, candidates: &Candidates, row: usize, now: f64) -> bool {
        let _ = (request, candidates, row, now);
        false
    }

    /// Informs the policy of the first token of the request `placed`.
    fn first_token(&mut self, placed: &Placement, now: f64) {
        let _ = (placed, now);
    }

    /// Records that a request is about to end successfully, with `tokens` tokens in each of its answers. Not called if
    /// the number of tokens is unknown.
    fn answered(&mut self, placed: &Placement, tokens: f64, now: f64) {
        let _ = (placed, tokens, now);
    }

    /// Informs the policy of the end of a request, successful or not. Called once for each request that was sent.
    fn ended(&mut self, placed: &Placement, now: f64) {
        let _ = (placed, now);
    }

    /// Removes what the policy remembers about a worker that has left, as its number may be given to another worker.
    fn left(&mut self, worker: u32) {
        let _ = worker;
    }

    /// Explains the choice that the policy would make for a request, without side effects, by the values by which it
    /// compares the candidates. None if it computes no such values.
    fn explain(&self, request: &Request<'_>, candidates: &Candidates, now: f64) -> Option<Terms> {
        let _ = (request, candidates, now);
        None
    }

    /// Number of requests that the policy remembers, and number of other items that it remembers about workers. Both
    /// are 0 once all requests have ended and all workers have left.
    fn remembered(&self) -> (usize, usize) {
        (0, 0)
    }
}

/// Routing policy of any type, owned by its user, on the heap.
pub type BoxedPolicy = Box<dyn Policy>;

/// Entry of a policy in a table of policies: the policy's name, and a function that creates it.
#[derive(Debug, Clone, Copy)]
pub struct PolicyEntry {
    /// Name of the policy, as users give it.
    pub name: &'static str,
    /// Function that creates the policy from its options, which it removes, and a seed for its random choices.
    pub make: fn(&mut Options, u64) -> Result<BoxedPolicy, Error>,
}

/// Moves a created policy to the heap, for [`PolicyEntry::make`].
///
/// # Errors
///
/// The error with which the creation failed.
pub fn boxed<P: Policy + 'static>(made: Result<P, Error>) -> Result<BoxedPolicy, Error> {
    Ok(Box::new(made?))
}
