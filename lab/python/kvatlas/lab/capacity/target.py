"""Number of engines that a fleet needs to meet a target, for example a p99 of the time to first token below 2 s.

The search simulates the fleet as it is for each policy, then twice or half as many engines until the target is
bracketed, and bisects the interval. The number found meets the target, and one engine fewer does not.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from kvatlas._text import percent, seconds
from kvatlas.errors import ConfigError
from kvatlas.lab.replay.config import MOST_BLOCKS, ReplayConfig
from kvatlas.lab.replay.results import PolicyResult, ReplayResult
from kvatlas.lab.replay.runner import replay
from kvatlas.sim.trace import Trace

MOST = 8
"""Largest fleet of a search, as a multiple of the configured one."""

HOURS_A_MONTH = 730
"""Hours in a twelfth of a year, for monthly prices."""

_TIMES = {"mean": "mean", "p50": "p50", "p99": "p99"}
_SHAPE = re.compile(r"\s*(\w+)\s*([<>])\s*([0-9.]+)\s*(ms|s|%)?\s*")
_WANTED = "write mean, p50 or p99 of the time to first token, as in 'p99<2s' or 'mean<500ms', or 'good>95%'"


@dataclass(frozen=True, slots=True)
class Target:
    """Bound on one figure of a replay.

    Attributes:
        column: "mean", "p50" or "p99" of the time to first token, or "good": the share of requests within the limits.
        limit: Upper bound of the figure, in seconds; for "good", its lower bound, from 0 to 1.
    """

    column: str
    limit: float

    def value(self, result: PolicyResult) -> float:
        """Value of the target's figure in the result of a policy, in seconds or as a share."""
        return result.good if self.column == "good" else float(getattr(result.ttft, self.column))

    def is_met(self, result: PolicyResult) -> bool:
        """True if the result of a policy meets the target; False if no request had a first token."""
        if not result.first_tokens:
            return False
        value = self.value(result)
        return value > self.limit if self.column == "good" else value < self.limit

    def show(self, value: float) -> str:
        """Format a value of the target's figure."""
        return percent(value) if self.column == "good" else seconds(value)

    def __str__(self) -> str:
        sign = ">" if self.column == "good" else "<"
        return f"{self.column} {sign} {self.show(self.limit)}"


def parse_target(text: str) -> Target:
    """Parse a target, for example "p99<2s". Raises `ConfigError`."""
    found = _SHAPE.fullmatch(text)
    if found is None or found[3].count(".") > 1 or found[3] == ".":
        raise ConfigError(f"target {text!r} cannot be read: {_WANTED}")
    column, sign, limit, unit = found[1], found[2], float(found[3]), found[4]
    if column == "good":
        if sign != ">" or unit in ("s", "ms"):
            raise ConfigError(f"target {text!r}: good is a share that should be high: {_WANTED}")
        share = limit / 100 if unit == "%" else limit
        if not 0 <= share < 1:
            raise ConfigError(f"target {text!r}: good must be above a share from 0 to 1, or from 0 % to below 100 %")
        return Target("good", share)
    if column not in _TIMES:
        raise ConfigError(f"target {text!r} names {column!r}, which is no column: {_WANTED}")
    if sign != "<" or unit not in ("s", "ms"):
        raise ConfigError(f"target {text!r}: {column} is a time that should be low, with a unit (s or ms): {_WANTED}")
    if not limit > 0:
        raise ConfigError(f"target {text!r}: the time must be above 0")
    return Target(column, limit / 1_000 if unit == "ms" else limit)


@dataclass(frozen=True, slots=True)
class Need:
    """Number of engines that one policy needs for a target.

    Attributes:
        policy: Name of the policy.
        engines: The smallest number of engines found that meets the target; None if even the largest fleet of the
            search does not.
        result: The replay with `engines` engines; if None, the replay with the most engines tried.
        tried: Numbers of engines that were simulated, in order.
    """

    policy: str
    engines: int | None
    result: PolicyResult
    tried: tuple[int, ...]


@dataclass(slots=True)
class TargetPlan:
    """Numbers of engines that each policy needs for a target, the first policy first.

    Attributes:
        most: Number of engines in the largest fleet of the search.
        price: Price of one engine per hour, in any currency; None if unknown.
        base: A replay of the trace, for facts about the trace.
    """

    trace: str
    config: ReplayConfig
    target: Target
    most: int
    price: float | None = None
    needs: list[Need] = field(default_factory=list)
    base: ReplayResult | None = None
    partial: bool = False


def search_target(
    trace: Trace,
    config: ReplayConfig,
    target: Target,
    *,
    price: float | None = None,
    progress: Callable[[str, int], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> TargetPlan:
    """Find the number of engines that each policy of `config` needs to meet `target`.

    Once `stop` returns True, the policies done so far are returned, marked partial. Raises `ConfigError`.
    """
    fleet = config.fleet
    least = max((engine for _, engine in config.scenario.named_engines()), default=0) + 1
    most = max(min(MOST * fleet.engines, MOST_BLOCKS // fleet.engine.blocks), fleet.engines)
    made = TargetPlan(trace.name, config, target, most, price)
    for policy in config.policies:
        need = _search(trace, replace(config, policies=(policy,)), target, (least, most), progress, stop, made)
        if need is None:
            made.partial = True
            break
        made.needs.append(need)
    return made


def _search(
    trace: Trace,
    config: ReplayConfig,
    target: Target,
    span: tuple[int, int],
    progress: Callable[[str, int], None] | None,
    stop: Callable[[], bool] | None,
    made: TargetPlan,
) -> Need | None:
    """Search the number of engines that one policy needs; None if the search was interrupted."""
    done: dict[int, PolicyResult] = {}

    def is_met(engines: int) -> bool | None:
        if engines not in done:
            one = replay(
                trace, replace(config, fleet=replace(config.fleet, engines=engines)), progress=progress, stop=stop
            )
            if one.partial:
                return None
            made.base = made.base or one
            done[engines] = one.policies[0]
        return target.is_met(done[engines])

    least, most = span
    low, high = least - 1, most + 1  # too few; enough, or more than is tried
    engines = config.fleet.engines
    while low + 1 < high:
        met = is_met(engines)
        if met is None:
            return None
        if met:
            high = engines
        else:
            low = engines
        if high > most:
            engines = min(2 * low, most)
        elif low < least:
            engines = max(high // 2, least)
        else:
            engines = (low + high) // 2
    name = config.policies[0]
    if high > most:
        return Need(name, None, done[most], tuple(done))
    return Need(name, high, done[high], tuple(done))


def target_as_json(plan: TargetPlan) -> dict[str, Any]:
    """Convert the plan to plain data for JSON."""
    return {
        "trace": plan.trace,
        "partial": plan.partial,
        "target": {"column": plan.target.column, "limit": plan.target.limit},
        "cache_tokens": plan.config.fleet.engine.cache_tokens,
        "most_engines": plan.most,
        "price_per_engine_hour": plan.price,
        "policies": [
            {
                "policy": need.policy,
                "engines": need.engines,
                "value": plan.target.value(need.result),
                "hit_rate": need.result.hit_rate,
                "price_per_hour": None
                if need.engines is None or plan.price is None
                else round(need.engines * plan.price, 6),
                "tried": list(need.tried),
            }
            for need in plan.needs
        ],
    }
