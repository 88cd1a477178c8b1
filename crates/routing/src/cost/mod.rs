//! Our own policy, `kvatlas`: the candidate of least expected harm, in seconds.
//!
//! ```text
//! cost = wait               prompts before it there, and how late the first of them is
//!      + wait for room      until enough of the running requests have ended
//!      + prefill            its own tokens that are not in that cache
//!      + others delayed     requests that generate there wait while it is computed, and prompts in the same step
//!      + later delayed      what it computes, nobody else computes: the more wait in the fleet, the worse
//!      + pushed out         what its new blocks push out has to be computed again some day
//!      + room taken         requests to come wait longer for room, because this one is there
//!      + settling           a new session and those that live there will delay each other
//! ```
//!
//! A request of which nobody holds anything goes by the same sum, and a little away from where such a one went last.
//! While every candidate has more than `hold` seconds queued, it waits in the router.
//!
//! | file | what |
//! |---|---|
//! | `weights.rs` | all weights |
//! | `answers.rs`, `demand.rs` | what is learnt: how long answers are; what comes, how much room it takes, and for how long |
//! | `sessions.rs` | where sessions live, and how much a new one is expected to bring |
//! | `again.rs` | how much of what is computed was computed before |
//! | `slowness.rs` | how much longer an engine takes the more requests run there |
//! | `admission.rs` | when an engine will begin with a prompt |
//! | `late.rs` | what a prompt that is late says of its engine |
//! | `price.rs` | what room costs those that come |
//! | `idle.rs` | what ended a moment ago, and may be gone on from in another |
//! | `limit.rs` | how many requests an engine runs at once |
//! | `harm.rs` | the terms of a candidate |
//! | `books.rs` | all that is kept of the workers |

mod admission;
mod again;
mod answers;
mod books;
mod demand;
mod harm;
mod idle;
mod late;
mod limit;
mod price;
mod sessions;
mod slowness;
#[cfg(test)]
mod tests;
mod weights;

pub use weights::Weights;

use crate::candidates::Candidates;
use crate::error::Error;
use crate::options::Options;
use crate::policy::{Choice, Placement, Policy, Terms};
use crate::request::Request;
use crate::rng::Rng;
use books::Books;
use harm::{Harm, NAMES, Scene, queue};
use late::held;

/// Costs that differ by less, in seconds, are equal: chance decides.
const EQUAL: f64 = 1e-9;
/// A sum of seconds is that exact, and more so.
const ROUNDING: f64 = 1e-6;

/// The policy `kvatlas`.
pub(crate) struct Kvatlas {
    weights: Weights,
    rng: Rng,
    books: Books,
    costs: Vec<f64>,
    /// The least of the costs and its row, after [`Kvatlas::assess_cheapest`].
    least: (f64, usize),
    /// Seconds until each row would begin with the request.
    starts: Vec<f64>,
    /// Seconds of computing again that are likely if each row takes the request.
    losses: Vec<f64>,
}

impl Kvatlas {
    pub(crate) fn new(options: &mut Options, seed: u64) -> Result<Self, Error> {
        let weights = Weights::take(options)?;
        Ok(Self {
            weights,
            rng: Rng::new(seed),
            books: Books::default(),
            costs: Vec::new(),
            least: (f64::INFINITY, 0),
            starts: Vec::new(),
            losses: Vec::new(),
        })
    }

    /// The row that takes a request.
    fn cheapest(&mut self, request: &Request<'_>, candidates: &Candidates, now: f64) -> usize {
        self.books.look(request, candidates, now);
        if self.weights.temperature > 0.0 {
            self.assess_all(request, candidates, now);
            self.drawn()
        } else {
            self.assess_cheapest(request, candidates, now);
            self.least()
        }
    }

    /// Finds the costs of all rows.
    fn assess_all(&mut self, request: &Request<'_>, candidates: &Candidates, now: f64) {
        let mut costs = std::mem::take(&mut self.costs);
        let (mut starts, mut losses) = (std::mem::take(&mut self.starts), std::mem::take(&mut self.losses));
        costs.clear();
        starts.clear();
        losses.clear();
        self.assess(request, candidates, now, |harm| {
            costs.push(harm.sum());
            starts.push(harm.starts);
            losses.push(harm.lost);
        });
        (self.costs, self.starts, self.losses) = (costs, starts, losses);
    }

    /// Finds the costs of all rows that may be the cheapest. The others have a cost that is too small, and still more
    /// than the least: what is foreseen at an engine takes longest to find, and changes little for most.
    fn assess_cheapest(&mut self, request: &Request<'_>, candidates: &Candidates, now: f64) {
        let Self { weights, books, costs, least, starts, losses, .. } = self;
        let scene = Scene::new(weights, request, candidates, now);
        let common = books.common(weights, request, candidates, now);
        costs.clear();
        let mut lowest = (f64::INFINITY, 0);
        costs.extend((0..candidates.len()).map(|row| {
            let best = books.best(&common, candidates, row);
            let cost = Harm::of(weights, &scene, request, candidates, row, &best).at_least();
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
                let outlook = books.outlook(weights, &common, request, candidates, row, now);
                let harm = Harm::of(weights, &scene, request, candidates, row, &outlook);
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

    /// Calls `each` with the terms of every row, in order.
    fn assess(&self, request: &Request<'_>, candidates: &Candidates, now: f64, mut each: impl FnMut(&Harm)) {
        let (weights, books) = (&self.weights, &self.books);
        let scene = Scene::new(weights, request, candidates, now);
        let common = books.common(weights, request, candidates, now);
        for row in 0..candidates.len() {
            let outlook = books.outlook(weights, &common, request, candidates, row, now);
            each(&Harm::of(weights, &scene, request, candidates, row, &outlook));
        }
    }

    /// Decides if a request goes to the row that was chosen, or waits in the router for its worker.
    fn goes_or_waits(&mut self, row: usize, request: &Request<'_>, candidates: &Candidates, now: f64) -> Choice {
        let Weights { hold, patience, .. } = self.weights;
        // What goes on from a prompt on its way there is computed with it: one of a burst gains nothing by waiting here.
        let follows = candidates.predicted_blocks[row] > candidates.device_blocks[row];
        if patience <= 0.0 || hold <= 0.0 || follows {
            return Choice::Row(row);
        }
        // What it would push out is likely to be gone on from in a moment.
        if request.waited < patience * self.losses[row] {
            return Choice::WaitFor { row, instead: row };
        }
        if self.starts[row] <= hold {
            return Choice::Row(row);
        }
        self.assess_all(request, candidates, now);
        let started = self.costs[row] - self.starts[row] / candidates.weight[row];
        let mut best = (f64::INFINITY, row);
        for (other, (cost, starts)) in self.costs.iter().zip(&self.starts).enumerate() {
            if *starts <= hold && *cost < best.0 {
                best = (*cost, other);
            }
        }
        let (cost, instead) = best;
        if request.waited < patience * (cost - started) { Choice::WaitFor { row, instead } } else { Choice::Row(row) }
    }

    /// The row of the least cost, by chance among equals.
    fn least(&mut self) -> usize {
        let (least, row) = self.least;
        let equal = |cost: &f64| *cost <= least + EQUAL;
        let among = self.costs.iter().filter(|cost| equal(cost)).count();
        if among <= 1 {
            return row;
        }
        let nth = (self.rng.unit() * among as f64) as usize;
        self.costs.iter().enumerate().filter(|(_, cost)| equal(cost)).nth(nth).map_or(0, |(row, _)| row)
    }

    /// A row, the less often the more it costs.
    fn drawn(&mut self) -> usize {
        let least = self.costs.iter().copied().fold(f64::INFINITY, f64::min);
        let temperature = self.weights.temperature;
        let mut sum = 0.0;
        for cost in &mut self.costs {
            sum += (-(*cost - least) / temperature).exp();
            *cost = sum;
        }
        let at = self.rng.unit() * sum;
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

    fn choose(&mut self, request: &Request<'_>, candidates: &Candidates, now: f64) -> Choice {
        if self.weights.hold > 0.0 && !follows(request, candidates) && !self.has_room(candidates) {
            return Choice::Wait;
        }
        let row = self.cheapest(request, candidates, now);
        self.goes_or_waits(row, request, candidates, now)
    }

    fn choose_now(&mut self, request: &Request<'_>, candidates: &Candidates, now: f64) -> Option<usize> {
        Some(self.cheapest(request, candidates, now))
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
        self.assess(request, candidates, now, |harm| values.extend(harm.row()));
        Some(Terms { names: NAMES.to_vec(), values })
    }
}

/// True if a request goes on from a prompt on its way, and has little more to compute: that one has had its turn.
fn follows(request: &Request<'_>, candidates: &Candidates) -> bool {
    let depths = candidates.predicted_blocks.iter().zip(&candidates.device_blocks);
    depths.filter(|(predicted, held)| predicted > held).any(|(predicted, _)| *predicted * 8 >= request.blocks() * 7)
}
