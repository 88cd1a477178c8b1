"""Sites with workers whose caches forget what was used longest ago, and the exact index of each site."""

from __future__ import annotations

import random
from collections import OrderedDict

from benchmarks.sites.load import Prompt, Words

from kvatlas import BlockIndex

PAGE = 32  # blocks that a cache forgets together
_OVERLOADED = 2.0  # times the site's mean load, from which on a worker with the prompt is not taken
_CANDIDATES = 4


class Worker:
    """A cache of pages of blocks. A page is known by the name of its last block, which includes all before it."""

    __slots__ = ("blocks", "load", "pages")

    def __init__(self) -> None:
        self.pages: OrderedDict[int, Words] = OrderedDict()
        self.blocks = 0
        self.load = 0.0


class Site:
    """Workers, and the exact index of what they hold."""

    def __init__(self, name: str, workers: int, cache: int, block_size: int, seed: int) -> None:
        self.name = name
        self.index = BlockIndex(block_size=block_size)
        self.workers = [Worker() for _ in range(workers)]
        self._cache = cache
        self._random = random.Random(seed)
        self._load = 0.0
        self.stored = self.removed = 0  # blocks

    def depth(self, prompt: Prompt) -> int:
        """The blocks of a prompt that the deepest worker has."""
        return self.index.find(content_hashes=prompt.contents).depth

    def run(self, prompt: Prompt) -> tuple[int, list[Words], list[Words]]:
        """Serve a request on one worker: how much of it was cached, and the names of blocks stored and removed."""
        at, hit = self._worker(prompt)
        worker = self.workers[at]
        stored, removed = self._hold(worker, prompt)
        name = str(at)
        # A chain's end first: what is removed is below what stays.
        for names in removed:
            self.index.remove(name, block_hashes=names)
            self.removed += names.size
        if stored:
            first = prompt.names.size - sum(names.size for names in stored)
            parent = int(prompt.names[first - 1]) if first else None
            self.index.store(
                name, block_hashes=prompt.names[first:], content_hashes=prompt.contents[first:], parent=parent
            )
            self.stored += prompt.names.size - first
        work = prompt.names.size - hit
        worker.load += work
        self._load += work
        return hit, stored, removed

    def _worker(self, prompt: Prompt) -> tuple[int, int]:
        limit = _OVERLOADED * (self._load / len(self.workers) + prompt.names.size)
        best = self.index.find(content_hashes=prompt.contents).best(_CANDIDATES)
        for name, depth in sorted(best, key=lambda it: (-it[1], self.workers[int(it[0])].load)):
            # Less than a quarter is not worth the same worker.
            if depth * 4 >= prompt.names.size and self.workers[int(name)].load <= limit:
                return int(name), depth
        two = [self._random.randrange(len(self.workers)) for _ in range(2)]
        at = min(two, key=lambda it: self.workers[it].load)
        return at, self._held(at, prompt)

    def _held(self, at: int, prompt: Prompt) -> int:
        pages, depth = self.workers[at].pages, 0
        for last in prompt.names[PAGE - 1 :: PAGE].tolist():
            if last not in pages:
                break
            depth += PAGE
        return depth

    def _hold(self, worker: Worker, prompt: Prompt) -> tuple[list[Words], list[Words]]:
        keys = prompt.names[PAGE - 1 :: PAGE].tolist()
        if prompt.names.size % PAGE:
            keys.append(int(prompt.names[-1]))
        stored = []
        for at, key in enumerate(keys):
            if key not in worker.pages:
                names = prompt.names[at * PAGE : (at + 1) * PAGE]
                worker.pages[key] = names
                worker.blocks += names.size
                stored.append(names)
        # The beginning of a chain is used last, so that its end goes first.
        for key in reversed(keys):
            worker.pages.move_to_end(key)
        removed = []
        while worker.blocks > self._cache and len(worker.pages) > len(keys):
            _, names = worker.pages.popitem(last=False)
            worker.blocks -= names.size
            removed.append(names)
        return stored, removed

    def fade(self, factor: float) -> None:
        """Time has passed: loads go down."""
        self._load *= factor
        for worker in self.workers:
            worker.load *= factor
