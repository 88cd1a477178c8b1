//! `SitePublisher`, `Sites` and `SitesMatch`: digests (sparse summaries) of the indexes of sites, and the index made
//! from them.

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
/// A digest lists the prefixes, at every grain-th block of a chain, whose blocks are all on the device of some rank of
/// the site. Each digest after the first contains only the prefixes added and removed.
///
/// Args:
///     site: The site's name, 1 to 256 bytes in UTF-8.
///     grain: Number of blocks between two marks (prefix hashes in the digest) of a chain, at least 1; the same for all
///         sites.
///     life: A number that no earlier publisher of the same name had; None for the system's time in nanoseconds.
///
/// Raises:
///     InvalidTypeError: An argument is of the wrong type.
///     InvalidArgumentError: The name or the grain is invalid.
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

    /// Reads the changes of the site's index. Changed ranks are copied, in slices of less than a millisecond between
    /// which the index can be changed.
    ///
    /// Args:
    ///     index: The site's BlockIndex, the same at every call.
    ///
    /// Returns:
    ///     tuple of int and int: the number of ranks in the index, and the number of ranks copied.
    fn look(&self, py: Python<'_>, index: &Bound<'_, BlockIndex>) -> (usize, usize) {
        let core = index.get().shared();
        let looked = py.detach(|| self.with(|publisher| publisher.look(&core, |_, _| true, || {})));
        (looked.ranks, looked.copied)
    }

    /// Makes the next digest, of the changes since the last one. Without changes, the digest shows that the site is
    /// alive.
    fn delta<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &py.detach(|| self.with(Publisher::delta).encode()))
    }

    /// Makes a digest of all marks (prefix hashes) of the site, for a receiver that has missed a digest.
    fn whole<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &py.detach(|| self.with(Publisher::whole).encode()))
    }

    /// int: The number of marks of the site: prefix hashes, one for every grain-th block of a chain.
    #[getter]
    fn marks(&self, py: Python<'_>) -> usize {
        py.detach(|| self.with(|publisher| publisher.marks()))
    }

    /// int: Approximate memory of the publisher beside the index, in bytes.
    #[getter]
    fn nbytes(&self, py: Python<'_>) -> usize {
        py.detach(|| self.with(|publisher| publisher.bytes()))
    }
}

/// A sparse index of many sites, made from their digests: bounds on how much of a prompt each site holds.
///
/// Args:
///     block_size: Number of tokens in a block, at least 1.
///     grain: Number of blocks between two marks (prefix hashes in digests) of a chain, equal to the grain of the
///         sites' publishers.
///     stale_after: Seconds without a digest after which a site's holdings count as unknown.
///
/// Raises:
///     InvalidTypeError: An argument is of the wrong type.
///     InvalidArgumentError: A number is out of range.
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

    /// Applies a digest of a site.
    ///
    /// Args:
    ///     digest: Return value of delta() or whole() of a SitePublisher.
    ///     now: Seconds since an arbitrary moment, the same for all calls; None for the time since this index was
    ///         created.
    ///
    /// Returns:
    ///     bool: False if the digest was applied before.
    ///
    /// Raises:
    ///     InvalidTypeError: digest is not bytes.
    ///     InvalidArgumentError: digest is not a digest (code "invalid_digest"), has another grain ("other_grain"), or
    ///         an earlier one is missing ("whole_wanted"): the site's holdings are unknown until a digest of whole()
    ///         comes.
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

    /// Finds bounds on how much of a prompt each site holds.
    ///
    /// Args:
    ///     tokens: Token ids of the prompt, shape (n,), as accepted by content_hashes().
    ///     content_hashes: Content hashes of the prompt's blocks instead, shape (n,): a uint64 array or a list of ints.
    ///     lora: Name of the LoRA adapter, with tokens only.
    ///     salt: Cache salt, with tokens only.
    ///     now: The time, as in apply().
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

    /// Compares the bounds of a site with its true holdings, as learnt by asking it, to adjust the trust in its
    /// digests.
    ///
    /// Args:
    ///     site: The site's name. An unknown one changes nothing.
    ///     at_least: The lower bound from the site's digest, in blocks.
    ///     at_most: The upper bound from the site's digest, in blocks.
    ///     was: The true depth at the site, in blocks.
    ///     by_engine: True if the depth is from an engine's answer to the request, False if from the site's index.
    ///
    /// Returns:
    ///     bool: True if the site is known.
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

    /// Removes a site from the index.
    ///
    /// Args:
    ///     site: The site's name.
    ///
    /// Returns:
    ///     bool: True if the site was known.
    fn forget(&self, py: Python<'_>, site: &Bound<'_, PyAny>) -> PyResult<bool> {
        let site = string(site, "site")?;
        Ok(py.detach(|| self.write(|sites| sites.forget(site))))
    }

    /// Returns the state of each site.
    ///
    /// Args:
    ///     now: The time, as in apply().
    ///
    /// Returns:
    ///     list of dict, by name: "site", "state" ("known", "unknown" or "doubted"), "age" in seconds, "life", "seq",
    ///     "marks", "bytes" of its digests, "trust" from 0 to 1, and numbers of bounds "compared" with the truth and of
    ///     those found "short".
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

    /// Sizes and counts of the index of sites.
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

/// Bounds on how much of a prompt each site holds, returned by Sites.find. All numbers count blocks.
#[pyclass(frozen, get_all, module = "kvatlas._native")]
pub(crate) struct SitesMatch {
    /// list[tuple[int, int, list[str]]]: Lower bound, upper bound, and the names of the sites with these bounds;
    /// highest first.
    levels: Vec<(u32, u32, Vec<String>)>,
    /// int: Upper bound for each site that is neither in levels nor in unknown.
    rest_at_most: u32,
    /// list[str]: Sites with unknown holdings: without a digest for too long, or with low trust.
    unknown: Vec<String>,
    /// tuple[str, int] | None: A site with low trust to ask about the prompt, to test whether its digests are right
    /// again, and its bound in blocks.
    probe: Option<(String, u32)>,
    /// int: The number of blocks in the prompt.
    length: usize,
}
