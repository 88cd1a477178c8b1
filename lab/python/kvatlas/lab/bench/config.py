"""Configuration from which a plan is made."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field

from kvatlas.errors import ConfigError
from kvatlas.sim.fleet import FleetConfig
from kvatlas.sim.scheduler import EngineConfig
from kvatlas.sim.trace import check_block_size

MOST_BLOCKS = 300_000_000  # in one plan, counted with the copies: 16 bytes each and more while it is made
FORMAT = 2  # changes when the same configuration makes another plan, or is written in another way


def _fleet() -> FleetConfig:
    return FleetConfig(engines=32, engine=EngineConfig(block_size=512, blocks=16_384))


@dataclass(frozen=True, slots=True)
class PlanConfig:
    """Settings of a plan: a simulated fleet, and the requests that it receives.

    Attributes:
        fleet: The simulated engines, which all compute equal block hashes. The block size must divide 512, the size of
            a trace block. The rates are a minimum: see `engine_speed`.
        copies: Number of engines that get each request. All requests of a session go to the same engines.
        duplication: Number of duplicates of the trace that run at once, each with blocks of its own.
        length: Factor of the prompts' length: each block of the trace becomes this number of blocks.
        copy_spread: Seconds, on the trace's clock, over which the starts of a session's copies are spread.
        engine_speed: Factor of the engines' rates relative to `fleet`; None for the factor at which they are busy a
            quarter of the time (see `kvatlas.lab.bench.plan`).
    """

    fleet: FleetConfig = field(default_factory=_fleet)
    copies: int = 1
    duplication: int = 1
    length: int = 1
    copy_spread: float = 60.0
    engine_speed: float | None = None

    def __post_init__(self) -> None:
        check_block_size(self.fleet.engine.block_size)
        if self.fleet.own_names:
            raise ConfigError("the engines of a plan share block hashes: own_names must be False")
        if self.fleet.engine.blocks > 100_000_000:
            raise ConfigError(f"an engine of a plan has at most 100000000 blocks, got {self.fleet.engine.blocks}")
        for name, most in (("copies", 100_000), ("duplication", 10_000), ("length", 10_000)):
            value = getattr(self, name)
            if not 1 <= value <= most:
                raise ConfigError(f"{name} must be from 1 to {most}, got {value}")
        if self.copies > self.fleet.engines:
            raise ConfigError(f"{self.copies} copies of a request need as many engines, got {self.fleet.engines}")
        if not (math.isfinite(self.copy_spread) and self.copy_spread >= 0):
            raise ConfigError(f"copy_spread must not be negative, got {self.copy_spread}")
        speed = self.engine_speed
        if speed is not None and not (math.isfinite(speed) and speed > 0):
            raise ConfigError(f"engine_speed must be above 0, got {speed}")

    def as_json(self) -> dict[str, object]:
        """Convert the configuration to plain data, for the plan's `meta`."""
        return asdict(self)
