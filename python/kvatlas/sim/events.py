"""Interface that takes an engine's announcements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kvatlas._hashes import Hashes
from kvatlas.events import Clear, Event, Remove, Store
from kvatlas.types import Tier


class Sink(Protocol):
    """Receiver of engines' announcements, called in the order in which the engine would send them."""

    def store(self, worker: str, parent: int | None, block_hashes: Sequence[int], content_hashes: Hashes) -> None:
        """Announce that `worker` holds these blocks, one chain that continues `parent` (None: the root)."""

    def remove(self, worker: str, block_hashes: Sequence[int]) -> None:
        """Announce that `worker` evicted one copy of each block. Real engines send one event a block."""

    def clear(self, worker: str) -> None:
        """Announce that `worker` lost all blocks."""


class TierSink(Sink, Protocol):
    """Receiver of announcements of engines that offload."""

    def store_tier(
        self, worker: str, tier: Tier, parent: int | None, block_hashes: Sequence[int], content_hashes: Hashes
    ) -> None:
        """Announce that `worker` has copied these blocks, whole chunks, to a tier."""

    def remove_tier(self, worker: str, tier: Tier, block_hashes: Sequence[int]) -> None:
        """Announce that a tier of `worker` evicted these blocks."""


class Recorder:
    """Sink that records the announcements as events, with one block a removal, as on the wire."""

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
    """Sink that ignores all announcements."""

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
