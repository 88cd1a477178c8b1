"""Reasons why prompt tokens were computed rather than found in a cache."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from kvatlas.lab.replay.results import MissShares
from kvatlas.sim.request import Request, State
from kvatlas.sim.stepped import SteppedEngine
from kvatlas.sim.trace import TraceRequest


class Holdings:
    """Tokens of each prompt that an engine held at the prompt's arrival, and those that were being computed then."""

    def __init__(self, engines: Sequence[SteppedEngine], block_size: int) -> None:
        self._engines, self._size = engines, block_size
        self._held: dict[int, tuple[int, int]] = {}  # by request: tokens held, and those with what was on the way
        self._under_way: Counter[int] = Counter()  # blocks that requests without a first token compute
        self._open: list[tuple[Request, list[int]]] = []

    def look(self, request: Request) -> None:
        """Record the blocks of a request's prompt that engines hold at its arrival."""
        self._forget_answered()
        names = request.block_hashes[: (request.prompt_tokens - 1) // self._size]
        held = max(engine.usable(names)[0] for engine in self._engines)
        end = next((n for n in range(held, len(names)) if names[n] not in self._under_way), len(names))
        self._held[request.number] = held * self._size, end * self._size
        computes = request.block_hashes[held : request.prompt_tokens // self._size]
        self._under_way.update(computes)
        self._open.append((request, computes))

    def missed(
        self, requests: Sequence[TraceRequest], bound: Sequence[int], hits: Mapping[int, int]
    ) -> MissShares | None:
        """Summarize the answered requests; None if there are none.

        `bound`: tokens of each prompt that an infinite cache would hold. `hits`: cached tokens of each request on its
        engine at the start.
        """
        never = evicted = on_the_way = elsewhere = total = 0
        for number, hit in hits.items():
            held, coming = self._held.get(number, (0, 0))
            # What was still on the way as the request came may be there when it begins.
            best = max(held, hit)
            coming = max(coming, best)
            ever = max(bound[number], coming)
            total += requests[number].input_length
            never += requests[number].input_length - ever
            evicted += ever - coming
            on_the_way += coming - best
            elsewhere += best - hit
        return MissShares(never / total, evicted / total, on_the_way / total, elsewhere / total) if total else None

    def _forget_answered(self) -> None:
        still = []
        for request, names in self._open:
            if request.first_token is None and request.state is not State.REFUSED:
                still.append((request, names))
                continue
            for name in names:
                self._under_way[name] -= 1
                if not self._under_way[name]:
                    del self._under_way[name]
        self._open = still
