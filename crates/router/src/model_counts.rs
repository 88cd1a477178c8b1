//! Counts of requests by model: the record of each model, and which record a request counts in.
//!
//! Clients choose the names of models, so only those that engines list have records of their own, up to a
//! limit. An adapter counts as the model that it adapts.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use arc_swap::ArcSwap;
use kvatlas_routing::{ChoiceReason, Refusal};

use crate::engines::FAULTS;

/// Models with records of their own.
const MOST_MODELS: usize = 128;

/// Names of models and adapters whose record is remembered. Those of others are looked for again.
const MOST_NAMES: usize = 4096;

/// Name in the metrics of all models that no engine lists, and of those beyond [`MOST_MODELS`].
const OTHER: &str = "other";

/// Name in the metrics of requests without a model.
const NONE: &str = "none";

/// Classes of the statuses that clients got; `none` if the client left before there was a status.
pub(crate) const STATUSES: [&str; 6] = ["1xx", "2xx", "3xx", "4xx", "5xx", "none"];

/// Reasons why a request is not sent again, in the order of `LastAttempt`.
pub(crate) const GIVEN_UP: [&str; 4] = ["not_repeatable", "sent_twice", "no_retries_left", "no_other_engine"];

/// Upper bounds of the buckets for tokens by which a prediction was off.
pub(crate) const OFF_BY: [u32; 8] = [0, 16, 64, 256, 1024, 4096, 16_384, 65_536];

/// Reasons why what an engine had cached was not what was expected.
pub(crate) const OFF_WHY: [&str; 6] = [
    "as_expected",
    "evicted_meanwhile",
    "not_yet_announced",
    "more_than_known",
    "template_mismatch",
    "less_than_known",
];

/// Counts of the requests for a model.
#[derive(Debug)]
pub(crate) struct ModelCounts {
    /// The model, as the metrics call it.
    pub(crate) name: Arc<str>,
    /// Requests for engines, by [`STATUSES`].
    pub(crate) requests: [AtomicU64; STATUSES.len()],
    /// Requests sent again, by why the one before failed.
    pub(crate) retries: [AtomicU64; FAULTS.len()],
    /// Requests that got no answer and were not sent again, by [`GIVEN_UP`].
    pub(crate) given_up: [AtomicU64; GIVEN_UP.len()],
    /// Requests placed, by [`ChoiceReason::ALL`].
    pub(crate) placed: [AtomicU64; ChoiceReason::ALL.len()],
    /// Requests that were not placed, by [`Refusal::ALL`].
    pub(crate) not_placed: [AtomicU64; Refusal::ALL.len()],
    /// Requests that waited in the router.
    pub(crate) waited: AtomicU64,
    /// Prompt tokens that were expected in caches, and those that were there, over requests whose engine said so.
    pub(crate) expected_cached: AtomicU64,
    pub(crate) reported_cached: AtomicU64,
    /// Finished requests whose engine said what it had cached, by reason ([`OFF_WHY`]) and bucket ([`OFF_BY`], and one for
    /// larger differences).
    pub(crate) off: [[AtomicU64; OFF_BY.len() + 1]; OFF_WHY.len()],
}

impl ModelCounts {
    fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            requests: Default::default(),
            retries: Default::default(),
            given_up: Default::default(),
            placed: Default::default(),
            not_placed: Default::default(),
            waited: AtomicU64::new(0),
            expected_cached: AtomicU64::new(0),
            reported_cached: AtomicU64::new(0),
            off: Default::default(),
        }
    }

    /// Counts a request that is not placed.
    pub(crate) fn note_not_placed(&self, why: Refusal) {
        if let Some(at) = Refusal::ALL.iter().position(|other| *other == why) {
            self.not_placed[at].fetch_add(1, Relaxed);
        }
    }

    /// Counts a request that is placed.
    pub(crate) fn note_placed(&self, why: ChoiceReason) {
        if let Some(at) = ChoiceReason::ALL.iter().position(|other| *other == why) {
            self.placed[at].fetch_add(1, Relaxed);
        }
    }
}

/// The records of all models.
#[derive(Debug)]
pub(crate) struct ModelTable {
    known: ArcSwap<KnownModels>,
    none: Arc<ModelCounts>,
    other: Arc<ModelCounts>,
}

/// Records of models by the names of clients, and by their own.
#[derive(Debug, Default, Clone)]
struct KnownModels {
    by_name: HashMap<Box<str>, Arc<ModelCounts>>,
    models: BTreeMap<Arc<str>, Arc<ModelCounts>>,
}

impl Default for ModelTable {
    fn default() -> Self {
        let new = |name| Arc::new(ModelCounts::new(name));
        Self { known: ArcSwap::default(), none: new(NONE), other: new(OTHER) }
    }
}

impl ModelTable {
    /// The record of requests that name no model, or whose body has not been read.
    pub(crate) fn none(&self) -> &Arc<ModelCounts> {
        &self.none
    }

    /// Returns the record that a request counts in. `listed`: the model that engines list under a name; for an adapter,
    /// what it adapts.
    pub(crate) fn of(&self, name: Option<&str>, listed: impl FnOnce(&str) -> Option<String>) -> Arc<ModelCounts> {
        let Some(name) = name else { return self.none.clone() };
        if let Some(known) = self.known.load().by_name.get(name) {
            return known.clone();
        }
        let Some(model) = listed(name) else { return self.other.clone() };
        self.known.rcu(|known| {
            let mut known = KnownModels::clone(known);
            known.add(name, &model, &self.other);
            known
        });
        let known = self.known.load();
        known.by_name.get(name).or_else(|| known.models.get(&*model)).unwrap_or(&self.other).clone()
    }

    /// All records: first those without a model's name of their own.
    pub(crate) fn all(&self) -> Vec<Arc<ModelCounts>> {
        let named = self.known.load();
        [&self.none, &self.other].into_iter().chain(named.models.values()).cloned().collect()
    }

    /// Returns a number of all models together.
    pub(crate) fn total<const N: usize>(&self, of: impl Fn(&ModelCounts) -> &[AtomicU64; N]) -> u64 {
        self.all().iter().flat_map(|model| of(model)).map(|count| count.load(Relaxed)).sum()
    }
}

impl KnownModels {
    fn add(&mut self, name: &str, model: &str, other: &Arc<ModelCounts>) {
        let record = match self.models.get(model) {
            Some(known) => known.clone(),
            None if matches!(model, OTHER | NONE) || self.models.len() >= MOST_MODELS => other.clone(),
            None => {
                let made = Arc::new(ModelCounts::new(model));
                self.models.insert(made.name.clone(), made.clone());
                made
            }
        };
        if self.by_name.len() < MOST_NAMES {
            self.by_name.insert(name.into(), record);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(name: &str) -> Option<String> {
        match name.split_once(':') {
            Some((base, _)) => Some(base.to_owned()),
            None => (!name.starts_with('?')).then(|| name.to_owned()),
        }
    }

    #[test]
    fn what_clients_make_up_counts_together() {
        let table = ModelTable::default();
        let of = |name| table.of(name, listed).name.to_string();
        assert_eq!(of(None), "none");
        assert_eq!(of(Some("a")), "a");
        assert_eq!(of(Some("a:adapter")), "a");
        assert_eq!(of(Some("?1")), "other");
        assert_eq!(of(Some("none")), "other", "it would look like a request without a model");
        assert!(Arc::ptr_eq(&table.of(Some("a"), |_| None), &table.of(Some("a:adapter"), |_| None)));
        let names: Vec<_> = table.all().iter().map(|model| model.name.to_string()).collect();
        assert_eq!(names, ["none", "other", "a"]);
    }

    #[test]
    fn a_fleet_has_so_many_models_and_names() {
        let table = ModelTable::default();
        for number in 0..2 * MOST_NAMES {
            table.of(Some(&format!("m{number}")), listed);
        }
        assert_eq!(table.all().len(), MOST_MODELS + 2);
        assert_eq!(table.known.load().by_name.len(), MOST_NAMES);
        assert_eq!(&*table.of(Some("m0"), |_| None).name, "m0");
        assert_eq!(&*table.of(Some("m200"), listed).name, "other");
        // One that is not remembered still finds the model that it adapts.
        assert_eq!(&*table.of(Some("m1:new"), listed).name, "m1");
    }
}
