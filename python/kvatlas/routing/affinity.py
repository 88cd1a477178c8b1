"""Routing by prefix: requests with the same beginning go to the same engine, without knowing its cache."""

from __future__ import annotations

import bisect
import random
from collections.abc import Sequence

import numpy as np

from kvatlas import prefix_hashes
from kvatlas._hashes import mix
from kvatlas.routing.policy import Depths, Load, Prompt
from kvatlas.routing.simple import least


class PrefixAffinity:
    """Consistent hashing of a prompt's first `first_tokens` tokens, with bounded loads.

    The engine is the next on a ring of `points` points each. One that has anything queued, and would have more than
    `bound` times the mean of prompt tokens queued with this prompt, is passed over. Prompts without one full block go
    to the least loaded engine.
    """

    uses_index = False
    first_tokens = 2048
    points = 100
    bound = 3.0

    def __init__(self, workers: Sequence[str], seed: int) -> None:
        self._random = random.Random(seed)
        owners = np.repeat(np.arange(len(workers), dtype=np.uint64), self.points)
        places = mix(mix(np.arange(owners.size, dtype=np.uint64)) + np.uint64(seed % (1 << 64)))
        order = np.argsort(places)
        self._places: list[int] = places[order].tolist()
        self._owners: list[int] = owners[order].tolist()

    def choose(self, prompt: Prompt, loads: Sequence[Load], match: Depths) -> int:
        blocks = prompt.content_hashes[: max(1, self.first_tokens // prompt.block_size)]
        if not blocks.size:
            return self._least_loaded(loads)
        # The hash of the last block's prefix tells all of them.
        place = int(mix(prefix_hashes(blocks)[-1:])[0])
        start = bisect.bisect_left(self._places, place)
        most = self.bound * (sum(load.queued_tokens for load in loads) + prompt.tokens) / len(loads)
        for step in range(len(self._owners)):
            owner = self._owners[(start + step) % len(self._owners)]
            queued = loads[owner].queued_tokens
            if not queued or queued + prompt.tokens <= most:
                return owner
        return self._least_loaded(loads)

    def _least_loaded(self, loads: Sequence[Load]) -> int:
        return least(self._random, [(load.queued_tokens, load.in_flight) for load in loads])
