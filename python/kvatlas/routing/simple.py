"""Policies that do not look at the prompt."""

from __future__ import annotations

import random
from collections.abc import Sequence

from kvatlas.routing.policy import Depths, Load, Prompt


class Random:
    """Any engine."""

    uses_index = False

    def __init__(self, workers: Sequence[str], seed: int) -> None:
        self._count = len(workers)
        self._random = random.Random(seed)

    def choose(self, prompt: Prompt, loads: Sequence[Load], match: Depths) -> int:
        return self._random.randrange(self._count)


class RoundRobin:
    """One engine after the other."""

    uses_index = False

    def __init__(self, workers: Sequence[str], seed: int) -> None:
        self._count = len(workers)
        self._next = -1

    def choose(self, prompt: Prompt, loads: Sequence[Load], match: Depths) -> int:
        self._next = (self._next + 1) % self._count
        return self._next


class LeastLoaded:
    """The engine with the fewest prompt tokens queued; then the fewest requests in flight; then any."""

    uses_index = False

    def __init__(self, workers: Sequence[str], seed: int) -> None:
        self._random = random.Random(seed)

    def choose(self, prompt: Prompt, loads: Sequence[Load], match: Depths) -> int:
        return least(self._random, [(load.queued_tokens, load.in_flight) for load in loads])


def least(rng: random.Random, costs: Sequence[tuple[float, float]]) -> int:
    """The number of the lowest cost; a random one among equals."""
    smallest = min(costs)
    return rng.choice([i for i, cost in enumerate(costs) if cost == smallest])
