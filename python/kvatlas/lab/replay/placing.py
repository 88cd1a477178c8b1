"""Who decides in a replay: one interface for routers and for bounds that know everything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kvatlas._hashes import Hashes
from kvatlas.lab.replay.measure import IndexMatch
from kvatlas.routing import Dispatched, Dispatcher, Prompt, find_policy
from kvatlas.sim.request import Request


class Placer(Protocol):
    """Picks an engine for each request, and is told what became of it. Times are virtual seconds."""

    name: str

    @property
    def uses_index(self) -> bool:
        """Whether `choose` weighs what the index says."""

    def choose(self, request: Request, query: Hashes, match: IndexMatch | None, now: float) -> int | None:
        """The number of the engine; None: the request waits in the router until `bound` gives it out."""

    def bound(self, now: float) -> Sequence[tuple[Request, int]]:
        """Requests that waited and go to an engine now."""

    def first_token(self, request: Request, now: float) -> None:
        """A request's prompt is computed."""

    def finished(self, request: Request, now: float) -> None:
        """A request's last token is out."""

    def failed(self, request: Request, now: float) -> None:
        """The engine died or refused the request; the same request may be given to `choose` again."""

    def joins(self, engine: int, now: float) -> None:
        """An engine that was not there takes requests from now on."""

    def leaves(self, engine: int, now: float) -> None:
        """An engine takes no more."""


class DispatcherPlacer:
    """The policies that a `Dispatcher` runs."""

    def __init__(self, name: str, workers: Sequence[str], block_size: int, seed: int) -> None:
        """Raises `PolicyError` if there is no such policy or it cannot be made."""
        self.name = name
        self._size = block_size
        self._router = Dispatcher(name, find_policy(name), workers, seed)
        self._sent: dict[int, Dispatched] = {}

    @property
    def uses_index(self) -> bool:
        return self._router.uses_index

    def choose(self, request: Request, query: Hashes, match: IndexMatch | None, now: float) -> int | None:
        assert match is not None
        sent = self._router.dispatch(Prompt(request.prompt_tokens, query, self._size), match)
        self._sent[request.number] = sent
        return sent.engine

    def bound(self, now: float) -> Sequence[tuple[Request, int]]:
        return ()

    def first_token(self, request: Request, now: float) -> None:
        self._router.first_token(self._sent[request.number])

    def finished(self, request: Request, now: float) -> None:
        self._router.finished(self._sent.pop(request.number))

    failed = finished

    def joins(self, engine: int, now: float) -> None:
        raise NotImplementedError

    def leaves(self, engine: int, now: float) -> None:
        raise NotImplementedError
