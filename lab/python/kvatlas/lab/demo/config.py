"""Configuration of the demo of the router."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from kvatlas.errors import ConfigError
from kvatlas.sim import FleetConfig, Trace, WorkloadConfig, generate
from kvatlas.sim.server import Fleet, ServerConfig

MODEL = "sim-model"
MOST_ENGINES = 64
MOST_REQUESTS = 1_000_000


@dataclass(frozen=True, slots=True)
class DemoConfig:
    """Settings of a demo of the router.

    Attributes:
        fleet: The simulated engines.
        policies: Names of the routing policies, or `module:Class`, which run one after another.
        seconds: Duration of each policy, in seconds of real time.
        speed: Speed of the engines' clock relative to real time.
        request_rate: Requests per second of the engines' clock.
    """

    fleet: FleetConfig = field(default_factory=lambda: FleetConfig(engines=4))
    policies: tuple[str, ...] = ("round-robin", "least-loaded", "smg-cache-aware", "kvatlas")
    seconds: float = 15.0
    speed: float = 8.0
    request_rate: float = 1.25

    def __post_init__(self) -> None:
        if not self.policies:
            raise ConfigError("no policies")
        if (engines := self.fleet.engines) > MOST_ENGINES:
            raise ConfigError(
                f"engines must be from 1 to {MOST_ENGINES}, got {engines}: that many processes are started"
            )
        for name in ("seconds", "speed", "request_rate"):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(f"{name} must be above 0 and finite, got {getattr(self, name)}")
        if (requests := self.seconds * self.speed * self.request_rate) > MOST_REQUESTS:
            raise ConfigError(
                f"seconds x speed x request_rate are {requests:,.0f} requests; the limit is {MOST_REQUESTS:,}"
            )

    def workload(self) -> Trace:
        """Generate the requests for one policy; some more than it needs, because arrivals are random."""
        count = max(16, int(self.seconds * self.speed * self.request_rate * 1.5))
        return generate(WorkloadConfig(requests=count, seed=self.fleet.seed, request_rate=self.request_rate))

    def servers(self) -> Fleet:
        """Create the engines, which are not started yet."""
        config = ServerConfig(engine=self.fleet.engine, speed=self.speed, model=MODEL, seed=self.fleet.seed)
        return Fleet(self.fleet.engines, config, own_names=self.fleet.own_names)
