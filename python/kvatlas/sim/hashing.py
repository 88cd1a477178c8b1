"""Content that is made up: 64-bit numbers that stand for the tokens of a block.

A trace tells which prompts share blocks, not what they say. So a block's content hash is made here from the trace's
own ids: equal ids give equal content, everything else is different. All functions work on whole uint64 arrays.
"""

from __future__ import annotations

import numpy as np

from kvatlas._hashes import Hashes, mix

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)

# Keeps what engines generate apart from what prompts contain, and one engine's names from another's.
_OUTPUT = np.uint64(0x6F7574707574)
_NAMES = np.uint64(0x6E616D6573)


def expand(ids: Hashes, parts: int) -> Hashes:
    """Give every id `parts` content hashes, in order: shape (n,) becomes (n * parts,)."""
    steps = np.arange(1, parts + 1, dtype=np.uint64) * _GOLDEN
    return mix(mix(ids)[:, None] + steps[None, :]).reshape(-1)


def output_blocks(request: int, start: int, count: int) -> Hashes:
    """Content of `count` blocks that hold generated tokens of request number `request`: nobody else's."""
    return output_content(np.array([request], dtype=np.uint64), np.arange(start, start + count, dtype=np.uint64))


def output_content(requests: Hashes, places: Hashes) -> Hashes:
    """`output_blocks` for many at once: block `places[i]` of request number `requests[i]` (arrays that broadcast)."""
    return mix(mix(requests ^ _OUTPUT) + (places + np.uint64(1)) * _GOLDEN)


def rename(block_hashes: Hashes, engine: int) -> Hashes:
    """Block hashes as an engine with a seed of its own would name them."""
    salt = mix(np.array([engine], dtype=np.uint64) ^ _NAMES)
    return mix(block_hashes ^ salt)
