"""Paged block pool with prefix caching, by the rules of vLLM.

The rules (each has a test):

- a block is referenced while a request uses it, and free otherwise; a free block keeps its content until it is taken
  for a new one;
- blocks are taken from the front of the free queue; released blocks with content go to its back, the last block of the
  chain first (so the least recently used ones are taken first), and blocks without content go to its front;
- content is evicted only when its block is taken, with one announcement for each physical copy;
- a newly filled block is never merged with an equal one: both are copies, and a lookup finds the older one.

The pool has no notion of time or of requests; `Engine` adds them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence


class BlockPool:
    """Pool of `blocks` physical blocks, numbered from 0. A block's content is identified by a name, its block hash."""

    def __init__(self, blocks: int) -> None:
        if blocks < 1:
            raise ValueError(f"a pool needs at least 1 block, got {blocks}")
        self.size = blocks
        self.free = blocks
        self._refs = [0] * blocks
        self._name: list[int | None] = [None] * blocks
        # The free queue, lazily: a block taken out of the middle (a hit) leaves its entry behind. Only the last entry
        # of a block counts; `_entries` has how many are left of each.
        self._queue: deque[int] = deque(range(blocks))
        self._entries = [1] * blocks
        self._first: dict[int, int] = {}  # name -> the copy that lookups find
        self._others: dict[int, list[int]] = {}  # name -> further copies, oldest first

    def lookup(self, names: Iterable[int]) -> list[int]:
        """Find the physical blocks that hold the longest cached prefix of the chain `names`."""
        found: list[int] = []
        get = self._first.get
        for name in names:
            block = get(name)
            if block is None:
                break
            found.append(block)
        return found

    def depth(self, names: Iterable[int]) -> int:
        """Number of leading `names` that are cached without a gap."""
        return len(self.lookup(names))

    def idle(self, blocks: Iterable[int]) -> int:
        """Number of `blocks` that are in the free queue; their use reduces the free space."""
        refs = self._refs
        return sum(1 for block in blocks if refs[block] == 0)

    def touch(self, blocks: Iterable[int]) -> None:
        """Add a reference to each of the cached blocks `blocks`, which a request has hit."""
        refs = self._refs
        for block in blocks:
            if refs[block] == 0:
                self.free -= 1
            refs[block] += 1

    def take(self, count: int) -> tuple[list[int], list[int]]:
        """Take `count` blocks from the front of the free queue.

        Returns the blocks, referenced once, and the names of the evicted contents in order. The caller has checked that
        enough blocks are free.
        """
        if count > self.free:
            raise RuntimeError(f"{count} blocks wanted, {self.free} free")
        self.free -= count
        refs, entries, name_of = self._refs, self._entries, self._name
        first, others = self._first, self._others
        pop = self._queue.popleft
        taken: list[int] = []
        removed: list[int] = []
        while count:
            block = pop()
            left = entries[block] - 1
            entries[block] = left
            if left or refs[block]:
                continue
            refs[block] = 1
            name = name_of[block]
            if name is not None:
                if name in others:
                    self._forget_copy(block, name)
                else:
                    del first[name]
                name_of[block] = None
                removed.append(name)
            taken.append(block)
            count -= 1
        return taken, removed

    def fill(self, blocks: Sequence[int], names: Sequence[int]) -> None:
        """Mark `blocks` as full, each with the content of the same position in `names`."""
        first, name_of = self._first, self._name
        for block, name in zip(blocks, names, strict=True):
            name_of[block] = name
        if first.keys().isdisjoint(names):
            # The common case, at the speed of C. A chain never holds one name twice.
            first.update(zip(names, blocks, strict=True))
            return
        for block, name in zip(blocks, names, strict=True):
            if first.setdefault(name, block) != block:
                self._others.setdefault(name, []).append(block)

    def release(self, chain: Sequence[int]) -> None:
        """Drop one reference to each block of a request; `chain` lists the blocks from first to last."""
        refs, entries, name_of, queue = self._refs, self._entries, self._name, self._queue
        for block in reversed(chain):
            left = refs[block] - 1
            refs[block] = left
            if left:
                continue
            self.free += 1
            entries[block] += 1
            if name_of[block] is None:
                queue.appendleft(block)
            else:
                queue.append(block)
        if len(queue) > 4 * self.size + 64:
            self._compact()

    def reset(self) -> bool:
        """Drop all content. Returns False, and does nothing, while a request holds blocks."""
        if self.free != self.size:
            return False
        self._first.clear()
        self._others.clear()
        self._name = [None] * self.size
        return True

    @property
    def cached(self) -> int:
        """Number of distinct names (block hashes) with cached content."""
        return len(self._first)

    def copies(self, name: int) -> int:
        """Number of physical blocks with the content named by `name`."""
        return (name in self._first) + len(self._others.get(name, ()))

    def queue_order(self) -> list[int]:
        """Free blocks in the order in which they will be taken (slow; for tests)."""
        self._compact()
        return list(self._queue)

    def _forget_copy(self, block: int, name: int) -> None:
        others = self._others[name]
        if self._first[name] == block:
            self._first[name] = others.pop(0)
        else:
            others.remove(block)
        if not others:
            del self._others[name]

    def _compact(self) -> None:
        """Remove obsolete entries from the free queue."""
        keep: list[int] = []
        entries = [0] * self.size
        for block in reversed(self._queue):
            if not entries[block] and not self._refs[block]:
                entries[block] = 1
                keep.append(block)
        keep.reverse()
        self._queue = deque(keep)
        self._entries = entries
