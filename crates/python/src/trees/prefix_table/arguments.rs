//! Conversion of the prefix table's arguments: settings, events, numbers, names of pods.

use std::time::Duration;

use kvatlas_trees::prefix_table::{Config, Error};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::errors;
use crate::scalars::{describe, int, string};
use crate::sequences::names;

pub(super) fn refused(error: &Error) -> PyErr {
    match error {
        Error::Setting { .. } => errors::config(&error.to_string()),
        _ => errors::argument(error.code(), &error.to_string()),
    }
}

/// Arguments of the prefix table's constructor. A setting that is `None` is taken from an environment variable.
pub(super) struct ConstructorArguments<'a, 'py> {
    pub(super) max_contexts: Option<&'a Bound<'py, PyAny>>,
    pub(super) max_prefixes_per_context: Option<&'a Bound<'py, PyAny>>,
    pub(super) eviction_interval: Option<&'a Bound<'py, PyAny>>,
    pub(super) eviction_duration: Option<&'a Bound<'py, PyAny>>,
    pub(super) block_size: Option<&'a Bound<'py, PyAny>>,
    pub(super) seed: Option<&'a Bound<'py, PyAny>>,
}

pub(super) fn config(from: ConstructorArguments<'_, '_>) -> PyResult<Config> {
    let ConstructorArguments {
        max_contexts,
        max_prefixes_per_context,
        eviction_interval,
        eviction_duration,
        block_size,
        seed,
    } = from;
    let mut config = Config::from_env().map_err(|error| refused(&error))?;
    for (given, place, what) in [
        (max_contexts, &mut config.max_contexts, "max_contexts"),
        (max_prefixes_per_context, &mut config.max_prefixes_per_context, "max_prefixes_per_context"),
        (block_size, &mut config.block_size, "block_size"),
    ] {
        if let Some(given) = given {
            let given = int(given, || what.to_owned())?;
            // What is negative or too great is refused with its name as 0 is, but with what was given.
            *place = given
                .extract::<u32>()
                .map_err(|_| errors::config(&format!("{what} must be a whole number of at least 1, got {given}")))?
                as usize;
        }
    }
    for (given, place, what) in [
        (eviction_interval, &mut config.eviction_interval, "eviction_interval"),
        (eviction_duration, &mut config.eviction_duration, "eviction_duration"),
    ] {
        if let Some(given) = given {
            *place = seconds(given, what)?;
        }
    }
    if let Some(seed) = seed {
        let seed = int(seed, || "seed".to_owned())?;
        config.seed =
            Some(seed.extract().map_err(|_| errors::config(&format!("seed must be from 0 to 2**64 - 1, got {seed}")))?);
    }
    Ok(config)
}

fn seconds(value: &Bound<'_, PyAny>, what: &str) -> PyResult<Duration> {
    let seconds = match value.extract::<f64>() {
        Ok(seconds) if !value.is_instance_of::<pyo3::types::PyBool>() => seconds,
        _ => return Err(errors::wrong_type(&format!("{what} must be a number of seconds, got {}", describe(value)))),
    };
    let refused = || errors::config(&format!("{what} must be more than 0 seconds, got {value}"));
    let time = Duration::try_from_secs_f64(seconds).map_err(|_| refused())?;
    if time.is_zero() { Err(refused()) } else { Ok(time) }
}

/// Fields of an event that identify model, adapter and pod, kept alive while their contents are borrowed.
pub(super) struct Origin<'py> {
    event: Bound<'py, PyAny>,
    model: Bound<'py, PyAny>,
    lora_id: Bound<'py, PyAny>,
    pod: Bound<'py, PyAny>,
}

impl<'py> Origin<'py> {
    pub(super) fn new(event: &Bound<'py, PyAny>) -> PyResult<Self> {
        let py = event.py();
        Ok(Self {
            event: event.clone(),
            model: field(event, intern!(py, "model_name"))?,
            lora_id: field(event, intern!(py, "lora_id"))?,
            pod: field(event, intern!(py, "source_pod"))?,
        })
    }

    pub(super) fn field(&self, name: &Bound<'py, PyString>) -> PyResult<Bound<'py, PyAny>> {
        field(&self.event, name)
    }

    pub(super) fn names(&self) -> PyResult<(&str, i64, &str)> {
        Ok((string(&self.model, "model_name")?, number(&self.lora_id)?, string(&self.pod, "source_pod")?))
    }

    pub(super) fn blocks(&self) -> PyResult<Vec<u64>> {
        let hashes = names(&self.field(intern!(self.event.py(), "block_hashes"))?)?;
        Ok(hashes.into_iter().map(|hash| hash.0).collect())
    }
}

pub(super) fn field<'py>(event: &Bound<'py, PyAny>, name: &Bound<'py, PyString>) -> PyResult<Bound<'py, PyAny>> {
    let missing = |_| errors::wrong_type(&format!("an event must have a field {name}; {} has none", describe(event)));
    event.getattr(name).map_err(missing)
}

pub(super) fn number(lora_id: &Bound<'_, PyAny>) -> PyResult<i64> {
    let lora_id = int(lora_id, || "lora_id".to_owned())?;
    let wrong =
        |_| errors::argument("out_of_range", &format!("lora_id must be from -2**63 to 2**63 - 1, got {lora_id}"));
    lora_id.extract().map_err(wrong)
}

pub(super) fn pods<'py>(ready: &Bound<'py, PyAny>) -> PyResult<Vec<Bound<'py, PyAny>>> {
    let wrong = || errors::wrong_type(&format!("ready_pods must be names of pods or None, got {}", describe(ready)));
    if ready.is_instance_of::<PyString>() {
        return Err(wrong());
    }
    ready.try_iter().map_err(|_| wrong())?.collect()
}
