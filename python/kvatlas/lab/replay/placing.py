"""Who decides in a replay: the one interface behind which routers, and bounds that know everything, are the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kvatlas._hashes import Hashes
from kvatlas.lab.replay.measure import IndexMatch
from kvatlas.sim.request import Request


class Placer(Protocol):
    """Picks an engine for each request, and is told what became of it. Times are virtual seconds."""

    name: str

    @property
    def uses_index(self) -> bool:
        """Whether `choose` wants to know what the index says."""

    def choose(self, request: Request, query: Hashes, match: IndexMatch | None, now: float) -> int | None:
        """The number of the engine; None: the request waits in the router until `bound` gives it out."""

    def bound(self, now: float) -> Sequence[tuple[Request, int]]:
        """Requests that waited and go to an engine now."""

    def first_token(self, request: Request, now: float) -> None: ...

    def finished(self, request: Request, now: float) -> None: ...

    def failed(self, request: Request, now: float) -> None:
        """The engine died or refused the request; the same request may be given to `choose` again."""

    def joins(self, engine: int, now: float) -> None: ...

    def leaves(self, engine: int, now: float) -> None: ...
