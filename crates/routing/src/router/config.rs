//! A router's settings.

use serde::Deserialize;

use crate::options::{Error, Options};
use crate::predict::Retention;

/// The order in which requests of equal priority that wait in the router are placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// First come, first served.
    Fcfs,
    /// Least work first, less a second of work for each second waited times [`Config::ageing`], as far as to let in who
    /// waited long does more than it undoes. Requests that begin with the same block are one piece of work.
    #[default]
    LeastWork,
}

/// The largest value of a setting that has no limit of its own.
const MOST: f64 = 1e9;

/// Declares the settings, each once: its text, name, type, default, and the numbers that [`Config::from_options`] takes.
macro_rules! settings {
    ($($(#[doc = $text:literal])+ $name:ident: $kind:ty = $default:expr, $low:literal to $high:expr;)+) => {
        /// A router's settings. Times are in seconds.
        #[derive(Debug, Clone, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct Config {
            /// Seed of everything left to chance.
            #[serde(skip)]
            pub seed: u64,
            /// Tokens of a block, where a request does not say.
            #[serde(skip)]
            pub block_size: u32,
            /// Engines announce nothing: what they hold is guessed from what was sent, and lookups do not count.
            #[serde(skip)]
            pub no_events: Option<Retention>,
            /// The order in which waiting requests are placed.
            #[serde(skip)]
            pub order: Order,
            $($(#[doc = $text])+ pub $name: $kind,)+
        }

        impl Default for Config {
            fn default() -> Self {
                Self { seed: 0, block_size: 16, no_events: None, order: Order::default(), $($name: $default,)+ }
            }
        }

        impl Config {
            /// Takes the settings that are numbers, each by its name.
            fn take_numbers(&mut self, options: &mut Options) -> Result<(), Error> {
                $(self.$name = options.number(stringify!($name), self.$name as f64, $low, $high)? as $kind;)+
                Ok(())
            }

            /// Returns the settings that are numbers, each with its name.
            pub fn numbers(&self) -> impl Iterator<Item = (&'static str, f64)> {
                [$((stringify!($name), self.$name as f64)),+].into_iter()
            }
        }
    };
}

settings! {
    /// A request without a first token is given up after that long.
    first_token_timeout: f64 = 300.0, 0.0 to MOST;
    /// A request that generates is given up when nothing was heard of it for that long.
    idle_timeout: f64 = 300.0, 0.0 to MOST;
    /// Seconds after its first token for which a prompt counts as held, at most, while the index does not say so.
    announced_within: f64 = 5.0, 0.0 to MOST;
    /// Blocks of prompts on their way that are kept in mind.
    predicted_limit: usize = 4 << 20, 0.0 to MOST;
    /// Requests of a session go where the last one went, if that was not longer ago. 0: sessions do not stick.
    session_ttl: f64 = 0.0, 0.0 to MOST;
    /// Sessions that are kept in mind.
    session_limit: usize = 65_536, 1.0 to MOST;
    /// A worker that joins a fleet at work gets less for that long.
    warm_seconds: f64 = 10.0, 0.0 to MOST;
    /// The share of its fair share that it gets at first; it rises to the whole. What would wait otherwise comes on top.
    warm_share: f64 = 0.25, 0.0 to 1.0;
    /// Prompt tokens that a worker computes a second, until that is learnt.
    prefill_rate: f64 = 8_000.0, 1.0 to MOST;
    /// Seconds between two tokens of a request, until that is learnt.
    step_time: f64 = 0.03, 1e-6 to MOST;
    /// Tokens that a request generates, until that is learnt.
    output_tokens: f64 = 256.0, 0.0 to MOST;
    /// Requests that may wait in the router; more are refused. 0: none waits, and policies that would wait place.
    queue_limit: usize = 4_096, 0.0 to MOST;
    /// Longest time that a request waits in the router: then it is placed, whatever the policy says.
    queue_timeout: f64 = 60.0, 0.0 to MOST;
    /// Weight of a second of waiting against a second of work, with [`Order::LeastWork`].
    ageing: f64 = 0.3, 0.0 to MOST;
    /// Prompts that wait and are compared when there is room, the oldest of the highest priority first; fewer where there
    /// are more than 64 workers. Requests with the same prompt that came one after another count as one.
    queue_scan: usize = 64, 1.0 to MOST;
    /// Seconds that a load from host memory takes at least, until that is learnt.
    host_floor: f64 = 0.013, 0.0 to MOST;
    /// Seconds more for each token, until that is learnt.
    host_token: f64 = 2.3e-6, 0.0 to MOST;
    /// Seconds that a load from a disk or a pool takes at least, until that is learnt.
    far_floor: f64 = 0.025, 0.0 to MOST;
    /// Seconds more for each token, until that is learnt.
    far_token: f64 = 13.4e-6, 0.0 to MOST;
    /// Seconds that a pull from another worker takes at least, until that is learnt.
    pull_floor: f64 = 0.0255, 0.0 to MOST;
    /// Seconds more for each token, until that is learnt.
    pull_token: f64 = 4.07e-6, 0.0 to MOST;
    /// Seconds more for the first pull of a pair of workers, until that is learnt.
    pull_setup: f64 = 0.13, 0.0 to MOST;
    /// Workers that one worker pulls from, at most.
    pull_sources: usize = 8, 0.0 to 127.0;
    /// Seconds within which a worker must have been heard of for others to pull from it.
    source_heard: f64 = 1.0, 0.0 to MOST;
    /// Seconds for which a pair of workers is left alone that has not brought what was expected.
    pair_out: f64 = 300.0, 0.0 to MOST;
}

impl Config {
    /// Takes the options that are settings of the router's: each by its name here, `order` as `least-work` or `fcfs`,
    /// `no_events` as `off`, `mock` (with `no_events_blocks`) or `ttl` (with `no_events_ttl`).
    ///
    /// # Errors
    /// Code `bad_option` for one that is of the wrong type or out of range.
    pub fn from_options(options: &mut Options, seed: u64, block_size: u32) -> Result<Self, Error> {
        let mut config = Self { seed, block_size, ..Self::default() };
        config.take_numbers(options)?;
        config.order = match options.word("order", &["least-work", "fcfs"])? {
            "fcfs" => Order::Fcfs,
            _ => Order::LeastWork,
        };
        let seconds = options.number("no_events_ttl", 120.0, 0.0, MOST)?;
        let blocks = options.number("no_events_blocks", 24_576.0, 1.0, MOST)? as usize;
        config.no_events = match options.word("no_events", &["off", "mock", "ttl"])? {
            "mock" => Some(Retention::Mock { blocks }),
            "ttl" => Some(Retention::Ttl { seconds }),
            _ => None,
        };
        Ok(config)
    }
}
