"""Generated workload of bursts: many nearly equal prompts that arrive at the same moment.

Requests with `n > 1`, agents that start many sub-agents, evaluations and rollouts send bursts. The prompts of a burst
(siblings) begin with an application's system prompt and a part common to the burst, and differ only at the end. Bursts
begin by a Poisson process. Between bursts, single requests of the same applications compete for the engines' caches.

The result is a trace in blocks of 512 tokens, in the format that `kvatlas.sim.trace` reads. The seed determines the
whole trace.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import numpy as np

from kvatlas.errors import ConfigError
from kvatlas.sim.trace import TRACE_BLOCK, Trace, TraceRequest


@dataclass(frozen=True, slots=True)
class BurstConfig:
    """Settings of a workload of bursts. Lengths are medians in tokens (log-normal).

    Attributes:
        requests: Number of requests in the trace.
        seed: Seed of all random choices.
        request_rate: Requests per second, those of bursts and single ones together.
        fewest: Number of prompts (siblings) in the smallest burst.
        most: Number of prompts in the largest burst; the logarithms of sizes are uniformly distributed.
        within: Seconds within which the prompts of a burst arrive.
        singles: Share of the requests that belong to no burst.
        apps: Number of applications, each with its own system prompt.
        system_prompt: Tokens of a system prompt.
        shared: Tokens that the prompts of a burst share after the system prompt.
        own: Tokens at the end of each prompt that no other prompt shares.
        output: Tokens that each request generates.
    """

    requests: int = 4_000
    seed: int = 0
    request_rate: float = 10.0
    fewest: int = 8
    most: int = 64
    within: float = 0.05
    singles: float = 0.3
    apps: int = 24
    system_prompt: int = 1_500
    shared: int = 6_000
    own: int = 100
    output: int = 250

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if not math.isfinite(value) or value < 0:
                raise ConfigError(f"{f.name} must not be negative, got {value}")
        for name in ("requests", "fewest", "apps", "system_prompt", "shared", "own", "output"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.most < self.fewest:
            raise ConfigError(f"most must be at least fewest ({self.fewest}), got {self.most}")
        if not self.request_rate > 0:
            raise ConfigError(f"request_rate must be above 0, got {self.request_rate}")
        if self.singles > 1:
            raise ConfigError(f"singles must be from 0 to 1, got {self.singles}")


def generate_bursts(config: BurstConfig | None = None) -> Trace:
    """Generate a trace of exactly `config.requests` requests, in bursts and single."""
    config = config or BurstConfig()
    random = np.random.default_rng(config.seed)
    next_id = 0

    def length(median: int) -> int:
        return max(1, round(float(random.lognormal(math.log(median), 0.7))))

    def ids(count: int) -> tuple[int, ...]:
        nonlocal next_id
        next_id += count
        return tuple(range(next_id - count, next_id))

    # Whole blocks, so that an application's prompts differ from the end of the system prompt on.
    systems = [ids(max(1, length(config.system_prompt) // TRACE_BLOCK)) for _ in range(config.apps)]
    spread = math.log(config.most / config.fewest)
    size = (config.most - config.fewest) / spread if spread else float(config.fewest)
    # Each arrival is a single request or a burst; `single`, the share of single requests among arrivals, gives the
    # configured share of requests.
    single = config.singles * size / (config.singles * size + 1 - config.singles) if config.singles < 1 else 1.0
    between = (single + (1 - single) * size) / config.request_rate
    rows: list[tuple[float, int, int, tuple[int, ...]]] = []
    now, bursts, singles = 0.0, 0, 0
    while len(rows) < config.requests:
        now += float(random.exponential(between))
        system = systems[int(random.integers(config.apps))]
        siblings = 1
        if random.random() >= single:
            siblings = round(config.fewest * math.exp(float(random.random()) * spread))
            bursts += 1
        singles += siblings == 1
        shared = length(config.shared)
        common = system + ids(shared // TRACE_BLOCK)
        for _ in range(min(siblings, config.requests - len(rows))):
            tokens = len(system) * TRACE_BLOCK + shared + length(config.own)
            at = now + float(random.random()) * config.within
            blocks = -(-tokens // TRACE_BLOCK)
            rows.append((at, tokens, length(config.output), common + ids(blocks - len(common))))
    rows.sort(key=lambda row: row[0])
    requests = [TraceRequest(round(at * 1000), tokens, output, names) for at, tokens, output, names in rows]
    return Trace(
        requests, name=f"bursts (seed {config.seed})", facts={"bursts": float(bursts), "singles": float(singles)}
    )
