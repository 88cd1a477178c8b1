//! Several sites: digests that a site's service publishes of its indexes, and the index of the service above the sites.
//!
//! A site's service makes digests of its keyspaces (here); the service in the role `global` takes them in, and answers which
//! sites can hold how much of a prompt (`tops`). From the same marks, `sole` counts the tokens that only one worker holds.

mod sole;
mod tops;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use kvatlas_digest::{Publisher, State};
use parking_lot::Mutex;

pub(crate) use self::sole::SoleTokens;
pub use self::tops::{Top, Tops};
pub use crate::config::{Role, SitesConfig};
use crate::error::Error;
use crate::state::{Keyspace, Stream};

/// Name of a site's state in answers and metrics.
#[must_use]
pub fn state_name(state: State) -> &'static str {
    match state {
        State::Known => "known",
        State::Unknown => "unknown",
        State::Doubted => "doubted",
    }
}

/// Digest of one keyspace.
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

/// Publishers of the keyspaces of a service.
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

    /// Next digest of a keyspace: the changes, or the whole if it is new or `whole`.
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
        look(publisher, keyspace);
        let digest = if whole || is_new { publisher.whole() } else { publisher.delta() };
        Ok(KeyspaceDigest {
            model: model.to_string(),
            routing_group: routing_group.to_string(),
            block_size: keyspace.block_size,
            bytes: digest.encode(),
        })
    }
}

/// Updates the marks of a keyspace. As in answers, streams that are not trusted are left out; a stream that loses trust
/// from now on is left out the next time. Returns the workers of the streams that are left out.
fn look(publisher: &mut Publisher, keyspace: &Keyspace) -> Vec<Arc<str>> {
    let untrusted: Vec<_> = keyspace.steady(|untrusted| untrusted.streams().cloned().collect());
    let is_of = |stream: &Arc<Stream>, worker: &str, rank| &*stream.worker == worker && stream.feeds(rank);
    let is_usable = |worker: &str, rank| !untrusted.iter().any(|stream| is_of(stream, worker, rank));
    publisher.look(&keyspace.index(), is_usable, || {});
    untrusted.iter().map(|stream| stream.worker.clone()).collect()
}
