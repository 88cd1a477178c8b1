//! A router's settings.

use crate::error::Error;
use crate::options::Options;
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

/// A router's settings. Times are in seconds.
#[derive(Debug, Clone)]
pub struct Config {
    /// Seed of everything left to chance.
    pub seed: u64,
    /// Tokens of a block, where a request does not say.
    pub block_size: u32,
    /// A request without a first token is given up after that long.
    pub first_token_timeout: f64,
    /// A request that generates is given up when nothing was heard of it for that long.
    pub idle_timeout: f64,
    /// Seconds after its first token for which a prompt counts as held, at most, while the index does not say so.
    pub announced_within: f64,
    /// Blocks of prompts on their way that are kept in mind.
    pub predicted_limit: usize,
    /// Engines announce nothing: what they hold is guessed from what was sent, and lookups do not count.
    pub no_events: Option<Retention>,
    /// Requests of a session go where the last one went, if that was not longer ago. 0: sessions do not stick.
    pub session_ttl: f64,
    /// Sessions that are kept in mind.
    pub session_limit: usize,
    /// A worker that joins a fleet at work gets less for that long.
    pub warm_seconds: f64,
    /// The share of its fair share that it gets at first; it rises to the whole. What would wait otherwise comes on top.
    pub warm_share: f64,
    /// Prompt tokens that a worker computes a second, until that is learnt.
    pub prefill_rate: f64,
    /// Seconds between two tokens of a request, until that is learnt.
    pub step_time: f64,
    /// Tokens that a request generates, until that is learnt.
    pub output_tokens: f64,
    /// Requests that may wait in the router; more are refused. 0: none waits, and policies that would wait place.
    pub queue_limit: usize,
    /// Longest time that a request waits in the router, in seconds: then it is placed, whatever the policy says.
    pub queue_timeout: f64,
    /// The order in which waiting requests are placed.
    pub order: Order,
    /// Weight of a second of waiting against a second of work, with [`Order::LeastWork`].
    pub ageing: f64,
    /// Waiting requests that are looked at when there is room, the oldest of the highest priority first; fewer where
    /// there are more than 64 workers.
    pub queue_scan: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            seed: 0,
            block_size: 16,
            first_token_timeout: 300.0,
            idle_timeout: 300.0,
            announced_within: 5.0,
            predicted_limit: 4 << 20,
            no_events: None,
            session_ttl: 0.0,
            session_limit: 65_536,
            warm_seconds: 10.0,
            warm_share: 0.25,
            prefill_rate: 8_000.0,
            step_time: 0.03,
            output_tokens: 256.0,
            queue_limit: 4_096,
            queue_timeout: 60.0,
            order: Order::LeastWork,
            ageing: 0.3,
            queue_scan: 64,
        }
    }
}

impl Config {
    /// Takes the options that are settings of the router's: each by its name here, `order` as `least-work` or `fcfs`,
    /// `no_events` as `off`, `mock` (with `no_events_blocks`) or `ttl` (with `no_events_ttl`).
    ///
    /// # Errors
    /// Code `bad_option` for one that is of the wrong type or out of range.
    pub fn from_options(options: &mut Options, seed: u64, block_size: u32) -> Result<Self, Error> {
        const MOST: f64 = 1e9;
        let its = Self::default();
        let mut seconds = |name, default| options.number(name, default, 0.0, MOST);
        let config = Self {
            seed,
            block_size,
            first_token_timeout: seconds("first_token_timeout", its.first_token_timeout)?,
            idle_timeout: seconds("idle_timeout", its.idle_timeout)?,
            announced_within: seconds("announced_within", its.announced_within)?,
            session_ttl: seconds("session_ttl", its.session_ttl)?,
            warm_seconds: seconds("warm_seconds", its.warm_seconds)?,
            queue_timeout: seconds("queue_timeout", its.queue_timeout)?,
            ageing: seconds("ageing", its.ageing)?,
            ..its.clone()
        };
        let predicted_limit = options.number("predicted_limit", its.predicted_limit as f64, 0.0, MOST)? as usize;
        let session_limit = options.number("session_limit", its.session_limit as f64, 1.0, MOST)? as usize;
        let warm_share = options.number("warm_share", its.warm_share, 0.0, 1.0)?;
        let prefill_rate = options.number("prefill_rate", its.prefill_rate, 1.0, MOST)?;
        let step_time = options.number("step_time", its.step_time, 1e-6, MOST)?;
        let output_tokens = options.number("output_tokens", its.output_tokens, 0.0, MOST)?;
        let queue_limit = options.number("queue_limit", its.queue_limit as f64, 0.0, MOST)? as usize;
        let queue_scan = options.number("queue_scan", its.queue_scan as f64, 1.0, MOST)? as usize;
        let order = match options.word("order", &["least-work", "fcfs"])? {
            "fcfs" => Order::Fcfs,
            _ => Order::LeastWork,
        };
        let seconds = options.number("no_events_ttl", 120.0, 0.0, MOST)?;
        let blocks = options.number("no_events_blocks", 24_576.0, 1.0, MOST)? as usize;
        let no_events = match options.word("no_events", &["off", "mock", "ttl"])? {
            "mock" => Some(Retention::Mock { blocks }),
            "ttl" => Some(Retention::Ttl { seconds }),
            _ => None,
        };
        Ok(Self {
            no_events,
            predicted_limit,
            session_limit,
            warm_share,
            prefill_rate,
            step_time,
            output_tokens,
            queue_limit,
            queue_scan,
            order,
            ..config
        })
    }
}
