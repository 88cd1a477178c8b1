//! The workers that may take a request, one row for each worker and rank, a column for each thing known.

/// What is known of each candidate for one request. All columns have the same length; rows are in order of `worker`.
///
/// Only workers that may take the request have a row: those that serve its model, are up and not drained.
/// What is not known is `NAN` in columns of `f64`, and 0 in columns of counts unless the column says otherwise.
#[derive(Debug, Clone, Default)]
pub struct Candidates {
    /// A number for the worker and rank that stays the same as long as it is there.
    pub worker: Vec<u32>,
    /// Leading blocks of the prompt that it holds on the device, by the events so far (the index).
    pub device_blocks: Vec<u32>,
    /// The same counting the host's memory too: at least `device_blocks`.
    pub host_blocks: Vec<u32>,
    /// The same counting every tier: at least `host_blocks`.
    pub any_blocks: Vec<u32>,
    /// Leading blocks that it will hold once what was just sent there is computed: at least `device_blocks`.
    pub predicted_blocks: Vec<u32>,
    /// Whether what the index says of it can be trusted right now.
    pub trusted: Vec<bool>,
    /// Requests sent there and not finished.
    pub requests: Vec<u32>,
    /// Of those, the ones without a first token.
    pub waiting: Vec<u32>,
    /// Prompt tokens of requests without a first token, less those expected in its cache.
    pub queued_tokens: Vec<f64>,
    /// Prompt tokens of requests without a first token, cached or not.
    pub queued_prompt_tokens: Vec<f64>,
    /// Of `queued_tokens`, those of the prompt whose turn it is: the one sent first.
    pub head_tokens: Vec<f64>,
    /// Seconds since its turn came, as far as can be told: since the first token before it, or since it was sent.
    pub head_elapsed: Vec<f64>,
    /// Tokens of all requests there, prompts and what they have generated so far.
    pub context_tokens: Vec<f64>,
    /// Tokens that requests there may still generate, where they say so (or as past ones did).
    pub output_tokens_left: Vec<f64>,
    /// Requests that the engine itself says are waiting in its queue.
    pub reported_waiting: Vec<f64>,
    /// Requests that the engine itself says are running.
    pub reported_running: Vec<f64>,
    /// Share of its KV cache that the engine says is in use, 0 to 1.
    pub reported_kv_usage: Vec<f64>,
    /// Seconds since the engine said so.
    pub reported_age: Vec<f64>,
    /// Prompt tokens that it computes a second, as learnt.
    pub prefill_rate: Vec<f64>,
    /// Seconds between two tokens of one request when nothing else is computed, as learnt.
    pub step_time: Vec<f64>,
    /// Seconds since it joined.
    pub age: Vec<f64>,
    /// Requests sent there since it joined.
    pub sent: Vec<u64>,
    /// When it last took a request of which nobody held anything, in the caller's seconds; `-inf` if never.
    pub last_cold: Vec<f64>,
    /// Blocks that the index says it holds.
    pub held_blocks: Vec<f64>,
    /// Blocks that its cache has room for.
    pub capacity_blocks: Vec<f64>,
    /// Its share of the work beside others: 1 unless the user says otherwise.
    pub weight: Vec<f64>,
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
            trusted,
            requests,
            waiting,
            queued_tokens,
            queued_prompt_tokens,
            head_tokens,
            head_elapsed,
            context_tokens,
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
    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.worker.len()
    }

    /// Whether nobody may take the request.
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
        self.trusted[row] = true;
        self.requests[row] = 0;
        self.waiting[row] = 0;
        self.queued_tokens[row] = 0.0;
        self.queued_prompt_tokens[row] = 0.0;
        self.head_tokens[row] = 0.0;
        self.head_elapsed[row] = 0.0;
        self.context_tokens[row] = 0.0;
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
