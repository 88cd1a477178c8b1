"""Plans: every lookup and every event of a simulated fleet with its virtual time, made once and run many times.

A trace is spread over workers (`arrivals`), the simulated engine runs each worker's share in virtual time (`engines`),
and the events are merged in order of time: at equal times lookups come before events, then by worker, and the events of
one worker keep their order. Every request is a lookup on each of its workers, as if a router had queried the index and
then sent the request there.

Equal traces, configurations and seeds give equal plans with equal digests, for any number of processes.

Engines are made fast enough for their requests. Otherwise, a trace that runs twenty times at once on 32 engines would
keep them computing for hours after its last request, and events would come long after the lookups of the requests that
caused them. So unless `engine_speed` is set, prefill and decoding are accelerated until, on average over the trace,
prefill is busy a quarter of the time and half of the slots for running requests are free.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import signal
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from kvatlas._hashes import Hashes
from kvatlas._native import Plan
from kvatlas.lab.bench.arrivals import Arrivals, Chains, make_arrivals, make_chains
from kvatlas.lab.bench.config import FORMAT, PlanConfig
from kvatlas.lab.bench.engines import Columns, join, run_share, run_share_of_files, save_chains
from kvatlas.sim.scheduler import EngineConfig
from kvatlas.sim.trace import Trace

Progress = Callable[[int, int], None]  # (request, worker) pairs done, and all of them

_SMALL = 4_000  # (request, worker) pairs, below which processes cost more time than they save
_BUSY = 0.25


@dataclass(slots=True)
class Draft:
    """Plan as columns, before it is checked and packed."""

    columns: Columns
    contents: Hashes
    names: Hashes
    config: PlanConfig
    meta: dict[str, object]

    def plan(self) -> Plan:
        """Pack the columns as a plan. Raises `InvalidArgumentError` if the columns do not fit together."""
        c = self.columns
        return Plan(
            times=c.times,
            kinds=c.kinds,
            workers=c.workers,
            starts=c.starts,
            lengths=c.lengths,
            parents=c.parents,
            contents=self.contents,
            names=self.names,
            removed=c.removed,
            worker_count=self.config.fleet.engines,
            block_size=self.config.fleet.engine.block_size,
            meta=json.dumps(self.meta, sort_keys=True),
        )


def make_plan(
    trace: Trace, config: PlanConfig, *, processes: int | None = None, progress: Progress | None = None
) -> Plan:
    """Make the plan of `trace`. The cost is O(blocks of all requests and copies).

    Args:
        trace: The requests of the plan.
        config: The simulated fleet, and the assignment of requests to engines.
        processes: Number of processes to use; None for one per CPU, or none for a small plan.
        progress: Called repeatedly with the progress.

    Raises:
        ConfigError: The plan is too large.
    """
    return draft_plan(trace, config, processes=processes, progress=progress).plan()


def draft_plan(
    trace: Trace, config: PlanConfig, *, processes: int | None = None, progress: Progress | None = None
) -> Draft:
    """Make the columns of a plan: `make_plan` without the last step, the packing."""
    arrivals = make_arrivals(trace, config)
    chains = make_chains(trace, config)
    speed = config.engine_speed or _fast_enough(arrivals, chains, config)
    slow = config.fleet.engine
    engine = replace(slow, prefill_rate=slow.prefill_rate * speed, decode_rate=slow.decode_rate * speed)
    if processes is None:
        processes = (os.process_cpu_count() if hasattr(os, "process_cpu_count") else os.cpu_count()) or 1
        if len(arrivals.times) < _SMALL:
            processes = 1
    shares = _shares(arrivals, config.fleet.engines if processes == 1 else max(processes * 8, 16))
    if progress is not None:
        progress(0, len(arrivals.times))
    if processes == 1:
        columns = _run_here(shares, chains, engine, len(arrivals.times), progress)
    else:
        columns = _run_apart(shares, chains, engine, processes, len(arrivals.times), progress)
    meta: dict[str, object] = {
        "format": FORMAT,
        "trace": trace.name,
        "requests": len(trace.requests),
        "config": config.as_json(),
        "engine_speed": speed,
        "refused_requests": columns.refused,
        "preemptions": columns.preemptions,
    }
    return Draft(_in_time(columns), chains.contents, chains.names, config, meta)


def plan_key(trace: Trace, config: PlanConfig) -> str:
    """Key of the plan of a trace and a configuration, for file names; known before the plan is made."""
    digest = hashlib.sha256(json.dumps([FORMAT, config.as_json()], sort_keys=True).encode())
    for row in trace.requests:
        digest.update(repr((row.timestamp, row.input_length, row.output_length, row.hash_ids, row.session_id)).encode())
    return digest.hexdigest()[:16]


def cached_plan(
    trace: Trace, config: PlanConfig, folder: Path, *, progress: Progress | None = None
) -> tuple[Plan, Path]:
    """Load a plan from `folder`, or make it and save it there. Raises `OSError`."""
    path = folder / f"plan-{plan_key(trace, config)}.kvplan"
    if path.exists():
        return Plan.load(str(path)), path
    plan = make_plan(trace, config, progress=progress)
    folder.mkdir(parents=True, exist_ok=True)
    save_plan(plan, path)
    return plan, path


def save_plan(plan: Plan, path: Path) -> None:
    """Write `plan` to a file, atomically. Raises `OSError`."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        plan.save(str(part))
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def _fast_enough(arrivals: Arrivals, chains: Chains, config: PlanConfig) -> float:
    """Factor, at least 1, of the engines' rates that makes them fast enough for the requests."""
    engine = config.fleet.engine
    span = max(float(arrivals.times.max() - arrivals.times.min()), 1.0) * config.fleet.engines
    prefill = float(chains.prompt_tokens[arrivals.requests].sum()) / span / engine.prefill_rate / _BUSY
    decode = float(chains.output_tokens[arrivals.requests].sum()) / span / engine.decode_rate
    return max(1.0, prefill, 2 * decode / engine.max_running)


def _shares(arrivals: Arrivals, count: int) -> list[Arrivals]:
    """Split the workers, in order, into shares with about equal numbers of requests."""
    borders = np.flatnonzero(np.diff(arrivals.workers)) + 1
    ideal = np.linspace(0, len(arrivals.times), count + 1)[1:-1]
    # Each share ends where the next worker begins.
    places = np.minimum(np.searchsorted(borders, ideal), len(borders) - 1)
    cuts = np.unique(borders[places]) if len(borders) else borders
    return [
        Arrivals(times, requests, workers)
        for times, requests, workers in zip(
            np.split(arrivals.times, cuts),
            np.split(arrivals.requests, cuts),
            np.split(arrivals.workers, cuts),
            strict=True,
        )
    ]


def _run_here(
    shares: list[Arrivals], chains: Chains, engine: EngineConfig, total: int, progress: Progress | None
) -> Columns:
    done = 0
    parts = []
    for share in shares:
        parts.append(run_share(share, chains, engine))
        done += len(share.times)
        if progress is not None:
            progress(done, total)
    return join(parts)


def _run_apart(
    shares: list[Arrivals], chains: Chains, engine: EngineConfig, processes: int, total: int, progress: Progress | None
) -> Columns:
    done = 0
    parts = []
    with tempfile.TemporaryDirectory(prefix="kvatlas-plan-") as folder:
        save_chains(chains, Path(folder))
        pool = ProcessPoolExecutor(
            processes,
            mp_context=multiprocessing.get_context("spawn"),
            # Ctrl-C reaches every process of a terminal; only the parent handles it.
            initializer=signal.signal,
            initargs=(signal.SIGINT, signal.SIG_IGN),
        )
        try:
            futures = [pool.submit(run_share_of_files, folder, share, engine) for share in shares]
            for future in futures:
                columns, count = future.result()
                parts.append(columns)
                done += count
                if progress is not None:
                    progress(done, total)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        pool.shutdown()
    return join(parts)


def _in_time(c: Columns) -> Columns:
    # The sort is stable: ties keep the order of the columns, by worker and then by each worker's own order.
    order = np.lexsort((c.kinds != 0, c.times))
    return Columns(
        c.times[order],
        c.kinds[order],
        c.workers[order],
        c.starts[order],
        c.lengths[order],
        c.parents[order],
        c.removed,
        c.refused,
        c.preemptions,
    )
