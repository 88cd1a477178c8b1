//! Routing policy `kvatlas`: picks the candidate with the least cost, the harm expected from sending a request there,
//! in seconds.
//!
//! ```text
//! cost = wait               prompts before it there, and the delay of the first of them
//!      + wait for room      until enough of the running requests have ended
//!      + transfer           loads and pulls, as far as they take longer than the wait
//!      + prefill            the request's tokens that are not in the cache there
//!      + others delayed     running requests wait while it is computed, and so do prompts in the same step
//!      + later delayed      the engine computes nothing else meanwhile: worse the more requests wait in the fleet
//!      + pushed out         blocks that its new blocks evict have to be computed again some day
//!      + room taken         later requests wait longer for room because of this one
//!      + settling           a new session and the sessions at that engine will delay each other
//! ```
//!
//! A request without a cached block at any engine gets a small extra cost at the engine that received the last request
//! of this kind. While every candidate has more than `hold` seconds queued, requests wait in the router.
//!
//! | file | content |
//! |---|---|
//! | `answers.rs`, `demand.rs` | statistics: the lengths of answers; the rate of requests, the cache space that each occupies and for how long, and the price of that space |
//! | `sessions.rs` | the engine of each session, and the requests that a new session is expected to send |
//! | `again.rs` | the share of computed blocks that had been computed before |
//! | `slowness.rs` | the delay of an engine's steps by its running requests |
//! | `admission.rs` | the time at which an engine will begin with a prompt |
//! | `late.rs` | the conclusions about an engine from a late prompt |
//! | `idle.rs` | prompts whose requests have just ended, and the chance of a next turn |
//! | `limit.rs` | the number of requests that an engine runs at once |
//! | `harm.rs` | the terms of a candidate's cost |
//! | `books.rs` | all data about the workers |

mod admission;
mod again;
mod answers;
mod books;
mod demand;
mod harm;
mod idle;
mod late;
mod limit;
mod sessions;
mod slowness;
#[cfg(test)]
mod tests;

use crate::candidates::Candidates;
use crate::options::{Error, Options};
use crate::parts::draw::Draw;
use crate::policy::{Choice, Placement, Policy, Terms};
use crate::request::Request;
use crate::transfers::Ways;
use books::Books;
use harm::{Harm, NAMES, PromptParts, Scene, queue};
use late::held;

/// Difference of costs, in seconds, below which two candidates count as equal, so that one of them is chosen at random.
const EQUAL: f64 = 1e-9;
/// Seconds that a request waits before another engine computes a prompt that is already on its way to one engine: more
/// requests of its burst, or unrelated ones, may be about to come.
const MOMENT: f64 = 0.02;
/// Upper limit of the rounding error of a sum of seconds.
const ROUNDING: f64 = 1e-6;

/// Routing policy `kvatlas`: picks the candidate with the least expected harm in seconds.
pub(crate) struct Kvatlas {
    weights: Weights,
    draw: Draw,
    books: Books,
    costs: Vec<f64>,
    /// Least cost in seconds and the row of the candidate that has it, as set by [`Kvatlas::assess_cheapest`].
    least: (f64, usize),
    /// Seconds until each candidate's engine would start the request.
    starts: Vec<f64>,
    /// Seconds to recompute those blocks that the request would evict at each candidate and that are likely to be
    /// needed soon.
    losses: Vec<f64>,
    /// Part of each candidate's cost, in seconds, that later requests of a new session will cause.
    settled: Vec<f64>,
}

impl Kvatlas {
    pub(crate) fn new(options: &mut Options, seed: u64) -> Result<Self, Error> {
        let weights = Weights::take(options)?;
        Ok(Self {
            weights,
            draw: Draw::new(seed),
            books: Books::default(),
            costs: Vec::new(),
            least: (f64::INFINITY, 0),
            starts: Vec::new(),
            losses: Vec::new(),
            settled: Vec::new(),
        })
    }

    /// Finds the candidate for a request, as its row: the cheapest one, or with a temperature a random one that favours
    /// low costs.
    fn cheapest(&mut self, request: &Request<'_>, candidates: &Candidates, ways: Option<&Ways<'_>>, now: f64) -> usize {
        self.books.look(request, candidates, now);
        if self.weights.temperature > 0.0 {
            self.assess_all(request, candidates, ways, now);
            self.drawn()
        } else {
            if ways.is_none() {
                self.assess_cheapest::<false>(request, candidates, ways, now);
            } else {
                self.assess_cheapest::<true>(request, candidates, ways, now);
            }
            self.least()
        }
    }

    /// Computes the costs of sending a request to each of the candidates, in seconds.
    fn assess_all(&mut self, request: &Request<'_>, candidates: &Candidates, ways: Option<&Ways<'_>>, now: f64) {
        let mut costs = std::mem::take(&mut self.costs);
        let (mut starts, mut losses) = (std::mem::take(&mut self.starts), std::mem::take(&mut self.losses));
        let mut settled = std::mem::take(&mut self.settled);
        for column in [&mut costs, &mut starts, &mut losses, &mut settled] {
            column.clear();
        }
        self.assess(request, candidates, ways, now, |harm| {
            costs.push(harm.sum());
            starts.push(harm.starts);
            losses.push(harm.lost);
            settled.push(harm.settles);
        });
        (self.costs, self.starts, self.losses, self.settled) = (costs, starts, losses, settled);
    }

    /// Computes the exact costs of those candidates that may be the cheapest. For each of the others, only a lower
    /// bound of the cost is computed, which already exceeds the least cost. The forecast for an engine and the choice
    /// of sources to pull from take most of the time, and matter only for few candidates.
    fn assess_cheapest<const MOVES: bool>(
        &mut self,
        request: &Request<'_>,
        candidates: &Candidates,
        ways: Option<&Ways<'_>>,
        now: f64,
    ) {
        let Self { weights, books, costs, least, starts, losses, .. } = self;
        let scene = Scene::new(request, candidates, books.undone_by_copy(), now);
        let common = books.common(weights, request, candidates, now);
        costs.clear();
        let mut lowest = (f64::INFINITY, 0);
        costs.extend((0..candidates.len()).map(|row| {
            let best = books.best(&common, candidates, row);
            let parts = match ways {
                Some(ways) if MOVES => {
                    PromptParts::at_least(&ways.least(candidates, row), weights, &scene, request, candidates, row)
                }
                _ => PromptParts::computed(request, candidates, row),
            };
            let cost = Harm::of::<MOVES>(weights, &scene, candidates, row, &parts, &best).at_least();
            if cost < lowest.0 {
                lowest = (cost, row);
            }
            cost
        }));
        starts.clear();
        starts.resize(candidates.len(), f64::NAN);
        losses.clear();
        losses.resize(candidates.len(), 0.0);
        *least = (f64::INFINITY, 0);
        let mut find = |row: usize, costs: &mut [f64]| {
            if costs[row] <= least.0 + ROUNDING && starts[row].is_nan() {
                let parts = parts_of(request, candidates, ways, row);
                let outlook = books.outlook(&common, request, candidates, row, &parts, now);
                let harm = Harm::of::<MOVES>(weights, &scene, candidates, row, &parts, &outlook);
                (costs[row], starts[row], losses[row]) = (harm.sum(), harm.starts, harm.lost);
                if costs[row] < least.0 {
                    *least = (costs[row], row);
                }
            }
        };
        // The row that is likely to be the cheapest comes first: it rules out most of the others.
        find(lowest.1, costs);
        for row in 0..costs.len() {
            find(row, costs);
        }
    }

    /// Calls `each` with the cost terms of every candidate, in the order of the rows of the table `candidates`.
    fn assess(
        &self,
        request: &Request<'_>,
        candidates: &Candidates,
        ways: Option<&Ways<'_>>,
        now: f64,
        mut each: impl FnMut(&Harm),
    ) {
        let (weights, books) = (&self.weights, &self.books);
        let scene = Scene::new(request, candidates, books.undone_by_copy(), now);
        let common = books.common(weights, request, candidates, now);
        for row in 0..candidates.len() {
            let parts = parts_of(request, candidates, ways, row);
            let outlook = books.outlook(&common, request, candidates, row, &parts, now);
            each(&if ways.is_none() && candidates.ways.is_empty() {
                Harm::of::<false>(weights, &scene, candidates, row, &parts, &outlook)
            } else {
                Harm::of::<true>(weights, &scene, candidates, row, &parts, &outlook)
            });
        }
    }

    fn decide(&mut self, request: &Request<'_>, candidates: &Candidates, ways: Option<&Ways<'_>>, now: f64) -> Choice {
        if self.weights.hold > 0.0 && !follows(request, candidates) && !self.has_room(candidates) {
            return Choice::Wait;
        }
        let row = self.cheapest(request, candidates, ways, now);
        self.goes_or_waits(row, request, candidates, ways, now)
    }

    /// Decides if a request goes to the chosen candidate now, or waits in the router.
    fn goes_or_waits(
        &mut self,
        row: usize,
        request: &Request<'_>,
        candidates: &Candidates,
        ways: Option<&Ways<'_>>,
        now: f64,
    ) -> Choice {
        let Weights { hold, patience, .. } = self.weights;
        // A request that continues a prompt on its way is computed together with it: waiting here would gain nothing.
        let follows = candidates.predicted_blocks[row] > candidates.device_blocks[row];
        if patience <= 0.0 || hold <= 0.0 || follows {
            return Choice::Row(row);
        }
        if request.waited < MOMENT && self::follows(request, candidates) {
            return Choice::Wait;
        }
        // The blocks that the request would evict are likely to be used by a next turn in a moment.
        if request.waited < patience * self.losses[row] {
            return Choice::WaitFor { row, instead: row };
        }
        if self.starts[row] <= hold {
            return Choice::Row(row);
        }
        self.assess_all(request, candidates, ways, now);
        // What a session will bring some day is no reason to keep its first request waiting now.
        let now_only = |row: usize| self.costs[row] - self.settled[row];
        let started = now_only(row) - self.starts[row] / candidates.weight[row];
        let mut best = (f64::INFINITY, row);
        for (other, starts) in self.starts.iter().enumerate() {
            let cost = now_only(other);
            if *starts <= hold && cost < best.0 {
                best = (cost, other);
            }
        }
        let (cost, instead) = best;
        if request.waited < patience * (cost - started) { Choice::WaitFor { row, instead } } else { Choice::Row(row) }
    }

    /// Row of the candidate with the least cost; a random one of them if several are equal.
    fn least(&mut self) -> usize {
        let (least, row) = self.least;
        let equal = |cost: &f64| *cost <= least + EQUAL;
        let among = self.costs.iter().filter(|cost| equal(cost)).count();
        if among <= 1 {
            return row;
        }
        let nth = (self.draw.unit() * among as f64) as usize;
        self.costs.iter().enumerate().filter(|(_, cost)| equal(cost)).nth(nth).map_or(0, |(row, _)| row)
    }

    /// Draws a random candidate, with a probability that falls exponentially with its cost; returns its row.
    fn drawn(&mut self) -> usize {
        let least = self.costs.iter().copied().fold(f64::INFINITY, f64::min);
        let temperature = self.weights.temperature;
        let mut sum = 0.0;
        for cost in &mut self.costs {
            sum += (-(*cost - least) / temperature).exp();
            *cost = sum;
        }
        let at = self.draw.unit() * sum;
        self.costs.iter().position(|upto| at < *upto).unwrap_or(0)
    }
}

impl Policy for Kvatlas {
    fn name(&self) -> &'static str {
        "kvatlas"
    }

    fn uses_index(&self) -> bool {
        true
    }

    fn weighs_transfers(&self) -> bool {
        true
    }

    fn choose(&mut self, request: &Request<'_>, candidates: &Candidates, now: f64) -> Choice {
        self.decide(request, candidates, None, now)
    }

    fn choose_now(&mut self, request: &Request<'_>, candidates: &Candidates, now: f64) -> Option<usize> {
        Some(self.cheapest(request, candidates, None, now))
    }

    fn choose_way(&mut self, request: &Request<'_>, candidates: &Candidates, ways: &Ways<'_>, now: f64) -> Choice {
        self.decide(request, candidates, Some(ways), now)
    }

    fn choose_way_now(
        &mut self,
        request: &Request<'_>,
        candidates: &Candidates,
        ways: &Ways<'_>,
        now: f64,
    ) -> Option<usize> {
        Some(self.cheapest(request, candidates, Some(ways), now))
    }

    fn has_room(&self, candidates: &Candidates) -> bool {
        let Self { weights, books, .. } = self;
        weights.hold <= 0.0
            || (0..candidates.len()).any(|row| {
                let elapsed = candidates.head_elapsed[row];
                let late = books.late(candidates, row, elapsed);
                held(candidates, row, queue(candidates, row, elapsed), elapsed) + late.held <= weights.hold
            })
    }

    fn undone(&self) -> f64 {
        self.books.undone()
    }

    fn sent(&mut self, request: &Request<'_>, candidates: &Candidates, row: usize, now: f64) {
        self.books.sent(request, candidates, row, now);
    }

    fn heard(&mut self, request: &Request<'_>, candidates: &Candidates, row: usize, now: f64) -> bool {
        self.books.sent(request, candidates, row, now);
        true
    }

    fn first_token(&mut self, placed: &Placement, now: f64) {
        self.books.first_token(placed, now);
    }

    fn answered(&mut self, placed: &Placement, tokens: f64, now: f64) {
        self.books.answered(placed, tokens, now);
    }

    fn ended(&mut self, placed: &Placement, now: f64) {
        self.books.ended(placed, now);
    }

    fn left(&mut self, worker: u32) {
        self.books.left(worker);
    }

    fn explain(&self, request: &Request<'_>, candidates: &Candidates, now: f64) -> Option<Terms> {
        let mut values = Vec::with_capacity(candidates.len() * NAMES.len());
        self.assess(request, candidates, None, now, |harm| values.extend(harm.row()));
        Some(Terms { names: NAMES.to_vec(), values })
    }
}

/// Split of a prompt for the best way in which a candidate's engine can get its blocks: tokens to compute, load and
/// pull.
#[inline]
fn parts_of(request: &Request<'_>, candidates: &Candidates, ways: Option<&Ways<'_>>, row: usize) -> PromptParts {
    match (ways, candidates.way(row)) {
        (Some(ways), _) => PromptParts::of(&ways.of(candidates, row), request),
        (None, Some(way)) => PromptParts::of(way, request),
        (None, None) => PromptParts::computed(request, candidates, row),
    }
}

/// True if a request continues a prompt that is on its way to an engine, and adds at most an eighth to it, so that the
/// two can be computed together.
fn follows(request: &Request<'_>, candidates: &Candidates) -> bool {
    let depths = candidates.predicted_blocks.iter().zip(&candidates.device_blocks);
    depths.filter(|(predicted, held)| predicted > held).any(|(predicted, _)| *predicted * 8 >= request.blocks() * 7)
}

/// Weights of the terms of the policy's cost, which is in seconds. Each weight can be set by the option of the same
/// name.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Weights {
    /// Weight of a second of computing evicted blocks again: the blocks that a request's new blocks evict.
    pub evict: f64,
    /// Weight of a second by which future requests will wait longer for space in the cache.
    pub price: f64,
    /// Weight of a second by which a new session, with all requests that it is expected to send, and the sessions at an
    /// engine will delay each other. 0: only the session's first request counts.
    pub settle: f64,
    /// Seconds within which an engine must be able to start a request; if no engine can, the request waits in the
    /// router. 0: requests never wait in the router.
    pub hold: f64,
    /// Longest wait in the router for the best engine, as a multiple of the cost that the best engine available soon
    /// would add. 0: requests never wait for a particular engine.
    pub patience: f64,
    /// Difference between two costs, in seconds, that makes the more expensive engine e times (2.7 times) less likely.
    /// 0: the cheapest engine is always chosen.
    pub temperature: f64,
}

/// Names of weights that no longer exist, each with a text that says what replaced it.
const LEARNT: [(&str, &str); 2] = [
    ("host", "what loads from host memory cost is learnt, and begins with the settings host_floor and host_token"),
    ("far", "what loads from disks and pools cost is learnt, and begins with the settings far_floor and far_token"),
];

impl Default for Weights {
    fn default() -> Self {
        Self { evict: 0.3, price: 2.0, settle: 0.5, hold: 0.5, patience: 4.0, temperature: 0.0 }
    }
}

impl Weights {
    /// Removes the weights from the given options and returns them.
    ///
    /// # Errors
    ///
    /// Code `bad_option` for a weight that is not a number or is out of range.
    pub(crate) fn take(options: &mut Options) -> Result<Self, Error> {
        for (name, settings) in LEARNT {
            options.refuse(name, settings)?;
        }
        let its = Self::default();
        let mut weight = |name, default| options.number(name, default, 0.0, 1e6);
        Ok(Self {
            evict: weight("evict", its.evict)?,
            price: weight("price", its.price)?,
            settle: weight("settle", its.settle)?,
            hold: weight("hold", its.hold)?,
            patience: weight("patience", its.patience)?,
            temperature: weight("temperature", its.temperature)?,
        })
    }
}
