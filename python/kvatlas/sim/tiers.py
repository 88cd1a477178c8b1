"""Settings of the tiers behind simulated engines' own caches, and the pools that engines share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from kvatlas.errors import ConfigError
from kvatlas.sim.chunks import ChunkStore
from kvatlas.sim.transfers import TRANSFERS, Transfer


@dataclass(frozen=True, slots=True)
class TierConfig:
    """Tiers behind each engine's own cache. By default there are none.

    Attributes:
        host_tokens: Size of each engine's host memory, in tokens; 0 for none.
        pool_tokens: Size of the pool that all engines share, in tokens; 0 for no pool, None for no limit.
        pulls: True if engines pull blocks from each other's host memory.
        chunk: Number of blocks in a chunk, which is stored and loaded as a whole.
        prompt_only: True if only blocks of prompts are offloaded, not generated ones: vLLM's default.
        host: Model of the duration of a load from host memory.
        pool: Model of the duration of a load from the pool.
        pull: Model of the duration of a pull, from a peer's host memory to the device.
    """

    host_tokens: int = 0
    pool_tokens: int | None = 0
    pulls: bool = False
    chunk: int = 1
    prompt_only: bool = True
    host: Transfer = field(default=TRANSFERS["pcie-host"])
    pool: Transfer = field(default=TRANSFERS["rdma-store"])
    pull: Transfer = field(default=TRANSFERS["h200-rdma"])

    def __post_init__(self) -> None:
        for name in ("host_tokens", "pool_tokens"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ConfigError(f"{name} must not be negative, got {value}")
        if self.chunk < 1:
            raise ConfigError(f"chunk must be at least 1 block, got {self.chunk}")
        if self.pulls and not self.host_tokens:
            raise ConfigError("pulls need host memory: engines pull from each other's host_tokens, and it is 0")

    @property
    def any(self) -> bool:
        """True if any tier is configured."""
        return bool(self.host_tokens) or self.pool_tokens != 0

    def host_slots(self, block_size: int) -> int:
        """Number of chunks that fit in host memory."""
        return self.host_tokens // (block_size * self.chunk)

    def make_pool(self, block_size: int) -> SharedPool | None:
        """Create the shared pool; None if none is configured."""
        if self.pool_tokens == 0:
            return None
        slots = None if self.pool_tokens is None else max(self.pool_tokens // (block_size * self.chunk), 1)
        return SharedPool(self.pool, slots)


class PoolChunks(Protocol):
    """Store for the chunks of a pool, by the name of each chunk's last block, for example a `ChunkStore`."""

    def __contains__(self, name: object) -> bool: ...

    def __len__(self) -> int: ...

    def add(self, blocks: Sequence[int]) -> list[tuple[int, ...]] | None: ...

    def use(self, names: Sequence[int]) -> None: ...


class SharedPool:
    """Pool of chunks that several engines store in and load from. Evictions are not announced to the engines."""

    def __init__(self, transfer: Transfer, slots: int | None = None, chunks: PoolChunks | None = None) -> None:
        """Create a pool of chunks.

        `slots`: maximum number of chunks; None for no limit. `chunks`: a store to use instead of a new one; `slots` is
        then unused.
        """
        self.transfer = transfer
        self.chunks: PoolChunks = ChunkStore(slots) if chunks is None else chunks

    def take(self, blocks: Sequence[int]) -> bool:
        """Store a chunk, given as its blocks.

        Returns False if the chunk is not added because the pool holds it already or no slot is free.
        """
        return blocks[-1] not in self.chunks and self.chunks.add(blocks) is not None
