//! Depths of a prompt: the number of its leading blocks that each worker holds, by tier, as a lookup returns them.

/// Number of leading blocks of one prompt that each worker holds. A value can be reused for many prompts; filling it
/// again allocates memory only when the fleet grows.
#[derive(Debug, Clone, Default)]
pub struct Depths {
    pub(crate) rows: Vec<Depth>,
    /// Number of leading blocks that other workers can pull from each worker, indexed by the worker's number; empty if
    /// there are none.
    pullable: Vec<u32>,
    known: bool,
    /// True if any worker holds more blocks on other tiers than on its device.
    is_tiered: bool,
}

/// Number of leading blocks of a prompt that one worker holds: on its device, with host memory, and on all tiers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Depth {
    /// Number of leading blocks of the prompt that the worker holds on its device.
    pub device: u32,
    /// Number of leading blocks of the prompt that the worker holds on its device or in host memory; at least `device`.
    pub host: u32,
    /// Number of leading blocks of the prompt that the worker holds on any tier; at least `host`.
    pub any: u32,
}

impl Depths {
    /// Value for a prompt that was not looked up, as there is no index or the prompt has no hashes.
    #[must_use]
    pub fn unknown() -> Self {
        Self::default()
    }

    /// True if the prompt was looked up.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.known
    }

    /// Removes the block counts of all workers; afterwards, the prompt counts as not looked up.
    pub fn clear(&mut self) {
        self.begin();
        self.known = false;
    }

    /// Removes the block counts of all workers; afterwards, the prompt counts as looked up, with no block found.
    pub fn begin(&mut self) {
        self.rows.clear();
        self.pullable.clear();
        self.is_tiered = false;
        self.known = true;
    }

    /// Sets the numbers of the prompt's leading blocks that the worker with this number holds. `host` is raised to at
    /// least `device`, and `any` to at least `host`.
    pub fn set(&mut self, worker: u32, depth: Depth) {
        let at = worker as usize;
        if self.rows.len() <= at {
            self.rows.resize(at + 1, Depth::default());
        }
        let host = depth.host.max(depth.device);
        let any = depth.any.max(host);
        self.rows[at] = Depth { device: depth.device, host, any };
        self.is_tiered |= any > depth.device;
        self.known = true;
    }

    /// Sets the leading blocks that the worker with this number can load, in whole chunks. `host`: leading blocks on
    /// its device, continued in host memory; `any`: leading blocks on all tiers from which it may load; `pullable`:
    /// leading blocks that other workers can pull from it. Replaces the values of [`Depths::set`] for tiers other than
    /// the device.
    pub fn set_loadable(&mut self, worker: u32, host: u32, any: u32, pullable: u32) {
        let at = worker as usize;
        if self.rows.len() <= at {
            self.rows.resize(at + 1, Depth::default());
        }
        let depth = &mut self.rows[at];
        depth.host = host.max(depth.device);
        depth.any = any.max(depth.host);
        self.is_tiered |= depth.any > depth.device;
        self.known = true;
        if pullable > 0 {
            if self.pullable.len() <= at {
                self.pullable.resize(at + 1, 0);
            }
            self.pullable[at] = pullable;
        }
    }

    /// Number of leading blocks that other workers can pull from each worker, indexed by the worker's number; 0 for
    /// workers beyond the end.
    pub(crate) fn pullable(&self) -> &[u32] {
        &self.pullable
    }

    /// True if any worker holds more blocks on other tiers than on its device.
    pub(crate) fn is_tiered(&self) -> bool {
        self.is_tiered
    }

    /// True if any worker can load blocks from another tier or a pool, or has blocks that others can pull.
    pub(crate) fn has_transfers(&self) -> bool {
        self.is_tiered || !self.pullable.is_empty()
    }

    /// Numbers of a prompt's leading blocks that the worker with this number holds.
    #[must_use]
    pub fn get(&self, worker: u32) -> Depth {
        self.rows.get(worker as usize).copied().unwrap_or_default()
    }

    /// Removes the block counts of a worker that has left, as its number may be given to another worker.
    pub(crate) fn left(&mut self, worker: u32) {
        if let Some(depth) = self.rows.get_mut(worker as usize) {
            *depth = Depth::default();
        }
        if let Some(blocks) = self.pullable.get_mut(worker as usize) {
            *blocks = 0;
        }
    }

    pub(crate) fn raise(&mut self, worker: u32, raise: impl FnOnce(&mut Depth)) {
        let mut depth = self.get(worker);
        raise(&mut depth);
        self.set(worker, depth);
    }
}
