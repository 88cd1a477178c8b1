"""Profile of a trace: sizes, lengths, repetition, pauses, and working sets."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from kvatlas.sim.curve import HitCurve, hit_curve
from kvatlas.sim.statistics import TraceStatistics, trace_statistics
from kvatlas.sim.trace import Trace, TraceRequest

SIZES = tuple(250_000 * 2**n for n in range(11))
"""Cache sizes, in tokens, at which the hit rate is reported: 250 k to 256 M."""

WINDOWS = (60.0, 600.0, 3_600.0)
"""Lengths of the periods, in seconds, for which the number of distinct tokens in use is reported."""


@dataclass(frozen=True, slots=True)
class Sessions:
    """Statistics of a trace's sessions. Times are in seconds."""

    sessions: int
    turns: dict[str, float]  # requests of a session: p10, p50, p90, p99, max
    pauses: dict[str, float] | None  # from an answer to the next request; None: the trace does not say
    between: dict[str, float] | None  # from a request to the next one of its session; None: all have one
    # Share of the requests, but for first ones, whose prompt begins with all of the previous one's blocks; None: all
    # sessions have one request.
    kept: float | None


@dataclass(frozen=True, slots=True)
class Profile:
    """Profile of a trace. Lengths are in tokens."""

    name: str
    statistics: TraceStatistics
    peak: float  # requests a second in the busiest minute
    dependent: float  # share of the requests that wait for others
    sessions: Sessions | None  # None: the trace names none
    working_set: dict[str, tuple[float, float]]  # by seconds: distinct prompt tokens used in a period, mean and most
    hit_rates: dict[str, float]  # by the size of one cache in tokens
    curve: HitCurve


def profile(trace: Trace, block_size: int | None = None) -> Profile:
    """Compute the profile of a trace for engines with blocks of `block_size` tokens.

    None for `block_size`: the trace's own block size, at most 16.
    """
    size = block_size or (16 if trace.block % 16 == 0 else trace.block)
    requests = trace.requests
    curve = hit_curve(trace, size)
    statistics = trace_statistics(trace, size)
    biggest = next((n for n, tokens in enumerate(SIZES) if curve.rate(tokens) >= curve.most - 0.0005), len(SIZES) - 1)
    minutes = np.array([request.timestamp // 60_000 for request in requests])
    return Profile(
        name=trace.name,
        statistics=statistics,
        peak=float(np.bincount(minutes - minutes.min()).max()) / 60 if trace.timed else 0.0,
        dependent=sum(1 for request in requests if request.after) / len(requests),
        sessions=_sessions(trace),
        working_set=_working_sets(trace) if trace.timed else {},
        hit_rates={str(tokens): curve.rate(tokens) for tokens in SIZES[: biggest + 1]},
        curve=curve,
    )


def as_json(it: Profile) -> dict[str, Any]:
    """Convert a profile to plain data for JSON, with points of the hit-rate curve in `hit_rates`."""
    data = asdict(it)
    del data["curve"]
    return {**data, "hit_rate_without_limit": it.curve.most, "sampled": it.curve.share}


def _sessions(trace: Trace) -> Sessions | None:
    turns: dict[str | int, list[TraceRequest]] = {}
    for request in trace.requests:
        if request.session_id is not None:
            turns.setdefault(request.session_id, []).append(request)
    if not turns:
        return None
    pauses = [max(each.delay for each in request.after) / 1000 for request in trace.requests if request.after]
    pairs = [pair for its in turns.values() for pair in itertools.pairwise(its)]
    between = [(after.timestamp - before.timestamp) / 1000 for before, after in pairs] if trace.timed else []
    kept = 0
    for before, after in pairs:
        full = min(before.input_length, after.input_length) // trace.block
        kept += (
            full > 0 and before.hash_ids[:full] == after.hash_ids[:full] and after.input_length >= before.input_length
        )
    return Sessions(
        len(turns),
        _quantiles([len(its) for its in turns.values()]),
        _quantiles(pauses) if pauses else None,
        _quantiles(between) if between else None,
        kept / len(pairs) if pairs else None,
    )


def _working_sets(trace: Trace) -> dict[str, tuple[float, float]]:
    """Numbers of distinct tokens used in periods, by the length of the period."""
    found = {}
    begin, end = trace.requests[0].timestamp, trace.requests[-1].timestamp
    for window in WINDOWS:
        if window != WINDOWS[0] and (end - begin) / 1000 < window:
            continue
        used: dict[int, set[int]] = {}
        for request in trace.requests:
            used.setdefault(int((request.timestamp - begin) / 1000 // window), set()).update(request.hash_ids)
        counts = [len(ids) * trace.block for ids in used.values()]
        found[f"{window:g}"] = (float(np.mean(counts)), float(max(counts)))
    return found


def _quantiles(values: Sequence[float]) -> dict[str, float]:
    points = np.quantile(np.array(values, dtype=np.float64), [0.1, 0.5, 0.9, 0.99])
    names = ("p10", "p50", "p90", "p99")
    return {**dict(zip(names, map(float, points), strict=True)), "max": float(max(values))}
