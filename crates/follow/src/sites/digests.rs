//! The digests of a site's keyspaces, which it publishes.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use kvatlas_digest::Publisher;
use parking_lot::Mutex;

use crate::error::Error;
use crate::state::{Keyspace, Stream};

/// The digest of one keyspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyspaceDigest {
    /// The model's name.
    pub model: String,
    /// The routing group.
    pub routing_group: String,
    /// Tokens in a block.
    pub block_size: u32,
    /// The digest.
    pub bytes: Vec<u8>,
}

/// A model and a routing group.
type Name = (Box<str>, Box<str>);

/// The publishers of a service's keyspaces.
pub(crate) struct Digests {
    grain: u32,
    life: u64,
    publishers: Mutex<HashMap<Name, Publisher>>,
}

impl Digests {
    pub(crate) fn new(grain: u32) -> Self {
        let life = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos() as u64;
        Self { grain, life, publishers: Mutex::default() }
    }

    /// The next digest of a keyspace: what changed, or the whole if it is new or `whole`.
    pub(crate) fn next(&self, site: &str, keyspace: &Keyspace, whole: bool) -> Result<KeyspaceDigest, Error> {
        let (model, routing_group) = (&keyspace.model, &keyspace.routing_group);
        let mut publishers = self.publishers.lock();
        let name = (model.clone(), routing_group.clone());
        let is_new = publishers.get(&name).is_none_or(|publisher| publisher.site() != site);
        if is_new {
            let publisher = Publisher::new(site, self.life, self.grain)
                .map_err(|error| Error::Invalid { code: error.code(), message: error.to_string().into() })?;
            publishers.insert(name.clone(), publisher);
        }
        let Some(publisher) = publishers.get_mut(&name) else { return Err(Error::Internal) };
        // What answers leave out, the digest leaves out. A stream that is not trusted any more from now on is left out of
        // the next one.
        let untrusted: Vec<_> = keyspace.steady(|untrusted| untrusted.streams().cloned().collect());
        let is_of = |stream: &Arc<Stream>, worker: &str, rank| &*stream.worker == worker && stream.feeds(rank);
        let is_usable = |worker: &str, rank| !untrusted.iter().any(|stream| is_of(stream, worker, rank));
        publisher.look(&keyspace.index(), is_usable, || {});
        let digest = if whole || is_new { publisher.whole() } else { publisher.delta() };
        Ok(KeyspaceDigest {
            model: model.to_string(),
            routing_group: routing_group.to_string(),
            block_size: keyspace.block_size,
            bytes: digest.encode(),
        })
    }
}
