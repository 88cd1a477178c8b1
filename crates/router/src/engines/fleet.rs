//! Table of all engines of the router, by name.

use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use arc_swap::{ArcSwap, Guard};
use kvatlas_prompt::Dialect;
use parking_lot::Mutex;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use xxhash_rust::xxh3::xxh3_64;

use crate::config::{Config, EngineConfig, Role};
use crate::engines::{DrainedBy, Engine, HealthState, Models, Turn};
use crate::error::Error;

/// Table of all engines of the router, with the operations that change the table.
pub(crate) struct Fleet {
    engines: ArcSwap<EngineTable>,
    /// Common dialect (way of rendering chats as prompts) of all engines; None if their dialects differ. With a common
    /// dialect, the dialects need not be compared for each model.
    dialect: ArcSwap<Option<Dialect>>,
    changes: Mutex<()>,
    config: Arc<Config>,
    shards: usize,
    tls: Arc<ClientConfig>,
}

/// Table of all engines at one moment, sorted by name.
#[derive(Default)]
pub(crate) struct EngineTable {
    all: Vec<Arc<Engine>>,
    /// Hash table from engines' names to their positions in the sorted list, counted from 1; 0 for a free slot.
    slots: Box<[u32]>,
}

impl EngineTable {
    fn new(all: Vec<Arc<Engine>>) -> Self {
        let mut slots = vec![0; (2 * all.len()).next_power_of_two()].into_boxed_slice();
        for (position, engine) in (1..).zip(&all) {
            let free = slots_of(&engine.name, slots.len()).find(|slot| slots[*slot] == 0);
            free.into_iter().for_each(|slot| slots[slot] = position);
        }
        Self { all, slots }
    }

    /// Returns the engine with the name `name`; None if there is no such engine.
    pub(crate) fn get(&self, name: &str) -> Option<&Arc<Engine>> {
        for slot in slots_of(name, self.slots.len()) {
            let engine = self.all.get((self.slots[slot] as usize).checked_sub(1)?)?;
            if *engine.name == *name {
                return Some(engine);
            }
        }
        None
    }

    /// Returns the number that identifies a rank in routing decisions, assigned when the engine was registered; None
    /// for an unknown rank.
    pub(crate) fn number(&self, worker: &str, rank: u32) -> Option<u32> {
        let engine = self.get(worker)?;
        engine.ids.get()?.get(engine.config.ranks.place(rank)?).map(|id| id.0)
    }
}

impl Deref for EngineTable {
    type Target = [Arc<Engine>];

    fn deref(&self) -> &[Arc<Engine>] {
        &self.all
    }
}

/// Lists the slots of a hash table in which a name may be, in the order of the search. `size`: number of slots, a power
/// of two.
fn slots_of(name: &str, size: usize) -> impl Iterator<Item = usize> {
    let first = xxh3_64(name.as_bytes()) as usize;
    (0..size).map(move |step| first.wrapping_add(step) & (size - 1))
}

/// Dialects (ways of rendering chats as prompts) of the engines that serve a model.
pub(crate) struct Dialects {
    pub(crate) main: Dialect,
    pub(crate) others: Vec<Dialect>,
    /// Model that is used for requests that name no model, if all engines have the same single model; None otherwise.
    pub(crate) only_model: Option<String>,
}

/// Engines to which the router sends a question about a prompt, for example to tokenize the prompt.
pub(crate) struct ToAsk {
    /// Least loaded engine whose route for the question works; None if there is no engine with a working route.
    pub(crate) now: Option<Arc<Engine>>,
    /// Engines whose route for the question has failed and is due for a test. They are asked too, in the background, to
    /// find out if the route works again.
    pub(crate) due: Vec<Arc<Engine>>,
}

/// Party that adds an engine to the fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Adder {
    /// Operator of the router, by the configuration or a command.
    Operator,
    /// Client over HTTP. A client cannot replace an engine by one at another URL, its engines get the key of all
    /// engines only on request, and the number of its engines is limited.
    Client,
}

/// Result of adding an engine: the new engine, and the engine that it replaced.
pub(crate) struct FleetChange {
    pub(crate) added: Arc<Engine>,
    /// Previous engine of the same name; None if the name is new.
    pub(crate) replaced: Option<Arc<Engine>>,
}

impl ToAsk {
    /// True if no engine is available to answer the question about a prompt.
    pub(crate) fn is_empty(&self) -> bool {
        self.now.is_none() && self.due.is_empty()
    }
}

impl Fleet {
    pub(crate) fn new(config: Arc<Config>, shards: usize) -> Result<Self, Error> {
        let tls = Arc::new(client_tls("upstream.ca", config.upstream.ca.as_deref())?);
        let (engines, dialect) = (ArcSwap::default(), ArcSwap::from_pointee(Some(Dialect::default())));
        Ok(Self { engines, dialect, changes: Mutex::default(), config, shards, tls })
    }

    /// Returns the TLS configuration for outgoing connections, which verifies the certificates of engines and services.
    pub(crate) fn tls(&self) -> &Arc<ClientConfig> {
        &self.tls
    }

    /// Returns the current table of all engines.
    #[must_use]
    pub(crate) fn engines(&self) -> Guard<Arc<EngineTable>> {
        self.engines.load()
    }

    /// Returns the engine with the name `name`; None if there is no such engine.
    #[must_use]
    pub(crate) fn engine(&self, name: &str) -> Option<Arc<Engine>> {
        self.engines.load().get(name).cloned()
    }

    fn replace(&self, engines: Vec<Arc<Engine>>) {
        self.engines.store(Arc::new(EngineTable::new(engines)));
        self.compare_dialects();
    }

    /// Updates the common dialect of all engines, after the kind and version of an engine have become known.
    pub(crate) fn compare_dialects(&self) {
        let engines = self.engines.load();
        let first = engines.first().map(|engine| engine.dialect()).unwrap_or_default();
        let is_one = engines.iter().all(|engine| engine.dialect() == first);
        self.dialect.store(Arc::new(is_one.then_some(first)));
    }

    /// Returns the dialects (ways of rendering chats) of the engines that serve a model, the most frequent dialect
    /// first.
    pub(crate) fn dialects(&self, model: Option<&str>) -> Dialects {
        let only_model = if model.is_none() { self.only_model() } else { None };
        if let Some(one) = **self.dialect.load() {
            return Dialects { main: one, others: Vec::new(), only_model };
        }
        let mut counts = Dialect::ALL.map(|dialect| (0, dialect));
        for engine in self.engines.load().iter() {
            if engine.models.load().may_serve(model) {
                for (count, dialect) in &mut counts {
                    *count += usize::from(engine.dialect() == *dialect);
                }
            }
        }
        // The newest of those that are equally many.
        counts.sort_by_key(|(count, _)| *count);
        let mut found = counts.into_iter().rev().filter(|(count, _)| *count > 0).map(|(_, dialect)| dialect);
        Dialects { main: found.next().unwrap_or_default(), others: found.collect(), only_model }
    }

    /// Returns the model that all engines have, as far as they list their models; None if there are several models.
    fn only_model(&self) -> Option<String> {
        let engines = self.engines.load();
        let models = engines.iter().map(|engine| engine.models.load_full());
        // Of several names that an engine has for its model, the first one.
        let own =
            |models: &Models| models.names.iter().find(|model| model.parent.is_none()).map(|own| own.name.clone());
        let mut first = models.filter_map(|models| own(&models));
        let one = first.next()?;
        first.all(|other| other == one).then_some(one)
    }

    /// Returns the model under which requests for the name `name` are counted: the model itself, or the base model of
    /// an adapter. None if no engine lists the name.
    pub(crate) fn counted_as(&self, name: &str) -> Option<String> {
        self.engines.load().iter().find_map(|engine| engine.models.load().counted_as(name).map(str::to_owned))
    }

    /// True if all engines that serve a model identify images by the `uuid` in a request; false if no engine serves the
    /// model.
    pub(crate) fn takes_image_ids(&self, model: Option<&str>) -> bool {
        let engines = self.engines.load();
        let mut serving = engines.iter().filter(|engine| engine.models.load().may_serve(model)).peekable();
        serving.peek().is_some() && serving.all(|engine| engine.takes_image_ids())
    }

    /// Returns the engine with the fewest requests in flight among those that are up, serve a model, and have the
    /// dialect `dialect` (way of rendering chats); None if there is no such engine.
    pub(crate) fn one_for(&self, model: Option<&str>, dialect: Dialect) -> Option<Arc<Engine>> {
        let engines = self.engines.load();
        let serving = engines.iter().filter(|engine| engine.prepares(model, dialect));
        // One that lists the model, where there is one.
        serving.min_by_key(|engine| (!engine.lists(model), engine.counts.in_flight.load(Relaxed))).cloned()
    }

    /// Returns the engines' own name of a model, if different from the name `model` that clients use; None otherwise.
    /// Only engines of the dialect `dialect` (way of rendering chats) are examined.
    pub(crate) fn own_name(&self, model: &str, dialect: Dialect) -> Option<String> {
        let engine = self.one_for(Some(model), dialect)?;
        engine.models.load().own_name(model).map(str::to_owned)
    }

    /// Returns the engine to which a question about a prompt is sent at a path, and the engines whose route at this
    /// path is due for a test. `other`: an engine that is not asked.
    pub(crate) fn to_ask(
        &self,
        model: Option<&str>,
        dialect: Dialect,
        path: &str,
        other: Option<&Arc<Engine>>,
    ) -> ToAsk {
        let engines = self.engines.load();
        let mut best: Option<((bool, usize), &Arc<Engine>)> = None;
        let mut due = Vec::new();
        for engine in engines.iter().filter(|engine| engine.prepares(model, dialect)) {
            if other.is_some_and(|other| Arc::ptr_eq(engine, other)) {
                continue;
            }
            let order = (!engine.lists(model), engine.counts.in_flight.load(Relaxed));
            match engine.side_routes.of(path).turn() {
                Turn::Now if best.is_none_or(|(first, _)| order < first) => best = Some((order, engine)),
                Turn::Trial => due.push(engine.clone()),
                Turn::Now | Turn::No => {}
            }
        }
        ToAsk { now: best.map(|(_, engine)| engine.clone()), due }
    }

    /// True if the fleet has engines that only compute prompts (prefill).
    pub(crate) fn is_split(&self) -> bool {
        self.engines.load().iter().any(|engine| engine.config.role == Role::Prefill)
    }

    /// True if requests can be served: some engine is up and its models are known. If prefill and decode engines are
    /// separate, their protocol for transferring blocks must be known too.
    #[must_use]
    pub(crate) fn has_any_up(&self) -> bool {
        // Silence may be a few requests' doing: one client must not take the whole router out of service.
        let is_well = |standing| matches!(standing, HealthState::Up | HealthState::Silent | HealthState::Busy);
        let is_up = |engine: &Arc<Engine>| engine.is_known.load(Relaxed) && is_well(engine.health.standing());
        let engines = self.engines.load();
        let is_settled = |role: Role| {
            let may_come = |engine: &Arc<Engine>| is_well(engine.health.standing());
            let mut of_role = engines.iter().filter(|it| it.config.role == role && may_come(it)).peekable();
            of_role.peek().is_none() || of_role.any(|engine| is_up(engine) && engine.handover().is_some())
        };
        engines.iter().any(is_up) && is_settled(Role::Prefill) && is_settled(Role::Decode)
    }

    /// Adds an engine, or replaces the engine of the same name. The function `before` is called with the old and the
    /// new engine before requests can find the new one.
    pub(crate) fn set(
        &self,
        mut config: EngineConfig,
        adds: Adder,
        before: impl FnOnce(Option<&Engine>, &Arc<Engine>),
    ) -> Result<FleetChange, Error> {
        let tls = config.url.starts_with("https").then(|| self.tls.clone());
        let _lock = self.changes.lock();
        let mut engines = self.engines.load().to_vec();
        let (name, address) = Engine::place(&config)?;
        let old = engines.iter().find(|other| *other.name == name).cloned();
        if adds == Adder::Client {
            if let Some(old) = old.as_deref().filter(|old| old.address != address) {
                return Err(Error::Taken { name, url: old.config.url.clone() });
            }
            let others = engines.iter().filter(|other| *other.name != name);
            let ranks = others.map(|other| other.config.ranks.count()).sum::<usize>() + config.ranks.count();
            let most = self.config.max_ranks;
            if ranks > most && old.as_deref().is_none_or(|old| old.config.ranks.count() < config.ranks.count()) {
                return Err(Error::Full { ranks, most });
            }
            config.use_key = config.use_key.or(Some(old.as_deref().is_some_and(Engine::uses_key)));
        }
        let mut engine = Engine::new(config, &self.config, self.shards, tls)?;
        if let Some(old) = old.as_deref().filter(|old| old.config.url == engine.config.url) {
            engine.goes_on_from(old);
        }
        if let Some(drain) = engine.config.drain {
            engine.health.set_draining(DrainedBy::Operator, drain);
        }
        let engine = Arc::new(engine);
        before(old.as_deref(), &engine);
        let replaced = match engines.binary_search_by(|other| other.name.cmp(&engine.name)) {
            Ok(at) => Some(std::mem::replace(&mut engines[at], engine.clone())),
            Err(at) => {
                engines.insert(at, engine.clone());
                None
            }
        };
        self.replace(engines);
        Ok(FleetChange { added: engine, replaced })
    }

    /// Removes an engine from the fleet. Requests that the engine is processing continue.
    pub(crate) fn remove(&self, name: &str) -> Result<Arc<Engine>, Error> {
        let _lock = self.changes.lock();
        let mut engines = self.engines.load().to_vec();
        let at = engines.iter().position(|engine| *engine.name == *name);
        let at = at.ok_or_else(|| Error::Unknown { name: name.to_owned() })?;
        let engine = engines.remove(at);
        self.replace(engines);
        engine.pool.clear();
        Ok(engine)
    }
}

/// Makes a TLS configuration that verifies the certificates of servers. `ca`: file with certificate authorities;
/// `setting`: name of the setting for this file, for errors.
pub(crate) fn client_tls(setting: &str, ca: Option<&Path>) -> Result<ClientConfig, Error> {
    let mut roots = RootCertStore::empty();
    // Where the systems that we run on keep the authorities that they trust.
    const SYSTEM: [&str; 3] =
        ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];
    let path = ca.or_else(|| SYSTEM.iter().map(Path::new).find(|path| path.exists()));
    if let Some(path) = path {
        let failed = |why: &dyn std::fmt::Display| {
            Error::start(format!("{setting}: the certificates in {} cannot be read: {why}", path.display()))
        };
        for root in CertificateDer::pem_file_iter(path).map_err(|error| failed(&error))? {
            let added = roots.add(root.map_err(|error| failed(&error))?);
            // A system has authorities of all kinds; those that an operator names must be usable.
            if let (Some(_), Err(error)) = (ca, added) {
                return Err(failed(&error));
            }
        }
    }
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::start(format!("TLS towards engines: {error}")))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_are_found_by_their_names() {
        assert!(EngineTable::default().get("a").is_none() && EngineTable::new(Vec::new()).get("").is_none());
        for count in [1, 2, 3, 8, 100] {
            let name = |number| format!("http://engine-{number}:8000");
            let engine = |number| {
                let config = EngineConfig { name: Some(name(number)), ..EngineConfig::at("http://a:1") };
                Arc::new(Engine::new(config, &Config::default(), 1, None).expect("one"))
            };
            let engines = EngineTable::new((0..count).map(engine).collect());
            for number in 0..count {
                assert_eq!(engines.get(&name(number)).map(|engine| engine.name.to_string()), Some(name(number)));
            }
            assert!(engines.get(&name(count)).is_none() && engines.number(&name(0), 0).is_none(), "it has no number");
        }
    }
}
