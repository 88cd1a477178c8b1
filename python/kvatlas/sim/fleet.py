"""Configuration of a simulated fleet."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvatlas.errors import ConfigError
from kvatlas.sim.scheduler import EngineConfig

MOST_ENGINES = 100_000


@dataclass(frozen=True, slots=True)
class FleetConfig:
    """Settings of a simulated fleet of equal engines.

    Attributes:
        engines: Number of engines.
        engine: Settings of each engine.
        own_names: True if every engine has its own block hashes, as with different hash seeds.
        seed: Seed of all random choices.
    """

    engines: int = 16
    engine: EngineConfig = field(default_factory=EngineConfig)
    own_names: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.engines <= MOST_ENGINES:
            raise ConfigError(f"engines must be from 1 to {MOST_ENGINES}, got {self.engines}")
        if not 0 <= self.seed < 1 << 64:
            raise ConfigError(f"seed must be from 0 to 2**64 - 1, got {self.seed}")

    def workers(self) -> list[str]:
        """Names of the engines, in order."""
        width = len(str(self.engines - 1))
        return [f"engine-{number:0{width}}" for number in range(self.engines)]
