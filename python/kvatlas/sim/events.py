"""The interface that takes an engine's announcements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kvatlas._hashes import Hashes
from kvatlas.events import Clear, Event, Remove, Store


class Sink(Protocol):
    """An object that listens to engines. Calls come in the order in which the engine would have sent them."""

    def store(self, worker: str, parent: int | None, block_hashes: Sequence[int], content_hashes: Hashes) -> None:
        """`worker` now holds these blocks, chained one to the next; the first hangs on `parent` (None: the root)."""

    def remove(self, worker: str, block_hashes: Sequence[int]) -> None:
        """`worker` gave up one copy of each. An engine sends one event each; here a step's run of them is one call."""

    def clear(self, worker: str) -> None:
        """`worker` forgot everything."""


class Recorder:
    """A sink that keeps the announcements as events, one removal each, as they would be on the wire."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def store(self, worker: str, parent: int | None, block_hashes: Sequence[int], content_hashes: Hashes) -> None:
        self.events.append(Store(worker, tuple(block_hashes), tuple(content_hashes.tolist()), parent))

    def remove(self, worker: str, block_hashes: Sequence[int]) -> None:
        self.events.extend(Remove(worker, (name,)) for name in block_hashes)

    def clear(self, worker: str) -> None:
        self.events.append(Clear(worker))


class NullSink:
    """A sink that listens to nothing."""

    def store(self, worker: str, parent: int | None, block_hashes: Sequence[int], content_hashes: Hashes) -> None:
        pass

    def remove(self, worker: str, block_hashes: Sequence[int]) -> None:
        pass

    def clear(self, worker: str) -> None:
        pass
