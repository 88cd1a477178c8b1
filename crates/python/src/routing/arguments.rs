//! Arguments of the methods of `Router`, checked and converted.

use kvatlas_index::View;
use kvatlas_routing::{self as core, Config, Depth, Depths, Options};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyMapping, PyString, PyTuple, PyType};
use xxhash_rust::xxh3::xxh3_64;

use crate::errors;
use crate::index_match::Match;
use crate::scalars::{argument, describe, flag, number, rank, string, within};

argument! {
    /// Argument `seed`: seed of all random choices.
    Seed(u64) = |value| within(value, "seed", 0..=u64::MAX);
    /// Argument `prompt_tokens`: length of a prompt, in tokens.
    PromptTokens(u32) = |value| within(value, "prompt_tokens", 0..=u32::MAX);
    /// Argument `max_tokens`: maximum number of tokens that a request may generate.
    MaxTokens(u32) = |value| within(value, "max_tokens", 0..=u32::MAX);
    /// Argument `priority`: waiting requests of higher priority are placed first.
    Priority(i32) = |value| within(value, "priority", i32::MIN..=i32::MAX);
    /// Argument `answers`: number of answers that a request asks for.
    Answers(u32) = |value| within(value, "answers", 1..=u32::MAX);
    /// Argument `waited`: time that a request has waited, in seconds.
    Waited(f64) = |value| amount(value, "waited");
    /// Argument `explain`: true to keep the values that the policy compares.
    Explain(bool) = |value| flag(value, "explain");
    /// Argument `trusted`: true if the index's data about a worker can be trusted.
    Trusted(bool) = |value| flag(value, "trusted");
    /// Argument `tokens`: number of tokens generated since the last report.
    NewTokens(u32) = |value| within(value, "tokens", 0..=u32::MAX);
    /// Argument `output_tokens`: number of tokens that an engine generated.
    OutputTokens(u32) = |value| within(value, "output_tokens", 0..=u32::MAX);
    /// Argument `depth`: number of leading blocks of a prompt.
    BlockDepth(u32) = |value| within(value, "depth", 0..=u32::MAX);
    /// Argument `seconds`: duration in seconds, finite and above 0.
    Seconds(f64) = |value| number(value, "seconds", "a finite number above 0", |seconds| seconds > 0.0);
    Weight(f64) = |value| number(value, "weight", "a finite number above 0", |weight| weight > 0.0);
    /// Argument `now`: a time in seconds.
    Now(f64) = |value| number(value, "now", "a finite number of seconds", |_| true);
    /// Argument `waiting`: number of requests in an engine's queue.
    WaitingRequests(f64) = |value| amount(value, "waiting");
    /// Argument `running`: number of requests that an engine is processing.
    RunningRequests(f64) = |value| amount(value, "running");
    /// Argument `kv_usage`: share of an engine's KV cache in use, 0 to 1.
    KvUsage(f64) = |value| number(value, "kv_usage", "a share from 0 to 1", |share| (0.0..=1.0).contains(&share));
    /// Argument `capacity_blocks`: number of blocks that fit in an engine's cache.
    CapacityBlocks(f64) = |value| amount(value, "capacity_blocks");
    /// Argument `held_blocks`: number of blocks in an engine's cache.
    HeldBlocks(f64) = |value| amount(value, "held_blocks");
}

fn amount(value: &Bound<'_, PyAny>, what: &str) -> PyResult<f64> {
    number(value, what, "a finite number of at least 0", |amount| amount >= 0.0)
}

/// Converts the number of tokens that an engine found in its cache. `most`: the maximum, the length of the prompt.
pub(super) fn cached_tokens(value: &Bound<'_, PyAny>, most: u32) -> PyResult<u32> {
    let tokens = within(value, "cached_tokens", 0..=u32::MAX)?;
    if tokens > most {
        let message = format!("cached_tokens must be from 0 to {most}, the length of this prompt, got {tokens}");
        return Err(errors::argument("out_of_range", &message));
    }
    Ok(tokens)
}

/// Converts an iterable of workers, each given as a name or as a pair of name and rank. `what`: the argument's name for
/// errors.
pub(super) fn workers(value: &Bound<'_, PyAny>, what: &str) -> PyResult<Vec<(String, Option<u32>)>> {
    if value.is_instance_of::<PyString>() || value.is_instance_of::<PyBytes>() {
        let message =
            format!("{what} must be an iterable of names, got the single {}: [{}]?", describe(value), value.repr()?);
        return Err(errors::wrong_type(&message));
    }
    let items = value
        .try_iter()
        .map_err(|_| errors::wrong_type(&format!("{what} must be an iterable of names, got {}", describe(value))))?;
    items.map(|item| worker(&item?, what)).collect()
}

/// Converts a worker given as a name or as a pair of name and rank. `what`: the argument's name for errors.
fn worker(value: &Bound<'_, PyAny>, what: &str) -> PyResult<(String, Option<u32>)> {
    if value.is_instance_of::<PyString>() {
        return Ok((string(value, what)?.to_owned(), None));
    }
    let Ok(pair) =
        value.cast::<PyTuple>().map_err(|_| ()).and_then(|pair| if pair.len() == 2 { Ok(pair) } else { Err(()) })
    else {
        let message = format!("{what} must have names, or tuples of a name and a rank, got {} in it", describe(value));
        return Err(errors::wrong_type(&message));
    };
    Ok((string(&pair.get_item(0)?, what)?.to_owned(), Some(rank(&pair.get_item(1)?)?)))
}

/// Stores the depths of each worker that a lookup returned, for a prompt of `blocks` blocks of `block_size` tokens.
pub(super) fn fill(
    router: &core::Router,
    found: &Bound<'_, PyAny>,
    blocks: u32,
    block_size: u32,
    depths: &mut Depths,
) -> PyResult<()> {
    if let Ok(found) = found.cast::<Match>() {
        let found = found.get();
        same_block_size(found.block_size(), block_size)?;
        if found.found().depth(View::AnyTier) > blocks {
            return Err(other_prompt(found.length(), blocks));
        }
        router.look_up(found.found(), depths);
        return Ok(());
    }
    depths.begin();
    for (name, rank, depth) in found_pairs(found, blocks, block_size)? {
        if let Some(id) = router.worker(&name, rank) {
            depths.set(id.0, Depth { device: depth, host: depth, any: depth });
        }
    }
    Ok(())
}

/// Stores the loadable part of a prompt for each worker, after the depths were stored. `found`: answers of
/// `BlockIndex.loading.find`, or a mapping of worker to a tuple of three depths. `number`: finds the number of a worker
/// and rank.
pub(super) fn fill_loadable(
    number: impl Fn(&str, u32) -> Option<u32>,
    found: &Bound<'_, PyAny>,
    blocks: u32,
    depths: &mut Depths,
) -> PyResult<()> {
    let depth = |value: &Bound<'_, PyAny>| {
        let depth = within(value, "a depth in loadable", 0..=u32::MAX)?;
        if depth > blocks { Err(other_prompt(depth as usize, blocks)) } else { Ok(depth) }
    };
    let mut set = |name: &str, rank: u32, found: [u32; 3]| {
        if let Some(worker) = number(name, rank) {
            let [host, any, pullable] = found;
            depths.set_loadable(worker, host, any, pullable);
        }
    };
    if let Ok(mapping) = found.cast::<PyMapping>() {
        for item in mapping.items()?.iter() {
            let (name, found): (Bound<'_, PyAny>, Bound<'_, PyAny>) = item.extract()?;
            let (name, rank) = worker(&name, "loadable")?;
            let found = found.cast::<PyTuple>().ok().filter(|found| found.len() == 3).ok_or_else(|| {
                errors::wrong_type(&format!(
                    "loadable must have tuples of three depths (host, loadable, pullable), got {} in it",
                    describe(&found)
                ))
            })?;
            let found = [depth(&found.get_item(0)?)?, depth(&found.get_item(1)?)?, depth(&found.get_item(2)?)?];
            set(&name, rank.unwrap_or(0), found);
        }
        return Ok(());
    }
    let wrong = || {
        let message = format!(
            "loadable must be what BlockIndex.loading.find() returns, or a dict of worker to (host, loadable, pullable), \
             got {}",
            describe(found)
        );
        errors::wrong_type(&message)
    };
    for it in found.try_iter().map_err(|_| wrong())? {
        let it = it?;
        let get = |name: &str| it.getattr_opt(name)?.ok_or_else(wrong);
        let name = get("worker")?;
        let its_rank = rank(&get("rank")?)?;
        let [host, any, pullable] = ["own_used", "used", "host"].map(|name| get(name).and_then(|value| depth(&value)));
        set(string(&name, "worker in loadable")?, its_rank, [host?, any?, pullable?]);
    }
    Ok(())
}

/// Worker, rank and depth (in blocks) of each row of a lookup's result, given as an object with `scores()` or a
/// mapping.
pub(super) fn found_pairs(found: &Bound<'_, PyAny>, blocks: u32, block_size: u32) -> PyResult<Vec<(String, u32, u32)>> {
    let py = found.py();
    let scores = match found.getattr_opt(intern!(py, "scores"))? {
        Some(scores) => {
            if let Some(unit) = found.getattr_opt(intern!(py, "unit"))?
                && !unit.eq("blocks")?
            {
                let message = format!("match must count blocks, got one that counts {unit}");
                return Err(errors::argument("invalid_argument", &message));
            }
            if let Some(size) = found.getattr_opt(intern!(py, "block_size"))? {
                same_block_size(within(&size, "block_size of match", 1..=u32::MAX)?, block_size)?;
            }
            scores.call0()?
        }
        None => found.clone(),
    };
    let scores = scores.cast::<PyMapping>().map_err(|_| {
        errors::wrong_type(&format!("match must be a Match or a dict of worker to depth, got {}", describe(found)))
    })?;
    let mut pairs = Vec::new();
    for item in scores.items()?.iter() {
        let (name, depth): (Bound<'_, PyAny>, Bound<'_, PyAny>) = item.extract()?;
        let (name, rank) = worker(&name, "match")?;
        pairs.push((name, rank.unwrap_or(0), within(&depth, "a depth in match", 0..=u32::MAX)?));
        if let Some((.., depth)) = pairs.last()
            && *depth > blocks
        {
            return Err(other_prompt(*depth as usize, blocks));
        }
    }
    Ok(pairs)
}

fn same_block_size(given: u32, wanted: u32) -> PyResult<()> {
    if given == wanted {
        return Ok(());
    }
    let message =
        format!("match counts blocks of {given} tokens, and this router blocks of {wanted}: both must be the same");
    Err(errors::argument("block_size_mismatch", &message))
}

fn other_prompt(given: usize, blocks: u32) -> PyErr {
    let message = format!("match has {given} blocks of a prompt that has {blocks}: it must be of the same prompt");
    errors::argument("length_mismatch", &message)
}

pub(super) fn session_number(session: &Bound<'_, PyAny>) -> PyResult<u64> {
    if session.is_instance_of::<PyString>() {
        return Ok(xxh3_64(string(session, "session")?.as_bytes()));
    }
    if session.hasattr(intern!(session.py(), "__index__"))? {
        return within(session, "session as a number", 0..=u64::MAX);
    }
    Err(errors::wrong_type(&format!("session must be a str or an int, got {}", describe(session))))
}

pub(super) fn unknown(name: &str, rank: u32) -> PyErr {
    errors::argument("unknown_worker", &format!("the router has no worker {name:?} with rank {rank}"))
}

/// Converts a dict of options or settings to JSON.
pub(super) fn json(py: Python<'_>, options: Option<&Bound<'_, PyAny>>, what: &str) -> PyResult<String> {
    let Some(options) = options else { return Ok(String::new()) };
    if !options.is_instance_of::<PyDict>() {
        return Err(errors::wrong_type(&format!("{what} must be a dict, got {}", describe(options))));
    }
    let written = py.import("json")?.call_method1("dumps", (options,));
    written
        .map_err(|error| {
            errors::wrong_type(&format!("{what} must have numbers, strings and bools only: {}", error.value(py)))
        })?
        .extract()
}

pub(super) fn policy_error(py: Python<'_>, message: &str, code: &str) -> PyResult<PyErr> {
    static CLASS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let class = CLASS.import(py, "kvatlas.errors", "PolicyError")?;
    Ok(PyErr::from_value(class.call1((message, code))?))
}

pub(super) fn config(
    py: Python<'_>,
    seed: u64,
    block_size: u32,
    settings: Option<&Bound<'_, PyAny>>,
) -> PyResult<Config> {
    let mut options =
        Options::from_json(&json(py, settings, "settings")?).map_err(|error| errors::config(&error.message))?;
    Config::from_options(&mut options, seed, block_size)
        .and_then(|config| options.finish("the router").map(|()| config))
        .map_err(|error| errors::config(&error.message))
}
