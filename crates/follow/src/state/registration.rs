//! Registration of an engine rank, as given by a client or by discovery.

use std::num::NonZeroU32;

use crate::endpoint::Endpoint;
use crate::error::Error;

/// Most aliases, and most adapters, of a model.
const MOST_NAMES: usize = 1024;

/// Names of a model besides its own.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ModelNames {
    /// Other names of the model.
    pub aliases: Vec<String>,
    /// Names of adapters of the model.
    pub adapters: Vec<String>,
}

impl ModelNames {
    fn check(&self) -> Result<(), Error> {
        for (what, names) in [("aliases", &self.aliases), ("adapters", &self.adapters)] {
            if names.len() > MOST_NAMES {
                let message = format!("{what} must be a list of at most {MOST_NAMES} names, got {}", names.len());
                return Err(Error::invalid("too_many_names", message));
            }
            if names.iter().any(String::is_empty) {
                return Err(Error::invalid("empty_name", format!("a name in {what} must not be empty")));
            }
        }
        Ok(())
    }
}

/// Registration of an engine rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Registration {
    /// The worker's name.
    pub worker: String,
    /// The model's name.
    pub model: String,
    /// Aliases and adapters at the worker's engine; none to leave them as they are.
    pub names: Option<ModelNames>,
    /// The routing group.
    pub routing_group: String,
    /// Tokens in a block.
    pub block_size: u32,
    /// Data-parallel rank, unless batches name another rank that no other stream feeds.
    pub rank: u32,
    /// Endpoint of the engine's events.
    pub endpoint: Endpoint,
    /// Endpoint of the engine's replay socket.
    pub replay_endpoint: Option<Endpoint>,
    /// Topic of the engine's batches, compared as a whole; empty for any. For an engine that connects to this service, the
    /// empty topic is a topic like others.
    pub topic: String,
    /// True if a block announced n times is held until it is removed n times. Some engines announce a block again without
    /// another copy of it.
    pub count_copies: bool,
    /// Blocks that the engine keeps as one in host memory; none to learn it from its stores, which do not show it where they
    /// have names alone.
    pub host_chunk: Option<NonZeroU32>,
    /// Source of the registration: `zmq` for a client of the HTTP interface, else the engine's URL or `stream`.
    pub source: String,
}

impl Registration {
    /// Checks the values of the registration.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.block_size == 0 {
            let message = "block_size must be at least 1, got 0: it is the engine's number of tokens in a block";
            return Err(Error::invalid("invalid_block_size", message));
        }
        if self.replay_endpoint.as_ref().is_some_and(|replay| replay.bound_port().is_some()) {
            let message = "replay_endpoint must be tcp://HOST:PORT or ipc://PATH: the engine must listen there for replay requests";
            return Err(Error::invalid("invalid_endpoint", message));
        }
        for (what, name) in
            [("worker", &self.worker), ("model_name", &self.model), ("routing_group", &self.routing_group)]
        {
            if name.is_empty() {
                return Err(Error::invalid("empty_name", format!("{what} must not be empty")));
            }
        }
        self.names.as_ref().map_or(Ok(()), ModelNames::check)
    }

    /// Checks that another registration of the same rank is equal.
    pub(crate) fn check_same(&self, other: &Self) -> Result<(), Error> {
        let said = |it: &Self| {
            (it.endpoint.clone(), it.replay_endpoint.clone(), it.topic.clone(), it.count_copies, it.host_chunk)
        };
        if said(self) == said(other) {
            return Ok(());
        }
        let replay =
            self.replay_endpoint.as_ref().map_or_else(String::new, |replay| format!(" with replay at {replay}"));
        let message = format!(
            "rank {} of worker {:?} is registered at {}{replay}; unregister it first",
            self.rank, self.worker, self.endpoint
        );
        Err(Error::conflict("already_registered", message))
    }
}
