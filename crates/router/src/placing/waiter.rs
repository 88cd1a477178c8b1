//! A waiting request: its prompt for another lookup, and the channel for the decision.

use std::sync::Arc;
use std::time::Instant;

use kvatlas_follow::state::Keyspace;
use kvatlas_routing as core;
use tokio::sync::mpsc;

use crate::remote::sites::Bounds;
use crate::requests::facts::{DialectBlocks, RequestFacts};

/// The parts of a prompt that are needed to look it up again.
#[derive(Clone)]
pub(super) struct Prompt {
    pub(super) model: Option<String>,
    pub(super) hashes: Arc<[u64]>,
    pub(super) others: Vec<DialectBlocks>,
    pub(super) block_size: u32,
    pub(super) keyspace: Option<Arc<Keyspace>>,
}

/// Update for a request that waits for a decision.
pub(super) enum WaitUpdate {
    /// The request waits no longer.
    Decided(core::Outcome, Option<Arc<Bounds>>),
    /// Other engines may take the request now.
    FleetChanged,
}

/// A request that waits for a decision.
pub(super) struct Waiter {
    pub(super) told: mpsc::UnboundedSender<WaitUpdate>,
    pub(super) prompt: Prompt,
    pub(super) looked: Instant,
    /// The bounds that the service above sites said last.
    pub(super) bounds: Option<Arc<Bounds>>,
}

impl Waiter {
    /// Returns the waiter, and where it hears of the decision.
    pub(super) fn new(
        facts: &RequestFacts,
        bounds: Option<Arc<Bounds>>,
    ) -> (Self, mpsc::UnboundedReceiver<WaitUpdate>) {
        let (told, hears) = mpsc::unbounded_channel();
        let prompt = Prompt {
            model: facts.body.model.clone(),
            hashes: facts.prompt.hashes.clone(),
            others: facts.prompt.others.clone(),
            block_size: facts.prompt.block_size,
            keyspace: facts.prompt.keyspace.clone(),
        };
        (Self { told, prompt, looked: Instant::now(), bounds }, hears)
    }
}
