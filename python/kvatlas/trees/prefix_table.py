"""Events that a SyncPrefixHashTable applies, with the names of AIBrix.

Other classes with the same fields work as well.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvatlas._native import SyncPrefixHashTable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["AllBlocksCleared", "BlockRemoved", "BlockStored", "SyncPrefixHashTable"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockStored:
    """Event: an engine has cached consecutive blocks of one prompt.

    Attributes:
        block_hashes: The engine's block hashes: ints of any width and sign, or bytes.
        model_name: Name of the model.
        lora_id: Number of the LoRA adapter; -1 for none.
        source_pod: Name of the pod that runs the engine.
        parent_block_hash: Block hash of the block before the first; None at the beginning of a prompt.
        tokens: Tokens of each block, one item per block: token ids, or bytes with 4 big-endian bytes per token.
    """

    block_hashes: "Sequence[int | bytes] | NDArray[np.integer[Any]]"
    model_name: str
    lora_id: int = -1
    source_pod: str
    parent_block_hash: int | bytes | None = None
    tokens: "Sequence[bytes | bytearray | memoryview | Sequence[int] | NDArray[np.integer[Any]]]"


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRemoved:
    """Event: an engine has evicted blocks.

    Attributes:
        block_hashes: The engine's block hashes.
        model_name: Name of the model.
        lora_id: Number of the LoRA adapter; -1 for none.
        source_pod: Name of the pod that runs the engine.
    """

    block_hashes: "Sequence[int | bytes] | NDArray[np.integer[Any]]"
    model_name: str
    lora_id: int = -1
    source_pod: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AllBlocksCleared:
    """Event: an engine has dropped its whole cache.

    Attributes:
        source_pod: Name of the pod that runs the engine.
        model_name: Name of the model; None for every model and adapter.
        lora_id: Number of the LoRA adapter; -1 for none.
    """

    source_pod: str
    model_name: str | None = None
    lora_id: int = -1
