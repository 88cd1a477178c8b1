"""One cell: one workload on one fleet with tiers, under one policy. Results are kept as JSON."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from kvatlas.lab.replay.config import ReplayConfig
from kvatlas.lab.replay.runner import replay
from kvatlas.lab.replay.scenario import Scenario
from kvatlas.lab.replay.trouble import parse_troubles, trace_seconds, with_troubles
from kvatlas.lab.replay.workloads import find_workload
from kvatlas.sim import EngineConfig, FleetConfig, Trace
from kvatlas.sim.documents import DocumentConfig, generate_documents
from kvatlas.sim.hardware import find_hardware
from kvatlas.sim.tiers import TierConfig
from kvatlas.sim.transfers import find_transfer

BLOCK = 512
CHUNKS = {"h100x4": 512}
"""Tokens of a step by hardware, where they are not `CHUNK`."""
CHUNK = 8_192


@dataclass(frozen=True, slots=True)
class Cell:
    """Run of one policy on one workload and one fleet.

    Attributes:
        workload: Name of a workload; "documents RATE" for questions on documents at another rate.
        policy: Name of a policy or a bound.
        hardware: Name of the hardware.
        transfer: Name of the transfer of pulls and of the pool.
        cache: Tokens of each engine's cache.
        host: Tokens of each engine's host memory.
        pool: Tokens of a shared pool.
        pulls: Whether engines pull.
        engines: Number of engines.
        speedup: Speed of the trace's clock, relative to the workload's.
        requests: Number of requests, the first of the trace; None: all.
        troubles: Ways in which engines misbehave.
        seed: Seed of a generated workload.
        delta: Tokens that a source must have more than the engine, in llm-d's rule.
        joins: Time at which the last engine joins, empty, in seconds from the first request; None: it is there.
        warm_up: Tokens up to which empty engines are warmed up.
    """

    workload: str
    policy: str
    hardware: str = "gpt-oss-h200"
    transfer: str = "h200-rdma"
    cache: int = 393_216
    host: int = 786_432
    pool: int = 0
    pulls: bool = False
    engines: int = 8
    speedup: float = 1.0
    requests: int | None = None
    troubles: tuple[str, ...] = ()
    seed: int = 1000
    delta: int = 2_048
    joins: float | None = None
    warm_up: int = 0

    @property
    def key(self) -> str:
        """A file name that is readable, and differs for cells that differ."""
        tag = hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:12]
        return f"{self.workload}.{self.policy}.{tag}".replace(" ", "-").replace("/", "-")


@cache
def _trace(workload: str, seed: int, requests: int | None) -> Trace:
    name, _, rate = workload.partition(" ")
    if name == "documents" and rate:
        documents = DocumentConfig(seed=seed, request_rate=float(rate), output=20)
        trace = generate_documents(replace(documents, requests=requests or documents.requests))
    else:
        trace = find_workload(workload).make(seed)
    return replace(trace, requests=trace.requests[:requests]) if requests is not None else trace


def run(cell: Cell) -> dict[str, Any]:
    """Run a cell."""
    trace = _trace(cell.workload, cell.seed, cell.requests)
    speedup = cell.speedup
    if not cell.workload.startswith("documents "):
        speedup *= find_workload(cell.workload).speedup
    transfer, chunk = find_transfer(cell.transfer), CHUNKS.get(cell.hardware, CHUNK)
    scenario = Scenario() if cell.joins is None else Scenario(joins={cell.engines - 1: cell.joins})
    config = ReplayConfig(
        fleet=FleetConfig(cell.engines, EngineConfig(BLOCK, cell.cache // BLOCK, chunk=chunk), seed=cell.seed),
        steps=find_hardware(cell.hardware),
        scenario=with_troubles(scenario, parse_troubles(cell.troubles), cell.engines, trace_seconds(trace, speedup)),
        tiers=TierConfig(cell.host, cell.pool, cell.pulls, pool=transfer, pull=transfer),
        warm_up=cell.warm_up,
        pull_delta=cell.delta,
        policies=(cell.policy,),
        speedup=speedup,
        check=0.0,
    )
    found = replay(trace, config).policies[0]
    return {
        "cell": asdict(cell),
        "requests": found.requests,
        "ttft": asdict(found.ttft),
        "waits": asdict(found.waits),
        "between": asdict(found.between),
        "throughput": found.throughput,
        "hit_rate": found.hit_rate,
        "bound_rate": found.bound_rate,
        "busy": found.utilisation,
        "loaded": asdict(found.loaded) if found.loaded is not None else None,
        "refused": found.refused,
        "seconds": found.seconds,
    }


def run_and_keep(folder: Path, cell: Cell, *, only_kept: bool = False) -> dict[str, Any] | None:
    """Returns the kept result of a cell, or runs it; with `only_kept`, returns None instead of running it."""
    path = folder / f"{cell.key}.json"
    if path.exists():
        kept: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return kept
    if only_kept:
        return None
    found = run(cell)
    part = path.with_suffix(".part")
    part.write_text(json.dumps(found, indent=1), encoding="utf-8")
    part.rename(path)
    return found
