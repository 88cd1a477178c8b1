//! `SitePublisher`, `Sites` and `SitesMatch`: digests of sites' indexes, and the sparse index above them.

use std::time::{Duration, Instant};

use kvatlas_digest::{Answer, Digest, DigestEffect, Error, Proof, Publisher, Sites as Core, State, marks_of_prompt};
use parking_lot::{Mutex, RwLock};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};

use crate::errors;
use crate::index::BlockIndex;
use crate::prompt::PromptArguments;
use crate::scalars::{BlockSize, string};
use crate::sequences::bytes;

fn refused(error: &Error) -> PyErr {
    errors::argument(error.code(), &error.to_string())
}

fn seconds(value: f64, what: &str) -> PyResult<Duration> {
    Duration::try_from_secs_f64(value).map_err(|_| {
        errors::argument("invalid_duration", &format!("{what} must be a number of seconds from 0 on, got {value}"))
    })
}

/// Makes the digests of one site's index, for a `Sites`.
///
/// A digest says for which prefixes some rank of the site holds all blocks on its device, at every grain-th block. It
/// is a set, published as what came and went.
///
/// Args:
///     site: The site's name, 1 to 256 bytes in UTF-8.
///     grain: Blocks between two marks of a chain, at least 1. The same for all sites.
///     life: A number that no earlier publisher of the same name had; the system's time in nanoseconds if not given.
///
/// Raises:
///     InvalidTypeError: An argument is of the wrong type.
///     InvalidArgumentError: A name or a grain that cannot be used.
#[pyclass(frozen, module = "kvatlas._native")]
pub(crate) struct SitePublisher {
    core: Mutex<Publisher>,
}

impl SitePublisher {
    fn with<T>(&self, f: impl FnOnce(&mut Publisher) -> T) -> T {
        f(&mut self.core.lock())
    }
}

#[pymethods]
impl SitePublisher {
    #[new]
    #[pyo3(signature = (site, *, grain=32, life=None))]
    fn new(site: &Bound<'_, PyAny>, grain: u32, life: Option<u64>) -> PyResult<Self> {
        let life = life.unwrap_or_else(|| {
            let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
            since.as_nanos() as u64
        });
        let core = Publisher::new(string(site, "site")?, life, grain).map_err(|error| refused(&error))?;
        Ok(Self { core: Mutex::new(core) })
    }

    /// Takes in what has changed in the site's index. Ranks that have changed are copied, in slices of less than a
    /// millisecond between which the index can be changed.
    ///
    /// Args:
    ///     index: The BlockIndex, always the same.
    ///
    /// Returns:
    ///     tuple of int and int: the ranks of the index, and how many of them were copied.
    fn look(&self, py: Python<'_>, index: &Bound<'_, BlockIndex>) -> (usize, usize) {
        let core = index.get().shared();
        let looked = py.detach(|| self.with(|publisher| publisher.look(&core, |_, _| true, || {})));
        (looked.ranks, looked.copied)
    }

    /// Makes the next digest, of what has changed since the last. Without changes, it says that the site is
    /// there.
    fn delta<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &py.detach(|| self.with(Publisher::delta).encode()))
    }

    /// Makes a digest of all marks of the site, for whoever has missed one.
    fn whole<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &py.detach(|| self.with(Publisher::whole).encode()))
    }

    /// int: The number of marks that the site has.
    #[getter]
    fn marks(&self, py: Python<'_>) -> usize {
        py.detach(|| self.with(|publisher| publisher.marks()))
    }

    /// int: The memory in bytes that this takes beside the index, about.
    #[getter]
    fn nbytes(&self, py: Python<'_>) -> usize {
        py.detach(|| self.with(|publisher| publisher.bytes()))
    }
}

/// A sparse index of many sites: which sites can hold how much of a prompt, by their digests.
///
/// Args:
///     block_size: Tokens in a block, at least 1.
///     grain: Blocks between two marks of a chain, as the sites' publishers have it.
///     stale_after: Seconds without a digest after which a site may hold anything.
///
/// Raises:
///     InvalidTypeError: An argument is of the wrong type.
///     InvalidArgumentError: A number out of range.
#[pyclass(frozen, module = "kvatlas._native")]
pub(crate) struct Sites {
    core: RwLock<Core>,
    block_size: u32,
    since: Instant,
}

impl Sites {
    fn read<T>(&self, f: impl FnOnce(&Core) -> T) -> T {
        f(&self.core.read())
    }

    fn write<T>(&self, f: impl FnOnce(&mut Core) -> T) -> T {
        f(&mut self.core.write())
    }

    fn now(&self, now: Option<f64>) -> PyResult<Duration> {
        now.map_or_else(|| Ok(self.since.elapsed()), |now| seconds(now, "now"))
    }
}

#[pymethods]
impl Sites {
    #[new]
    #[pyo3(signature = (block_size=BlockSize(16), *, grain=32, stale_after=30.0))]
    #[pyo3(text_signature = "(block_size=16, *, grain=32, stale_after=30.0)")]
    fn new(block_size: BlockSize, grain: u32, stale_after: f64) -> PyResult<Self> {
        let key = std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 0);
        let core = Core::new(grain, seconds(stale_after, "stale_after")?, key).map_err(|error| refused(&error))?;
        Ok(Self { core: RwLock::new(core), block_size: block_size.0, since: Instant::now() })
    }

    /// Takes in a digest.
    ///
    /// Args:
    ///     digest: What delta() or whole() of a SitePublisher returned.
    ///     now: Seconds since any moment, always the same; since this was made if not given.
    ///
    /// Returns:
    ///     bool: False if it was known already.
    ///
    /// Raises:
    ///     InvalidTypeError: Not bytes.
    ///     InvalidArgumentError: Not a digest (code "invalid_digest"), of another grain ("other_grain"), or one is
    ///         missing before it ("whole_wanted"): until whole() comes, the site may hold anything.
    #[pyo3(signature = (digest, *, now=None))]
    fn apply(&self, py: Python<'_>, digest: &Bound<'_, PyAny>, now: Option<f64>) -> PyResult<bool> {
        let now = self.now(now)?;
        let bytes = bytes(digest, "digest")?;
        let applied = py.detach(|| {
            let digest = Digest::decode(&bytes)?;
            self.write(|sites| sites.apply(&digest, bytes.len(), now))
        });
        applied.map(|applied| applied == DigestEffect::Now).map_err(|error| refused(&error))
    }

    /// Finds which sites hold how much of a prompt, as bounds.
    ///
    /// Args:
    ///     tokens: Token ids of the prompt, shape (n,), as content_hashes() takes them.
    ///     content_hashes: Content hashes of the prompt's blocks instead, shape (n,): a uint64 array or a list of ints.
    ///     lora: Name of the LoRA adapter, with tokens only.
    ///     salt: Cache salt, with tokens only.
    ///     now: As apply() has it.
    ///
    /// Returns:
    ///     SitesMatch
    ///
    /// Raises:
    ///     InvalidTypeError: An argument is of the wrong type.
    ///     InvalidArgumentError: Both or neither of tokens and content_hashes, or lora or salt with content_hashes.
    #[pyo3(signature = (*, tokens=None, content_hashes=None, lora=None, salt=None, now=None))]
    fn find(
        &self,
        py: Python<'_>,
        tokens: Option<&Bound<'_, PyAny>>,
        content_hashes: Option<&Bound<'_, PyAny>>,
        lora: Option<&Bound<'_, PyAny>>,
        salt: Option<&Bound<'_, PyAny>>,
        now: Option<f64>,
    ) -> PyResult<SitesMatch> {
        let now = self.now(now)?;
        let given = PromptArguments::new("find", tokens, content_hashes, lora, salt)?.own();
        let prompt = given.prompt();
        let length = prompt.blocks(self.block_size);
        Ok(py.detach(|| {
            self.read(|sites| {
                let marks = marks_of_prompt(&prompt.hashes(self.block_size), sites.grain());
                let Answer { levels, rest_at_most, unknown, probe } =
                    sites.find(&marks, u32::try_from(length).unwrap_or(u32::MAX), now);
                let name = |site: u32| sites.name(site).to_owned();
                let names = |all: Vec<u32>| all.into_iter().map(name).collect();
                SitesMatch {
                    levels: levels.into_iter().map(|it| (it.at_least, it.at_most, names(it.sites))).collect(),
                    rest_at_most,
                    unknown: names(unknown),
                    probe: probe.map(|(site, at_least)| (name(site), at_least)),
                    length,
                }
            })
        }))
    }

    /// Tells what a site that was asked really had, so that the trust in its digests follows.
    ///
    /// Args:
    ///     site: The site's name. One that is not known changes nothing.
    ///     at_least: The lower bound that the site's digest had given, in blocks.
    ///     at_most: The upper bound.
    ///     was: What there was, in blocks.
    ///     by_engine: Whether an engine has said so in its answer to the request, and not the site's index.
    ///
    /// Returns:
    ///     bool: Whether the site is known.
    #[pyo3(signature = (site, *, at_least, at_most, was, by_engine=false))]
    fn compare(
        &self,
        site: &Bound<'_, PyAny>,
        at_least: u32,
        at_most: u32,
        was: u32,
        by_engine: bool,
    ) -> PyResult<bool> {
        let site = string(site, "site")?;
        let proof = if by_engine { Proof::Engine } else { Proof::Answer };
        Ok(self.write(|sites| sites.compare(site, at_least, at_most, was, proof)))
    }

    /// Forgets a site.
    ///
    /// Args:
    ///     site: The site's name.
    ///
    /// Returns:
    ///     bool: Whether it was known.
    fn forget(&self, py: Python<'_>, site: &Bound<'_, PyAny>) -> PyResult<bool> {
        let site = string(site, "site")?;
        Ok(py.detach(|| self.write(|sites| sites.forget(site))))
    }

    /// Returns what is known of each site.
    ///
    /// Args:
    ///     now: As apply() has it.
    ///
    /// Returns:
    ///     list of dict, by name: "site", "state" ("known", "unknown" or "doubted"), "age" in seconds, "life", "seq",
    ///     "marks", "bytes" of its digests, "trust" from 0 to 1, "compared" and "short" claims.
    #[pyo3(signature = (*, now=None))]
    fn sites<'py>(&self, py: Python<'py>, now: Option<f64>) -> PyResult<Bound<'py, PyList>> {
        let now = self.now(now)?;
        let list = PyList::empty(py);
        for status in self.read(|sites| sites.list(now)) {
            let state = match status.state {
                State::Known => "known",
                State::Unknown => "unknown",
                State::Doubted => "doubted",
            };
            let it = PyDict::new(py);
            it.set_item("site", &status.site)?;
            it.set_item("state", state)?;
            it.set_item("age", status.age.as_secs_f64())?;
            it.set_item("life", status.life)?;
            it.set_item("seq", status.seq)?;
            it.set_item("marks", status.marks)?;
            it.set_item("bytes", status.bytes)?;
            it.set_item("trust", status.trust)?;
            it.set_item("compared", status.compared)?;
            it.set_item("short", status.short)?;
            list.append(it)?;
        }
        Ok(list)
    }

    /// Sizes and counts.
    ///
    /// Returns:
    ///     dict of str to int; "bytes" is memory in bytes, everything else is a count.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let counts = self.read(Core::counts);
        let stats = PyDict::new(py);
        for (name, count) in counts.named() {
            stats.set_item(name, count)?;
        }
        Ok(stats)
    }
}

/// Bounds on what each site holds of a prompt, returned by Sites.find. All numbers count blocks.
#[pyclass(frozen, get_all, module = "kvatlas._native")]
pub(crate) struct SitesMatch {
    /// list[tuple[int, int, list[str]]]: The least and the most that sites hold, and their names; most first.
    levels: Vec<(u32, u32, Vec<String>)>,
    /// int: The most that a site holds that is neither in levels nor in unknown.
    rest_at_most: u32,
    /// list[str]: Sites that may hold anything: not heard for too long, or doubted.
    unknown: Vec<String>,
    /// tuple[str, int] | None: A doubted site to be asked, to see whether its claims hold again, and its claim.
    probe: Option<(String, u32)>,
    /// int: The number of blocks in the prompt.
    length: usize,
}
