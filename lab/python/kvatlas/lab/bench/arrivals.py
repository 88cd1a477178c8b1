"""Arrival times of the queries of each worker: the requests of a trace, spread over workers.

A **session** is the trace's `session_id`. Without one, requests with the same second trace block are a session, as the
turns of a conversation are (the first block is often a system prompt that all requests share); a prompt of one trace
block is a session of its own. A session is assigned to `copies` random workers, and each of them gets all requests of
the session.

Two rules spread arrivals in time, to avoid bursts that no real fleet of routers would receive:

- A trace's clock may tick slowly (the conversation trace's does every 3 s). Requests of one tick are spread evenly over
  the time to the next, in their order.
- Each further copy of a session, and each session of a duplicate of the trace, is late by a time of its own, uniform
  from 0 to `copy_spread` seconds and the same for all its requests: within a session and a worker the order holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvatlas import prefix_hashes
from kvatlas._hashes import Hashes
from kvatlas.errors import ConfigError
from kvatlas.lab.bench import segments
from kvatlas.lab.bench.config import MOST_BLOCKS, PlanConfig
from kvatlas.lab.bench.segments import Ints
from kvatlas.sim.hashing import expand, output_content
from kvatlas.sim.request import cacheable_tokens
from kvatlas.sim.trace import Trace, TraceRequest, check_block_size

Floats = NDArray[np.float64]


@dataclass(slots=True)
class Chains:
    """Blocks of all requests, concatenated: request r has `contents[first[r] : first[r] + total[r]]`, `names` alike.

    `contents` has the content hashes, `names` the block hashes.
    """

    first: Ints
    total: Ints  # blocks that will be full, of prompt and output
    prompt: Ints  # of these, the prompt's: the query
    prompt_tokens: Ints
    output_tokens: Ints
    contents: Hashes
    names: Hashes


@dataclass(slots=True)
class Arrivals:
    """Arrivals as pairs (request, worker), ordered by worker, then by time."""

    times: Floats  # seconds from the first
    requests: Ints
    workers: Ints


def sessions_of(requests: Sequence[TraceRequest]) -> Ints:
    """Number of the session of each request, in order of appearance: shape (requests,)."""
    numbers: dict[object, int] = {}
    found = np.empty(len(requests), dtype=np.int64)
    for place, request in enumerate(requests):
        key: object
        if request.session_id is not None:
            key = ("named", request.session_id)
        elif len(request.hash_ids) > 1:
            key = ("block", request.hash_ids[1])
        else:
            key = ("alone", place)
        found[place] = numbers.setdefault(key, len(numbers))
    return found


def spread_ticks(timestamps: Sequence[int]) -> Floats:
    """Convert timestamps (ms) to seconds from the first; requests with equal timestamps are spread in time.

    They are spread over the time to the next timestamp, but over no more than the median of these times, so that a long
    pause in the trace remains a pause.
    """
    stamps, counts = np.unique(np.array(timestamps, dtype=np.float64), return_counts=True)
    seconds = (stamps - stamps[0]) / 1000
    if len(stamps) == 1:
        alone: Floats = np.arange(counts[0], dtype=np.float64) / counts[0]
        return alone
    gaps = np.diff(seconds)
    usual = float(np.median(gaps))
    width = np.append(np.minimum(gaps, usual), usual)
    spread: Floats = np.repeat(seconds, counts) + np.repeat(width / counts, counts) * segments.places(counts)
    return spread


def make_arrivals(trace: Trace, config: PlanConfig) -> Arrivals:
    """Assign the requests of `trace` and its duplicates to workers and times.

    Request r of duplicate d has the number d * n + r, where n is the number of requests in the trace.
    """
    rng = np.random.default_rng([config.fleet.seed, 1])
    count = len(trace.requests)
    session = sessions_of(trace.requests)
    sessions = int(session.max()) + 1
    base = spread_ticks([request.timestamp for request in trace.requests])
    copies = config.copies
    times, requests, workers = [], [], []
    for duplicate in range(config.duplication):
        chosen = _choose(rng, config.fleet.engines, copies, sessions)
        late = rng.uniform(0.0, config.copy_spread, (sessions, copies))
        if duplicate == 0:
            late[:, 0] = 0.0
        times.append((base[:, None] + late[session]).reshape(-1))
        requests.append(np.repeat(np.arange(count) + duplicate * count, copies))
        workers.append(chosen[session].reshape(-1))
    every = Arrivals(np.concatenate(times), np.concatenate(requests), np.concatenate(workers))
    order = np.lexsort((every.requests, every.times, every.workers))
    return Arrivals(every.times[order], every.requests[order], every.workers[order])


def _choose(rng: np.random.Generator, workers: int, copies: int, sessions: int) -> Ints:
    if copies == 1:
        return rng.integers(0, workers, (sessions, 1))
    picks = [rng.choice(workers, copies, replace=False, shuffle=False) for _ in range(sessions)]
    return np.array(picks, dtype=np.int64)


def make_chains(trace: Trace, config: PlanConfig) -> Chains:
    """Compute the blocks of every request of every duplicate of the trace.

    Each id i of the trace becomes the ids i * length, i * length + 1, …, different in each duplicate. Blocks of
    generated tokens are unique to a request, and equal in all copies of the request.
    """
    size, length = config.fleet.engine.block_size, config.length
    parts = check_block_size(size, trace.block)
    rows = trace.requests
    prompt_tokens = np.array([row.input_length * length for row in rows], dtype=np.int64)
    output_tokens = np.array([row.output_length for row in rows], dtype=np.int64)
    cacheable = np.array([cacheable_tokens(row.input_length * length, row.output_length) for row in rows])
    total, prompt = cacheable // size, prompt_tokens // size
    if (blocks := int(total.sum()) * config.duplication) > MOST_BLOCKS:
        raise ConfigError(
            f"this plan would hold {blocks:,} blocks; the limit is {MOST_BLOCKS:,}: "
            "use larger blocks, less duplication, a smaller length or fewer requests"
        )
    id_count = np.array([len(row.hash_ids) for row in rows], dtype=np.int64)
    known_ids = np.concatenate([np.array(row.hash_ids, dtype=np.uint64) for row in rows])
    # Ids may be any 64-bit number: numbered densely they can be multiplied and shifted.
    distinct, dense = np.unique(known_ids, return_inverse=True)
    known = np.minimum(id_count * length * parts, prompt)
    owner, place = segments.owners(total), segments.places(total)
    from_trace = place < known[owner]
    # For each known block, its index among the expanded blocks of all ids.
    source = (segments.starts(id_count)[owner] * (length * parts) + place)[from_trace]
    contents = np.empty((config.duplication, len(place)), dtype=np.uint64)
    steps = np.arange(length, dtype=np.uint64)
    for duplicate in range(config.duplication):
        own = (dense.astype(np.uint64) + np.uint64(duplicate * len(distinct))) * np.uint64(length)
        content = contents[duplicate]
        content[from_trace] = expand((own[:, None] + steps).reshape(-1), parts)[source]
        numbers = (owner[~from_trace] + duplicate * len(rows)).astype(np.uint64)
        content[~from_trace] = output_content(numbers, place[~from_trace].astype(np.uint64))
    flat = contents.reshape(-1)
    totals = np.tile(total, config.duplication)
    first = segments.starts(totals)
    names = np.empty_like(flat)
    for start, count in zip(first.tolist(), totals.tolist(), strict=True):
        if count:
            names[start : start + count] = prefix_hashes(flat[start : start + count])

    def tiled(column: Ints) -> Ints:
        return np.tile(column, config.duplication)

    return Chains(first, totals, tiled(prompt), tiled(prompt_tokens), tiled(output_tokens), flat, names)


def trace_blocks(trace: Trace) -> int:
    """Number of trace blocks of all prompts, including partial ones."""
    return sum(-(-row.input_length // trace.block) for row in trace.requests)
