//! Depths of a prompt at each worker, by tier: what a lookup found, in a form that a router can use.

/// Leading blocks of one prompt that each worker holds. Keep one and fill it again for each request: it allocates only
/// when the fleet grows.
#[derive(Debug, Clone, Default)]
pub struct Depths {
    pub(crate) rows: Vec<Depth>,
    known: bool,
}

/// Leading blocks that one worker holds, each tier counting those before it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Depth {
    /// Leading blocks on the device.
    pub device: u32,
    /// Leading blocks on the device or in the host's memory.
    pub host: u32,
    /// Leading blocks on any tier.
    pub any: u32,
}

impl Depths {
    /// Nothing is known: there is no index, or the prompt has no hashes.
    #[must_use]
    pub fn unknown() -> Self {
        Self::default()
    }

    /// True if somebody looked.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.known
    }

    /// Forgets all: nothing is known.
    pub fn clear(&mut self) {
        self.rows.clear();
        self.known = false;
    }

    /// Somebody looked, and found nothing so far.
    pub fn begin(&mut self) {
        self.rows.clear();
        self.known = true;
    }

    /// The worker with this number holds that much. Tiers that count less than the one before count the same.
    pub fn set(&mut self, worker: u32, depth: Depth) {
        let at = worker as usize;
        if self.rows.len() <= at {
            self.rows.resize(at + 1, Depth::default());
        }
        let host = depth.host.max(depth.device);
        self.rows[at] = Depth { device: depth.device, host, any: depth.any.max(host) };
        self.known = true;
    }

    /// Returns what the worker with this number holds.
    #[must_use]
    pub fn get(&self, worker: u32) -> Depth {
        self.rows.get(worker as usize).copied().unwrap_or_default()
    }

    /// A worker is gone: whoever has its number next holds nothing of it.
    pub(crate) fn left(&mut self, worker: u32) {
        if let Some(depth) = self.rows.get_mut(worker as usize) {
            *depth = Depth::default();
        }
    }

    pub(crate) fn raise(&mut self, worker: u32, raise: impl FnOnce(&mut Depth)) {
        let mut depth = self.get(worker);
        raise(&mut depth);
        self.set(worker, depth);
    }
}
