//! Index of the service above many sites: for each model and routing group, a sparse index of its sites.

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvatlas_digest::{Digest, DigestEffect, Sites};
use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::{Role, SitesConfig};
use crate::error::Error;

/// Most keyspaces: each client that may send digests can make one.
const MOST: usize = 1024;
/// Time between two sweeps of sites to be forgotten.
const SWEEP: Duration = Duration::from_secs(10);

/// Sites of all keyspaces.
pub struct Tops {
    config: SitesConfig,
    since: Instant,
    all: Mutex<BTreeMap<(String, String), Arc<Top>>>,
}

/// Sites of one keyspace.
pub struct Top {
    /// The model's name.
    pub model: String,
    /// The routing group.
    pub routing_group: String,
    /// Tokens in a block.
    pub block_size: u32,
    sites: RwLock<Sites>,
    swept: Mutex<Duration>,
}

impl Tops {
    pub(crate) fn new(config: SitesConfig) -> Self {
        Self { config, since: Instant::now(), all: Mutex::default() }
    }

    /// True if this service takes in digests of sites.
    #[must_use]
    pub fn is_global(&self) -> bool {
        self.config.role == Role::Global
    }

    /// Present time on the clock of the sparse indexes.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.since.elapsed()
    }

    /// All keyspaces with digests, by model and routing group.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<Top>> {
        self.all.lock().values().cloned().collect()
    }

    /// Sites of a keyspace.
    ///
    /// # Errors
    /// [`Error::Unknown`] if no site has sent a digest of it.
    pub fn get(&self, model: &str, routing_group: &str) -> Result<Arc<Top>, Error> {
        let found = self.all.lock().get(&(model.to_owned(), routing_group.to_owned())).cloned();
        found.ok_or_else(|| {
            let message = format!("no site has sent a digest of model {model:?} in routing group {routing_group:?}");
            Error::Unknown { code: "unknown_keyspace", message }
        })
    }

    /// Takes in a digest.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it cannot be read, [`Error::Conflict`] if it does not go with what is known.
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
    /// The sites, for reading.
    pub fn read(&self) -> RwLockReadGuard<'_, Sites> {
        self.sites.read()
    }

    /// The sites, for writing.
    pub fn write(&self) -> RwLockWriteGuard<'_, Sites> {
        self.sites.write()
    }

    /// Forgets sites that were silent for `age`.
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
