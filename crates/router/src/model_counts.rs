//! Counters of requests by model, and the assignment of requests to models.
//!
//! Clients can send any name of a model, so only models that engines list get counters of their own, up to a limit.
//! Requests for a LoRA adapter are counted for its base model.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use arc_swap::ArcSwap;
use kvatlas_routing::{ChoiceReason, Refusal};

use crate::engines::FAULTS;

/// Maximum number of models with counters of their own.
const MOST_MODELS: usize = 128;

/// Maximum number of names of models and adapters whose counters are cached; other names are looked up for each
/// request.
const MOST_NAMES: usize = 4096;

/// Label in the metrics for all models that no engine lists, and for those beyond [`MOST_MODELS`].
const OTHER: &str = "other";

/// Label in the metrics for requests without a model.
const NONE: &str = "none";

/// Classes of the HTTP statuses sent to clients; `none` if the client left before the answer.
pub(crate) const STATUSES: [&str; 6] = ["1xx", "2xx", "3xx", "4xx", "5xx", "none"];

/// Reasons why a failed request is not retried, in the order of `LastAttempt`.
pub(crate) const GIVEN_UP: [&str; 4] = ["not_repeatable", "sent_twice", "no_retries_left", "no_other_engine"];

/// Upper bounds of the histogram buckets for the difference between expected and reported cached tokens, in tokens.
pub(crate) const OFF_BY: [u32; 8] = [0, 16, 64, 256, 1024, 4096, 16_384, 65_536];

/// Reasons for a difference between the cached tokens that an engine reports and those that the router expected.
pub(crate) const OFF_WHY: [&str; 6] = [
    "as_expected",
    "evicted_meanwhile",
    "not_yet_announced",
    "more_than_known",
    "template_mismatch",
    "less_than_known",
];

/// Counters of the requests for one model over all engines.
#[derive(Debug)]
pub(crate) struct ModelCounts {
    /// Name of the model in the metrics.
    pub(crate) name: Arc<str>,
    /// Number of requests forwarded to engines, by the class of the status sent to the client ([`STATUSES`]).
    pub(crate) requests: [AtomicU64; STATUSES.len()],
    /// Number of retries, by the fault of the preceding attempt.
    pub(crate) retries: [AtomicU64; FAULTS.len()],
    /// Number of requests that got no answer and were not retried, by the reason ([`GIVEN_UP`]).
    pub(crate) given_up: [AtomicU64; GIVEN_UP.len()],
    /// Number of requests for which an engine was chosen, by the reason for the choice ([`ChoiceReason::ALL`]).
    pub(crate) placed: [AtomicU64; ChoiceReason::ALL.len()],
    /// Number of requests for which no engine could be chosen, by the reason ([`Refusal::ALL`]).
    pub(crate) not_placed: [AtomicU64; Refusal::ALL.len()],
    /// Number of requests that waited in the router's queue for a free engine.
    pub(crate) waited: AtomicU64,
    /// Number of prompt tokens that the router expected in caches, over requests whose engine reported cached tokens.
    pub(crate) expected_cached: AtomicU64,
    /// Number of prompt tokens that engines reported as cached.
    pub(crate) reported_cached: AtomicU64,
    /// Number of finished requests with reported cached tokens, by the reason for the difference from the expectation
    /// ([`OFF_WHY`]) and the bucket of its size ([`OFF_BY`], with a last bucket for larger differences).
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

    /// Counts a request for which no engine could be chosen.
    pub(crate) fn note_not_placed(&self, why: Refusal) {
        if let Some(at) = Refusal::ALL.iter().position(|other| *other == why) {
            self.not_placed[at].fetch_add(1, Relaxed);
        }
    }

    /// Counts a request for which an engine was chosen.
    pub(crate) fn note_placed(&self, why: ChoiceReason) {
        if let Some(at) = ChoiceReason::ALL.iter().position(|other| *other == why) {
            self.placed[at].fetch_add(1, Relaxed);
        }
    }
}

/// Counters of requests for all models.
#[derive(Debug)]
pub(crate) struct ModelTable {
    known: ArcSwap<KnownModels>,
    none: Arc<ModelCounts>,
    other: Arc<ModelCounts>,
}

/// Table of models' counters, by the names that clients use and by the models' own names.
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
    /// Returns the counters of requests that name no model, or whose body has not been read.
    pub(crate) fn none(&self) -> &Arc<ModelCounts> {
        &self.none
    }

    /// Returns the counters for a request with the model `name`. The function `listed` returns the model that engines
    /// list under a name, or the base model of an adapter.
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

    /// Returns the counters of all models, first those for requests without a model and for unlisted models.
    pub(crate) fn all(&self) -> Vec<Arc<ModelCounts>> {
        let named = self.known.load();
        [&self.none, &self.other].into_iter().chain(named.models.values()).cloned().collect()
    }

    /// Adds up an array of counters over all models; `of` selects the array.
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
