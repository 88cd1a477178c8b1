//! Table of the candidates for a request: one row for each worker and rank, one column for each property.

/// Candidates for one request, as a table. All columns have the same length; rows are sorted by `worker`.
///
/// Only workers that may take the request have a row: those that serve its model, are up and not drained. Unknown
/// values are NaN in columns of `f64` and 0 in columns of counts, unless the column says otherwise.
#[derive(Debug, Clone, Default)]
pub struct Candidates {
    /// Number that identifies a worker and rank while they are registered.
    pub worker: Vec<u32>,
    /// Number of the prompt's leading blocks that the worker holds on its device, according to the index.
    pub device_blocks: Vec<u32>,
    /// Number of the prompt's leading blocks that the worker holds on its device or in host memory, according to the
    /// index; at least `device_blocks`.
    pub host_blocks: Vec<u32>,
    /// Number of the prompt's leading blocks that the worker holds on any tier, according to the index; at least
    /// `host_blocks`.
    pub any_blocks: Vec<u32>,
    /// Number of the prompt's leading blocks that the worker will hold once it has computed the prompts just sent to
    /// it; at least `device_blocks`.
    pub predicted_blocks: Vec<u32>,
    /// Number of the prompt's leading blocks that requests at the worker use. These blocks cannot be evicted before
    /// these requests end.
    pub shared_blocks: Vec<u32>,
    /// True if the index is currently reliable for the worker, as no events of the worker's engine are missing.
    pub trusted: Vec<bool>,
    /// Number of requests that were sent to the worker and have not ended.
    pub requests: Vec<u32>,
    /// Number of requests sent to the worker that have no first token yet.
    pub waiting: Vec<u32>,
    /// Number of prompt tokens to compute for requests without a first token; tokens expected in the cache are not
    /// counted.
    pub queued_tokens: Vec<f64>,
    /// Number of prompt tokens of requests without a first token, including cached ones.
    pub queued_prompt_tokens: Vec<f64>,
    /// Number of tokens to compute, of those in `queued_tokens`, for the prompt at the head of the worker's queue, the
    /// one sent first.
    pub head_tokens: Vec<f64>,
    /// Estimated seconds since the prompt at the head of the worker's queue got there: since the first token of the
    /// request before it, or since it was sent.
    pub head_elapsed: Vec<f64>,
    /// Number of prompt tokens to compute for requests that wait in the router for this worker.
    pub held_tokens: Vec<f64>,
    /// Number of tokens of all requests at the worker: their prompts and the tokens generated so far.
    pub context_tokens: Vec<f64>,
    /// Number of blocks of the prompts of all requests at the worker. A block shared by several requests counts once.
    /// Prompts without hashes are not counted.
    pub used_blocks: Vec<f64>,
    /// Number of tokens that requests at the worker may still generate, estimated from their limits and from past
    /// requests.
    pub output_tokens_left: Vec<f64>,
    /// Number of requests waiting in the engine's queue, as reported by the engine.
    pub reported_waiting: Vec<f64>,
    /// Number of requests running at the engine, as reported by the engine.
    pub reported_running: Vec<f64>,
    /// Share of the KV cache in use, from 0 to 1, as reported by the engine.
    pub reported_kv_usage: Vec<f64>,
    /// Seconds since the engine's last report of its queue, running requests and cache.
    pub reported_age: Vec<f64>,
    /// Number of prompt tokens that the worker computes per second, as measured.
    pub prefill_rate: Vec<f64>,
    /// Seconds between two tokens of one request while the worker computes no prompt, as measured.
    pub step_time: Vec<f64>,
    /// Seconds since the worker joined the fleet.
    pub age: Vec<f64>,
    /// Number of requests sent to the worker since it joined.
    pub sent: Vec<u64>,
    /// Time at which the worker last received a request without a cached block on any worker, in seconds of the
    /// caller's clock; `-inf` if never.
    pub last_cold: Vec<f64>,
    /// Number of blocks that the worker holds, according to the index.
    pub held_blocks: Vec<f64>,
    /// Capacity of the worker's cache in blocks.
    pub capacity_blocks: Vec<f64>,
    /// Share of the work that the worker should get relative to other workers; 1 unless set otherwise.
    pub weight: Vec<f64>,
    /// Best way to serve the request at each worker: the parts of the prompt to load or pull instead of computing them.
    /// Filled in only for [`Policy::explain`](crate::Policy::explain), as a decision computes only the ways that
    /// matter.
    pub ways: Vec<PromptWay>,
    /// Table row of the chosen worker, and the best way to serve the request there: the parts of the prompt to load,
    /// pull and compute. None until a row is chosen, if nothing can be loaded or pulled, or if the policy does not
    /// consider transfers.
    pub way: Option<(usize, PromptWay)>,
}

/// Calls the given macro with the names of all columns of [`Candidates`].
macro_rules! columns {
    ($each:ident, $($rest:tt)*) => {
        $each! { $($rest)*
            worker,
            device_blocks,
            host_blocks,
            any_blocks,
            predicted_blocks,
            shared_blocks,
            trusted,
            requests,
            waiting,
            queued_tokens,
            queued_prompt_tokens,
            head_tokens,
            head_elapsed,
            held_tokens,
            context_tokens,
            used_blocks,
            output_tokens_left,
            reported_waiting,
            reported_running,
            reported_kv_usage,
            reported_age,
            prefill_rate,
            step_time,
            age,
            sent,
            last_cold,
            held_blocks,
            capacity_blocks,
            weight,
        }
    };
}

macro_rules! gather {
    ($to:ident, $from:ident, $rows:ident, $($name:ident,)*) => {
        $($to.$name.clear(); $to.$name.extend($rows.iter().map(|&row| $from.$name[row as usize]));)*
    };
}

macro_rules! push {
    ($to:ident, $($name:ident,)*) => { $($to.$name.push(Default::default());)* };
}

impl Candidates {
    /// Creates `count` idle workers with empty caches, numbered from 0, for tests of a policy. All other properties are
    /// unknown.
    #[must_use]
    pub fn idle(count: usize) -> Self {
        Self {
            worker: (0..count as u32).collect(),
            device_blocks: vec![0; count],
            host_blocks: vec![0; count],
            any_blocks: vec![0; count],
            predicted_blocks: vec![0; count],
            shared_blocks: vec![0; count],
            trusted: vec![true; count],
            requests: vec![0; count],
            waiting: vec![0; count],
            queued_tokens: vec![0.0; count],
            queued_prompt_tokens: vec![0.0; count],
            head_tokens: vec![0.0; count],
            head_elapsed: vec![0.0; count],
            held_tokens: vec![0.0; count],
            context_tokens: vec![0.0; count],
            used_blocks: vec![0.0; count],
            output_tokens_left: vec![0.0; count],
            reported_waiting: vec![f64::NAN; count],
            reported_running: vec![f64::NAN; count],
            reported_kv_usage: vec![f64::NAN; count],
            reported_age: vec![f64::NAN; count],
            prefill_rate: vec![f64::NAN; count],
            step_time: vec![f64::NAN; count],
            age: vec![1e6; count],
            sent: vec![0; count],
            last_cold: vec![f64::NEG_INFINITY; count],
            held_blocks: vec![0.0; count],
            capacity_blocks: vec![1e6; count],
            weight: vec![1.0; count],
            ways: Vec::new(),
            way: None,
        }
    }

    /// Number of the prompt's leading blocks that a candidate, given by its row in the table, will have without
    /// computing them.
    #[must_use]
    #[inline]
    pub fn reached(&self, row: usize) -> u32 {
        match self.way(row) {
            Some(way) => way.reached,
            None => self.predicted_blocks[row].max(self.any_blocks[row]),
        }
    }

    /// Best way for a candidate, given by its row in the table, to get the prompt's blocks; None if it was not
    /// computed.
    #[must_use]
    #[inline]
    pub fn way(&self, row: usize) -> Option<&PromptWay> {
        match &self.way {
            Some((chosen, way)) if *chosen == row => Some(way),
            _ => self.ways.get(row),
        }
    }

    /// Number of candidates.
    #[must_use]
    pub fn len(&self) -> usize {
        self.worker.len()
    }

    /// True if no worker may take the request, so that the table has no rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.worker.is_empty()
    }

    /// Adds a row with default values to the table of candidates; the row is not yet assigned to a worker.
    pub(crate) fn push(&mut self) {
        columns!(push, self,);
    }

    /// Assigns a row of the table of candidates to the worker with this number and weight, and sets the other columns
    /// to those of a worker that has had no requests.
    pub(crate) fn reset(&mut self, row: usize, number: u32, weight: f64) {
        self.worker[row] = number;
        self.device_blocks[row] = 0;
        self.host_blocks[row] = 0;
        self.any_blocks[row] = 0;
        self.predicted_blocks[row] = 0;
        self.shared_blocks[row] = 0;
        self.trusted[row] = true;
        self.requests[row] = 0;
        self.waiting[row] = 0;
        self.queued_tokens[row] = 0.0;
        self.queued_prompt_tokens[row] = 0.0;
        self.head_tokens[row] = 0.0;
        self.head_elapsed[row] = 0.0;
        self.held_tokens[row] = 0.0;
        self.context_tokens[row] = 0.0;
        self.used_blocks[row] = 0.0;
        self.output_tokens_left[row] = 0.0;
        self.reported_waiting[row] = f64::NAN;
        self.reported_running[row] = f64::NAN;
        self.reported_kv_usage[row] = f64::NAN;
        self.reported_age[row] = f64::NAN;
        self.prefill_rate[row] = 0.0;
        self.step_time[row] = 0.0;
        self.age[row] = 0.0;
        self.sent[row] = 0;
        self.last_cold[row] = f64::NEG_INFINITY;
        self.held_blocks[row] = f64::NAN;
        self.capacity_blocks[row] = f64::NAN;
        self.weight[row] = weight;
    }

    /// Replaces all rows of this table of candidates by copies of rows of the table `from`, given by their indexes.
    pub(crate) fn gather(&mut self, from: &Self, rows: &[u32]) {
        columns!(gather, self, from, rows,);
    }
}

/// Way to serve a request at a worker: the leading blocks of the prompt that the worker has or gets from elsewhere,
/// with their sources. The worker computes the rest.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct PromptWay {
    /// Number of leading blocks that the worker holds on its device when the request starts.
    pub device: u32,
    /// Number of leading blocks that the worker holds on its device or loads from its host memory when the request
    /// starts.
    pub host: u32,
    /// Number of leading blocks that the worker holds on its device, or loads from any tier of its own or from pools,
    /// when the request starts.
    pub loaded: u32,
    /// Number of leading blocks that are not computed; at least `loaded`, and more if blocks are pulled from another
    /// worker.
    pub reached: u32,
    /// Number of the worker from which the blocks from `loaded` to `reached` are pulled; None if none are pulled.
    pub source: Option<u32>,
    /// True if the router must instruct the worker to load only this part, as it would otherwise load more.
    pub is_limited: bool,
    /// Seconds that the loads and pulls are expected to take.
    pub seconds: f64,
}

impl PromptWay {
    /// Way to serve a request without loads and pulls: all blocks after the first `device` ones are computed.
    pub(crate) fn computed(device: u32) -> Self {
        Self { device, host: device, loaded: device, reached: device, ..Self::default() }
    }

    /// Number of the prompt's blocks that are pulled from another worker.
    #[must_use]
    pub fn pulled(&self) -> u32 {
        self.reached - self.loaded
    }

    /// True if blocks of the prompt are loaded or pulled in this way, or could have been.
    #[must_use]
    pub fn is_choice(&self) -> bool {
        self.reached > self.device || self.is_limited
    }
}
