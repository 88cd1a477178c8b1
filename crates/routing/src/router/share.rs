//! A request's share in its worker's row, the time at which its prompt was computed, and the blocks of it that workers are
//! expected to hold.

/// The time at which a prompt that leaves the queue was computed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum ComputeTime {
    /// The prompt is computed now: its first token has come.
    Now,
    /// Some time after it was sent: the whole answer has come.
    Before { sent: f64 },
    /// If at all, nobody knows when.
    Unknown,
}

/// The amounts that a request adds to a row while it is there.
#[derive(Debug, Clone, Copy)]
pub(super) struct Share {
    pub(super) tokens: f64,
    pub(super) uncached: f64,
    pub(super) generated: f64,
    pub(super) output_left: f64,
}

/// Leading blocks of a prompt that are on their way to the workers, and those that their requests use, by number of the
/// worker.
#[derive(Debug, Default)]
pub(super) struct ExpectedBlocks {
    pub(super) held: Vec<u32>,
    pub(super) used: Vec<u32>,
    /// Blocks of the prompt that can be taken from a cache.
    pub(super) usable: u32,
}

impl ExpectedBlocks {
    /// Sets both columns to 0, for so many workers.
    pub(super) fn clear(&mut self, workers: usize) {
        for column in [&mut self.held, &mut self.used] {
            column.clear();
            column.resize(workers, 0);
        }
    }
}
