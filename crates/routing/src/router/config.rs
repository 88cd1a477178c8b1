//! Settings of a router.

use serde::Deserialize;

use crate::options::{Error, Options};
use crate::predict::Retention;

/// Order in which requests of equal priority that wait in the router are placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// First come, first served: the request that has waited longest is placed first.
    Fcfs,
    /// Least work first: the seconds of prefill that a request needs, minus [`Config::ageing`] for each second waited;
    /// the reduction is smaller if admitting long waiting requests would destroy more cached work than it does.
    /// Requests that start with the same uncached block count as one.
    #[default]
    LeastWork,
}

/// Upper limit of those numeric settings that need no particular upper limit.
const MOST: f64 = 1e9;

/// Declares the settings, each with its documentation, name, type, default, and the range that [`Config::from_options`]
/// accepts.
macro_rules! settings {
    ($($(#[doc = $text:literal])+ $name:ident: $kind:ty = $default:expr, $low:literal to $high:expr;)+) => {
        /// Settings of a router. Times are in seconds.
        #[derive(Debug, Clone, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct Config {
            /// Seed of all random choices of the router.
            #[serde(skip)]
            pub seed: u64,
            /// Number of tokens in a block, for requests that do not specify it.
            #[serde(skip)]
            pub block_size: u32,
            /// Way to predict the blocks of engines that publish no events, used instead of lookups; None if they
            /// publish events.
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
            /// Removes the settings that are numbers from `options`, each by its name, and sets them in this
            /// configuration.
            fn take_numbers(&mut self, options: &mut Options) -> Result<(), Error> {
                $(self.$name = options.number(stringify!($name), self.$name as f64, $low, $high)? as $kind;)+
                Ok(())
            }

            /// Names and values of all settings that are numbers, in the order of their declaration.
            pub fn numbers(&self) -> impl Iterator<Item = (&'static str, f64)> {
                [$((stringify!($name), self.$name as f64)),+].into_iter()
            }
        }
    };
}

settings! {
    /// Seconds after which a request without a first token is abandoned.
    first_token_timeout: f64 = 300.0, 0.0 to MOST;
    /// Seconds without a report after which a request that is generating is abandoned.
    idle_timeout: f64 = 300.0, 0.0 to MOST;
    /// Seconds after its first token for which a prompt counts as held by its worker although the index does not show
    /// it.
    announced_within: f64 = 5.0, 0.0 to MOST;
    /// Largest number of blocks stored for prompts that are on their way to workers and not yet in the index.
    predicted_limit: usize = 4 << 20, 0.0 to MOST;
    /// Seconds after a session's last request for which the next one goes to the same worker. 0: sessions have no fixed
    /// worker.
    session_ttl: f64 = 0.0, 0.0 to MOST;
    /// Largest number of sessions that are remembered.
    session_limit: usize = 65_536, 1.0 to MOST;
    /// Seconds for which a worker that joins a busy fleet gets fewer requests.
    warm_seconds: f64 = 10.0, 0.0 to MOST;
    /// Initial part of its fair share of requests that a joining worker gets; it rises to the whole during
    /// `warm_seconds`. Requests that would otherwise wait are sent in addition.
    warm_share: f64 = 0.25, 0.0 to 1.0;
    /// Prompt tokens that a worker computes per second; assumed until the rate is measured.
    prefill_rate: f64 = 8_000.0, 1.0 to MOST;
    /// Seconds between two tokens of a request; assumed until the time is measured.
    step_time: f64 = 0.03, 1e-6 to MOST;
    /// Number of tokens that a request generates; assumed until the mean is measured.
    output_tokens: f64 = 256.0, 0.0 to MOST;
    /// Largest number of requests that wait in the router; further requests are refused. 0: no request waits, even if
    /// the policy would let it wait.
    queue_limit: usize = 4_096, 0.0 to MOST;
    /// Seconds after which a waiting request is placed, even if the policy would let it wait longer.
    queue_timeout: f64 = 60.0, 0.0 to MOST;
    /// Weight of a second that a request has waited in the router, relative to a second of prefill, with
    /// [`Order::LeastWork`].
    ageing: f64 = 0.3, 0.0 to MOST;
    /// Number of waiting prompts compared when a worker has room: the oldest ones of the highest priority. With more
    /// than 64 workers, fewer are compared. Consecutive requests with the same prompt count as one.
    queue_scan: usize = 64, 1.0 to MOST;
    /// Fixed part of the duration of a load from host memory, in seconds; assumed until it is measured.
    host_floor: f64 = 0.013, 0.0 to MOST;
    /// Seconds per token of a load from host memory, in addition to the fixed part; assumed until measured.
    host_token: f64 = 2.3e-6, 0.0 to MOST;
    /// Fixed part of the duration of a load from a disk or a pool (a store shared by engines), in seconds; assumed
    /// until it is measured.
    far_floor: f64 = 0.025, 0.0 to MOST;
    /// Seconds per token of a load from a disk or a pool (a store shared by engines), in addition to the fixed part;
    /// assumed until measured.
    far_token: f64 = 13.4e-6, 0.0 to MOST;
    /// Fixed part of the duration of a pull of blocks from another worker, in seconds; assumed until it is measured.
    pull_floor: f64 = 0.0255, 0.0 to MOST;
    /// Seconds per token of a pull of blocks from another worker, in addition to the fixed part; assumed until
    /// measured.
    pull_token: f64 = 4.07e-6, 0.0 to MOST;
    /// Additional seconds of the first pull of blocks between two workers; assumed until measured.
    pull_setup: f64 = 0.13, 0.0 to MOST;
    /// Largest number of other workers from which one worker pulls blocks.
    pull_sources: usize = 8, 0.0 to 127.0;
    /// Seconds after a worker's last sign of life for which other workers may still pull blocks from it.
    source_heard: f64 = 1.0, 0.0 to MOST;
    /// Seconds for which pulls of blocks between two workers are suspended after a pull that brought fewer blocks than
    /// expected.
    pair_out: f64 = 300.0, 0.0 to MOST;
}

impl Config {
    /// Removes the router's settings from the options: each by its name, `order` as `least-work` or `fcfs`, `no_events`
    /// as `off`, `mock` (with `no_events_blocks`) or `ttl` (with `no_events_ttl`).
    ///
    /// # Errors
    ///
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
