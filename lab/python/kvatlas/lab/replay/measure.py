"""Measurement of the duration of every call of the index.

Times are wall-clock nanoseconds of single calls from Python, including the cost of reading the clock (`clock_cost`).
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any, Protocol

import numpy as np

from kvatlas._hashes import Hashes
from kvatlas.routing import Depths
from kvatlas.types import Tier


class IndexMatch(Depths, Protocol):
    """Answer of an index to a query."""

    @property
    def any_tier(self) -> Depths:
        """Answer with the blocks of all tiers counted."""

    def best(self, top_k: int = 1, among: Sequence[str] | None = None) -> list[tuple[str, int]]:
        """Deepest workers with their depths, deepest first."""


class Index(Protocol):
    """Methods of `kvatlas.BlockIndex` that a replay needs; `kvatlas.reference.ReferenceIndex` has them too."""

    def store(
        self, worker: str, *, block_hashes: Any, content_hashes: Any = None, parent: Any = None, tier: Tier = "gpu"
    ) -> None: ...

    def remove(self, worker: str, *, block_hashes: Any, tier: Tier = "gpu") -> None: ...

    def clear(self, worker: str) -> None: ...

    def find(self, *, content_hashes: Any) -> IndexMatch: ...

    def stats(self) -> Mapping[str, Any]: ...


class TimedIndex:
    """Index that receives announcements and answers queries, and records the duration of each call.

    `shadow` gets the same events of the workers in `watched`, timed separately. Events of tiers other than device
    memory are not timed.
    """

    def __init__(
        self,
        index: Index,
        shadow: Index | None = None,
        watched: Collection[str] = (),
        publish_pool_as: Sequence[str] = (),
    ) -> None:
        """Create a timed index.

        `publish_pool_as`: workers that all count as holders of the shared pool's blocks.
        """
        self.index = index
        self._publish_pool_as = publish_pool_as
        self.shadow = shadow
        self.watched = frozenset(watched) if shadow is not None else frozenset()
        self.shadow_ns = 0
        self.find_ns = array("q")
        self.store_ns = self.remove_ns = 0
        self.stores = self.removes = 0  # calls
        self.stored_blocks = self.removed_blocks = 0

    def store(self, worker: str, parent: int | None, block_hashes: Sequence[int], content_hashes: Hashes) -> None:
        start = perf_counter_ns()
        self.index.store(worker, block_hashes=block_hashes, content_hashes=content_hashes, parent=parent)
        self.store_ns += perf_counter_ns() - start
        self.stores += 1
        self.stored_blocks += len(block_hashes)
        if self.shadow is not None and worker in self.watched:
            start = perf_counter_ns()
            self.shadow.store(worker, block_hashes=block_hashes, content_hashes=content_hashes.tolist(), parent=parent)
            self.shadow_ns += perf_counter_ns() - start

    def remove(self, worker: str, block_hashes: Sequence[int]) -> None:
        start = perf_counter_ns()
        self.index.remove(worker, block_hashes=block_hashes)
        self.remove_ns += perf_counter_ns() - start
        self.removes += 1
        self.removed_blocks += len(block_hashes)
        if self.shadow is not None and worker in self.watched:
            start = perf_counter_ns()
            self.shadow.remove(worker, block_hashes=block_hashes)
            self.shadow_ns += perf_counter_ns() - start

    def store_tier(
        self, worker: str, tier: Tier, parent: int | None, block_hashes: Sequence[int], content_hashes: Hashes
    ) -> None:
        for holder in self._publish_pool_as if tier == "external" and self._publish_pool_as else (worker,):
            for index in self._told_of(holder):
                index.store(
                    holder, block_hashes=block_hashes, content_hashes=content_hashes.tolist(), parent=parent, tier=tier
                )

    def remove_tier(self, worker: str, tier: Tier, block_hashes: Sequence[int]) -> None:
        for index in self._told_of(worker):
            index.remove(worker, block_hashes=block_hashes, tier=tier)

    def _told_of(self, worker: str) -> list[Index]:
        return [self.index, self.shadow] if self.shadow is not None and worker in self.watched else [self.index]

    def clear(self, worker: str) -> None:
        self.index.clear(worker)
        if self.shadow is not None and worker in self.watched:
            self.shadow.clear(worker)

    def find(self, content_hashes: Hashes) -> IndexMatch:
        start = perf_counter_ns()
        match = self.index.find(content_hashes=content_hashes)
        self.find_ns.append(perf_counter_ns() - start)
        return match


@dataclass(frozen=True, slots=True)
class IndexFigures:
    """Cost of the index in one replay. Rates are calls or blocks per second of time spent inside the calls."""

    lookups: int
    lookups_per_second: float
    find_p50_ns: float
    find_p99_ns: float
    find_mean_ns: float
    events: int  # store and remove calls
    events_per_second: float
    event_blocks: int  # blocks stored and removed by them
    event_blocks_per_second: float
    store_ns_per_block: float
    remove_ns_per_block: float
    held_blocks: int
    bytes: int
    bytes_per_block: float
    clock_cost_ns: float


def index_figures(timed: TimedIndex, stats: Mapping[str, Any], clock: float) -> IndexFigures:
    """Summarize the recorded durations. `stats`: statistics of the index. `clock`: cost of reading the clock, in ns."""
    find = np.frombuffer(timed.find_ns, dtype=np.int64) if timed.find_ns else np.zeros(1, dtype=np.int64)
    p50, p99 = (float(value) for value in np.percentile(find, [50, 99]))
    events, blocks = timed.stores + timed.removes, timed.stored_blocks + timed.removed_blocks
    event_ns = timed.store_ns + timed.remove_ns
    return IndexFigures(
        lookups=len(timed.find_ns),
        lookups_per_second=_ratio(len(timed.find_ns) * 1e9, float(find.sum())),
        find_p50_ns=p50,
        find_p99_ns=p99,
        find_mean_ns=float(find.mean()),
        events=events,
        events_per_second=_ratio(events * 1e9, event_ns),
        event_blocks=blocks,
        event_blocks_per_second=_ratio(blocks * 1e9, event_ns),
        store_ns_per_block=_ratio(timed.store_ns, timed.stored_blocks),
        remove_ns_per_block=_ratio(timed.remove_ns, timed.removed_blocks),
        held_blocks=stats["blocks"],
        bytes=stats["bytes"],
        bytes_per_block=_ratio(stats["bytes"], stats["blocks"]),
        clock_cost_ns=clock,
    )


def clock_cost() -> float:
    """Measured duration of an empty call, in nanoseconds: the median of many."""
    readings = array("q")
    for _ in range(2_001):
        start = perf_counter_ns()
        readings.append(perf_counter_ns() - start)
    return float(np.median(np.frombuffer(readings, dtype=np.int64)))


def _ratio(a: float, b: float) -> float:
    return a / b if b else 0.0
