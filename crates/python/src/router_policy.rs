//! A user's policy inside the router: a Python object, with a built-in policy as its fallback.
//!
//! A policy that raises an error must not fail its requests: they go to the engine with the fewest tokens to compute,
//! and each kind of failure is logged once.

use std::collections::HashSet;
use std::sync::Arc;

use kvatlas_routing::{Candidates, Choice, Placement, Policy, Request};
use parking_lot::Mutex;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::routing::{Failure, Names, PythonPolicy};

/// Maximum number of kinds of failures that are logged.
const MOST_TOLD: usize = 32;

pub(crate) struct GuardedPolicy {
    policy: PythonPolicy,
    failure: Failure,
    told: HashSet<String>,
}

impl GuardedPolicy {
    /// Wraps a Python policy. `names`: name and rank of each worker by its number, as far as known.
    pub(crate) fn new(policy: &Bound<'_, PyAny>, names: Names) -> PyResult<Self> {
        let name = policy.get_type().name()?.to_string();
        let failure: Failure = Arc::default();
        Ok(Self { policy: PythonPolicy::new(&name, policy, failure.clone(), names)?, failure, told: HashSet::new() })
    }

    /// Logs the failure of the policy's code since the last call, with its consequence `so`. Returns false if there was
    /// no failure.
    fn failed(&mut self, so: &str) -> bool {
        let failure = self.failure.lock().take();
        if let Some(error) = &failure {
            self.tell(error, so);
        }
        failure.is_some()
    }

    fn tell(&mut self, error: &PyErr, so: &str) {
        let words = error.to_string();
        if self.told.len() < MOST_TOLD && self.told.insert(without_addresses(&words)) {
            let message = format!("policy {}: {words}; {so}", self.policy.name());
            Python::attach(|py| {
                if let Err(error) = log(py, &message, error) {
                    error.print(py);
                }
            });
        }
    }
}

/// Text of an error without the addresses of objects, which differ at each failure.
fn without_addresses(words: &str) -> String {
    let mut parts = words.split("0x");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |kind, part| kind + part.trim_start_matches(|digit: char| digit.is_ascii_hexdigit()))
}

/// Logs a message, with the traceback of the error if it was raised in Python.
fn log(py: Python<'_>, message: &str, error: &PyErr) -> PyResult<()> {
    let logger = py.import("logging")?.call_method1("getLogger", ("kvatlas.router",))?;
    let more = PyDict::new(py);
    if let Some(traceback) = error.traceback(py) {
        more.set_item("exc_info", (error.get_type(py), error.value(py), traceback))?;
    }
    logger.call_method("error", ("%s", message), Some(&more)).map(drop)
}

impl Policy for GuardedPolicy {
    fn name(&self) -> &str {
        self.policy.name()
    }

    fn uses_index(&self) -> bool {
        self.policy.uses_index()
    }

    fn choose(&mut self, request: &Request<'_>, candidates: &Candidates, now: f64) -> Choice {
        let choice = self.policy.choose(request, candidates, now);
        if !self.failed("the engine with the least to compute was chosen") {
            return choice;
        }
        let queued = &candidates.queued_tokens;
        let least = (0..candidates.len()).min_by(|&one, &other| queued[one].total_cmp(&queued[other]));
        Choice::Failed(least.unwrap_or_default())
    }

    fn sent(&mut self, request: &Request<'_>, candidates: &Candidates, row: usize, now: f64) {
        self.policy.sent(request, candidates, row, now);
        self.failed("the request was sent all the same");
    }

    fn first_token(&mut self, placed: &Placement, now: f64) {
        self.policy.first_token(placed, now);
        self.failed("the request goes on");
    }

    fn answered(&mut self, placed: &Placement, tokens: f64, now: f64) {
        self.policy.answered(placed, tokens, now);
    }

    fn ended(&mut self, placed: &Placement, now: f64) {
        self.policy.ended(placed, now);
        self.failed("the request has ended all the same");
    }
}

/// Reads the names of workers by number from the router's list of workers.
pub(crate) fn learn_names(names: &Mutex<Vec<(String, u32)>>, workers: &serde_json::Value) {
    let mut names = names.lock();
    for worker in workers.as_array().into_iter().flatten() {
        let name = worker["name"].as_str().unwrap_or_default();
        for row in worker["ranks"].as_array().into_iter().flatten() {
            let rank = row["rank"].as_u64().and_then(|rank| u32::try_from(rank).ok());
            let (Some(number), Some(rank)) = (row["number"].as_u64(), rank) else { continue };
            let at = usize::try_from(number).unwrap_or(usize::MAX);
            if at < 1 << 20 {
                if names.len() <= at {
                    names.resize(at + 1, (String::new(), 0));
                }
                names[at] = (name.to_owned(), rank);
            }
        }
    }
}
