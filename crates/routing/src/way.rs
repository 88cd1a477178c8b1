//! The way in which a worker gets at a prompt: what of it is on its device, loaded, pulled and computed.

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
