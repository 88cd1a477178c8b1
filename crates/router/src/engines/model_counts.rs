//! Counts of an engine's requests by model.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use arc_swap::ArcSwap;

use super::fault::NAMES as FAULTS;
use crate::histogram::{Histogram, REQUEST_SECONDS, SECONDS};

/// Counts of the requests for a model at an engine.
#[derive(Debug)]
pub(crate) struct EngineModelCounts {
    /// The model, as the metrics call it.
    pub(crate) model: Arc<str>,
    /// Answers by the first digit of their status, from 1 on.
    pub(crate) answers: [AtomicU64; 5],
    /// Requests that got no answer, or an error in place of one or at its end, by [`FAULTS`](super::FAULTS).
    pub(crate) faults: [AtomicU64; FAULTS.len()],
    /// Times from a request's arrival to the first token of its streamed answer.
    pub(crate) first_token: Histogram<16>,
    /// Times from a request's arrival to the end of its complete answer.
    pub(crate) duration: Histogram<16>,
    /// Prompt tokens that the engine says it had cached, and prompt tokens of the same requests.
    pub(crate) cached_tokens: AtomicU64,
    pub(crate) prompt_tokens: AtomicU64,
    /// Tokens that the engine says it has generated.
    pub(crate) output_tokens: AtomicU64,
}

impl EngineModelCounts {
    pub(crate) fn new(model: Arc<str>) -> Self {
        Self {
            model,
            answers: Default::default(),
            faults: Default::default(),
            first_token: Histogram::new(&SECONDS),
            duration: Histogram::new(&REQUEST_SECONDS),
            cached_tokens: AtomicU64::new(0),
            prompt_tokens: AtomicU64::new(0),
            output_tokens: AtomicU64::new(0),
        }
    }
}

/// The counts of an engine's requests for each model that it was asked for.
#[derive(Debug, Default)]
pub(crate) struct EngineModels(ArcSwap<Vec<Arc<EngineModelCounts>>>);

impl EngineModels {
    /// Returns the counts of a model, which are made the first time.
    pub(crate) fn of(&self, model: &Arc<str>) -> Arc<EngineModelCounts> {
        loop {
            // Nearly always there is one.
            if let Some(known) = self.0.load().iter().find(|counts| counts.model == *model) {
                return known.clone();
            }
            let made = Arc::new(EngineModelCounts::new(model.clone()));
            self.0.rcu(|all| {
                let is_there = all.iter().any(|counts| counts.model == *model);
                let more = (!is_there).then(|| made.clone());
                all.iter().cloned().chain(more).collect::<Vec<_>>()
            });
        }
    }

    /// The counts of all models.
    pub(crate) fn all(&self) -> Arc<Vec<Arc<EngineModelCounts>>> {
        self.0.load_full()
    }

    /// Returns numbers of all models together.
    pub(crate) fn sum<const N: usize>(&self, of: impl Fn(&EngineModelCounts) -> &[AtomicU64; N]) -> [u64; N] {
        let mut sums = [0; N];
        for counts in self.0.load().iter() {
            for (sum, count) in sums.iter_mut().zip(of(counts)) {
                *sum += count.load(Relaxed);
            }
        }
        sums
    }

    /// Returns a number of all models together.
    pub(crate) fn total(&self, of: impl Fn(&EngineModelCounts) -> &AtomicU64) -> u64 {
        self.0.load().iter().map(|counts| of(counts).load(Relaxed)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_counted_in_one_place() {
        let (models, name) = (EngineModels::default(), Arc::from("m"));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        models.of(&name).prompt_tokens.fetch_add(1, Relaxed);
                    }
                });
            }
        });
        models.of(&Arc::from("other")).answers[4].fetch_add(2, Relaxed);
        models.of(&Arc::from("m")).answers[4].fetch_add(1, Relaxed);
        assert_eq!((models.all().len(), models.total(|counts| &counts.prompt_tokens)), (2, 4000));
        assert_eq!(models.sum(|counts| &counts.answers), [0, 0, 0, 0, 3]);
    }
}
