//! `kvatlas.routing`: the decision core, and policies that are Python objects.

mod arguments;
mod decision;
mod request;
mod router;

use std::sync::Arc;

use kvatlas_routing::{Candidates as Rows, Choice, Placement, Policy, PolicyTable, Request};
use parking_lot::Mutex;
use pyo3::prelude::*;

use self::request::{Candidates, RoutedRequest};

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Candidates>()?;
    module.add_class::<decision::Decision>()?;
    module.add_class::<RoutedRequest>()?;
    module.add_class::<router::Router>()?;
    module.add_function(wrap_pyfunction!(router::policy_names, module)?)?;
    module.add_function(wrap_pyfunction!(router::routing_defaults, module)?)
}

/// The policies that go by a name: those of other routers only in the laboratory.
pub(crate) fn policies() -> PolicyTable {
    let own = PolicyTable::own();
    #[cfg(feature = "lab")]
    let own = own.with(kvatlas_peer_policies::POLICIES);
    own
}

/// The error of a policy's code, for the call that it happened in.
pub(crate) type Failure = Arc<Mutex<Option<PyErr>>>;

/// Names and ranks of the workers by number.
pub(crate) type Names = Arc<Mutex<Vec<(String, u32)>>>;

pub(crate) struct PythonPolicy {
    name: String,
    uses_index: bool,
    policy: Py<PyAny>,
    failure: Failure,
    names: Names,
    told: Callbacks,
    /// The request that is about to end, and how many tokens each of its answers has.
    answered: Option<(u64, f64)>,
}

/// True for each event that the policy has a method for.
#[derive(Debug, Clone, Copy)]
struct Callbacks {
    sent: bool,
    first_token: bool,
    ended: bool,
}

impl PythonPolicy {
    pub(crate) fn new(name: &str, policy: &Bound<'_, PyAny>, failure: Failure, names: Names) -> PyResult<Self> {
        let uses_index = match policy.getattr_opt("uses_index")? {
            Some(uses) => uses.is_truthy()?,
            None => true,
        };
        let has = |method: &str| Ok::<_, PyErr>(policy.getattr_opt(method)?.is_some_and(|its| its.is_callable()));
        let told = Callbacks { sent: has("sent")?, first_token: has("first_token")?, ended: has("ended")? };
        let policy = policy.clone().unbind();
        Ok(Self { name: name.to_owned(), uses_index, policy, failure, names, told, answered: None })
    }

    fn name_of(&self, worker: u32) -> (String, u32) {
        let names = self.names.lock();
        names.get(worker as usize).cloned().unwrap_or_else(|| (worker.to_string(), 0))
    }

    /// Calls one of its methods; an error is kept for the caller of the router.
    fn tell(&self, call: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<()>) {
        Python::attach(|py| {
            if let Err(error) = call(self.policy.bind(py)) {
                *self.failure.lock() = Some(error);
            }
        });
    }

    fn ask(&self, py: Python<'_>, request: &Request<'_>, rows: &Rows) -> PyResult<Choice> {
        let names = self.names.lock();
        let workers: Vec<_> = rows
            .worker
            .iter()
            .map(|&at| names.get(at as usize).cloned().unwrap_or_else(|| (at.to_string(), 0)))
            .collect();
        drop(names);
        let candidates = Candidates::new(rows.clone(), workers.into_pyobject(py)?.unbind());
        let row = self.policy.bind(py).call_method1("choose", (RoutedRequest::new(request), candidates))?;
        if row.is_none() {
            return Ok(Choice::Wait);
        }
        let chosen: Option<usize> = row.call_method0("__index__").and_then(|row| row.extract()).ok();
        match chosen {
            Some(row) if row < rows.len() => Ok(Choice::Row(row)),
            _ => {
                let message = format!("chose {row}: candidates are numbered 0 to {}", rows.len() - 1);
                Err(pyo3::exceptions::PyIndexError::new_err(message))
            }
        }
    }
}

impl Policy for PythonPolicy {
    fn name(&self) -> &str {
        &self.name
    }

    fn uses_index(&self) -> bool {
        self.uses_index
    }

    fn choose(&mut self, request: &Request<'_>, candidates: &Rows, _now: f64) -> Choice {
        Python::attach(|py| {
            self.ask(py, request, candidates).unwrap_or_else(|error| {
                *self.failure.lock() = Some(error);
                Choice::Row(usize::MAX)
            })
        })
    }

    fn sent(&mut self, request: &Request<'_>, candidates: &Rows, row: usize, now: f64) {
        if self.told.sent {
            let worker = self.name_of(candidates.worker[row]);
            self.tell(|policy| policy.call_method1("sent", (RoutedRequest::new(request), worker, now)).map(drop));
        }
    }

    fn first_token(&mut self, placed: &Placement, now: f64) {
        if self.told.first_token {
            self.tell(|policy| policy.call_method1("first_token", (placed.number, now)).map(drop));
        }
    }

    fn answered(&mut self, placed: &Placement, tokens: f64, _now: f64) {
        self.answered = Some((placed.number, tokens));
    }

    fn ended(&mut self, placed: &Placement, now: f64) {
        let answered = self.answered.take().filter(|(number, _)| *number == placed.number);
        if self.told.ended {
            let tokens = answered.map(|(_, tokens)| tokens);
            self.tell(|policy| policy.call_method1("ended", (placed.number, tokens, now)).map(drop));
        }
    }
}
