"""Events that change a worker's blocks: `BlockIndex.dump` returns them, `BlockIndex.apply` applies them.

Each event stands for a call of a method of the index; its fields are the method's arguments.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kvatlas.types import Tier

__all__ = ["Clear", "Drop", "Event", "Remove", "Store"]


@dataclass(frozen=True, slots=True)
class Store:
    """An event: consecutive blocks of one chain were cached.

    Attributes:
        worker: The worker's name.
        block_hashes: The engine's names of the blocks, shape (n,).
        content_hashes: Content hashes of the blocks, shape (n,), each from 0 to 2**64 - 1.
        parent: The engine's name of the block before the first; None at the beginning of a prompt.
        rank: Data-parallel rank.
        tier: The tier of the blocks:  "gpu", "cpu", "disk" or "external".
    """

    worker: str
    block_hashes: Sequence[int | bytes]
    content_hashes: Sequence[int]
    parent: int | bytes | None = None
    rank: int = 0
    tier: Tier = "gpu"


@dataclass(frozen=True, slots=True)
class Remove:
    """An event: blocks were evicted, one copy of each.

    Attributes:
        worker: The worker's name.
        block_hashes: The engine's names of the blocks, in any order, shape (n,).
        rank: Data-parallel rank.
        tier: The tier that evicted them.
    """

    worker: str
    block_hashes: Sequence[int | bytes]
    rank: int = 0
    tier: Tier = "gpu"


@dataclass(frozen=True, slots=True)
class Clear:
    """An event: a worker lost all blocks, or those of one rank, one tier or both.

    Attributes:
        worker: The worker's name.
        rank: Data-parallel rank; None means all.
        tier: The tier; None means all.
    """

    worker: str
    rank: int | None = None
    tier: Tier | None = None


@dataclass(frozen=True, slots=True)
class Drop:
    """An event: a worker left the fleet.

    Attributes:
        worker: The worker's name.
    """

    worker: str


Event = Store | Remove | Clear | Drop
