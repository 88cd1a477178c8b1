//! The interface of policies, and a policy that has a name.

use crate::candidates::Candidates;
use crate::options::{Error, Options};
use crate::request::Request;
use crate::transfers::Ways;

/// The decision of a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// The row of the candidate that takes the request.
    Row(usize),
    /// The policy's own code failed: the row of the candidate that takes the request instead.
    Failed(usize),
    /// Everybody has enough to do: ask again when something there has ended.
    Wait,
    /// The candidate of `row` should take the request, but would not begin with it soon: ask again when something has
    /// ended there, or after a while. `instead`: the row to take where others wait for it as well and no more may.
    WaitFor {
        /// The candidate that should take it.
        row: usize,
        /// The best of those that would begin soon, if there is one.
        instead: usize,
    },
}

/// A placed request, as policies are told of it.
#[derive(Debug, Clone, Copy)]
pub struct Placement {
    /// The request's number.
    pub number: u64,
    /// The worker's number: [`Candidates::worker`].
    pub worker: u32,
    /// Prompt tokens that are not expected in its cache.
    pub uncached: u32,
    /// Blocks that no other request at the worker uses any more once it has ended; 0 until then.
    pub freed: u32,
}

/// The reasons for a policy's decision: the same terms for each candidate, row by row.
#[derive(Debug, Clone, Default)]
pub struct Terms {
    /// Names of the columns, with their unit in the text: `ttft`, `delay to others`, ... The last one is what was
    /// compared.
    pub names: Vec<&'static str>,
    /// `rows x names`, row by row.
    pub values: Vec<f64>,
}

/// Picks a worker for each request. One policy serves one router; calls come one at a time.
pub trait Policy: Send {
    /// Returns the policy's name, as users give it.
    fn name(&self) -> &str;

    /// True if the policy weighs what the index says. If not, nobody needs to look up the prompt.
    fn uses_index(&self) -> bool;

    /// True if the policy weighs loads and pulls: [`Policy::choose_way`].
    fn weighs_transfers(&self) -> bool {
        false
    }

    /// True if the policy reads [`Request::text`], at least of prompts without content hashes. A router then keeps the text
    /// of every prompt.
    fn needs_text(&self) -> bool {
        false
    }

    /// Picks a row of `candidates`, of which there is at least one. `now`: seconds, never going back.
    ///
    /// Must not count on the request being sent: [`Policy::sent`] tells.
    fn choose(&mut self, request: &Request<'_>, candidates: &Candidates, now: f64) -> Choice;

    /// Picks a row as [`Policy::choose`] does, where no request may wait. `None`: it has no opinion, and the least
    /// loaded takes it.
    fn choose_now(&mut self, request: &Request<'_>, candidates: &Candidates, now: f64) -> Option<usize> {
        let _ = (request, candidates, now);
        None
    }

    /// Picks a row as [`Policy::choose`] does, where candidates may load or pull parts of the prompt. Called in place of
    /// it if the policy weighs transfers and there are any.
    fn choose_way(&mut self, request: &Request<'_>, candidates: &Candidates, ways: &Ways<'_>, now: f64) -> Choice {
        let _ = ways;
        self.choose(request, candidates, now)
    }

    /// Picks a row as [`Policy::choose_way`] does, where no request may wait.
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

    /// True if the policy might place a request that waits. `false` spares the router asking for each one; the columns
    /// that depend on the prompt are 0.
    fn has_room(&self, candidates: &Candidates) -> bool {
        let _ = candidates;
        true
    }

    /// Returns the share of what is computed that was computed before and pushed out meanwhile, from 0 to 1.
    fn undone(&self) -> f64 {
        0.0
    }

    /// The request that [`Policy::choose`] was just asked about is sent to the worker of `row`.
    fn sent(&mut self, request: &Request<'_>, candidates: &Candidates, row: usize, now: f64) {
        let _ = (request, candidates, row, now);
    }

    /// Another router has sent a request to the worker of `row`, the only one. True: the policy keeps it in mind, and is
    /// told of its first token and its end as of any other.
    fn heard(&mut self, request: &Request<'_>, candidates: &Candidates, row: usize, now: f64) -> bool {
        let _ = (request, candidates, row, now);
        false
    }

    /// A request has its first token.
    fn first_token(&mut self, placed: &Placement, now: f64) {
        let _ = (placed, now);
    }

    /// A request is about to end well: each of its answers has so many tokens. Not called where nobody told how many.
    fn answered(&mut self, placed: &Placement, tokens: f64, now: f64) {
        let _ = (placed, tokens, now);
    }

    /// A request has ended, however. Called once for each that was sent.
    fn ended(&mut self, placed: &Placement, now: f64) {
        let _ = (placed, now);
    }

    /// A worker is gone; its number may come again for another one.
    fn left(&mut self, worker: u32) {
        let _ = worker;
    }

    /// Explains why the policy would choose as it would, without any effect. `None`: it has no terms to show.
    fn explain(&self, request: &Request<'_>, candidates: &Candidates, now: f64) -> Option<Terms> {
        let _ = (request, candidates, now);
        None
    }

    /// Returns the number of requests that the policy remembers, and of things that it remembers of workers. Both are 0
    /// once all requests have ended and all workers have left.
    fn remembered(&self) -> (usize, usize) {
        (0, 0)
    }
}

/// Any policy.
pub type BoxedPolicy = Box<dyn Policy>;

/// A name, and how the policy of that name is made.
#[derive(Debug, Clone, Copy)]
pub struct PolicyEntry {
    /// The name, as users give it.
    pub name: &'static str,
    /// Makes the policy with the options that it takes, and the seed of what it leaves to chance.
    pub make: fn(&mut Options, u64) -> Result<BoxedPolicy, Error>,
}

/// A made policy, as [`PolicyEntry::make`] returns it.
///
/// # Errors
/// Those of making it.
pub fn boxed<P: Policy + 'static>(made: Result<P, Error>) -> Result<BoxedPolicy, Error> {
    Ok(Box::new(made?))
}
