//! Comparison of the speeds of engines: an engine is slow if it takes a multiple of the median time of its peers.

use std::collections::BTreeMap;

/// Threshold for slowness: an engine is considered slow if it needs at least this multiple of its peers' median time.
const SLOW: f64 = 3.0;
/// Threshold for recovery: a slow engine is considered normal again if it needs less than this multiple of its peers'
/// median time.
const WELL: f64 = 2.0;

/// Minimum number of requests sent to an engine for its speed to be compared.
const LEAST_REQUESTS: u64 = 5;

/// Minimum wait for the first token of the current prompt, in seconds, after which an engine can be considered slow
/// before it has answered.
const LATE_AFTER: f64 = 2.0;
/// Minimum wait for the first token of the current prompt after which an engine can be considered slow before it has
/// answered, as a multiple of the time that the engine's peers need for this prompt.
const LATE: f64 = 10.0;
/// Minimum number of tokens assumed for a prompt in the comparison, so that short prompts prove nothing.
const SHORT: f64 = 256.0;
/// Share of the cache in use above which a prompt may be waiting for free cache space, so that its lateness proves
/// nothing.
const FULL: f64 = 0.9;
/// Time, in milliseconds, for which an engine is considered slow because of one late prompt.
const COUNTS_FOR: u64 = 60_000;

/// Observed speed of an engine, for comparison with its peers.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SeenSpeed {
    /// Role and models of the engine as text; engines with equal texts are compared with each other.
    pub(crate) kind: String,
    /// Number of prompt tokens that the engine computes a second, divided by the engine's weight.
    pub(crate) prefill_rate: f64,
    /// Duration of a decoding step in seconds, multiplied by the engine's weight.
    pub(crate) step_time: f64,
    /// Number of requests sent to the engine.
    pub(crate) requests: u64,
    /// Prompt that the engine is computing now; None if the engine computes none.
    pub(crate) current: Option<CurrentPrompt>,
}

/// Prompt that an engine is computing, whose first output token has not arrived.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct CurrentPrompt {
    /// Number of prompt tokens that are not in the engine's cache.
    pub(crate) tokens: f64,
    /// Seconds since the engine was free to begin with the prompt.
    pub(crate) elapsed: f64,
    /// Share of the cache in use, from the engine's metrics; `NAN` if unknown.
    pub(crate) kv_usage: f64,
}

/// Comparison of a slow engine's speed with its peers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct SpeedGap {
    pub(crate) factor: f64,
    pub(crate) peers: usize,
    pub(crate) of_prompts: bool,
    /// Late prompt that shows the slowness; None if the average speed shows it.
    pub(crate) late: Option<LatePrompt>,
}

/// Prompt whose first token is late compared with the time that the engine's peers need.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct LatePrompt {
    tokens: f64,
    /// Seconds that the prompt had taken at the last comparison.
    elapsed: f64,
    /// Seconds that the engine's peers need for a prompt of this length.
    usual: f64,
    /// Time at which the prompt was first seen to be late, in milliseconds of the router's clock.
    pub(crate) since: u64,
    /// Time at which the prompt was last seen to be late, in milliseconds of the router's clock.
    seen: u64,
}

impl SpeedGap {
    /// Returns the slowness to report: `found`, which is observed now, or else a late prompt observed recently.
    /// `before`: the slowness reported so far; `now`: time in milliseconds.
    pub(crate) fn going_on(found: Option<Self>, before: Option<Self>, now: u64) -> Option<Self> {
        let kept = before.filter(|gap| gap.late.is_some_and(|late| now.saturating_sub(late.seen) < COUNTS_FOR));
        match (found, kept) {
            // The same trouble, of which it was said already since when.
            (Some(Self { late: Some(late), .. }), Some(Self { late: Some(other), .. })) => {
                found.map(|gap| Self { late: Some(LatePrompt { since: other.since, ..late }), ..gap })
            }
            (found, kept) => found.or(kept),
        }
    }

    /// Returns the reason for considering the engine slow, as text.
    pub(crate) fn reason(&self) -> String {
        if let Some(LatePrompt { tokens, elapsed, usual, .. }) = self.late {
            return format!(
                "a prompt of which it had to compute {tokens:.0} tokens took more than {elapsed:.0} s, where its peers \
                 need {usual:.1} s"
            );
        }
        let (factor, peers) = (self.factor, self.peers);
        let what = if self.of_prompts { "computes prompts" } else { "generates tokens" };
        let others = if peers == 1 { "its peer".to_owned() } else { format!("the median of its {peers} peers") };
        format!("it {what} {factor:.0} times as slowly as {others}")
    }
}

/// Returns the slow engines, by their position in `speeds`. `was`: for each engine, true if it was slow before; `now`:
/// time in milliseconds.
pub(crate) fn slow_ones(speeds: &[SeenSpeed], was: &[bool], now: u64) -> BTreeMap<usize, SpeedGap> {
    let mut slow = BTreeMap::new();
    for (at, own) in speeds.iter().enumerate() {
        let alike = || {
            let all = speeds.iter().enumerate().filter(move |(other, _)| *other != at);
            all.map(|(_, speed)| speed).filter(|other| other.kind == own.kind)
        };
        let others = || alike().filter(|other| other.requests >= LEAST_REQUESTS);
        let Some(rate) = median(others().map(|other| other.prefill_rate)) else { continue };
        // Where others are late as well, it is rather something that they share.
        let late = own.late(rate, now).filter(|_| !alike().any(|other| other.late(rate, now).is_some()));
        if own.requests < LEAST_REQUESTS && late.is_none() {
            continue;
        }
        let Some(step) = median(others().map(|other| other.step_time)) else { continue };
        let (prompts, tokens) = (rate / own.prefill_rate, own.step_time / step);
        let (factor, peers) = (prompts.max(tokens), others().count());
        let least = if was.get(at).copied().unwrap_or(false) { WELL } else { SLOW };
        if own.requests >= LEAST_REQUESTS && factor.is_finite() && factor >= least {
            slow.insert(at, SpeedGap { factor, peers, of_prompts: prompts >= tokens, late: None });
        } else if let Some(prompt) = late {
            let factor = prompt.elapsed / prompt.usual;
            slow.insert(at, SpeedGap { factor, peers, of_prompts: true, late });
        }
    }
    slow
}

impl SeenSpeed {
    /// Returns the engine's current prompt if its first token is late compared with peers that compute `rate` tokens a
    /// second; None otherwise.
    fn late(&self, rate: f64, now: u64) -> Option<LatePrompt> {
        let CurrentPrompt { tokens, elapsed, kv_usage } = self.current?;
        let usual = tokens.max(SHORT) / rate;
        let is_late = elapsed >= LATE_AFTER.max(LATE * usual) && (kv_usage.is_nan() || kv_usage < FULL);
        is_late.then_some(LatePrompt { tokens, elapsed, usual, since: now, seen: now })
    }
}

fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.filter(|value| value.is_finite() && *value > 0.0).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len().checked_sub(1)? / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn speed(kind: &str, prefill_rate: f64, requests: u64) -> SeenSpeed {
        SeenSpeed { kind: kind.to_owned(), prefill_rate, step_time: 0.02, requests, current: None }
    }

    #[test]
    fn one_that_is_slower_than_its_peers() {
        let mut speeds: Vec<_> = [5000.0, 4000.0, 6000.0, 500.0].map(|rate| speed("m", rate, 9)).into();
        let slow = slow_ones(&speeds, &[], 0);
        assert_eq!(slow.keys().copied().collect::<Vec<_>>(), [3]);
        assert_eq!(slow[&3].reason(), "it computes prompts 10 times as slowly as the median of its 3 peers");
        speeds[3].prefill_rate = 2000.0;
        assert!(slow_ones(&speeds, &[], 0).is_empty());
        assert_eq!(
            slow_ones(&speeds, &[false, false, false, true], 0).len(),
            1,
            "it stays so until it is clearly better"
        );
        speeds[3] = SeenSpeed { step_time: 0.2, ..speed("m", 5000.0, 9) };
        assert!(slow_ones(&speeds, &[], 0)[&3].reason().starts_with("it generates tokens 10 times"));
    }

    #[test]
    fn no_peers_or_few_requests_say_nothing() {
        assert!(slow_ones(&[speed("m", 10.0, 9)], &[], 0).is_empty());
        assert!(slow_ones(&[speed("m", 10.0, 9), speed("other", 5000.0, 9)], &[], 0).is_empty());
        assert!(slow_ones(&[speed("m", 10.0, 1), speed("m", 5000.0, 9)], &[], 0).is_empty());
    }

    #[test]
    fn a_prompt_that_takes_long_shows_it_before_there_is_an_answer() {
        let current = |elapsed, kv_usage| Some(CurrentPrompt { tokens: 1_000.0, elapsed, kv_usage });
        let with = |current| SeenSpeed { current, ..speed("m", 5_000.0, 1) };
        let all = |own| [own, speed("m", 5_000.0, 9), speed("m", 5_000.0, 9)];
        let slow = slow_ones(&all(with(current(3.0, f64::NAN))), &[], 7);
        let words = "a prompt of which it had to compute 1000 tokens took more than 3 s, where its peers need 0.2 s";
        assert_eq!(slow[&0].reason(), words);
        assert!(slow_ones(&all(with(current(1.9, f64::NAN))), &[], 7).is_empty());
        assert!(slow_ones(&all(with(current(3.0, 0.95))), &[], 7).is_empty(), "it may wait for room");
        let mut both = all(with(current(3.0, 0.1)));
        both[1].current = current(3.0, 0.1);
        assert!(slow_ones(&both, &[], 7).is_empty(), "they share it");

        let gap = slow.get(&0).copied();
        let later = slow_ones(&all(with(current(9.0, f64::NAN))), &[], 6_007).remove(&0);
        let kept = SpeedGap::going_on(later, gap, 6_007);
        assert_eq!(kept.and_then(|gap| gap.late).map(|late| (late.since, late.seen)), Some((7, 6_007)));
        assert_eq!(SpeedGap::going_on(None, kept, 6_007 + COUNTS_FOR - 1), kept);
        assert_eq!(SpeedGap::going_on(None, kept, 6_007 + COUNTS_FOR), None);
        assert_eq!(SpeedGap::going_on(None, Some(SpeedGap { late: None, ..kept.expect("one") }), 6_008), None);
    }
}
