"""What to replay and on what."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kvatlas.errors import KvatlasError
from kvatlas.routing import POLICIES
from kvatlas.sim.engine import EngineConfig
from kvatlas.sim.trace import check_block_size

MOST_BLOCKS = 50_000_000  # of all engines together, at about 150 bytes each


class SettingsError(KvatlasError, ValueError):
    """A setting that cannot be."""

    code = "bad_setting"


@dataclass(frozen=True, slots=True)
class ReplaySettings:
    """A fleet and how to drive it.

    The defaults are a fleet of 16 engines, each about what a 70B model on four 80 GB accelerators does: room for
    393,216 tokens, 5,000 prompt tokens a second, 30 generated tokens a second for each request.
    """

    engines: int = 16
    block_size: int = 16  # tokens
    pool_tokens: int = 393_216  # of each engine
    prefill_rate: float = 5_000.0  # tokens a second
    decode_rate: float = 30.0  # tokens a second, each request
    max_running: int = 128
    chunk: int | None = 8_192  # tokens a prefill step, None: whole prompts
    own_names: bool = False  # every engine has a hash seed of its own
    policies: tuple[str, ...] = tuple(POLICIES)
    speedup: float = 1.0  # of the trace's clock
    seed: int = 0
    check: float = 0.01  # share of the queries held against the reference
    check_seconds: float = 3.0  # for the checked queries of one policy

    def __post_init__(self) -> None:
        check_block_size(self.block_size)
        if not 1 <= self.engines <= 100_000:
            raise SettingsError(f"engines must be from 1 to 100000, got {self.engines}")
        if self.pool_tokens < self.block_size:
            raise SettingsError(f"pool_tokens must be at least one block of {self.block_size}, got {self.pool_tokens}")
        if self.engines * self.pool_tokens > MOST_BLOCKS * self.block_size:
            raise SettingsError(
                f"{self.engines} engines of {self.pool_tokens // self.block_size} blocks are more than the "
                f"{MOST_BLOCKS} blocks that fit in memory here: take larger blocks, smaller pools or fewer engines"
            )
        if not (math.isfinite(self.speedup) and self.speedup > 0):
            raise SettingsError(f"speedup must be above 0, got {self.speedup}")
        if not 0 <= self.check <= 1:
            raise SettingsError(f"check must be from 0 to 1, got {self.check}")
        if not self.check_seconds >= 0:
            raise SettingsError(f"check_seconds must not be negative, got {self.check_seconds}")
        if not self.policies:
            raise SettingsError("no policies")
        try:
            self.engine()
        except ValueError as error:
            raise SettingsError(str(error)) from None

    def engine(self) -> EngineConfig:
        """The configuration of each engine."""
        return EngineConfig(
            block_size=self.block_size,
            blocks=self.pool_tokens // self.block_size,
            prefill_rate=self.prefill_rate,
            decode_rate=self.decode_rate,
            max_running=self.max_running,
            chunk=self.chunk,
        )

    def workers(self) -> list[str]:
        """The engines' names, in order."""
        width = len(str(self.engines - 1))
        return [f"engine-{number:0{width}}" for number in range(self.engines)]
