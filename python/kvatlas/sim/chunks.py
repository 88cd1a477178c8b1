"""Chunks that an offloading tier holds, by the rules of vLLM's tiers.

A chunk is a fixed number of consecutive blocks that are stored and loaded together. It is named after its last block,
whose hash covers the whole prefix. The rules (each has a test):

- a chunk that is held is not stored again;
- the least recently used chunk is evicted first; of one prompt's chunks, later ones before earlier ones;
- a chunk in use (pinned) is not evicted: if all are, a new one finds no slot and is dropped.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container, Sequence


class ChunkStore:
    """Chunks of one tier by name, each with the hashes of its blocks.

    `slots`: maximum number of chunks; None for no limit.
    """

    def __init__(self, slots: int | None = None) -> None:
        self.slots = slots
        self._held: OrderedDict[int, tuple[int, ...]] = OrderedDict()  # the first is the next to go
        self._pins: dict[int, int] = {}

    def __contains__(self, name: object) -> bool:
        return name in self._held

    def __len__(self) -> int:
        return len(self._held)

    def add(self, blocks: Sequence[int]) -> list[tuple[int, ...]] | None:
        """Store a chunk that the tier does not hold yet.

        Returns the evicted chunks; None if all chunks are pinned, so that no slot is free.
        """
        gone: list[tuple[int, ...]] = []
        if self.slots is not None and len(self._held) >= self.slots:
            victim = next((name for name in self._held if name not in self._pins), None)
            if victim is None:
                return None
            gone.append(self._held.pop(victim))
        self._held[blocks[-1]] = tuple(blocks)
        return gone

    def use(self, names: Sequence[int]) -> None:
        """Mark chunks, given in the order of their prompt, as the most recently used."""
        for name in reversed(names):
            if name in self._held:
                self._held.move_to_end(name)

    def pin(self, name: int) -> None:
        """Protect a chunk from eviction until `unpin` has been called as often as `pin`."""
        self._pins[name] = self._pins.get(name, 0) + 1

    def unpin(self, name: int) -> None:
        """Undo one call of `pin`."""
        left = self._pins.get(name, 0) - 1
        if left > 0:
            self._pins[name] = left
        else:
            self._pins.pop(name, None)

    def discard(self, name: int) -> None:
        """Drop a chunk; no effect if the tier does not hold it."""
        self._held.pop(name, None)

    def clear(self) -> None:
        """Drop all chunks."""
        self._held.clear()
        self._pins.clear()


def leading_chunks(names: Sequence[int], at: int, chunk: int, tiers: Sequence[Container[int]]) -> list[int]:
    """Find the consecutive chunks of a prompt that at least one tier holds, starting at the chunk with block `at`.

    Returns one number for each chunk: the position in `tiers` of the first tier that holds the chunk.
    """
    found: list[int] = []
    for end in range(at // chunk * chunk + chunk, len(names) + 1, chunk):
        tier = next((number for number, tier in enumerate(tiers) if names[end - 1] in tier), None)
        if tier is None:
            break
        found.append(tier)
    return found


def leading_blocks(names: Sequence[int], at: int, chunk: int, tiers: Sequence[Container[int]]) -> int:
    """Number of cached leading blocks of a prompt: the first `at` blocks, continued by whole chunks held in `tiers`."""
    return max(at, at // chunk * chunk + chunk * len(leading_chunks(names, at, chunk, tiers)))
