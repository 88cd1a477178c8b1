"""Simulation of a fleet and its variants under the same traffic, with the hit rate of one cache of any size.

The hit-rate curve is the best result that all caches could reach as one, under any policy. The variants are simulated
with a policy, and show the actual results: hits on engines that do not share caches, and seconds to the first token.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from kvatlas._text import counted
from kvatlas.lab.replay.config import ReplayConfig
from kvatlas.lab.replay.results import PolicyResult, ReplayResult
from kvatlas.lab.replay.runner import replay
from kvatlas.sim.curve import HitCurve, hit_curve
from kvatlas.sim.trace import Trace

NOW = "as it is"
"""Name of the variant that changes nothing."""

SHARED = "one shared cache"
"""Name of the variant whose engines share one cache, as large as all engines' caches together."""

CACHES = (0.25, 0.5, 1, 2, 4, 8)
"""Cache sizes, relative to the configured one, at which the hit-rate curve is reported."""


@dataclass(frozen=True, slots=True)
class Variant:
    """Variant of a fleet to simulate."""

    name: str
    config: ReplayConfig  # with one policy


@dataclass(frozen=True, slots=True)
class Row:
    """Variant of a fleet with its simulated results."""

    name: str
    engines: int
    cache_tokens: int  # of each engine
    result: PolicyResult


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """Mean time to first token by cause, in seconds.

    Attributes:
        room: Waiting in an engine's queue for free blocks, or for fewer running requests.
        cache: Recomputing blocks that were cached before, for the request itself or for those ahead in the queue.
        compute: Computing all other blocks, for the request itself or for those ahead in the queue.
    """

    room: float
    cache: float
    compute: float

    @property
    def largest(self) -> str:
        """Name of the largest cause."""
        return max(("room", "cache", "compute"), key=lambda name: getattr(self, name))


@dataclass(slots=True)
class CapacityPlan:
    """Capacity plan: the hit-rate curve of a trace, and variants of a fleet."""

    trace: str  # its name
    requests: int
    config: ReplayConfig
    curve: HitCurve
    host_tokens: int = 0  # a tier behind each engine's cache
    base: ReplayResult | None = None  # the replay of the fleet as it is
    rows: list[Row] = field(default_factory=list)
    partial: bool = False

    @property
    def bottleneck(self) -> Bottleneck | None:
        """Time to first token of the fleet as it is, by cause; None if that fleet was not simulated."""
        return find_bottleneck(self.rows[0].result) if self.rows else None

    def cache_rates(self) -> list[tuple[int, float]]:
        """Cache sizes of each engine in tokens, with the hit rate of one cache as large as all of them together."""
        fleet = self.config.fleet
        sizes = [round(fleet.engine.cache_tokens * factor) for factor in CACHES]
        return [(tokens, self.curve.rate(tokens * fleet.engines)) for tokens in sizes]


def find_bottleneck(result: PolicyResult) -> Bottleneck:
    """Split the mean time to first token of a replay by cause.

    Computed prompt tokens that an infinite cache would have held are attributed to the cache. Their share of the time
    spent on computing, and on waiting for it, is their share of the computed tokens.
    """
    room = result.waits.room
    return split_time(room, max(result.ttft.mean - room, 0.0), result.hit_rate, result.bound_rate)


def split_time(room: float, rest: float, hit_rate: float, possible: float) -> Bottleneck:
    """Split the mean time to first token: `room` seconds of waiting for free blocks, and `rest`, all others.

    `hit_rate` and `possible`: shares of prompt tokens that were cached, and that one infinite cache would have held.
    """
    computed = 1.0 - hit_rate
    again = min(max(possible - hit_rate, 0.0) / computed, 1.0) if computed > 0 else 0.0
    return Bottleneck(room, rest * again, rest * (1.0 - again))


def make_variants(config: ReplayConfig, host_tokens: int = 0) -> list[Variant]:
    """List the fleet as it is with each policy of `config`, then variants with the first policy.

    The variants have more cache, more engines or faster ones. `host_tokens`: size of a host memory tier behind each
    engine's cache, which is one of the variants; 0 for no such variant.
    """
    first = replace(config, policies=config.policies[:1])
    fleet, engine = config.fleet, config.fleet.engine
    made = [Variant(NOW, first)]
    made += [Variant(f"policy {name}", replace(config, policies=(name,))) for name in config.policies[1:]]

    def cache(factor: float) -> ReplayConfig:
        blocks = max(round(engine.blocks * factor), 1)
        return replace(first, fleet=replace(fleet, engine=replace(engine, blocks=blocks)))

    def engines(count: int) -> ReplayConfig:
        return replace(first, fleet=replace(fleet, engines=count))

    made += [
        Variant("half the cache", cache(0.5)),
        Variant("twice the cache", cache(2)),
        Variant("4 x the cache", cache(4)),
    ]
    if host_tokens:
        made.append(Variant("a host tier", replace(first, tiers=replace(first.tiers, host_tokens=host_tokens))))
    # A bound of the replay: it knows all engines, so that it says what sharing could be worth at best.
    made.append(Variant(SHARED, replace(first, policies=("shared-cache",))))
    more = math.ceil(1.5 * fleet.engines)
    made.append(Variant(counted(more, "engine"), engines(more)))
    if fleet.engines > 1:
        # Same room and same speed altogether, in fewer parts.
        made.append(Variant(counted(fleet.engines // 2, "engine"), engines(fleet.engines // 2)))
    made.append(Variant("twice as fast", replace(first, steps=config.steps.slower(0.5))))
    return made


def measure_plan(
    trace: Trace,
    config: ReplayConfig,
    variants: Sequence[Variant],
    *,
    host_tokens: int = 0,
    progress: Callable[[str, int], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> CapacityPlan:
    """Compute the hit-rate curve and simulate the variants, beginning with the fleet as it is.

    Once `stop` returns True, the results so far are returned, marked partial.
    """
    made = CapacityPlan(
        trace.name, len(trace.requests), config, hit_curve(trace, config.fleet.engine.block_size), host_tokens
    )
    for variant in variants:

        def tell(_policy: str, done: int, name: str = variant.name) -> None:
            if progress is not None:
                progress(name, done)

        done = replay(trace, variant.config, progress=tell, stop=stop)
        if done.partial:
            made.partial = True
            break
        made.base = made.base or done
        fleet = variant.config.fleet
        made.rows.append(Row(variant.name, fleet.engines, fleet.engine.cache_tokens, done.policies[0]))
    return made


def as_json(plan: CapacityPlan) -> dict[str, Any]:
    """Convert the plan to plain data for JSON."""
    fleet, bottleneck = plan.config.fleet, plan.bottleneck
    rows = []
    for row in plan.rows:
        data = asdict(row)
        del data["result"]["find_ns"]
        rows.append(data)
    return {
        "trace": plan.trace,
        "requests": plan.requests,
        "partial": plan.partial,
        "engines": fleet.engines,
        "cache_tokens": fleet.engine.cache_tokens,
        "host_tokens": plan.host_tokens,
        "loop": plan.base.loop if plan.base is not None else None,
        "bottleneck": {**asdict(bottleneck), "largest": bottleneck.largest} if bottleneck is not None else None,
        "one_cache": [{"cache_tokens": tokens, "hit_rate": rate} for tokens, rate in plan.cache_rates()],
        "hit_rate_with_host_tier": plan.curve.rate((fleet.engine.cache_tokens + plan.host_tokens) * fleet.engines),
        "hit_rate_without_limit": plan.curve.most,
        "sampled": plan.curve.share,
        "variants": rows,
    }
