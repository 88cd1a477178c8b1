"""Check of the index: a sample of its answers is compared with two oracles.

- the **reference**: `kvatlas.reference.ReferenceIndex`, which receives the same events;
- the **engines**: the blocks in each simulated engine's own pool at that moment, without the changes of the step that
  it is computing, which are not announced yet.

Memory and time of the check are bounded. The reference follows no more engines than hold `REFERENCE_BLOCKS` blocks
together (the other oracle covers all engines). As the reference is slow, a sampled query is skipped while the check has
used more than its share of the allowed time, in proportion to the progress of the replay, so that the checked queries
are spread over the whole run.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np

from kvatlas._hashes import Hashes
from kvatlas.lab.replay.measure import IndexMatch, TimedIndex
from kvatlas.sim.hashing import rename
from kvatlas.sim.request import Request
from kvatlas.sim.stepped import SteppedEngine

REFERENCE_BLOCKS = 100_000  # about 1 KB each, in plain Python
_KEEP = 20  # disagreements worth printing


def watched_workers(workers: Sequence[str], blocks: int, seed: int) -> list[str]:
    """Choose the engines that the reference follows: all, or random ones if all would hold too many blocks.

    `blocks`: number of blocks that each engine holds.
    """
    most = max(1, REFERENCE_BLOCKS // blocks)
    return list(workers) if most >= len(workers) else random.Random(seed).sample(workers, most)


@dataclass(frozen=True, slots=True)
class Disagreement:
    """Answer of the index that differs from an oracle. Depths are in blocks."""

    policy: str
    request: int  # number in the trace, from 0
    worker: str
    oracle: str  # "engine", "reference" or "reference, any tier"
    expected: int
    got: int
    blocks: int  # of the query


@dataclass(slots=True)
class Agreement:
    """Outcome of the check of the index."""

    sampled: int = 0  # queries picked
    checked: int = 0  # of those, checked; the others would have taken too long
    reference_workers: int = 0  # engines that the reference followed
    disagreements: int = 0
    seconds: float = 0.0  # spent on checked queries
    feed_seconds: float = 0.0  # spent on feeding the reference
    examples: list[Disagreement] = field(default_factory=list)


class Checker:
    """Checker of about `share` of the queries of one replay of `total` requests, in about `seconds` at most."""

    def __init__(self, policy: str, share: float, seconds: float, total: int, seed: int) -> None:
        self.agreement = Agreement()
        self._policy = policy
        self._share = share
        self._seconds = seconds
        self._total = max(total, 1)
        self._random = random.Random(seed)

    def look(
        self,
        request: Request,
        query: Hashes,
        match: IndexMatch,
        timed: TimedIndex,
        engines: Sequence[SteppedEngine],
        own_names: bool,
    ) -> None:
        """Check `match`, the answer to `query` of `request`, if the request is in the sample.

        `own_names`: True if every engine has its own block hashes, while the request has the common ones.
        """
        if timed.shadow is None or self._random.random() >= self._share:
            return
        result = self.agreement
        result.sampled += 1
        if result.seconds > self._seconds * (request.number + 1) / self._total:
            return
        start = perf_counter()
        result.checked += 1
        reference = timed.shadow.find(content_hashes=query.tolist())
        got = match.scores()
        names = request.block_hashes[: len(query)]
        for number, engine in enumerate(engines):
            worker = engine.worker
            its_names = rename(np.array(names, dtype=np.uint64), number).tolist() if own_names else names
            true = engine.announced_depth(its_names)
            self._compare(request, worker, "engine", true, got.get(worker, 0), len(query))
        for oracle, theirs, ours in (
            ("reference", reference, match),
            ("reference, any tier", reference.any_tier, match.any_tier),
        ):
            expected, found = theirs.scores(), ours.scores()
            for worker in timed.watched:
                self._compare(request, worker, oracle, expected.get(worker, 0), found.get(worker, 0), len(query))
        result.seconds += perf_counter() - start

    def _compare(self, request: Request, worker: str, oracle: str, expected: int, got: int, blocks: int) -> None:
        if expected == got:
            return
        result = self.agreement
        result.disagreements += 1
        if len(result.examples) < _KEEP:
            result.examples.append(Disagreement(self._policy, request.number, worker, oracle, expected, got, blocks))
