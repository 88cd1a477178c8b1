"""What a plan is made of, and which settings cannot be."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from kvatlas.bench.settings import SettingsError
from kvatlas.sim.trace import check_block_size

MOST_BLOCKS = 300_000_000  # in one plan, counted with the copies: 16 bytes each and more while it is made
FORMAT = 1  # changes when the same settings make another plan


@dataclass(frozen=True, slots=True)
class PlanSettings:
    """A fleet and what is asked of it.

    Attributes:
        workers: Engines.
        copies: Engines that get each request. A session goes to the same ones from its first request to its last.
        duplication: How many times the trace runs at once, each time with blocks of its own.
        length: Blocks that each of the trace's blocks becomes; prompts are that many times as long.
        block_size: Tokens of an engine's block; divides 512, the tokens of a trace block.
        cache_blocks: Blocks that each engine has room for.
        copy_spread: Seconds, of the trace's time, over which the starts of a session's copies are spread.
        engine_speed: How many times as fast as `EngineConfig`'s defaults the engines are; None: as fast as keeps them
            a quarter busy (see `kvatlas.bench.load.plan`).
        seed: Of everything left to chance.
    """

    workers: int = 32
    copies: int = 1
    duplication: int = 1
    length: int = 1
    block_size: int = 512
    cache_blocks: int = 16_384
    copy_spread: float = 60.0
    engine_speed: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_block_size(self.block_size)
        for name, most in (
            ("workers", 100_000),
            ("copies", 100_000),
            ("duplication", 10_000),
            ("length", 10_000),
            ("cache_blocks", 100_000_000),
        ):
            value = getattr(self, name)
            if not 1 <= value <= most:
                raise SettingsError(f"{name} must be from 1 to {most}, got {value}")
        if self.copies > self.workers:
            raise SettingsError(f"{self.copies} copies of a request need as many workers, there are {self.workers}")
        if not (math.isfinite(self.copy_spread) and self.copy_spread >= 0):
            raise SettingsError(f"copy_spread must not be negative, got {self.copy_spread}")
        speed = self.engine_speed
        if speed is not None and not (math.isfinite(speed) and speed > 0):
            raise SettingsError(f"engine_speed must be above 0, got {speed}")
        if not 0 <= self.seed < 1 << 64:
            raise SettingsError(f"seed must be from 0 to 2**64 - 1, got {self.seed}")

    def as_json(self) -> dict[str, object]:
        """For the plan's `meta`."""
        return asdict(self)
