"""Requests for many sites: a trace, or a made-up workload, many times at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kvatlas import prefix_hashes
from kvatlas.sim.trace import Trace, read_trace
from kvatlas.sim.workload import WorkloadConfig, generate

Words = NDArray[np.uint64]
_ODD = np.uint64(0x9E37_79B9_7F4A_7C15)


@dataclass(frozen=True, slots=True)
class Prompt:
    """One request."""

    at: float  # seconds
    contents: Words  # content hash of each block
    names: Words  # prefix hash of each block, which serves as the engines' name of it


def trace_of(path: str | None, requests: int, seed: int) -> Trace:
    """A trace from a file, or a generated one."""
    if path is not None:
        return read_trace(Path(path), limit=requests)
    return generate(WorkloadConfig(requests=requests, seed=seed))


def prompts(trace: Trace, copies: int, block_size: int, *, ragged: bool, seed: int = 0) -> Iterator[Prompt]:
    """Every request of the trace `copies` times, in order of time, a moment apart.

    Copies share the trace's first block, as applications of one company share a system prompt, and nothing else.

    Args:
        trace: The requests.
        copies: Number of times that each comes, each time with contents of its own.
        block_size: Tokens in a block; divides the trace's.
        ragged: True if prompts that part after a trace block still share the beginning of the next one, a random
            number of blocks of it. A trace cannot say where inside a block two prompts part; as it is, they part at
            its edge.
        seed: Seed of that number, and of where the copies are in time.
    """
    parts = trace.block // block_size
    inside = np.arange(parts, dtype=np.uint64)
    common = trace.requests[0].hash_ids[0]
    random = np.random.default_rng(seed)
    # Timestamps of the trace are multiples of three seconds.
    shift = random.uniform(0, 3.0, (copies, len(trace.requests)))
    order = sorted(
        (
            (request.timestamp / 1000 + float(shift[copy, number]), copy, number)
            for number, request in enumerate(trace.requests)
            for copy in range(copies)
        ),
    )
    for at, copy, number in order:
        request = trace.requests[number]
        ids = np.array(request.hash_ids, dtype=np.uint64)
        salt = np.where(ids == common, np.uint64(0), np.uint64((copy + 1) << 40))
        units = _mix(ids + salt)
        grid = _mix(units[:, None] + inside[None, :] * _ODD)
        if ragged and ids.size > 1:
            # What all that come after the same trace block share: how much of it, each says by itself.
            shared = _mix(np.concatenate([units[:1], units[:-1]])[:, None] * _ODD + inside[None, :])
            cut = units % np.uint64(parts + 1)
            cut[0] = 0
            grid = np.where(inside[None, :] < cut[:, None], shared, grid)
        contents = np.ascontiguousarray(grid.reshape(-1)[: request.input_length // block_size])
        if contents.size:
            yield Prompt(float(at), contents, prefix_hashes(contents))


def _mix(words: Words) -> Words:
    with np.errstate(over="ignore"):
        words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58_476D_1CE4_E5B9)
        words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D0_49BB_1331_11EB)
        return words ^ (words >> np.uint64(31))
