"""Configuration of a replay."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvatlas.errors import ConfigError
from kvatlas.lab.replay.drive import Limits
from kvatlas.lab.replay.scenario import Scenario
from kvatlas.lab.replay.tiers import MIN_DELTA
from kvatlas.sim.fleet import FleetConfig
from kvatlas.sim.hardware import StepTime
from kvatlas.sim.scheduler import EngineConfig
from kvatlas.sim.tiers import TierConfig

MOST_BLOCKS = 50_000_000  # of all engines together, at about 150 bytes each


CHUNK = 512
"""Default maximum number of tokens in a step: small enough for steps below 0.1 s on the default hardware."""


POLICIES = ("kvatlas", "dynamo-kv", "vllm-router-kv-aware", "smg-cache-aware", "least-loaded", "round-robin")
"""Policies that are replayed by default; `kvatlas.routing.policy_names()` lists all policies."""

GUESSES = ("mock", "ttl")
"""Estimates of caches that can replace the index: simulated caches ("mock"), or recently sent prompts ("ttl")."""


def default_fleet() -> FleetConfig:
    """Create the default fleet: sixteen engines of the default hardware."""
    return FleetConfig(engine=EngineConfig(chunk=CHUNK))


@dataclass(frozen=True, slots=True)
class ReplayConfig:
    """Settings of a replay: a fleet, its requests and its routers.

    Attributes:
        fleet: The simulated engines. The rates in their configuration are not used; `steps` determines the speed.
        steps: Model of the duration of an engine's step.
        scenario: Events in the fleet during the replay.
        limits: Latency limits within which a request counts as served well.
        policies: Names of the routing policies, `module:Class`, or names of bounds.
        options: Options that every replayed policy gets.
        settings: Settings of the router.
        routers: Number of routers, which take requests in turn, and report their requests in progress to each other.
        guess: Estimate of caches that replaces the index in a replay without events: one of `GUESSES`.
        loop: "open" or "closed"; None for closed if requests of the trace depend on each other, otherwise open.
        tiers: Tiers behind each engine's cache.
        warm_up: Tokens up to which engines that are empty are warmed up by pulls; 0: there are no warm-ups.
        pull_delta: Minimum lead of a peer, in cached tokens, for a pull in the fixed rule of policies that end in
            `+pull`.
        speedup: Speed factor of the trace's clock.
        check: Share of the queries whose answers are compared with the reference, from 0 to 1.
        check_seconds: Time limit for the checked queries of one policy, in seconds.
    """

    fleet: FleetConfig = field(default_factory=default_fleet)
    steps: StepTime = field(default_factory=StepTime)
    scenario: Scenario = field(default_factory=Scenario)
    limits: Limits = field(default_factory=Limits)
    policies: tuple[str, ...] = POLICIES
    options: Mapping[str, Any] | None = None
    settings: Mapping[str, Any] | None = None
    routers: int = 1
    guess: str = "mock"
    loop: str | None = None
    tiers: TierConfig = field(default_factory=TierConfig)
    warm_up: int = 0
    pull_delta: int = MIN_DELTA
    speedup: float = 1.0
    check: float = 0.01
    check_seconds: float = 3.0

    def __post_init__(self) -> None:
        engine = self.fleet.engine
        if self.fleet.engines * engine.blocks > MOST_BLOCKS:
            raise ConfigError(
                f"{self.fleet.engines} engines of {engine.blocks} blocks are more than the {MOST_BLOCKS} blocks that "
                "fit in memory: use larger blocks, smaller pools or fewer engines"
            )
        if self.fleet.own_names and (self.tiers.pulls or self.tiers.pool_tokens != 0):
            raise ConfigError(
                "engines that share a pool or pull from each other must name blocks alike, without own_names"
            )
        if self.pull_delta < 0:
            raise ConfigError(f"pull_delta must not be negative, got {self.pull_delta}")
        if self.warm_up < 0 or (self.warm_up and not self.tiers.pulls):
            raise ConfigError(f"warm_up is a number of tokens that engines pull, so they must pull, got {self.warm_up}")
        if not (math.isfinite(self.speedup) and self.speedup > 0):
            raise ConfigError(f"speedup must be above 0, got {self.speedup}")
        if not 0 <= self.check <= 1:
            raise ConfigError(f"check must be from 0 to 1, got {self.check}")
        if not self.check_seconds >= 0:
            raise ConfigError(f"check_seconds must not be negative, got {self.check_seconds}")
        for name, number in self.scenario.named_engines():
            if number >= self.fleet.engines:
                raise ConfigError(f"{name} names engine {number}, and there are {self.fleet.engines} from 0 on")
        if self.guess not in GUESSES:
            raise ConfigError(f"guess must be one of {', '.join(GUESSES)}, got {self.guess!r}")
        if self.routers < 1:
            raise ConfigError(f"routers must be at least 1, got {self.routers}")
        if not self.policies:
            raise ConfigError("no policies")
