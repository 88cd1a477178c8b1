//! `Stored` and `Removed`: events of an engine's KV cache, as Python classes.

use kvatlas_index::Tier;
use kvatlas_wire as wire;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use super::{
    Object, agreed, key_to_python, keys, name, name_to_python, names, names_to_python, number, said, token_lists,
    tokens_or_pairs,
};
use crate::errors;
use crate::scalars::{TierName, optional_string};

/// An event by which an engine announces that it cached consecutive blocks of one chain, one copy of each.
///
/// Args:
///     block_hashes: The engine's names of the blocks, parents first: ints of 64 bits, signed or unsigned, or bytes.
///     parent: The name of the block before the first; None at the beginning of a prompt.
///     tokens: The tokens of the blocks, as accepted by content_hashes(), or a list of pairs from an engine with
///         speculative decoding that sends pairs.
///     block_size: Tokens in a block; 0 where blocks are announced by name alone.
///     tier: Tier of the blocks: "gpu", "cpu", "disk" or "external". Derived from medium if given.
///     medium: The engine's name of the tier; None for the usual name.
///     lora: The name of the LoRA adapter.
///     salt: The cache salt, if the event contains it. vLLM sends it with the first block of a prompt only.
///     extra_keys: For each block None, or a sequence of keys for contents other than tokens. A key is (identifier,
///         offset) for an image or the like, bytes for a digest of prompt embeddings, a str of unknown meaning, or a
///         tuple of one bytes with the MessagePack of anything else.
///     group_idx: The number of the KV cache group, as vLLM calls it.
///     kind: The kind of attention of the group's layers.
///     window: The window of a sliding-window group, in tokens.
///     session_id: The id of the session whose request stored the blocks.
///     lora_id: The engine's own number for the adapter.
///     locality: "LOCAL" or "REMOTE", of an offloaded block. Remote blocks have the tier "external".
///     ownership: The secondary offload tier that has the block.
///     lookahead: For each block the tokens after it, if the engine's block hashes depend on them.
///     reused: True if the blocks were cache hits and not written, so that their number of copies did not increase.
///
/// Raises:
///     InvalidTypeError: An argument is of the wrong type.
///     InvalidArgumentError: A number is out of range, or the tier is unknown or contradicts the medium.
#[pyclass(frozen, eq, module = "kvatlas._native")]
#[derive(PartialEq)]
pub(crate) struct Stored {
    pub(super) it: wire::Stored,
    pub(super) tier: Tier,
}

#[pymethods]
impl Stored {
    #[new]
    #[pyo3(signature = (block_hashes, parent, tokens, block_size, *, tier=TierName(Tier::Gpu), medium=None, lora=None,
                        salt=None, extra_keys=None, group_idx=None, kind=None, window=None, session_id=None, lora_id=None,
                        locality=None, ownership=None, lookahead=None, reused=false))]
    #[pyo3(text_signature = "(block_hashes, parent, tokens, block_size, *, tier='gpu', medium=None, lora=None, \
                             salt=None, extra_keys=None, group_idx=None, kind=None, window=None, session_id=None, \
                             lora_id=None, locality=None, ownership=None, lookahead=None, reused=False)")]
    #[expect(clippy::too_many_arguments, reason = "the signature is Python's")]
    fn new(
        block_hashes: &Object<'_>,
        parent: Option<&Object<'_>>,
        tokens: &Object<'_>,
        block_size: &Object<'_>,
        tier: TierName,
        medium: Option<&Object<'_>>,
        lora: Option<&Object<'_>>,
        salt: Option<&Object<'_>>,
        extra_keys: Option<&Object<'_>>,
        group_idx: Option<&Object<'_>>,
        kind: Option<&Object<'_>>,
        window: Option<&Object<'_>>,
        session_id: Option<&Object<'_>>,
        lora_id: Option<&Object<'_>>,
        locality: Option<&Object<'_>>,
        ownership: Option<&Object<'_>>,
        lookahead: Option<&Object<'_>>,
        reused: bool,
    ) -> PyResult<Self> {
        let (tokens, bigrams) = tokens_or_pairs(tokens)?;
        let it = wire::Stored {
            block_hashes: names(block_hashes)?,
            parent: parent.map(|parent| name(parent, || "parent".to_owned())).transpose()?,
            tokens,
            bigrams,
            block_size: number(block_size, "block_size")?,
            medium: optional_string(medium, "medium")?.map(|it| it.to_owned().into()),
            lora: optional_string(lora, "lora")?.map(Into::into),
            lora_id: lora_id.map(|it| number(it, "lora_id")).transpose()?,
            salt: optional_string(salt, "salt")?.map(Into::into),
            extra_keys: extra_keys.map_or(Ok(Vec::new()), keys)?,
            group: group_idx.map(|it| number(it, "group_idx")).transpose()?,
            kind: optional_string(kind, "kind")?.map(|it| it.to_owned().into()),
            window: window.map(|it| number(it, "window")).transpose()?,
            locality: optional_string(locality, "locality")?.map(Into::into),
            ownership: optional_string(ownership, "ownership")?.map(Into::into),
            session_id: optional_string(session_id, "session_id")?.map(Into::into),
            lookahead: lookahead.map(token_lists).transpose()?,
            bare: false,
            adapter_digest: None,
            reused,
        };
        if let Some((block, _)) = it.extra_keys.last().filter(|(block, _)| *block as usize >= it.block_hashes.len()) {
            let message = format!("extra_keys has keys for block {block}, but there are {}", it.block_hashes.len());
            return Err(errors::argument("length_mismatch", &message));
        }
        let tier = agreed(tier.0, it.medium.is_some() || it.locality.is_some(), it.tier())?;
        Ok(Self { it, tier })
    }

    /// tuple of int or bytes: The engine's names of the blocks, parents first.
    #[getter]
    fn block_hashes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        names_to_python(py, &self.it.block_hashes)
    }

    /// int, bytes or None: The name of the block before the first.
    #[getter]
    fn parent<'py>(&self, py: Python<'py>) -> PyResult<Option<Object<'py>>> {
        self.it.parent.as_ref().map(|parent| name_to_python(py, parent)).transpose()
    }

    /// tuple of int, or of pairs of int: The tokens of the blocks.
    #[getter]
    fn tokens<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        match &self.it.bigrams {
            None => PyTuple::new(py, &self.it.tokens),
            Some(seconds) => PyTuple::new(py, self.it.tokens.iter().copied().zip(seconds.iter().copied())),
        }
    }

    /// int: The number of tokens in a block; 0 if blocks are announced without tokens.
    #[getter]
    fn block_size(&self) -> u32 {
        self.it.block_size
    }

    /// str: The tier that the blocks are in.
    #[getter]
    fn tier(&self) -> &'static str {
        self.tier.name()
    }

    /// str or None: The engine's name of the tier.
    #[getter]
    fn medium(&self) -> Option<&str> {
        self.it.medium.as_deref()
    }

    /// str or None: The name of the LoRA adapter.
    #[getter]
    fn lora(&self) -> Option<&str> {
        self.it.lora.as_deref()
    }

    /// int or None: The engine's own number for the adapter.
    #[getter]
    fn lora_id(&self) -> Option<i64> {
        self.it.lora_id
    }

    /// str or None: The cache salt, if the event contains it.
    #[getter]
    fn salt(&self) -> Option<&str> {
        self.it.salt.as_deref()
    }

    /// tuple or None: For each block None, or a tuple of keys for contents other than tokens, such as images.
    #[getter]
    fn extra_keys<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        if self.it.extra_keys.is_empty() {
            return Ok(None);
        }
        let mut blocks = vec![None; self.it.block_hashes.len()];
        for own in self.it.extra_keys.chunk_by(|a, b| a.0 == b.0) {
            let keys = own.iter().map(|(_, key)| key_to_python(py, key)).collect::<PyResult<Vec<_>>>()?;
            if let Some(block) = blocks.get_mut(own[0].0 as usize) {
                *block = Some(PyTuple::new(py, keys)?);
            }
        }
        PyTuple::new(py, blocks).map(Some)
    }

    /// int or None: The number of the KV cache group, as vLLM calls it.
    #[getter]
    fn group_idx(&self) -> Option<u32> {
        self.it.group
    }

    /// str or None: The kind of attention of the cache group's layers.
    #[getter]
    fn kind(&self) -> Option<&str> {
        self.it.kind.as_deref()
    }

    /// int or None: The window of a sliding-window group, in tokens.
    #[getter]
    fn window(&self) -> Option<u64> {
        self.it.window
    }

    /// str or None: The id of the session whose request stored the blocks.
    #[getter]
    fn session_id(&self) -> Option<&str> {
        self.it.session_id.as_deref()
    }

    /// str or None: The locality of an offloaded block, "LOCAL" or "REMOTE".
    #[getter]
    fn locality(&self) -> Option<&str> {
        self.it.locality.as_deref()
    }

    /// str or None: The secondary offload tier that has the block.
    #[getter]
    fn ownership(&self) -> Option<&str> {
        self.it.ownership.as_deref()
    }

    /// tuple of tuple of int, or None: The tokens after each block.
    #[getter]
    fn lookahead<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let Some(all) = &self.it.lookahead else { return Ok(None) };
        let all = all.iter().map(|after| PyTuple::new(py, after)).collect::<PyResult<Vec<_>>>()?;
        PyTuple::new(py, all).map(Some)
    }

    /// bool: True if the blocks were cache hits and not written.
    #[getter]
    fn reused(&self) -> bool {
        self.it.reused
    }

    /// Text with the fields that are not empty; tokens are shown by their number.
    fn __repr__(slf: &Bound<'_, Self>) -> PyResult<String> {
        let it = &slf.get().it;
        let mut text = format!(
            "Stored(block_hashes={}, parent={}, tokens=<{}>, block_size={}, tier='{}'",
            slf.getattr("block_hashes")?.repr()?,
            slf.getattr("parent")?.repr()?,
            it.tokens.len(),
            it.block_size,
            slf.get().tier
        );
        text += &said(
            slf,
            &[
                "medium",
                "lora",
                "lora_id",
                "salt",
                "extra_keys",
                "group_idx",
                "kind",
                "window",
                "session_id",
                "locality",
                "ownership",
            ],
        )?;
        if it.reused {
            text += ", reused=True";
        }
        Ok(text + ")")
    }
}

/// An event by which an engine announces that it evicted blocks, one copy of each.
///
/// Args:
///     block_hashes: The engine's names of the blocks, in any order: ints of 64 bits, signed or unsigned, or bytes.
///     tier: Tier of the blocks: "gpu", "cpu", "disk" or "external". Derived from medium if given.
///     medium: The engine's name of the tier; None for the usual name.
///     group_idx: The number of the KV cache group, as vLLM calls it.
///     locality: "LOCAL" or "REMOTE", of an offloaded block.
///     ownership: The secondary offload tier that had the block.
///
/// Raises:
///     InvalidTypeError: An argument is of the wrong type.
///     InvalidArgumentError: A number is out of range, or the tier is unknown or contradicts the medium.
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
