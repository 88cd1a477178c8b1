//! Options of a run.

use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::plan::Facts;

/// Options of a run, read from JSON and reported in the result. Unknown ones are refused.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
#[serde(deny_unknown_fields, default)]
pub struct Options {
    /// Length of the measured part, in ns. Alternative to `rate`.
    pub window_ns: Option<u64>,
    /// Block operations per second, as an alternative to `window_ns`: the window is the time that the measured ones
    /// then take.
    pub rate: Option<f64>,
    /// Share of the plan's operations run first, at the same pace, without being measured.
    pub warm_up: f64,
    /// Share of the plan's operations at which the run ends; the rest is ignored.
    pub until: f64,
    /// Number of threads for lookups.
    pub query_threads: usize,
    /// Number of threads that apply events, for designs with a choice.
    pub event_threads: usize,
    /// Leap length of a positional index; `None` for its default.
    pub jump_size: Option<usize>,
    /// Number of actors of the sharded tree; `None` for its default.
    pub shards: Option<usize>,
    /// Number of workers per group of the grouped index; `None` for its default.
    pub group_size: Option<usize>,
    /// True to correct the known deviations of a rung.
    pub strict: bool,
    /// Processors: the generator's, one for each query thread, and the rest for the event threads together. Threads
    /// without one are not pinned.
    pub pin: Vec<usize>,
    /// The seed for the choice of compared lookups and workers.
    pub seed: u64,
    /// Number of lookups whose answers are compared.
    pub samples: usize,
    /// Seconds for each of the two comparisons of answers; 0 for no comparison at all.
    pub check_seconds: f64,
    /// The shortest sleep of the generator if nothing is due, in ns: longer means fewer wake-ups and more lag.
    pub burst_ns: u64,
    /// The largest p99 lateness of the generator, in ns. `None`: 1 % of the window, at least 1 ms.
    pub lag_limit_ns: Option<u64>,
    /// Number of windows (at least a second) after the window's close at which a run is given up.
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

/// Most threads; a larger number is an error of the caller.
const THREADS: usize = 1_024;
/// The longest window, an hour in ns; a longer one is an error of the caller.
const LONGEST_NS: u64 = 3_600_000_000_000;

impl Options {
    /// Reads options, and checks them.
    ///
    /// # Errors
    /// [`Error::Options`] with the option's name and its valid values.
    pub fn from_json(json: &str) -> Result<Self, Error> {
        let options = Self::parse(json)?;
        options.check()?;
        Ok(options)
    }

    /// Reads options without checking them.
    ///
    /// # Errors
    /// [`Error::Options`] if they are not JSON, or not options.
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

    /// The window for a measured part.
    ///
    /// # Errors
    /// [`Error::Options`] if a rate makes a window longer than an hour.
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

    /// The time for the queues to drain after the window's close, in ns.
    pub(crate) fn patience(&self, window: u64) -> u64 {
        ((window as f64 * self.drain_windows) as u64).max(1_000_000_000)
    }
}
