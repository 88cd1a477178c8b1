//! The workers that may take a request: one row for each worker and rank, one column for each property.

/// The candidates for one request. All columns have the same length; rows are in order of `worker`.
///
/// Only workers that may take the request have a row: those that serve its model, are up and not drained.
/// An unknown value is `NAN` in columns of `f64`, and 0 in columns of counts, unless the column says otherwise.
#[derive(Debug, Clone, Default)]
pub struct Candidates {
    /// A number for the worker and rank that stays the same as long as it is there.
    pub worker: Vec<u32>,
    /// Leading blocks of the prompt that the worker holds on the device, according to the index.
    pub device_blocks: Vec<u32>,
    /// Leading blocks that it holds on the device or in host memory: at least `device_blocks`.
    pub host_blocks: Vec<u32>,
    /// Leading blocks that it holds on any tier: at least `host_blocks`.
    pub any_blocks: Vec<u32>,
    /// Leading blocks that it will hold once it has computed the prompts just sent to it: at least `device_blocks`.
    pub predicted_blocks: Vec<u32>,
    /// Leading blocks of the prompt that requests at the worker use: they cannot be pushed out before those have ended.
    pub shared_blocks: Vec<u32>,
    /// True if what the index says about the worker can be trusted at present.
    pub trusted: Vec<bool>,
    /// Requests that were sent to the worker and have not finished.
    pub requests: Vec<u32>,
    /// Requests sent to the worker that have no first token yet.
    pub waiting: Vec<u32>,
    /// Prompt tokens of requests without a first token, minus those expected in its cache.
    pub queued_tokens: Vec<f64>,
    /// All prompt tokens of requests without a first token, cached ones included.
    pub queued_prompt_tokens: Vec<f64>,
    /// The part of `queued_tokens` that belongs to the prompt whose turn it is: the one sent first.
    pub head_tokens: Vec<f64>,
    /// Seconds since that prompt's turn came, estimated: since the first token before it, or since it was sent.
    pub head_elapsed: Vec<f64>,
    /// Prompt tokens to compute of requests that wait in the router for this worker.
    pub held_tokens: Vec<f64>,
    /// Tokens of all requests at the worker: prompts and tokens generated so far.
    pub context_tokens: Vec<f64>,
    /// Blocks of the prompts of all requests at the worker; what several share counts once. Prompts without hashes are
    /// left out.
    pub used_blocks: Vec<f64>,
    /// Tokens that requests at the worker may still generate, by their own limits or as past requests did.
    pub output_tokens_left: Vec<f64>,
    /// Requests waiting in the engine's queue, as reported by the engine.
    pub reported_waiting: Vec<f64>,
    /// Requests running at the engine, as reported by the engine.
    pub reported_running: Vec<f64>,
    /// Share of the KV cache in use, 0 to 1, as reported by the engine.
    pub reported_kv_usage: Vec<f64>,
    /// Seconds since the engine's last such report.
    pub reported_age: Vec<f64>,
    /// Prompt tokens that the worker computes per second, as measured so far.
    pub prefill_rate: Vec<f64>,
    /// Seconds between two tokens of one request when nothing else is computed, as measured so far.
    pub step_time: Vec<f64>,
    /// Seconds since the worker joined.
    pub age: Vec<f64>,
    /// Requests sent to the worker since it joined.
    pub sent: Vec<u64>,
    /// When it last took a request of which no worker held a block, in the caller's seconds; `-inf` if never.
    pub last_cold: Vec<f64>,
    /// Blocks that the worker holds, according to the index.
    pub held_blocks: Vec<f64>,
    /// Blocks that the worker's cache has room for.
    pub capacity_blocks: Vec<f64>,
    /// The worker's share of the work relative to others; 1 unless set otherwise.
    pub weight: Vec<f64>,
    /// The best way to serve the request at each worker: what of the prompt it loads or pulls. Filled in for
    /// [`Policy::explain`](crate::Policy::explain) only: a decision asks for the ways that matter.
    pub ways: Vec<PromptWay>,
    /// The row that takes the request, and its way. None as long as none is chosen, if there is nothing to load or pull,
    /// or if the policy does not weigh it.
    pub way: Option<(usize, PromptWay)>,
}

/// Runs the code once for each column.
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
    /// Returns `count` idle workers, numbered from 0: a fleet to try a policy on. Nothing is known of them but that they
    /// have room.
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

    /// Leading blocks of the prompt that the worker of a row is not expected to compute.
    #[must_use]
    #[inline]
    pub fn reached(&self, row: usize) -> u32 {
        match self.way(row) {
            Some(way) => way.reached,
            None => self.predicted_blocks[row].max(self.any_blocks[row]),
        }
    }

    /// The best way to serve the request at the worker of a row, if it was found.
    #[must_use]
    #[inline]
    pub fn way(&self, row: usize) -> Option<&PromptWay> {
        match &self.way {
            Some((chosen, way)) if *chosen == row => Some(way),
            _ => self.ways.get(row),
        }
    }

    /// The number of candidates.
    #[must_use]
    pub fn len(&self) -> usize {
        self.worker.len()
    }

    /// True if no worker may take the request.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.worker.is_empty()
    }

    /// One more row, of nobody yet.
    pub(crate) fn push(&mut self) {
        columns!(push, self,);
    }

    /// The row of a worker that has done nothing yet.
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

    /// Becomes these rows of `from`.
    pub(crate) fn gather(&mut self, from: &Self, rows: &[u32]) {
        columns!(gather, self, from, rows,);
    }
}

/// A way to serve a request at a worker: which part of the prompt is moved there, from where; the rest is computed.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct PromptWay {
    /// Leading blocks that it holds on its device by the time that its turn comes.
    pub device: u32,
    /// Leading blocks that it has then, or has loaded from its host memory.
    pub host: u32,
    /// Leading blocks that it has then, or has loaded from any tier of its own and from pools.
    pub loaded: u32,
    /// Leading blocks that are not computed: at least `loaded`, more if it pulls.
    pub reached: u32,
    /// The worker that the rest up to `reached` is pulled from, by its number.
    pub source: Option<u32>,
    /// True if it has to be kept from loading more.
    pub is_limited: bool,
    /// Seconds that all this is expected to take.
    pub seconds: f64,
}

impl PromptWay {
    /// The way on which nothing is moved.
    pub(crate) fn computed(device: u32) -> Self {
        Self { device, host: device, loaded: device, reached: device, ..Self::default() }
    }

    /// Number of blocks that are pulled from another worker.
    #[must_use]
    pub fn pulled(&self) -> u32 {
        self.reached - self.loaded
    }

    /// True if anything is loaded or pulled, or could have been.
    #[must_use]
    pub fn is_choice(&self) -> bool {
        self.reached > self.device || self.is_limited
    }
}
