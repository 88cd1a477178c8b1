"""The cost of events in bytes, as engines write them and as compact as they can be."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvatlas.wire import Removed, Stored, encode_batch

_BLOCKS = 64
_COMPACT = 17  # a name, a content hash, and a share of the head


@dataclass(frozen=True, slots=True)
class Cost:
    """Bytes of events, by blocks."""

    of_stored: float
    of_removed: float

    def stored(self, blocks: int) -> int:
        """The bytes of a store of `blocks` blocks, as vLLM writes it, with the token ids."""
        return round(self.of_stored * blocks)

    def removed(self, blocks: int) -> int:
        """The bytes of a removal of `blocks` blocks, as vLLM writes it."""
        return round(self.of_removed * blocks)

    def compact_stored(self, blocks: int) -> int:
        """The bytes of a store of `blocks` blocks, with 8 bytes for a name and 8 for the contents."""
        return _COMPACT * blocks

    def compact_removed(self, blocks: int) -> int:
        """The bytes of a removal of `blocks` blocks, with 8 bytes for a name."""
        return (_COMPACT - 8) * blocks


def measure(block_size: int) -> Cost:
    """The bytes of a block in batches that are like vLLM's, with names of 64 bits and a vocabulary of 150,000."""
    random = np.random.default_rng(0)
    names = random.integers(1 << 62, 1 << 63, _BLOCKS).tolist()
    tokens = random.integers(0, 150_000, _BLOCKS * block_size).tolist()
    stored = Stored(block_hashes=names, parent=names[0], tokens=tokens, block_size=block_size)
    sizes = [len(encode_batch([event], timestamp=1e9)) for event in (stored, Removed(block_hashes=names))]
    return Cost(sizes[0] / _BLOCKS, sizes[1] / _BLOCKS)
