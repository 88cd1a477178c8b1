//! Prefill and decode on different workers: which of each takes a prompt, or a decode worker alone.

use crate::candidates::Candidates;
use crate::cost::Kvatlas;
use crate::depths::{Depth, Depths};
use crate::error::Error;
use crate::options::Options;
use crate::policy::{Policy, Terms};
use crate::request::Request;
use crate::router::{Decision, Refusal, Router, WorkerId};

/// What the terms of a decode worker are called, the sum last.
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
/// The cheaper of both and alone is taken, alone if no prefill worker is up. Costs are in seconds; equal ones go to the
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

/// Where a prompt goes.
#[derive(Debug, Clone, PartialEq)]
pub enum Legs {
    /// `prefill` computes the prompt, `decode` fetches it and generates. Both are reserved: when the first has answered call
    /// [`Router::prefilled`], at the first token of the second [`Router::handed_over`], then as for any request. If one
    /// fails, [`Router::fail`] both.
    Both {
        /// Computes the prompt.
        prefill: Decision,
        /// Generates.
        decode: Decision,
    },
    /// One decode worker does all: a request like any other.
    Alone(Decision),
    /// There is no decode worker that is up.
    Refused(Refusal),
}

/// What was compared, in seconds.
#[derive(Debug, Clone)]
pub struct Compared {
    /// The prefill workers' terms, those of the policy `kvatlas`; without rows if none is up.
    pub prefill: Terms,
    /// The decode workers' terms, if the prompt is computed elsewhere.
    pub decode: Terms,
    /// For each decode worker what it costs alone; infinite if it has too much to compute.
    pub alone: Vec<f64>,
    /// Rows of the least costs: prefill and decode.
    pub both: Option<(usize, usize)>,
    /// The cost of both, the handover included; infinite if no prefill worker is up.
    pub both_cost: f64,
    /// The row that is best alone.
    pub best_alone: usize,
    /// Whether it goes alone.
    pub goes_alone: bool,
}

impl PrefillDecode {
    /// With its own options, and those of the policy `kvatlas`.
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
        let block_size = if request.block_size == 0 { router.config().block_size } else { request.block_size };
        let request = Request { block_size, ..*request };
        let output = router.mean_output();
        let Some(decoders) = router.seen(&request, depths, decode, now) else {
            return Legs::Refused(Refusal::NoWorker);
        };
        let prefillers = router.seen(&request, depths, prefill, now).unwrap_or_default();
        let compared = self.compare(&request, &prefillers, &decoders, output, now);
        if let (Some((first, second)), false) = (compared.both, compared.goes_alone) {
            let (first, second) = (WorkerId(prefillers.worker[first]), WorkerId(decoders.worker[second]));
            let one_token = Request { max_tokens: Some(1), session: None, ..request };
            if let Some(prefill) = router.place_at(&one_token, depths, first, now) {
                // It gets the blocks from the other worker: nothing is left to compute but the last token.
                let blocks = request.usable_blocks();
                let fetched = Request { tokens: (blocks * block_size + 1).min(request.tokens), ..request };
                let mut there = Depths::default();
                there.set(second.0, Depth { device: blocks, host: blocks, any: blocks });
                if let Some(decode) = router.place_at(&fetched, &there, second, now) {
                    // It has no prompt to compute, so nobody waits for it there.
                    router.first_token(decode.id, now);
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

    /// What [`PrefillDecode::choose`] compares: `prefill` may be without rows, `decode` has at least one. `output`: tokens
    /// that the request is expected to generate, if it does not say less.
    #[must_use]
    pub fn compare(
        &self,
        request: &Request<'_>,
        prefill: &Candidates,
        decode: &Candidates,
        output: f64,
        now: f64,
    ) -> Compared {
        let output = request.max_tokens.map_or(output, |most| output.min(f64::from(most))).max(1.0);
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
        Compared { prefill: prefill_terms, decode: decode_terms, alone, both, both_cost, best_alone, goes_alone }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::by_name;
    use crate::router::{Config, RequestId, Usage};

    const PREFILL: [WorkerId; 2] = [WorkerId(0), WorkerId(1)];
    const DECODE: [WorkerId; 2] = [WorkerId(2), WorkerId(3)];

    fn router() -> Router {
        let config = Config { prefill_rate: 1000.0, step_time: 0.01, output_tokens: 100.0, ..Config::default() };
        let mut router = Router::new(config, by_name("kvatlas", Options::default(), 0).unwrap());
        for name in ["p0", "p1", "d0", "d1"] {
            router.add_worker(name, 0, 1.0, 0.0);
        }
        router
    }

    fn chooser(options: &str) -> PrefillDecode {
        PrefillDecode::new(Options::from_json(options).unwrap(), 0).unwrap()
    }

    fn prompt(hashes: &[u64]) -> Request<'_> {
        Request { tokens: 100 * hashes.len() as u32, block_size: 100, content_hashes: hashes, ..Request::default() }
    }

    fn held(depths: &[(u32, u32)]) -> Depths {
        let mut found = Depths::default();
        found.begin();
        for &(worker, blocks) in depths {
            found.set(worker, Depth { device: blocks, host: blocks, any: blocks });
        }
        found
    }

    fn both(legs: Legs) -> (Decision, Decision) {
        let Legs::Both { prefill, decode } = legs else { panic!("{legs:?}") };
        (prefill, decode)
    }

    #[test]
    fn prefill_goes_where_the_cache_is_and_decode_where_least_is_fetched() {
        let (mut router, chooser) = (router(), chooser(""));
        let hashes: Vec<u64> = (0..40).collect();
        let depths = held(&[(1, 20), (2, 5)]);
        let (prefill, decode) = both(chooser.choose(&mut router, &prompt(&hashes), &depths, &PREFILL, &DECODE, 0.0));
        assert_eq!((&*prefill.name, &*decode.name), ("p1", "d0"));
        assert_eq!((prefill.cached_tokens, prefill.uncached_tokens), (2000, 2000));
        // 39 blocks are fetched, and one token is computed.
        assert_eq!(decode.uncached_tokens, 1);
    }

    #[test]
    fn a_short_rest_is_computed_where_it_is_decoded() {
        let (mut router, chooser) = (router(), chooser(""));
        let hashes: Vec<u64> = (0..40).collect();
        // The decode worker has all but 100 tokens, the prefill workers nothing.
        let depths = held(&[(3, 39)]);
        let legs = chooser.choose(&mut router, &prompt(&hashes), &depths, &PREFILL, &DECODE, 0.0);
        let Legs::Alone(decision) = legs else { panic!("{legs:?}") };
        assert_eq!((&*decision.name, decision.uncached_tokens), ("d1", 100));
    }

    #[test]
    fn more_than_the_limit_never_goes_alone_while_a_prefill_worker_is_up() {
        let (mut router, chooser) = (router(), chooser(r#"{"handover": 1000}"#));
        let hashes: Vec<u64> = (0..21).collect();
        let depths = held(&[]);
        assert!(matches!(
            chooser.choose(&mut router, &prompt(&hashes), &depths, &PREFILL, &DECODE, 0.0),
            Legs::Both { .. }
        ));
        // 2,000 tokens are within it, and the handover is too dear.
        let legs = chooser.choose(&mut router, &prompt(&hashes[..20]), &depths, &PREFILL, &DECODE, 0.0);
        assert!(matches!(legs, Legs::Alone(_)));
        let legs = chooser.choose(&mut router, &prompt(&hashes), &depths, &[], &DECODE, 0.0);
        assert!(matches!(legs, Legs::Alone(_)), "nobody else is there");
        let legs = chooser.choose(&mut router, &prompt(&hashes), &depths, &PREFILL, &[], 0.0);
        assert_eq!(legs, Legs::Refused(Refusal::NoWorker));
    }

    #[test]
    fn the_terms_of_a_decode_worker_add_up() {
        let (mut router, chooser) = (router(), chooser(""));
        let hashes: Vec<u64> = (0..40).collect();
        let request = prompt(&hashes);
        // One request of 4,000 tokens is under way at the first decode worker.
        let (_, decode) = both(chooser.choose(&mut router, &request, &held(&[(2, 1)]), &PREFILL, &DECODE, 0.0));
        assert_eq!(&*decode.name, "d0");
        let none = held(&[]);
        let others: Vec<u64> = (100..130).collect();
        let request = Request { max_tokens: Some(50), ..prompt(&others) };
        let decoders = router.seen(&request, &none, &DECODE, 0.0).unwrap();
        let terms = chooser.compare(&request, &Candidates::default(), &decoders, 100.0, 0.0).decode;
        // 3,000 tokens to fetch at 100,000 a second; 50 tokens of 0.01 s, 1 % longer for the request there and 0.78 % for
        // its 3,901 tokens; it is 50 * 0.01 * (0.01 + 0.006) longer in turn.
        let expected = [0.03, 0.0, 0.508_901, 0.008, 3000.0, 0.546_901];
        for (value, expected) in terms.values[..6].iter().zip(expected) {
            assert!((value - expected).abs() < 1e-9, "{terms:?}");
        }
        assert!((terms.values[11] - 0.53).abs() < 1e-9, "{terms:?}");
    }

    #[test]
    fn work_spreads_over_both_pools_and_all_is_given_back() {
        let (mut router, chooser) = (router(), chooser(""));
        let mut legs = Vec::new();
        for number in 0..8u64 {
            let hashes: Vec<u64> = (0..30).map(|block| number * 100 + block).collect();
            legs.push(both(chooser.choose(&mut router, &prompt(&hashes), &held(&[]), &PREFILL, &DECODE, 0.0)));
        }
        assert_eq!(router.rows().requests, [4, 4, 4, 4]);
        assert_eq!(router.rows().waiting, [4, 4, 0, 0], "nobody waits for a decode leg");
        for (number, (prefill, decode)) in legs.iter().enumerate() {
            let now = 3.0 * (number + 1) as f64;
            let ended = router.prefilled(prefill.id, Usage::default(), now).unwrap();
            assert_eq!(ended.ttft, Some(now));
            assert_eq!(router.prefilled(prefill.id, Usage::default(), now), None);
            router.handed_over(decode.id, now);
            router.progress(decode.id, 19, now + 0.2);
            router.finish(decode.id, Usage { output_tokens: Some(20), ..Usage::default() }, now + 0.2);
        }
        assert_eq!((router.in_flight(), &router.rows().requests), (0, &vec![0; 4]));
        assert!(router.rows().context_tokens.iter().all(|tokens| tokens.abs() < 1e-6));
        // What requests generate is learnt from decode legs only.
        assert!((router.mean_output() - 20.0).abs() < 1e-9, "{}", router.mean_output());
        router.handed_over(RequestId(999), 99.0);
    }

    #[test]
    fn a_decode_worker_that_will_hold_it_is_preferred_for_the_next_turn() {
        let (mut router, chooser) = (router(), chooser(""));
        let hashes: Vec<u64> = (0..40).collect();
        let (_, first) = both(chooser.choose(&mut router, &prompt(&hashes[..30]), &held(&[]), &PREFILL, &DECODE, 0.0));
        // Ten blocks more: 1,100 tokens to compute there, for the first token of the second needs its last block.
        let legs = chooser.choose(&mut router, &prompt(&hashes), &held(&[]), &PREFILL, &DECODE, 0.5);
        let Legs::Alone(decision) = legs else { panic!("{legs:?}") };
        assert_eq!(decision.worker, first.worker);
    }

    #[test]
    fn options_that_it_does_not_have_are_refused() {
        let error = PrefillDecode::new(Options::from_json(r#"{"no_such": 1}"#).unwrap(), 0).err().unwrap();
        assert_eq!(error.code, "bad_option");
        assert!(
            error.message.contains("transfer_rate") && error.message.contains("later_waiting"),
            "{}",
            error.message
        );
    }

    #[test]
    fn the_page_names_every_option() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/policies.md");
        let page = std::fs::read_to_string(page).unwrap();
        let section = page.split("\n## ").find(|section| section.starts_with("Prefill and decode pools")).unwrap();
        for option in ["transfer_rate", "handover", "alone_most", "request_share", "context_share", "others"] {
            assert!(PrefillDecode::new(Options::from_json(&format!(r#"{{"{option}": 1}}"#)).unwrap(), 0).is_ok());
            assert!(section.contains(&format!("\n| `{option}` |")), "{option}");
        }
        assert_eq!(section.matches("\n| `").count(), 6);
    }
}
