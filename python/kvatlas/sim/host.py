"""Simulated host tier behind an engine's own cache: computed blocks are kept there too, and loaded after eviction.

Blocks are copied there when they are computed, and announced as another copy. The least recently used block is evicted
first, the last blocks of a prompt before earlier ones. A prompt first uses the engine's own cache, then the tier.
Loading takes time, and loaded blocks need room like any other.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence

from kvatlas._hashes import Hashes
from kvatlas.sim.events import Sink

LOAD = 3.3e-6
"""Seconds to load a token, as measured with an engine's offloading to host memory over PCIe, some 29 GB/s."""


class HostTier:
    """Host tier of one engine, between the engine and the sink of its announcements."""

    def __init__(self, blocks: int, sink: Sink) -> None:
        self.size = blocks
        self.loaded = 0  # blocks, over all time
        self._sink = sink
        self._held: OrderedDict[int, None] = OrderedDict()  # the first is the next to go

    def leading(self, names: Sequence[int]) -> int:
        """The number of leading `names` that are held without a gap."""
        held = self._held
        return next((place for place, name in enumerate(names) if name not in held), len(names))

    def use(self, names: Sequence[int]) -> None:
        """Mark these blocks of a prompt, in order, as used now."""
        for name in reversed(names):
            if name in self._held:
                self._held.move_to_end(name)

    def store(self, worker: str, parent: int | None, block_hashes: Sequence[int], content_hashes: Hashes) -> None:
        """Pass on the engine's stores, and keep the blocks too."""
        self._sink.store(worker, parent, block_hashes, content_hashes)
        new = [name not in self._held for name in block_hashes]
        for start, end in _runs(new):
            above = block_hashes[start - 1] if start else parent
            self._sink.store(worker, above, block_hashes[start:end], content_hashes[start:end])
        for name in reversed(block_hashes):
            self._held[name] = None
            self._held.move_to_end(name)
        gone = [self._held.popitem(last=False)[0] for _ in range(len(self._held) - self.size)]
        if gone:
            self._sink.remove(worker, gone)

    def remove(self, worker: str, block_hashes: Sequence[int]) -> None:
        """Pass on the evictions of the engine's own cache."""
        self._sink.remove(worker, block_hashes)

    def clear(self, worker: str) -> None:
        """Drop all blocks, as the engine does."""
        self._held.clear()
        self._sink.clear(worker)


def _runs(flags: Sequence[bool]) -> Iterator[tuple[int, int]]:
    """The runs of set flags."""
    start = None
    for place, flag in enumerate([*flags, False]):
        if flag and start is None:
            start = place
        elif not flag and start is not None:
            yield start, place
            start = None
