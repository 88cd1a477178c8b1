//! `Removed`.

use kvatlas_index::Tier;
use kvatlas_wire as wire;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::convert::{names, names_to_python, number};
use super::{Object, agreed, said};
use crate::scalars::{TierName, optional_string};

/// An event that says that blocks were evicted, one copy of each.
///
/// Args:
///     block_hashes: The engine's names of the blocks, in any order: ints of 64 bits, signed or unsigned, or bytes.
///     tier: Where the blocks were: "gpu", "cpu", "disk" or "external". Follows from medium if that is given.
///     medium: What the engine calls the tier; None for the usual name.
///     group_idx: The number of the KV cache group, as vLLM calls it.
///     locality: "LOCAL" or "REMOTE", of an offloaded block.
///     ownership: Which secondary offload tier had the block.
///
/// Raises:
///     InvalidTypeError: An argument is of the wrong type.
///     InvalidArgumentError: A number out of range, an unknown tier, or a tier that is not the medium's.
#[pyclass(frozen, eq, module = "kvatlas._native")]
#[derive(PartialEq)]
pub(crate) struct Removed {
    pub(super) it: wire::Removed,
    pub(super) tier: Tier,
}

#[pymethods]
impl Removed {
    #[new]
    #[pyo3(signature = (block_hashes, *, tier=TierName(Tier::Gpu), medium=None, group_idx=None, locality=None,
                        ownership=None))]
    #[pyo3(
        text_signature = "(block_hashes, *, tier='gpu', medium=None, group_idx=None, locality=None, ownership=None)"
    )]
    fn new(
        block_hashes: &Object<'_>,
        tier: TierName,
        medium: Option<&Object<'_>>,
        group_idx: Option<&Object<'_>>,
        locality: Option<&Object<'_>>,
        ownership: Option<&Object<'_>>,
    ) -> PyResult<Self> {
        let it = wire::Removed {
            block_hashes: names(block_hashes)?,
            medium: optional_string(medium, "medium")?.map(|it| it.to_owned().into()),
            group: group_idx.map(|it| number(it, "group_idx")).transpose()?,
            locality: optional_string(locality, "locality")?.map(Into::into),
            ownership: optional_string(ownership, "ownership")?.map(Into::into),
        };
        let tier = agreed(tier.0, it.medium.is_some() || it.locality.is_some(), it.tier())?;
        Ok(Self { it, tier })
    }

    /// tuple of int or bytes: The engine's names of the blocks.
    #[getter]
    fn block_hashes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        names_to_python(py, &self.it.block_hashes)
    }

    /// str: The tier that the blocks were in.
    #[getter]
    fn tier(&self) -> &'static str {
        self.tier.name()
    }

    /// str or None: The engine's name of the tier.
    #[getter]
    fn medium(&self) -> Option<&str> {
        self.it.medium.as_deref()
    }

    /// int or None: The number of the KV cache group, as vLLM calls it.
    #[getter]
    fn group_idx(&self) -> Option<u32> {
        self.it.group
    }

    /// str or None: The locality of an offloaded block, "LOCAL" or "REMOTE".
    #[getter]
    fn locality(&self) -> Option<&str> {
        self.it.locality.as_deref()
    }

    /// str or None: The secondary offload tier that had the block.
    #[getter]
    fn ownership(&self) -> Option<&str> {
        self.it.ownership.as_deref()
    }

    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        let names = slf.getattr("block_hashes")?.repr()?;
        let mut text = format!("Removed(block_hashes={names}, tier='{}'", slf.get().tier);
        text += &said(slf.as_any(), &["medium", "group_idx", "locality", "ownership"])?;
        Ok(text + ")")
    }
}
