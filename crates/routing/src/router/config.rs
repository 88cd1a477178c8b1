//! Settings of a router.

use serde::Deserialize;

use crate::options::{Error, Options};
use crate::predict::Retention;

/// The order in which requests of equal priority that wait in the router are placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// First come, first served.
    Fcfs,
    /// Least work first, where each second waited reduces the work by [`Config::ageing`] seconds, less where letting in
    /// long waiting requests undoes more work than it does. Requests that start with the same uncached block count as
    /// one piece of work.
    #[default]
    LeastWork,
}

/// Largest value of a setting without a limit of its own.
const MOST: f64 = 1e9;

/// Declares the settings, each once: documentation, name, type, default, and the range that [`Config::from_options`]
/// accepts.
macro_rules! settings {
    ($($(#[doc = $text:literal])+ $name:ident: $kind:ty = $default:expr, $low:literal to $high:expr;)+) => {
        /// Settings of a router. Times are in seconds.
        #[derive(Debug, Clone, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct Config {
            /// Seed of all random choices.
            #[serde(skip)]
            pub seed: u64,
            /// Number of tokens in a block, for requests that do not say.
            #[serde(skip)]
            pub block_size: u32,
            /// Way to predict the blocks of engines that announce nothing, instead of lookups; None if they announce
            /// events.
            #[serde(skip)]
            pub no_events: Option<Retention>,
            /// Order in which waiting requests are placed.
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
            /// Takes the settings that are numbers from the options, each by its name.
            fn take_numbers(&mut self, options: &mut Options) -> Result<(), Error> {
                $(self.$name = options.number(stringify!($name), self.$name as f64, $low, $high)? as $kind;)+
                Ok(())
            }

            /// The settings that are numbers, each with its name.
            pub fn numbers(&self) -> impl Iterator<Item = (&'static str, f64)> {
                [$((stringify!($name), self.$name as f64)),+].into_iter()
            }
        }
    };
}

settings! {
    /// Seconds after which a request without a first token is given up.
    first_token_timeout: f64 = 300.0, 0.0 to MOST;
    /// Seconds without a report after which a request that generates is given up.
    idle_timeout: f64 = 300.0, 0.0 to MOST;
    /// Largest number of seconds after its first token for which a prompt counts as held while the index does not show
    /// it.
    announced_within: f64 = 5.0, 0.0 to MOST;
    /// Largest number of blocks stored for prompts on their way.
    predicted_limit: usize = 4 << 20, 0.0 to MOST;
    /// Seconds after a session's last request for which the next one goes to the same worker. 0: sessions do not stick.
    session_ttl: f64 = 0.0, 0.0 to MOST;
    /// Largest number of sessions remembered.
    session_limit: usize = 65_536, 1.0 to MOST;
    /// Seconds for which a worker that joins a busy fleet gets fewer requests.
    warm_seconds: f64 = 10.0, 0.0 to MOST;
    /// Initial part of its fair share that a joining worker gets, rising to the whole; requests that would wait
    /// otherwise are added.
    warm_share: f64 = 0.25, 0.0 to 1.0;
    /// Prompt tokens that a worker computes per second, until that is learnt.
    prefill_rate: f64 = 8_000.0, 1.0 to MOST;
    /// Seconds between two tokens of a request, until they are learnt.
    step_time: f64 = 0.03, 1e-6 to MOST;
    /// Tokens that a request generates, until they are learnt.
    output_tokens: f64 = 256.0, 0.0 to MOST;
    /// Largest number of requests waiting in the router; more are refused. 0: no request waits, whatever the policy.
    queue_limit: usize = 4_096, 0.0 to MOST;
    /// Seconds after which a waiting request is placed, whatever the policy says.
    queue_timeout: f64 = 60.0, 0.0 to MOST;
    /// Weight of a second of waiting against a second of work, with [`Order::LeastWork`].
    ageing: f64 = 0.3, 0.0 to MOST;
    /// Number of waiting prompts compared when there is room, the oldest of the highest priority first; fewer with more
    /// than 64 workers. Consecutive requests with the same prompt count as one.
    queue_scan: usize = 64, 1.0 to MOST;
    /// Least seconds of a load from host memory, until they are learnt.
    host_floor: f64 = 0.013, 0.0 to MOST;
    /// Additional seconds per token of a load from host memory, until they are learnt.
    host_token: f64 = 2.3e-6, 0.0 to MOST;
    /// Least seconds of a load from a disk or a pool, until they are learnt.
    far_floor: f64 = 0.025, 0.0 to MOST;
    /// Additional seconds per token of a load from a disk or a pool, until they are learnt.
    far_token: f64 = 13.4e-6, 0.0 to MOST;
    /// Least seconds of a pull from another worker, until they are learnt.
    pull_floor: f64 = 0.0255, 0.0 to MOST;
    /// Additional seconds per token of a pull from another worker, until they are learnt.
    pull_token: f64 = 4.07e-6, 0.0 to MOST;
    /// Additional seconds of the first pull of a pair of workers, until they are learnt.
    pull_setup: f64 = 0.13, 0.0 to MOST;
    /// Largest number of workers that one worker pulls from.
    pull_sources: usize = 8, 0.0 to 127.0;
    /// Largest age of a worker's last sign of life, in seconds, for others to pull from it.
    source_heard: f64 = 1.0, 0.0 to MOST;
    /// Seconds for which a pair of workers is excluded after a pull that did not bring what was expected.
    pair_out: f64 = 300.0, 0.0 to MOST;
}

impl Config {
    /// Takes the router's settings from the options: each by its name here, `order` as `least-work` or `fcfs`,
    /// `no_events` as `off`, `mock` (with `no_events_blocks`) or `ttl` (with `no_events_ttl`).
    ///
    /// # Errors
    /// Code `bad_option` for a setting of the wrong type or out of range.
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
