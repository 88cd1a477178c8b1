"""Delivery of engines' announcements to the index: at once, late, or lost and requested again.

An engine numbers its announcements. When an announcement is lost, the next one to arrive shows the gap. Announcements
after a gap wait, in order, until the lost one has been fetched (`repair` seconds later), as in the service while it
replays a stream.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from kvatlas._hashes import Hashes
from kvatlas.lab.replay.scenario import Scenario
from kvatlas.sim.events import TierSink
from kvatlas.types import Tier

# A call that is made later: method, worker, tier, parent, names, contents.
_Call = tuple[str, str, Tier, int | None, Sequence[int], Hashes | None]


@dataclass(slots=True)
class _Stream:
    """Stream of announcements of one engine."""

    lost: list[tuple[int, _Call]] = field(default_factory=list)  # with their numbers; the gap is not noticed yet
    until: float = 0.0  # nothing is applied before this


@dataclass(slots=True)
class DeliveryCounters:
    """Counters of late, lost and fetched announcements of one replay."""

    announced: int = 0
    lost: int = 0
    gaps: int = 0  # times that a gap was seen and asked for


@dataclass(slots=True)
class Delivery:
    """Receiver of announcements that passes them on to `index` when they are due. Set `now` before engines run."""

    index: TierSink
    scenario: Scenario
    seed: int = 0
    now: float = 0.0
    counters: DeliveryCounters = field(default_factory=DeliveryCounters)
    _streams: dict[str, _Stream] = field(default_factory=dict)
    _due: list[tuple[float, int, _Call]] = field(default_factory=list)
    _random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def store(self, worker: str, parent: int | None, block_hashes: Sequence[int], content_hashes: Hashes) -> None:
        """Announce stored blocks of a worker, subject to delay and loss."""
        self._announce(("store", worker, "gpu", parent, block_hashes, content_hashes))

    def store_tier(
        self, worker: str, tier: Tier, parent: int | None, block_hashes: Sequence[int], content_hashes: Hashes
    ) -> None:
        """Announce blocks that were copied to a tier, subject to delay and loss."""
        self._announce(("store", worker, tier, parent, block_hashes, content_hashes))

    def remove_tier(self, worker: str, tier: Tier, block_hashes: Sequence[int]) -> None:
        """Announce blocks that a tier evicted, subject to delay and loss."""
        self._announce(("remove", worker, tier, None, block_hashes, None))

    def remove(self, worker: str, block_hashes: Sequence[int]) -> None:
        """Announce evicted blocks of a worker, subject to delay and loss."""
        self._announce(("remove", worker, "gpu", None, block_hashes, None))

    def clear(self, worker: str) -> None:
        """Announce that a worker dropped all blocks, subject to delay and loss."""
        self._announce(("clear", worker, "gpu", None, (), None))

    def gone(self, worker: str) -> None:
        """Drop from the index an engine that has left the fleet. Its undelivered announcements are lost."""
        self._due = [entry for entry in self._due if entry[2][1] != worker]
        heapq.heapify(self._due)
        self._streams.pop(worker, None)
        if not self.scenario.no_events:
            self.index.clear(worker)

    def run_until(self, time: float) -> None:
        """Apply the announcements that are due up to and including the virtual time `time`."""
        due = self._due
        while due and due[0][0] <= time:
            self._apply(heapq.heappop(due)[2])

    def _announce(self, call: _Call) -> None:
        scenario, counters = self.scenario, self.counters
        counters.announced += 1
        if scenario.no_events:
            return
        if scenario.exact_events:
            self._apply(call)
            return
        stream = self._streams.setdefault(call[1], _Stream())
        arrives = self.now + scenario.event_delay
        if self._random.random() < scenario.lose_events:
            counters.lost += 1
            stream.lost.append((counters.announced, call))
            return
        if stream.lost:
            # This one shows the gap.
            counters.gaps += 1
            stream.until = max(stream.until, arrives + scenario.repair)
            for number, missed in stream.lost:
                heapq.heappush(self._due, (stream.until, number, missed))
            stream.lost.clear()
        heapq.heappush(self._due, (max(arrives, stream.until), counters.announced, call))

    def _apply(self, call: _Call) -> None:
        kind, worker, tier, parent, names, contents = call
        if kind == "store" and contents is not None:
            if tier == "gpu":
                self.index.store(worker, parent, names, contents)
            else:
                self.index.store_tier(worker, tier, parent, names, contents)
        elif kind == "remove":
            if tier == "gpu":
                self.index.remove(worker, names)
            else:
                self.index.remove_tier(worker, tier, names)
        else:
            self.index.clear(worker)
