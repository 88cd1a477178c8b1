"""Interface that receives an engine's announcements of changes in its cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kvatlas._hashes import Hashes
from kvatlas.events import Clear, Event, Remove, Store
from kvatlas.types import Tier


class Sink(Protocol):
    """Receiver of engines' announcements, called in the order in which a real engine would send them."""

    def store(self, worker: str, parent: int | None, block_hashes: Sequence[int], content_hashes: Hashes) -> None:
        """Announce that `worker` holds new blocks: one chain that continues the block `parent` (None: the root)."""

    def remove(self, worker: str, block_hashes: Sequence[int]) -> None:
        """Announce that `worker` evicted one copy of each of the blocks. Real engines send one event for each block."""

    def clear(self, worker: str) -> None:
        """Announce that `worker` dropped all blocks."""


class TierSink(Sink, Protocol):
    """Receiver of the announcements of engines that also offload blocks to other tiers."""

    def store_tier(
        self, worker: str, tier: Tier, parent: int | None, block_hashes: Sequence[int], content_hashes: Hashes
    ) -> None:
        """Announce that `worker` has copied blocks, in whole chunks, to a tier."""

    def remove_tier(self, worker: str, tier: Tier, block_hashes: Sequence[int]) -> None:
        """Announce that a tier of `worker` evicted blocks."""


class Recorder:
    """Receiver that records announcements as events.

    Each removed block is an event of its own, as real engines send it.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []

    def store(self, worker: str, parent: int | None, block_hashes: Sequence[int], content_hashes: Hashes) -> None:
        self.events.append(Store(worker, tuple(block_hashes), tuple(content_hashes.tolist()), parent))

    def remove(self, worker: str, block_hashes: Sequence[int]) -> None:
        self.events.extend(Remove(worker, (name,)) for name in block_hashes)

    def store_tier(
        self, worker: str, tier: Tier, parent: int | None, block_hashes: Sequence[int], content_hashes: Hashes
    ) -> None:
        contents = tuple(content_hashes.tolist())
        self.events.append(Store(worker, tuple(block_hashes), contents, parent, tier=tier))

    def remove_tier(self, worker: str, tier: Tier, block_hashes: Sequence[int]) -> None:
        self.events.append(Remove(worker, tuple(block_hashes), tier=tier))

    def clear(self, worker: str) -> None:
        self.events.append(Clear(worker))


class NullSink:
    """Receiver that ignores all announcements."""

    def store(self, worker: str, parent: int | None, block_hashes: Sequence[int], content_hashes: Hashes) -> None:
        pass

    def remove(self, worker: str, block_hashes: Sequence[int]) -> None:
        pass

    def store_tier(
        self, worker: str, tier: Tier, parent: int | None, block_hashes: Sequence[int], content_hashes: Hashes
    ) -> None:
        pass

    def remove_tier(self, worker: str, tier: Tier, block_hashes: Sequence[int]) -> None:
        pass

    def clear(self, worker: str) -> None:
        pass
