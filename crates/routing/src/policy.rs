//! Interface of policies, and the entries by which they are found by name.

use crate::candidates::Candidates;
use crate::options::{Error, Options};
use crate::request::Request;
use crate::transfers::Ways;

/// Decision of a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// Index of the candidate that takes the request.
    Row(usize),
    /// Index of the candidate that takes the request because the policy's own code failed.
    Failed(usize),
    /// All workers are busy: ask again when a request at one of them has ended.
    Wait,
    /// The candidate `row` should take the request, but would not start it soon: ask again when a request there has
    /// ended, or after a while.
    WaitFor {
        /// Index of the candidate that should take the request.
        row: usize,
        /// Index of the best candidate that would start soon, for the case that the request cannot wait in the router;
        /// `row` if there is none.
        instead: usize,
    },
}

/// Placed request, as reported to policies.
#[derive(Debug, Clone, Copy)]
pub struct Placement {
    /// Number of the request.
    pub number: u64,
    /// Number of the worker: [`Candidates::worker`].
    pub worker: u32,
    /// Prompt tokens that are not expected in the worker's cache.
    pub uncached: u32,
    /// Blocks that no other request at the worker uses any more when this one has ended; 0 until then.
    pub freed: u32,
}

/// Explanation of a policy's decision: the values of its terms for each candidate.
#[derive(Debug, Clone, Default)]
pub struct Terms {
    /// Names of the terms, with their units: `ttft`, `delay to others`, ... The last one is the value that was
    /// compared.
    pub names: Vec<&'static str>,
    /// Values, `rows x names`, row by row.
    pub values: Vec<f64>,
}

/// Policy: picks a worker for each request. One policy serves one router; calls come one at a time.
pub trait Policy: Send {
    /// Name of the policy, as users give it.
    fn name(&self) -> &str;

    /// True if the policy uses the index. If not, callers need not look up the prompt.
    fn uses_index(&self) -> bool;

    /// True if the policy considers loads and pulls: [`Policy::choose_way`].
    fn weighs_transfers(&self) -> bool {
        false
    }

    /// True if the policy reads [`Request::text`], at least for prompts without content hashes. A router then keeps the
    /// text of every prompt.
    fn needs_text(&self) -> bool {
        false
    }

    /// Picks a row of `candidates`, which has at least one. `now`: time in seconds, never going back.
    ///
    /// The request may not be sent there after all: [`Policy::sent`] reports it if it is.
    fn choose(&mut self, request: &Request<'_>, candidates: &Candidates, now: f64) -> Choice;

    /// Picks a row like [`Policy::choose`], if no request may wait. `None`: the policy has no preference, and the least
    /// loaded worker takes the request.
    fn choose_now(&mut self, request: &Request<'_>, candidates: &Candidates, now: f64) -> Option<usize> {
        let _ = (request, candidates, now);
        None
    }

    /// Picks a row like [`Policy::choose`], if candidates may load or pull parts of the prompt. Called instead of it if
    /// the policy considers transfers and there are any.
    fn choose_way(&mut self, request: &Request<'_>, candidates: &Candidates, ways: &Ways<'_>, now: f64) -> Choice {
        let _ = ways;
        self.choose(request, candidates, now)
    }

    /// Picks a row like [`Policy::choose_way`], if no request may wait.
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

    /// True if the policy might place a waiting request now; false spares the router a call for each one. Columns that
    /// depend on the prompt are 0.
    fn has_room(&self, candidates: &Candidates) -> bool {
        let _ = candidates;
        true
    }

    /// Share, from 0 to 1, of the computed blocks that were computed before and evicted since.
    fn undone(&self) -> f64 {
        0.0
    }

    /// Records that the request of the last call of [`Policy::choose`] is sent to the worker of `row`.
    fn sent(&mut self, request: &Request<'_>, candidates: &Candidates, row: usize, now: f64) {
        let _ = (request, candidates, row, now);
    }

    /// Records that another router has sent a request to the worker of `row`, which is the only one. True if the policy
    /// keeps it, and wants to be informed about its first token and its end.
    fn heard(&mut self, request: &Request<'_>, candidates: &Candidates, row: usize, now: f64) -> bool {
        let _ = (request, candidates, row, now);
        false
    }

    /// Records the first token of a request.
    fn first_token(&mut self, placed: &Placement, now: f64) {
        let _ = (placed, now);
    }

    /// Records that a request is about to end successfully, with `tokens` tokens in each of its answers. Not called if
    /// their number is unknown.
    fn answered(&mut self, placed: &Placement, tokens: f64, now: f64) {
        let _ = (placed, tokens, now);
    }

    /// Records the end of a request, successful or not. Called once for each request that was sent.
    fn ended(&mut self, placed: &Placement, now: f64) {
        let _ = (placed, now);
    }

    /// Removes a worker, whose number may be given to another one.
    fn left(&mut self, worker: u32) {
        let _ = worker;
    }

    /// Explains the choice that the policy would make, without side effects. `None`: it has no terms to show.
    fn explain(&self, request: &Request<'_>, candidates: &Candidates, now: f64) -> Option<Terms> {
        let _ = (request, candidates, now);
        None
    }

    /// Number of requests that the policy remembers, and number of other items that it remembers of workers. Both are 0
    /// once all requests have ended and all workers have left.
    fn remembered(&self) -> (usize, usize) {
        (0, 0)
    }
}

/// Boxed policy of any type.
pub type BoxedPolicy = Box<dyn Policy>;

/// Entry of a policy in a table: its name, and a function that creates it.
#[derive(Debug, Clone, Copy)]
pub struct PolicyEntry {
    /// Name of the policy, as users give it.
    pub name: &'static str,
    /// Creates the policy from the options that it takes, and a seed for its random choices.
    pub make: fn(&mut Options, u64) -> Result<BoxedPolicy, Error>,
}

/// Boxes a policy that was created, for [`PolicyEntry::make`].
///
/// # Errors
/// The error of its creation.
pub fn boxed<P: Policy + 'static>(made: Result<P, Error>) -> Result<BoxedPolicy, Error> {
    Ok(Box::new(made?))
}
