//! Open-loop load test of an index: plans of events and lookups, run at fixed times against one of the designs in
//! `kvatlas.lab.designs` or any Python object.

mod object;
mod plan;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use kvatlas_bench::{Error, Label, Options, probe_rung, run, run_design};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyString;

use self::object::{Methods, Object};
use self::plan::Plan;
use crate::errors;
use crate::files::failed;
use crate::scalars::{describe, string};

/// Maximum time until a run notices Ctrl-C.
const SIGNALS: Duration = Duration::from_millis(50);

/// Runs a plan of events and lookups against an index, each operation at its planned time (open loop), and returns
/// the measurements.
///
/// The call releases the GIL; Ctrl-C ends the run and its threads.
///
/// Args:
///     plan: The operations and their times.
///     index: The name of a design in kvatlas.lab.designs.RUNGS, or any object with the methods store(worker, parent,
///         block_hashes, content_hashes), remove(worker, block_hashes), clear(worker) and find(content_hashes), which
///         returns a dict of depths by worker. Workers are ints, hashes lists of ints, parent an int or None. One
///         thread calls the first three, each query thread find. If the object has a method holdings() that returns
///         pairs of worker and block hash, these are compared too. Errors raised by the object are counted and
///         reported; the result is then not ok.
///     options_json: Options as a JSON object; window_ns or rate is required.
///
/// Returns:
///     The result as a JSON object. Its figures count only if its "ok" is true.
///
/// Raises:
///     InvalidTypeError: An argument is of the wrong type, or the object lacks a method.
///     InvalidArgumentError: An option is unknown or impossible, or no design has that name.
#[pyfunction]
fn run_plan(
    py: Python<'_>,
    plan: &Bound<'_, PyAny>,
    index: &Bound<'_, PyAny>,
    options_json: &Bound<'_, PyAny>,
) -> PyResult<String> {
    let plan =
        plan.cast::<Plan>().map_err(|_| errors::wrong_type(&format!("plan must be a Plan, got {}", describe(plan))))?;
    let plan = Arc::clone(&plan.get().core);
    let options = Options::from_json(string(options_json, "options_json")?).map_err(|error| raised(&error))?;
    let interrupt = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&interrupt);
    let result = if index.is_instance_of::<PyString>() {
        let name = string(index, "index")?.to_owned();
        supervised(py, &interrupt, move || run_design(&plan, &name, &options, &flag))?
    } else {
        let methods = Methods::of(index)?;
        let label = Label {
            name: index.get_type().fully_qualified_name()?.to_string(),
            about: "a Python object; one thread applies, query threads take turns with it".to_owned(),
            version: concat!("kvatlas ", env!("CARGO_PKG_VERSION")).to_owned(),
        };
        supervised(py, &interrupt, move || run(&plan, &options, label, &flag, || Object::new(methods)))?
    };
    let result = result.map_err(|error| raised(&error))?;
    serde_json::to_string(&result).map_err(|error| PyRuntimeError::new_err(error.to_string()))
}

/// Builds an index of a design from a plan's events, then times the plan's lookups one by one, without other load.
///
/// Args:
///     plan: Events and lookups. Each lookup's worker must hold all blocks that are looked up.
///     index: The name of a design in kvatlas.lab.designs.RUNGS.
///     options_json: As for run_plan(); options about time have no effect here.
///     build_seconds: Time limit for building, in seconds; no lookups are made after a longer build.
///     lookup_seconds: Time limit for the lookups, in seconds; the remaining lookups are left out.
///
/// Returns:
///     A JSON object: built, build_ns, events, blocks, lookups, service (as in run_plan()'s), wrong, example, clock.
///
/// Raises:
///     InvalidTypeError: An argument is of the wrong type.
///     InvalidArgumentError: An option is unknown or impossible, or no design has that name.
#[pyfunction]
#[pyo3(signature = (plan, index, options_json, *, build_seconds, lookup_seconds))]
fn probe(
    py: Python<'_>,
    plan: &Bound<'_, PyAny>,
    index: &Bound<'_, PyAny>,
    options_json: &Bound<'_, PyAny>,
    build_seconds: f64,
    lookup_seconds: f64,
) -> PyResult<String> {
    let plan =
        plan.cast::<Plan>().map_err(|_| errors::wrong_type(&format!("plan must be a Plan, got {}", describe(plan))))?;
    let plan = Arc::clone(&plan.get().core);
    let name = string(index, "index")?.to_owned();
    let options = Options::parse(string(options_json, "options_json")?).map_err(|error| raised(&error))?;
    let seconds = |name: &str, seconds: f64| {
        Duration::try_from_secs_f64(seconds)
            .map_err(|_| errors::argument("options", &format!("{name} must not be negative, got {seconds}")))
    };
    let (build, look) = (seconds("build_seconds", build_seconds)?, seconds("lookup_seconds", lookup_seconds)?);
    let interrupt = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&interrupt);
    let result = supervised(py, &interrupt, move || probe_rung(&plan, &name, &options, build, look, &flag))?;
    let result = result.map_err(|error| raised(&error))?;
    serde_json::to_string(&result).map_err(|error| PyRuntimeError::new_err(error.to_string()))
}

/// Runs a function on a new thread while the calling thread, detached from the interpreter, checks for signals such as
/// Ctrl-C.
fn supervised<T: Send + 'static>(
    py: Python<'_>,
    interrupt: &AtomicBool,
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> PyResult<Result<T, Error>> {
    py.detach(|| {
        let (done, ended) = channel();
        let thread = std::thread::Builder::new().name("kvatlas-bench".to_owned()).spawn(move || {
            // The channel is closed only if this thread's own caller panicked.
            let _ = done.send(work());
        })?;
        let mut signal = None;
        let result = loop {
            match ended.recv_timeout(SIGNALS) {
                Ok(result) => break Some(result),
                Err(RecvTimeoutError::Disconnected) => break None,
                Err(RecvTimeoutError::Timeout) if signal.is_none() => {
                    signal = Python::attach(|py| py.check_signals()).err();
                    interrupt.store(signal.is_some(), Ordering::Relaxed);
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        };
        let joined = thread.join();
        match (signal, result, joined) {
            (Some(signal), ..) => Err(signal),
            (None, Some(result), Ok(())) => Ok(result),
            _ => Err(PyRuntimeError::new_err("the run panicked: this is a bug in kvatlas")),
        }
    })
}

pub(crate) fn register(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<Plan>()?;
    module.add_function(wrap_pyfunction!(probe, module)?)?;
    module.add_function(wrap_pyfunction!(run_plan, module)?)
}

/// Converts an error of a load test to an exception: one of `kvatlas.errors`, or Python's own for an I/O error.
fn raised(error: &Error) -> PyErr {
    match error {
        Error::Io { path, source } => failed(path, source),
        _ => errors::argument(error.code(), &error.to_string()),
    }
}
