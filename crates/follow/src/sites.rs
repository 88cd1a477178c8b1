//! Deployments of several sites: digests (summaries) that the service of a site publishes of its indexes, and the index
//! of the service above the sites.
//!
//! The service of a site makes a digest of each keyspace (model and routing group). The service with the role `global`
//! receives the digests, and answers which sites may hold how many leading blocks of a prompt ([`Tops`]). From the
//! prefix hashes of digests, the tokens that only one worker holds are counted too.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use kvatlas_digest::{Digest, DigestEffect, Publisher, Sites, State};
use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};

pub use crate::config::{Role, SitesConfig};
use crate::error::Error;
use crate::state::{Keyspace, Stream};

/// Returns the name of a site's state, as shown in HTTP answers and metrics.
#[must_use]
pub fn state_name(state: State) -> &'static str {
    match state {
        State::Known => "known",
        State::Unknown => "unknown",
        State::Doubted => "doubted",
    }
}

/// Digest (summary of the indexed blocks) of one keyspace, to be sent to the service above the sites.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyspaceDigest {
    /// Name of the model.
    pub model: String,
    /// Name of the routing group.
    pub routing_group: String,
    /// Number of tokens in a block.
    pub block_size: u32,
    /// Digest of the keyspace's index in its binary encoding.
    pub bytes: Vec<u8>,
}

/// Name of a keyspace: its model and its routing group.
type Name = (Box<str>, Box<str>);

/// Publishers of digests (summaries of indexes), one for each keyspace of a service.
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

    /// Makes the next digest (summary of the index) of a keyspace for the site `site`: the changes since the previous
    /// digest, or the complete index if the keyspace is new or `whole` is true.
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

/// Updates a publisher's prefix hashes from the index of a keyspace (model and routing group). Untrusted streams are
/// left out, as in answers to queries; a stream that becomes untrusted during the update is left out the next time.
/// Returns the workers of the streams that were left out.
fn look(publisher: &mut Publisher, keyspace: &Keyspace) -> Vec<Arc<str>> {
    let untrusted: Vec<_> = keyspace.steady(|untrusted| untrusted.streams().cloned().collect());
    let is_of = |stream: &Arc<Stream>, worker: &str, rank| &*stream.worker == worker && stream.feeds(rank);
    let is_usable = |worker: &str, rank| !untrusted.iter().any(|stream| is_of(stream, worker, rank));
    publisher.look(&keyspace.index(), is_usable, || {});
    untrusted.iter().map(|stream| stream.worker.clone()).collect()
}

/// Maximum number of keyspaces (models and routing groups) with digests. Needed because each client that may send
/// digests can create keyspaces.
const MOST: usize = 1024;
/// Time between two searches for sites to be removed because they have been silent.
const SWEEP: Duration = Duration::from_secs(10);

/// Sites of all keyspaces (models and routing groups), in a service above the sites.
pub struct Tops {
    config: SitesConfig,
    since: Instant,
    all: Mutex<BTreeMap<(String, String), Arc<Top>>>,
}

/// Sites that have sent digests of one keyspace (model and routing group).
pub struct Top {
    /// Name of the model.
    pub model: String,
    /// Name of the routing group.
    pub routing_group: String,
    /// Number of tokens in a block.
    pub block_size: u32,
    sites: RwLock<Sites>,
    swept: Mutex<Duration>,
}

impl Tops {
    pub(crate) fn new(config: SitesConfig) -> Self {
        Self { config, since: Instant::now(), all: Mutex::default() }
    }

    /// True if the service is above the sites and receives their digests (summaries of their indexes).
    #[must_use]
    pub fn is_global(&self) -> bool {
        self.config.role == Role::Global
    }

    /// Returns the current time on the clock that measures the ages of sites' digests: the time since the service
    /// began.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.since.elapsed()
    }

    /// Returns the sites of all keyspaces (models and routing groups) that have digests, sorted by model and routing
    /// group.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<Top>> {
        self.all.lock().values().cloned().collect()
    }

    /// Returns the sites of one keyspace (model and routing group).
    ///
    /// # Errors
    /// [`Error::Unknown`] if no site has sent a digest of the keyspace.
    pub fn get(&self, model: &str, routing_group: &str) -> Result<Arc<Top>, Error> {
        let found = self.all.lock().get(&(model.to_owned(), routing_group.to_owned())).cloned();
        found.ok_or_else(|| {
            let message = format!("no site has sent a digest of model {model:?} in routing group {routing_group:?}");
            Error::Unknown { code: "unknown_keyspace", message }
        })
    }

    /// Applies a digest (summary of indexed blocks) that a site has sent of a keyspace.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the digest cannot be read, [`Error::Conflict`] if it contradicts earlier digests.
    pub fn apply(
        &self,
        model: &str,
        routing_group: &str,
        block_size: u32,
        bytes: &[u8],
    ) -> Result<DigestEffect, Error> {
        let digest = Digest::decode(bytes).map_err(refused)?;
        let top = self.top(model, routing_group, block_size)?;
        let now = self.now();
        let applied = top.write().apply(&digest, bytes.len(), now).map_err(refused);
        top.sweep(now, self.config.forget_after);
        applied
    }

    fn top(&self, model: &str, routing_group: &str, block_size: u32) -> Result<Arc<Top>, Error> {
        let mut all = self.all.lock();
        let name = (model.to_owned(), routing_group.to_owned());
        if let Some(top) = all.get(&name) {
            if top.block_size == block_size {
                return Ok(top.clone());
            }
            let message = format!(
                "model {model:?} has blocks of {} tokens at other sites, and this digest has {block_size}",
                top.block_size
            );
            return Err(Error::Conflict { code: "block_size_mismatch", message });
        }
        if all.len() >= MOST {
            let message = format!("there are {MOST} models and routing groups already");
            return Err(Error::Conflict { code: "limit_reached", message });
        }
        let SitesConfig { grain, unknown_after, .. } = self.config;
        let sites = Sites::new(grain, unknown_after, RandomState::new().hash_one(0)).map_err(refused)?;
        let (model, routing_group) = name.clone();
        let (sites, swept) = (RwLock::new(sites), Mutex::new(self.now()));
        let top = Arc::new(Top { model, routing_group, block_size, sites, swept });
        all.insert(name, top.clone());
        Ok(top)
    }
}

impl Top {
    /// Locks the list of sites for reading.
    pub fn read(&self) -> RwLockReadGuard<'_, Sites> {
        self.sites.read()
    }

    /// Locks the list of sites for writing.
    pub fn write(&self) -> RwLockWriteGuard<'_, Sites> {
        self.sites.write()
    }

    /// Removes sites that have sent no digest (summary of their index) for the time `age`.
    fn sweep(&self, now: Duration, age: Duration) {
        let mut swept = self.swept.lock();
        if now.saturating_sub(*swept) < SWEEP.min(age) {
            return;
        }
        *swept = now;
        let list = self.read().list(now);
        for site in list.into_iter().filter(|site| site.age > age) {
            tracing::warn!(site = site.site, model = self.model, "a site was not heard for long and is forgotten");
            self.write().forget(&site.site);
        }
    }
}

fn refused(error: kvatlas_digest::Error) -> Error {
    let message = error.to_string();
    match error {
        kvatlas_digest::Error::WholeWanted { .. }
        | kvatlas_digest::Error::OtherGrain { .. }
        | kvatlas_digest::Error::TooMany { .. } => Error::Conflict { code: error.code(), message },
        _ => Error::Invalid { code: error.code(), message: message.into() },
    }
}

/// Number of blocks between two prefix hashes of a chain, for counting tokens that only one worker holds.
const GRAIN: u32 = 8;

/// Counter of the tokens that only one worker holds. Reads only the changes since the previous count from the indexes.
#[derive(Default)]
pub(crate) struct SoleTokens {
    publishers: Mutex<HashMap<Name, Publisher>>,
}

impl SoleTokens {
    /// Counts, for each worker by name, the tokens that no other worker holds. Workers whose streams are not trusted
    /// are left out.
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
