//! Options of a load test.

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::plan::Facts;

/// Options of a load test, read from JSON and reported in the result. Unknown options are refused.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct Options {
    /// Length of the measured window, in ns. Alternative to `rate`.
    pub window_ns: Option<u64>,
    /// Blocks looked up, stored and removed per second; alternative to `window_ns`. The window is then the time that
    /// the measured operations take at this rate.
    pub rate: Option<f64>,
    /// Share of the plan's operations that are run first, at the same pace, without being measured.
    pub warm_up: f64,
    /// Share of the plan's operations at which the load test ends; the rest is ignored.
    pub until: f64,
    /// Number of threads that run lookups.
    pub query_threads: usize,
    /// Number of threads that apply events, for designs where this can be chosen.
    pub event_threads: usize,
    /// Number of blocks by which the search of a positional index advances; `None` for its default.
    pub jump_size: Option<usize>,
    /// Number of shards of the sharded radix tree; `None` for its default.
    pub shards: Option<usize>,
    /// Number of workers per group of the grouped index; `None` for its default.
    pub group_size: Option<usize>,
    /// True to correct the known errors of an index design, where possible.
    pub strict: bool,
    /// Numbers of the processors to which threads are pinned: the first for the generator, one for each query thread,
    /// and the rest for the event threads together. Threads without a processor are not pinned.
    pub pin: Vec<usize>,
    /// Random seed for choosing the lookups and workers whose answers are compared with the truth.
    pub seed: u64,
    /// Number of lookups whose answers are compared with the truth after the load test.
    pub samples: usize,
    /// Time limit for each of the two comparisons of answers (with the plan's data, and with the reference index), in
    /// seconds; 0 for no comparison.
    pub check_seconds: f64,
    /// Shortest sleep of the generator when nothing is due, in ns: a longer sleep means fewer wake-ups and more lag.
    pub burst_ns: u64,
    /// Maximum p99 lateness of the generator for a valid load test, in ns. `None`: 1 % of the window, at least 1 ms.
    pub lag_limit_ns: Option<u64>,
    /// Time after the end of the window at which a load test is given up, as a multiple of the window (at least a
    /// second).
    pub drain_windows: f64,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            window_ns: None,
            rate: None,
            warm_up: 0.0,
            until: 1.0,
            query_threads: 1,
            event_threads: 1,
            jump_size: None,
            shards: None,
            group_size: None,
            strict: false,
            pin: Vec::new(),
            seed: 0,
            samples: 200,
            check_seconds: 2.0,
            burst_ns: 50_000,
            lag_limit_ns: None,
            drain_windows: 10.0,
        }
    }
}

/// Maximum number of threads of a load test; a larger number is taken for an error of the caller.
const THREADS: usize = 1_024;
/// Maximum length of the window, an hour in ns; a longer one is taken for an error of the caller.
const LONGEST_NS: u64 = 3_600_000_000_000;

impl Options {
    /// Reads options from JSON, and checks them.
    ///
    /// # Errors
    /// [`Error::Options`] with the option's name and its valid values.
    pub fn from_json(json: &str) -> Result<Self, Error> {
        let options = Self::parse(json)?;
        options.check()?;
        Ok(options)
    }

    /// Reads options from JSON without checking them.
    ///
    /// # Errors [`Error::Options`] if the text is not JSON, or has unknown options.
    pub fn parse(json: &str) -> Result<Self, Error> {
        serde_json::from_str(json).map_err(|error| Error::Options(format!("options: {error}")))
    }

    /// Checks the options, as far as possible without a plan.
    ///
    /// # Errors
    /// [`Error::Options`].
    pub fn check(&self) -> Result<(), Error> {
        let wrong = |what: String| Err(Error::Options(what));
        match (self.window_ns, self.rate) {
            (Some(window), None) if (1..=LONGEST_NS).contains(&window) => {}
            (Some(window), None) => return wrong(format!("window_ns must be from 1 to {LONGEST_NS}, got {window}")),
            (None, Some(rate)) if rate.is_finite() && rate > 0.0 => {}
            (None, Some(rate)) => {
                return wrong(format!("rate must be a number of block operations per second, got {rate}"));
            }
            (Some(_), Some(_)) => return wrong("give either window_ns or rate, not both".to_owned()),
            (None, None) => return wrong("a run needs either window_ns or rate".to_owned()),
        }
        if !(0.0..1.0).contains(&self.warm_up) {
            return wrong(format!("warm_up must be a share from 0 to less than 1, got {}", self.warm_up));
        }
        if !(self.until > self.warm_up && self.until <= 1.0) {
            return wrong(format!("until must be a share above warm_up and at most 1, got {}", self.until));
        }
        for (name, threads) in [("query_threads", self.query_threads), ("event_threads", self.event_threads)] {
            if !(1..=THREADS).contains(&threads) {
                return wrong(format!("{name} must be from 1 to {THREADS}, got {threads}"));
            }
        }
        let sizes = [("jump_size", self.jump_size), ("shards", self.shards), ("group_size", self.group_size)];
        for (name, size) in sizes {
            if size == Some(0) {
                return wrong(format!("{name} must be at least 1"));
            }
        }
        for (name, number) in [("check_seconds", self.check_seconds), ("drain_windows", self.drain_windows)] {
            if !(0.0..=1e6).contains(&number) {
                return wrong(format!("{name} must be from 0 to 1,000,000, got {number}"));
            }
        }
        if self.burst_ns > 1_000_000_000 {
            return wrong(format!("burst_ns must be at most a second, got {}", self.burst_ns));
        }
        Ok(())
    }

    /// Length of the measured window, in ns, for the measured part of a plan.
    ///
    /// # Errors [`Error::Options`] if a rate gives a window longer than an hour.
    pub(crate) fn window(&self, measured: &Facts) -> Result<u64, Error> {
        if let Some(window) = self.window_ns {
            return Ok(window);
        }
        let rate = self.rate.unwrap_or(1.0);
        let window = measured.block_ops() as f64 / rate * 1e9;
        if window > LONGEST_NS as f64 {
            return Err(Error::Options(format!(
                "rate {rate}: {} block operations would take {:.0} s; at most an hour",
                measured.block_ops(),
                window / 1e9
            )));
        }
        Ok((window as u64).max(1))
    }

    pub(crate) fn lag_limit(&self, window: u64) -> u64 {
        self.lag_limit_ns.unwrap_or_else(|| (window / 100).max(1_000_000))
    }

    /// Time for the queues to become empty after the end of the window, in ns.
    pub(crate) fn patience(&self, window: u64) -> u64 {
        ((window as f64 * self.drain_windows) as u64).max(1_000_000_000)
    }
}
