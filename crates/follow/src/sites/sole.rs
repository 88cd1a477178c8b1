//! [`SoleTokens`]: numbers of tokens that are lost with a worker, as no other worker has their blocks.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use kvatlas_digest::Publisher;
use parking_lot::Mutex;

use super::{Name, look};
use crate::error::Error;
use crate::state::Keyspace;

/// Number of blocks that one mark stands for.
const GRAIN: u32 = 8;

/// Counts of the tokens that only one worker holds. What has not changed since the last count is not copied again.
#[derive(Default)]
pub(crate) struct SoleTokens {
    publishers: Mutex<HashMap<Name, Publisher>>,
}

impl SoleTokens {
    /// Number of tokens that no other worker holds, by worker; workers that are not trusted are left out.
    pub(crate) fn count(&self, keyspaces: &[Arc<Keyspace>]) -> Result<BTreeMap<String, u64>, Error> {
        let mut publishers = self.publishers.lock();
        publishers.retain(|name, _| keyspaces.iter().any(|it| (&it.model, &it.routing_group) == (&name.0, &name.1)));
        let (mut tokens, mut doubted) = (BTreeMap::new(), Vec::new());
        for keyspace in keyspaces {
            let name = (keyspace.model.clone(), keyspace.routing_group.clone());
            let publisher = match publishers.entry(name) {
                std::collections::hash_map::Entry::Occupied(found) => found.into_mut(),
                std::collections::hash_map::Entry::Vacant(empty) => {
                    let made = Publisher::new("own", 0, GRAIN);
                    empty.insert(
                        made.map_err(|error| Error::Invalid { code: error.code(), message: error.to_string().into() })?,
                    )
                }
            };
            doubted.extend(look(publisher, keyspace));
            publisher.delta(); // the changes are not needed
            for (worker, marks) in publisher.sole_marks() {
                let found = marks as u64 * u64::from(GRAIN) * u64::from(keyspace.block_size);
                *tokens.entry(worker.to_string()).or_default() += found;
            }
        }
        tokens.retain(|worker, _| !doubted.iter().any(|it| **it == **worker));
        Ok(tokens)
    }
}
