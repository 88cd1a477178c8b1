"""Routing by the index."""

from __future__ import annotations

import random
from collections.abc import Sequence

from kvatlas.routing.policy import Depths, Load, Prompt
from kvatlas.routing.simple import least


class Exact:
    """The engine with the lowest cost, from its cache and its load.

        cost = prompt tokens it does not hold + queue_weight * uncached prompt tokens queued there

    Of equal ones the engine with the fewest requests in flight; then any.

    A queued token delays this request once. A token computed again delays whoever comes next as well, and takes room
    from somebody's cache; and the prompt that is being computed is on average half done. So queued tokens weigh less:
    1/4 was best or nearly so, of 1/8 to 1, on the conversation trace at three loads and on generated workloads.
    """

    uses_index = True
    queue_weight = 0.25

    def __init__(self, workers: Sequence[str], seed: int) -> None:
        self._workers = list(workers)
        self._random = random.Random(seed)

    def choose(self, prompt: Prompt, loads: Sequence[Load], match: Depths) -> int:
        depth = match.scores().get
        costs = [
            (prompt.uncached(depth(worker, 0)) + self.queue_weight * load.queued_tokens, load.in_flight)
            for worker, load in zip(self._workers, loads, strict=True)
        ]
        return least(self._random, costs)
