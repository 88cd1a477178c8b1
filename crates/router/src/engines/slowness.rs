//! Speeds of engines beside their peers: the factor by which one is slower than the median of the others.

use std::collections::BTreeMap;

/// Factor from which an engine counts as slow, and the one below which it does not any more.
const SLOW: f64 = 3.0;
const WELL: f64 = 2.0;

/// Requests of an engine from which its speed is compared.
const LEAST_REQUESTS: u64 = 5;

/// Speed of an engine as far as it was seen, for comparison with its peers.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SeenSpeed {
    /// Role and models of the engine: only engines alike in that are peers.
    pub(crate) kind: String,
    /// Prompt tokens computed a second, by its weight.
    pub(crate) prefill_rate: f64,
    /// Seconds of a step, by its weight.
    pub(crate) step_time: f64,
    /// Requests sent to it.
    pub(crate) requests: u64,
}

/// Speed of a slow engine beside its peers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct SpeedGap {
    pub(crate) factor: f64,
    pub(crate) peers: usize,
    pub(crate) of_prompts: bool,
}

impl SpeedGap {
    /// The reason in words.
    pub(crate) fn reason(&self) -> String {
        let (factor, peers) = (self.factor, self.peers);
        let what = if self.of_prompts { "computes prompts" } else { "generates tokens" };
        let others = if peers == 1 { "its peer".to_owned() } else { format!("the median of its {peers} peers") };
        format!("it {what} {factor:.0} times as slowly as {others}")
    }
}

/// Returns the engines that are slow, by position. `was`: those that were before.
pub(crate) fn slow_ones(speeds: &[SeenSpeed], was: &[bool]) -> BTreeMap<usize, SpeedGap> {
    let mut slow = BTreeMap::new();
    for (at, own) in speeds.iter().enumerate().filter(|(_, own)| own.requests >= LEAST_REQUESTS) {
        let others = || {
            let all = speeds.iter().enumerate().filter(move |(other, _)| *other != at);
            all.map(|(_, speed)| speed).filter(|other| other.kind == own.kind && other.requests >= LEAST_REQUESTS)
        };
        let Some(rate) = median(others().map(|other| other.prefill_rate)) else { continue };
        let Some(step) = median(others().map(|other| other.step_time)) else { continue };
        let (prompts, tokens) = (rate / own.prefill_rate, own.step_time / step);
        let found = SpeedGap { factor: prompts.max(tokens), peers: others().count(), of_prompts: prompts >= tokens };
        let least = if was.get(at).copied().unwrap_or(false) { WELL } else { SLOW };
        if found.factor.is_finite() && found.factor >= least {
            slow.insert(at, found);
        }
    }
    slow
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
        SeenSpeed { kind: kind.to_owned(), prefill_rate, step_time: 0.02, requests }
    }

    #[test]
    fn one_that_is_slower_than_its_peers() {
        let mut speeds: Vec<_> = [5000.0, 4000.0, 6000.0, 500.0].map(|rate| speed("m", rate, 9)).into();
        let slow = slow_ones(&speeds, &[]);
        assert_eq!(slow.keys().copied().collect::<Vec<_>>(), [3]);
        assert_eq!(slow[&3].reason(), "it computes prompts 10 times as slowly as the median of its 3 peers");
        speeds[3].prefill_rate = 2000.0;
        assert!(slow_ones(&speeds, &[]).is_empty());
        assert_eq!(slow_ones(&speeds, &[false, false, false, true]).len(), 1, "it stays so until it is clearly better");
        speeds[3] = SeenSpeed { step_time: 0.2, ..speed("m", 5000.0, 9) };
        assert!(slow_ones(&speeds, &[])[&3].reason().starts_with("it generates tokens 10 times"));
    }

    #[test]
    fn no_peers_or_few_requests_say_nothing() {
        assert!(slow_ones(&[speed("m", 10.0, 9)], &[]).is_empty());
        assert!(slow_ones(&[speed("m", 10.0, 9), speed("other", 5000.0, 9)], &[]).is_empty());
        assert!(slow_ones(&[speed("m", 10.0, 1), speed("m", 5000.0, 9)], &[]).is_empty());
    }
}
