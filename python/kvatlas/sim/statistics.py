"""Statistics of a trace, with the hit rate that one unlimited cache would reach on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kvatlas.sim.trace import TRACE_BLOCK, Trace, TraceRequest


@dataclass(frozen=True, slots=True)
class TraceStatistics:
    """Statistics of a trace: lengths in tokens, times in seconds, shares from 0 to 1."""

    requests: int
    duration: float
    input_tokens: int
    output_tokens: int
    distinct_blocks: int  # trace blocks
    block: int  # tokens of a trace block
    seen_before: float  # share of the prompt tokens that one infinite cache would hold
    input_quantiles: dict[str, float]  # p10, p50, p90, p99, max
    output_quantiles: dict[str, float]


def trace_statistics(trace: Trace, block_size: int) -> TraceStatistics:
    """Compute the statistics of a trace. `seen_before` counts full blocks of `block_size` tokens."""
    requests = trace.requests
    inputs = np.array([r.input_length for r in requests], dtype=np.int64)
    outputs = np.array([r.output_length for r in requests], dtype=np.int64)
    total = int(inputs.sum())
    return TraceStatistics(
        requests=len(requests),
        duration=(requests[-1].timestamp - requests[0].timestamp) / 1000,
        input_tokens=total,
        output_tokens=int(outputs.sum()),
        distinct_blocks=len({name for r in requests for name in r.hash_ids}),
        block=trace.block,
        seen_before=sum(infinite_cache(requests, block_size, trace.block)) / total,
        input_quantiles=_quantiles(inputs),
        output_quantiles=_quantiles(outputs),
    )


def infinite_cache(requests: Sequence[TraceRequest], block_size: int, trace_block: int = TRACE_BLOCK) -> list[int]:
    """Tokens of each prompt that one unlimited cache would hold at its arrival: the upper bound of any routing.

    The rules are those of engines: full blocks of `block_size` tokens, chained from the start, and never the whole
    prompt.
    """
    # A node of this tree is a trace block after its prefix; its value is how many of its tokens have been computed
    # in full blocks. Ids already seen in full are the common case, so a walk costs one look-up a trace block.
    children: dict[tuple[int, int], int] = {}
    held: list[int] = [0]
    hits: list[int] = []
    for request in requests:
        full = request.input_length // block_size * block_size
        node = seen = 0
        going = True
        for position, name in enumerate(request.hash_ids):
            here = min(trace_block, full - position * trace_block)
            if here <= 0:
                break
            child = children.get((node, name))
            if child is None:
                child = children[node, name] = len(held)
                held.append(0)
            if going:
                seen += min(here, held[child])
                going = held[child] >= trace_block
            held[child] = max(held[child], here)
            node = child
        hits.append(min(seen, (request.input_length - 1) // block_size * block_size))
    return hits


def _quantiles(values: np.ndarray[tuple[int], np.dtype[np.int64]]) -> dict[str, float]:
    points = np.quantile(values, [0.1, 0.5, 0.9, 0.99])
    return {
        "p10": float(points[0]),
        "p50": float(points[1]),
        "p90": float(points[2]),
        "p99": float(points[3]),
        "max": float(values.max()),
    }
