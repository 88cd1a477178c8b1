//! Prefill and decode on different workers: which of each takes a prompt, or a decode worker alone.

#[cfg(test)]
mod tests;

use crate::candidates::Candidates;
use crate::cost::Kvatlas;
use crate::depths::{Depth, Depths};
use crate::error::Error;
use crate::options::Options;
use crate::policy::{Policy, Terms};
use crate::request::Request;
use crate::router::{Decision, Refusal, Router, WorkerId};

/// Names of the terms of a decode worker, the sum last.
const NAMES: [&str; 6] =
    ["fetch (s)", "room (s)", "generate (s)", "others delayed (s)", "uncached tokens", "decode cost (s)"];

/// Chooses the workers of a prompt where some workers compute prompts and others generate.
///
/// ```text
/// prefill worker   the cost of the policy `kvatlas` for a request that generates one token: what is cached and what waits
/// decode worker    fetch          tokens that it does not hold / transfer_rate
///                + room           until running requests have left room for it
///                + generate       tokens * step time * (1 + request_share * running + context_share * context tokens)
///                + others delayed others * tokens * step time * running * (request_share + context_share * prompt tokens)
/// both             least prefill cost + handover + least decode cost
/// alone            the least, over decode workers with at most `alone_most` tokens to compute, of the cost of `kvatlas` there
///                  + generate + others delayed
/// ```
/// The cheaper of both and alone is taken, alone if no prefill worker is up. A session that sticks binds the decode worker. Costs are in seconds; equal ones go to the
/// worker with fewer requests, then to the one that had fewer so far. A short rest is computed where it will be decoded,
/// because handing it over costs more.
///
/// The defaults: `transfer_rate` 100,000 tokens a second is a cache of 128 to 320 KB a token (8 to 70 billion parameters, 16
/// bits) over 100 to 200 Gbit/s; `handover` 0.02 s is one more request; `alone_most` 2,048 tokens is Dynamo's limit for
/// its conditional disaggregation; the shares lengthen a step by 1 % a running request and by 20 % at 100,000 tokens.
pub struct PrefillDecode {
    costs: Kvatlas,
    transfer_rate: f64,
    handover: f64,
    alone_most: f64,
    request_share: f64,
    context_share: f64,
    others: f64,
}

/// The workers that a prompt goes to.
#[derive(Debug, Clone, PartialEq)]
pub enum Legs {
    /// `prefill` computes the prompt, `decode` fetches it and generates. Both are reserved: when the first has answered call
    /// [`Router::end_prefill`], at the first token of the second [`Router::hand_over`], then as for any request. If one
    /// fails, [`Router::fail`] both.
    Both {
        /// The worker that computes the prompt.
        prefill: Decision,
        /// The worker that generates.
        decode: Decision,
    },
    /// One decode worker does all: a request like any other.
    Alone(Decision),
    /// There is no decode worker that is up.
    Refused(Refusal),
}

/// The costs that were compared, in seconds.
#[derive(Debug, Clone)]
pub struct SplitCosts {
    /// The prefill workers' terms, those of the policy `kvatlas`; without rows if none is up.
    pub prefill: Terms,
    /// The decode workers' terms, if the prompt is computed elsewhere.
    pub decode: Terms,
    /// For each decode worker the cost of the prompt on it alone; infinite if it has too much to compute.
    pub alone: Vec<f64>,
    /// Rows of the least costs: prefill and decode.
    pub both: Option<(usize, usize)>,
    /// The cost of both, the handover included; infinite if no prefill worker is up.
    pub both_cost: f64,
    /// The row that is best alone.
    pub best_alone: usize,
    /// True if the prompt goes to a decode worker alone.
    pub goes_alone: bool,
}

struct SplitView<'a> {
    request: Request<'a>,
    prefill: Candidates,
    decode: Candidates,
    compared: SplitCosts,
}

impl PrefillDecode {
    /// Builds the policy from its own options and those of the policy `kvatlas`.
    ///
    /// # Errors
    /// Code `bad_option` for one that it does not have or cannot use.
    pub fn new(mut options: Options, seed: u64) -> Result<Self, Error> {
        let given = &mut options;
        let chooser = Self {
            transfer_rate: given.number("transfer_rate", 100_000.0, 1.0, 1e12)?,
            handover: given.number("handover", 0.02, 0.0, 1e6)?,
            alone_most: given.number("alone_most", 2048.0, 0.0, 1e9)?,
            request_share: given.number("request_share", 0.01, 0.0, 1e3)?,
            context_share: given.number("context_share", 2e-6, 0.0, 1.0)?,
            others: given.number("others", 1.0, 0.0, 1e6)?,
            costs: Kvatlas::new(given, seed)?,
        };
        options.finish("prefill-decode")?;
        Ok(chooser)
    }

    /// Chooses among `prefill` and `decode`, workers of `router`, and reserves in the same step. `now`: seconds.
    pub fn choose(
        &self,
        router: &mut Router,
        request: &Request<'_>,
        depths: &Depths,
        prefill: &[WorkerId],
        decode: &[WorkerId],
        now: f64,
    ) -> Legs {
        let guessed = router.guessed(request, now);
        let depths = guessed.as_ref().unwrap_or(depths);
        let Some(seen) = self.look(router, request, depths, prefill, decode, now) else {
            return Legs::Refused(Refusal::NoWorker);
        };
        let SplitView { request, prefill: prefillers, decode: decoders, compared } = seen;
        if let (Some((first, second)), false) = (compared.both, compared.goes_alone) {
            let (first, second) = (WorkerId(prefillers.worker[first]), WorkerId(decoders.worker[second]));
            let one_token = Request { max_tokens: Some(1), session: None, ..request };
            if let Some(prefill) = router.place_at(&one_token, depths, first, now) {
                // It gets the blocks from the other worker: nothing is left to compute but the last token.
                let blocks = request.usable_blocks();
                let fetched = Request { tokens: (blocks * request.block_size + 1).min(request.tokens), ..request };
                let mut there = Depths::default();
                there.set(second.0, Depth { device: blocks, host: blocks, any: blocks });
                if let Some(decode) = router.place_at(&fetched, &there, second, now) {
                    // It has no prompt to compute, so nobody waits for it there.
                    router.fetches(decode.id, now);
                    return Legs::Both { prefill, decode };
                }
                router.fail(prefill.id, now);
            }
        }
        let alone = WorkerId(decoders.worker[compared.best_alone]);
        match router.place_at(&request, depths, alone, now) {
            Some(decision) => Legs::Alone(decision),
            None => Legs::Refused(Refusal::NoWorker),
        }
    }

    /// Explains a choice without making it: returns the prefill and the decode workers in order of the rows, and what
    /// is compared. `None`: no decode worker is up.
    pub fn explain(
        &self,
        router: &mut Router,
        request: &Request<'_>,
        depths: &Depths,
        prefill: &[WorkerId],
        decode: &[WorkerId],
        now: f64,
    ) -> Option<(Vec<WorkerId>, Vec<WorkerId>, SplitCosts)> {
        let guessed = router.guessed(request, now);
        let seen = self.look(router, request, guessed.as_ref().unwrap_or(depths), prefill, decode, now)?;
        let workers = |all: &Candidates| all.worker.iter().map(|&worker| WorkerId(worker)).collect();
        Some((workers(&seen.prefill), workers(&seen.decode), seen.compared))
    }

    fn look<'a>(
        &self,
        router: &mut Router,
        request: &Request<'a>,
        depths: &Depths,
        prefill: &[WorkerId],
        decode: &[WorkerId],
        now: f64,
    ) -> Option<SplitView<'a>> {
        let block_size = if request.block_size == 0 { router.config().block_size } else { request.block_size };
        let request = Request { block_size, ..*request };
        let output = router.mean_output();
        let home = router.home(&request, now).filter(|home| decode.contains(home));
        // A session is where it generates: that worker has its answers too.
        let at_home = home.and_then(|home| router.seen(&request, depths, &[home], now));
        let decode = match at_home {
            Some(one) => one,
            None => router.seen(&request, depths, decode, now)?,
        };
        let prefill = router.seen(&request, depths, prefill, now).unwrap_or_default();
        let compared = self.compare(&request, &prefill, &decode, output, now);
        Some(SplitView { request, prefill, decode, compared })
    }

    /// Compares the costs that [`PrefillDecode::choose`] goes by: `prefill` may be without rows, `decode` has at least
    /// one. `output`: tokens that the request is expected to generate, if it does not say less.
    #[must_use]
    pub fn compare(
        &self,
        request: &Request<'_>,
        prefill: &Candidates,
        decode: &Candidates,
        output: f64,
        now: f64,
    ) -> SplitCosts {
        let output = request.max_tokens.map_or(output, |most| output.min(f64::from(most)));
        let output = if output.is_finite() { output.max(1.0) } else { 1.0 };
        let one_token = Request { max_tokens: Some(1), ..*request };
        let prefill_terms = match prefill.is_empty() {
            true => Terms::default(),
            false => self.costs.explain(&one_token, prefill, now).unwrap_or_default(),
        };
        let decode_terms = self.decode_terms(request, decode, output);
        let own = self.costs.explain(request, decode, now).unwrap_or_default();
        let (decode_width, own_width) = (NAMES.len(), own.names.len().max(1));
        let alone: Vec<f64> = (0..decode.len())
            .map(|row| {
                let terms = &decode_terms.values[row * decode_width..][..decode_width];
                let cost = own.values.get((row + 1) * own_width - 1).copied().unwrap_or(0.0);
                let within = terms[4] <= self.alone_most || prefill.is_empty();
                if within { cost + terms[2] + terms[3] } else { f64::INFINITY }
            })
            .collect();
        let best_alone = least(decode, |row| alone[row]);
        let first = least(prefill, |row| last(&prefill_terms, row));
        let second = least(decode, |row| last(&decode_terms, row));
        let both = (!prefill.is_empty()).then_some((first, second));
        let both_cost = both.map_or(f64::INFINITY, |(first, second)| {
            last(&prefill_terms, first) + self.handover + last(&decode_terms, second)
        });
        let goes_alone = both.is_none() || alone[best_alone] <= both_cost;
        SplitCosts { prefill: prefill_terms, decode: decode_terms, alone, both, both_cost, best_alone, goes_alone }
    }

    fn decode_terms(&self, request: &Request<'_>, decode: &Candidates, output: f64) -> Terms {
        let tokens = f64::from(request.tokens);
        let row = |row: usize| {
            let uncached = f64::from(request.uncached(decode.predicted_blocks[row]));
            let running = f64::from(decode.requests[row]);
            let step = not_below_0(decode.step_time[row]) / weight(decode.weight[row]);
            let context = not_below_0(decode.context_tokens[row]);
            let fetch = uncached / self.transfer_rate;
            let room = room(decode, row, f64::from(request.block_size), tokens + output);
            let generate = output * step * (1.0 + self.request_share * running + self.context_share * context);
            let each = self.request_share + self.context_share * tokens;
            let others = self.others * output * step * running * each;
            [fetch, room, generate, others, uncached, fetch + room + generate + others]
        };
        Terms { names: NAMES.to_vec(), values: (0..decode.len()).flat_map(row).collect() }
    }
}

/// Seconds until running requests have left room for so many tokens.
fn room(all: &Candidates, row: usize, block_size: f64, tokens: f64) -> f64 {
    let context = not_below_0(all.context_tokens[row]);
    let over = context + tokens - all.capacity_blocks[row] * block_size;
    // Where the capacity is not known this is false.
    if over > 0.0 && context > 0.0 {
        let requests = f64::from(all.requests[row].max(1));
        let each_lasts = not_below_0(all.output_tokens_left[row]) / requests * not_below_0(all.step_time[row]);
        (over / context).min(1.0) * each_lasts
    } else {
        0.0
    }
}

fn not_below_0(value: f64) -> f64 {
    if value.is_finite() { value.max(0.0) } else { 0.0 }
}

fn weight(value: f64) -> f64 {
    if value.is_finite() && value > 0.0 { value } else { 1.0 }
}

fn last(terms: &Terms, row: usize) -> f64 {
    terms.values.get((row + 1) * terms.names.len() - 1).copied().unwrap_or(f64::INFINITY)
}

/// The row of the least cost; of equals the one with the fewest requests, now and ever; 0 without rows.
fn least(all: &Candidates, cost: impl Fn(usize) -> f64) -> usize {
    let known = |row: usize| if cost(row).is_nan() { f64::INFINITY } else { cost(row) };
    let order = |a: &usize, b: &usize| {
        let (a, b) = (*a, *b);
        let equal = (known(a) - known(b)).abs() <= 1e-9;
        let by_cost = if equal { std::cmp::Ordering::Equal } else { known(a).total_cmp(&known(b)) };
        by_cost.then(all.requests[a].cmp(&all.requests[b])).then(all.sent[a].cmp(&all.sent[b]))
    };
    // Not `min_by`: costs that are equal but for the last digits are not in one order for three of them.
    (1..all.len()).fold(0, |best, row| if order(&row, &best).is_lt() { row } else { best })
}
