"""One cell: one workload with one policy. Results are kept as JSON, so that a run that was stopped goes on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from kvatlas.errors import ConfigError
from kvatlas.lab.replay.config import CHUNK, ReplayConfig
from kvatlas.lab.replay.runner import replay
from kvatlas.lab.replay.trouble import parse_troubles, trace_seconds, with_troubles
from kvatlas.lab.replay.workloads import find_workload
from kvatlas.sim import EngineConfig, FleetConfig, Trace
from kvatlas.sim.conversations import code_generation, generate_conversations, reasoning
from kvatlas.sim.hardware import find_hardware

BLOCK = 512  # tokens: those of the traces, and quicker than 16

CONVERSATIONS = {"code-generation": code_generation, "reasoning": reasoning}
"""The settings, from a seed, of the workloads that have a number of clients."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of the tables: one run of a policy on a workload.

    Attributes:
        workload: Name of the workload.
        policy: Name of a policy or a bound.
        label: Name in tables, where it is not the plain policy.
        options: Options of the policy.
        settings: Settings of the router.
        seed: Seed of a generated workload, and of chance in the policy.
        requests: Number of requests, the first of the trace; None: all.
        hardware: Name of the hardware.
        engines: Number of engines.
        block: Tokens of a block.
        routers: Number of routers.
        speedup: Speedup to take instead of the workload's own.
        guess: What stands in for events where there are none.
        clients: Number of clients of a workload of conversations; None: its own.
        troubles: Ways in which engines misbehave, as `kvatlas replay --trouble` has them.
    """

    workload: str
    policy: str
    label: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    requests: int | None = None
    hardware: str = "h100x4"
    engines: int = 16
    block: int = BLOCK
    routers: int = 1
    speedup: float | None = None
    guess: str = "mock"
    clients: int | None = None
    troubles: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """A file name: readable, and different for whatever is different."""
        text = json.dumps(asdict(self), sort_keys=True, default=dict)
        tag = hashlib.sha256(text.encode()).hexdigest()[:10]
        return (
            f"{workload_name(asdict(self))}.{self.label or self.policy}.{tag}".replace(", ", "-")
            .replace(" ", "-")
            .replace("/", "-")
        )


def workload_name(cell: Mapping[str, Any]) -> str:
    """Return the name that the tables have for a cell's workload. Cells of earlier runs do not say the clients."""
    name, clients, routers = str(cell["workload"]), cell.get("clients"), cell.get("routers", 1)
    if cell.get("block", BLOCK) != BLOCK:
        name = f"{name}, {cell['engines']} engines"
    if routers != 1:
        name = f"{name}, {routers} routers"
    name = name if clients is None else f"{name}-{clients}"
    return f"{name}-trouble" if cell.get("troubles") else name


@cache
def _trace(workload: str, seed: int, requests: int | None, clients: int | None) -> Trace:
    if clients is None:
        trace = find_workload(workload).make(seed)
    elif workload in CONVERSATIONS:
        trace = generate_conversations(replace(CONVERSATIONS[workload](seed), clients=clients))
    else:
        raise ConfigError(f"workload {workload!r} has no clients: only {' and '.join(CONVERSATIONS)} have")
    return replace(trace, requests=trace.requests[:requests]) if requests is not None else trace


def run(cell: Cell) -> dict[str, Any]:
    """Run a cell. Raises `ConfigError` if it cannot be, `PolicyError` if its policy cannot be made."""
    workload = find_workload(cell.workload)
    trace = _trace(cell.workload, cell.seed, cell.requests, cell.clients)
    tokens = EngineConfig().cache_tokens
    speedup = cell.speedup if cell.speedup is not None else workload.speedup
    rates = parse_troubles(cell.troubles)
    config = ReplayConfig(
        fleet=FleetConfig(cell.engines, EngineConfig(cell.block, tokens // cell.block, chunk=CHUNK), seed=cell.seed),
        steps=find_hardware(cell.hardware),
        scenario=with_troubles(workload.scenario, rates, cell.engines, trace_seconds(trace, speedup)),
        policies=(cell.policy,),
        options=cell.options or None,
        settings=cell.settings or None,
        guess=cell.guess,
        routers=cell.routers,
        speedup=speedup,
        check=0.0,
    )
    result = replay(trace, config)
    found = result.policies[0]
    return {
        "cell": asdict(cell),
        "requests": found.requests,
        "rate": found.requests / ((trace.requests[-1].timestamp - trace.requests[0].timestamp) / 1e3) * config.speedup,
        "ttft": asdict(found.ttft),
        "waits": asdict(found.waits),
        "longest_wait": found.longest_wait,
        "between": asdict(found.between),
        "missed": asdict(found.missed) if found.missed is not None else None,
        "slowdown": asdict(found.slowdown) if found.slowdown is not None else None,
        "goodput": found.goodput,
        "good": found.good,
        "hit_rate": found.hit_rate,
        "bound_rate": found.bound_rate,
        "busy": found.utilisation,
        "spread": found.spread.max_over_mean,
        "waited": found.waited,
        "retried": found.retried,
        "refused": found.refused,
        "preemptions": found.preemptions,
        "lost_events": found.lost_events,
        "seconds": found.seconds,
    }


def kept(folder: Path, cell: Cell) -> dict[str, Any] | None:
    """The result of a cell that was run before."""
    path = folder / f"{cell.key}.json"
    if not path.exists():
        return None
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def run_and_keep(folder: Path, cell: Cell) -> dict[str, Any]:
    """Run a cell unless that was done before."""
    if (found := kept(folder, cell)) is not None:
        return found
    found = run(cell)
    path = folder / f"{cell.key}.json"
    part = path.with_suffix(".part")
    part.write_text(json.dumps(found, indent=1), encoding="utf-8")
    part.rename(path)
    return found
