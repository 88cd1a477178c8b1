"""Block sizes of engines' events, if they differ from the announced ones.

A hybrid model has several cache groups, and vLLM announces the smallest of their block sizes. All engines of a model
share an index with one block size, so the size of one engine's events applies to all engines without events so far.
"""

from __future__ import annotations

from dataclasses import replace

from kvatlas.service.discovery.probe import EngineDescription

Place = tuple[str, str]  # model and routing group


class EmittedSizes:
    """Block sizes of models, from the events of their engines."""

    def __init__(self) -> None:
        self._sizes: dict[Place, tuple[int, str]] = {}

    def note(self, place: Place, size: int, worker: str) -> bool:
        """Record the block size of a worker's events. Returns False if another engine's events have another size."""
        known, by = self._sizes.setdefault(place, (size, worker))
        if known != size and by == worker:
            self._sizes[place] = (size, worker)
        return self._sizes[place][0] == size

    def forget(self, worker: str) -> None:
        """Forget the block size found in the events of a worker that has left."""
        self._sizes = {place: known for place, known in self._sizes.items() if known[1] != worker}

    def apply(self, found: EngineDescription, routing_group: str) -> EngineDescription:
        """Description of the engine with the block size of its model's events; unchanged if that is unknown."""
        known = self._sizes.get((found.model, routing_group))
        return found if known is None else replace(found, block_size=known[0])
