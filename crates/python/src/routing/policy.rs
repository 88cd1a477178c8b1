//! A policy that is a Python object.

use std::sync::{Arc, Mutex, PoisonError};

use kvatlas_routing::{Candidates as Rows, Choice, Policy, Request};
use pyo3::prelude::*;

use super::candidates::Candidates;
use super::request::RoutedRequest;

/// What went wrong in a policy's code, for the call that it happened in.
pub(crate) type Failure = Arc<Mutex<Option<PyErr>>>;

/// Names and ranks of the workers by number.
pub(crate) type Names = Arc<Mutex<Vec<(String, u32)>>>;

pub(crate) struct PythonPolicy {
    name: String,
    uses_index: bool,
    policy: Py<PyAny>,
    failure: Failure,
    names: Names,
}

impl PythonPolicy {
    pub(crate) fn new(name: &str, policy: &Bound<'_, PyAny>, failure: Failure, names: Names) -> PyResult<Self> {
        let uses_index = match policy.getattr_opt("uses_index")? {
            Some(uses) => uses.is_truthy()?,
            None => true,
        };
        Ok(Self { name: name.to_owned(), uses_index, policy: policy.clone().unbind(), failure, names })
    }

    fn ask(&self, py: Python<'_>, request: &Request<'_>, rows: &Rows) -> PyResult<Choice> {
        let names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
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
                *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                Choice::Row(usize::MAX)
            })
        })
    }
}
