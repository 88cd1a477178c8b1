"""Block sizes as engines' events have them, where engines announce another.

A hybrid model has several cache groups, and what vLLM announces is the smallest of their sizes. All engines of a model
share an index, which has one size: what the events of one have counts for all of them that only announce theirs.
"""

from __future__ import annotations

from dataclasses import replace

from kvatlas.service.discovery.probe import EngineDescription

Place = tuple[str, str]  # model and routing group


class EmittedSizes:
    """The block sizes of models, by the events of their engines."""

    def __init__(self) -> None:
        self._sizes: dict[Place, tuple[int, str]] = {}

    def note(self, place: Place, size: int, worker: str) -> bool:
        """Take note of the size that a worker's events have. False if those of another engine have another."""
        known, by = self._sizes.setdefault(place, (size, worker))
        if known != size and by == worker:
            self._sizes[place] = (size, worker)
        return self._sizes[place][0] == size

    def forget(self, worker: str) -> None:
        """Forget what a worker's events had: it has left."""
        self._sizes = {place: known for place, known in self._sizes.items() if known[1] != worker}

    def apply(self, found: EngineDescription, routing_group: str) -> EngineDescription:
        """An engine as it describes itself, with the size that events of its model have, if that is known."""
        known = self._sizes.get((found.model, routing_group))
        return found if known is None else replace(found, block_size=known[0])
