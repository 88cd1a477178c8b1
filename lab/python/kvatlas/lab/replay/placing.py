"""Common interface of routers, and bounds with full knowledge, that place requests on engines in a replay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from kvatlas._hashes import Hashes
from kvatlas.errors import PolicyError
from kvatlas.lab.replay.blind import Guess
from kvatlas.lab.replay.measure import IndexMatch
from kvatlas.lab.replay.misbehaviour import EngineReport
from kvatlas.lab.replay.tiers import FixedPulls, TierView, WarmUps
from kvatlas.routing import Decision, Router
from kvatlas.sim.request import Request
from kvatlas.sim.stepped import SteppedEngine

# Requests are never given up on their way. In the router's own queue, requests wait as long as in `kvatlas router`.
_PATIENT = {"first_token_timeout": 1e6, "idle_timeout": 1e6}

REPORT_EVERY = 0.05
"""Minimum seconds between two readings of the engines' reports, as in llm-d's router."""

TELL_EVERY = 0.05
"""Minimum seconds between two messages from a router to another, as in `kvatlas router --peer`."""


class Placer(Protocol):
    """Chooser of an engine for each request, which is notified of the request's progress. Times are virtual seconds."""

    name: str

    @property
    def uses_index(self) -> bool:
        """True if `choose` uses the answer of the index."""

    def choose(
        self,
        request: Request,
        query: Hashes,
        match: IndexMatch | None,
        now: float,
        *,
        without: frozenset[int] = frozenset(),
        waited: float = 0.0,
    ) -> int | None:
        """Choose the number of an engine; None if the request waits in the router until `bound` returns it.

        `without`: numbers of engines that are excluded. `waited`: seconds that the request has waited in the router
        before.
        """

    @property
    def waiting(self) -> Sequence[Request]:
        """Requests that wait in the router."""

    def avoid(self, request: Request, without: frozenset[int]) -> None:
        """Set the numbers of the engines that are excluded for a waiting request."""

    def bound(self, now: float) -> Sequence[tuple[Request, int]]:
        """Remove and return the waiting requests that can now be sent, each with the number of its engine."""

    def first_token(self, request: Request, now: float) -> None:
        """Record that the prompt of a request is computed."""

    def finished(self, request: Request, now: float) -> None:
        """Record that the last token of a request is generated."""

    def failed(self, request: Request, now: float) -> None:
        """Record that the engine died or refused the request, which may be passed to `choose` again."""

    def observe(self, engines: Sequence[SteppedEngine | EngineReport], now: float) -> None:
        """Read the engines' reports about themselves, as in their metrics."""

    def joins(self, engine: int, now: float) -> None:
        """Add an engine, which can get requests from now on."""

    def leaves(self, engine: int, now: float) -> None:
        """Remove an engine, which gets no more requests."""


class RouterPlacer:
    """Placer that uses a `kvatlas.routing.Router` with any of its policies."""

    def __init__(
        self,
        policy: str,
        workers: Sequence[str],
        block_size: int,
        seed: int,
        options: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
        guess: Guess | None = None,
        *,
        label: str | None = None,
        fixed_pulls: FixedPulls | None = None,
    ) -> None:
        """Create a placer. Raises `PolicyError`, `ConfigError`.

        `guess` replaces the index in a replay without events. `label`: name in results; by default the policy's.
        `fixed_pulls`: a rule that chooses the blocks to pull, once the policy has chosen the engine.
        """
        self.name = label or policy
        self._workers = list(workers)
        self._numbers = {name: number for number, name in enumerate(workers)}
        self._router = Router(
            policy,
            (),
            block_size=block_size,
            seed=seed,
            options=options,
            settings={**_PATIENT, **(settings or {})},
            clock=lambda: 0.0,
        )
        for name in workers:
            self._router.add_worker(name, now=0.0)
        self._block_size = block_size
        self._guess = guess
        self._fixed_pulls = fixed_pulls
        self._view: TierView | None = None  # of the engines' tiers
        self._plans = False  # whether the policy decides on loads and pulls
        self._warm_ups: WarmUps | None = None
        self._sent: dict[int, Decision] = {}
        self._away: set[int] = set()
        self._observed = -REPORT_EVERY
        self._waiting: dict[int, Request] = {}

    @property
    def uses_index(self) -> bool:
        return self._router.uses_index

    def use_tiers(self, view: TierView) -> None:
        """Give the policy access to the blocks that engines can load.

        Only the policy of kvatlas plans loads; other policies leave them to the engines.
        """
        self._view = view
        self._plans = self.name.partition(" ")[0] == "kvatlas"
        for number in range(len(self._workers)):
            if number not in self._away:
                self._let_pull(number)

    def _let_pull(self, engine: int) -> None:
        """Let an engine pull from the others, if engines pull and the policy plans it."""
        if self._plans and self._view is not None and self._view.tiers.pulls:
            self._router.set_pulls(self._workers[engine], group="all")

    def warm_up(self, warm_ups: WarmUps) -> None:
        """Let requests that pass warm up engines that are empty."""
        self._warm_ups = warm_ups

    def choose(
        self,
        request: Request,
        query: Hashes,
        match: IndexMatch | None,
        now: float,
        *,
        without: frozenset[int] = frozenset(),
        waited: float = 0.0,
    ) -> int | None:
        found: Any = match
        if self._guess is not None:
            found = self._guessed(request, now)
        loadable = None
        if self._view is not None and self._plans:
            for name in self._view.answering(now):
                if self._numbers[name] not in self._away:
                    self._router.heard(name, now=now)
            loadable = self._view.find(query)
        decision = self._router.choose(
            content_hashes=query,
            prompt_tokens=request.prompt_tokens,
            match=found,
            loadable=loadable,
            session=request.session,
            allowed=self._allowed(without),
            waited=waited,
            now=now,
        )
        self._sent[request.number] = decision
        if decision.waits:
            self._waiting[request.number] = request
            return None
        return self._goes(request, decision, now)

    @property
    def waiting(self) -> Sequence[Request]:
        return list(self._waiting.values())

    def avoid(self, request: Request, without: frozenset[int]) -> None:
        self._sent[request.number].allow(self._allowed(without))

    def _allowed(self, without: frozenset[int]) -> list[str] | None:
        return [name for n, name in enumerate(self._workers) if n not in without] if without else None

    def bound(self, now: float) -> Sequence[tuple[Request, int]]:
        if not self._waiting:
            return ()
        self._router.bind(self._view.find_all if self._view is not None and self._plans else None, now=now)
        placed = [request for number, request in self._waiting.items() if not self._sent[number].waits]
        for request in placed:
            del self._waiting[request.number]
        return [(request, self._goes(request, self._sent[request.number], now)) for request in placed]

    def first_token(self, request: Request, now: float) -> None:
        self._sent[request.number].first_token(now=now)

    def finished(self, request: Request, now: float) -> None:
        """Record the end of a request (see `Placer`). As in reality, the router gets the usage that engines report."""
        decision = self._sent.pop(request.number)
        if self._view is not None and self._plans:
            query = request.content_hashes[: request.prompt_tokens // self._block_size]
            expected = decision.load_tokens and decision.cached_tokens
            self._view.lose(query, request.hit_tokens, expected, self._block_size)
        decision.finish(cached_tokens=request.hit_tokens, output_tokens=request.output_tokens, now=now)
        if self._guess is not None:
            self._guess.ended(request, now)

    def failed(self, request: Request, now: float) -> None:
        self._sent.pop(request.number).failed(now=now)
        if self._guess is not None:
            self._guess.ended(request, now)

    def observe(self, engines: Sequence[SteppedEngine | EngineReport], now: float) -> None:
        if now < self._observed + REPORT_EVERY:
            return
        self._observed = now
        for number, engine in enumerate(engines):
            if number not in self._away:
                size = engine.pool.size
                self._router.report(
                    self._workers[number],
                    waiting=len(engine.waiting),
                    running=len(engine.running),
                    kv_usage=1.0 - engine.pool.free / size,
                    capacity_blocks=size,
                    held_blocks=engine.pool.cached,
                    now=now,
                )

    def joins(self, engine: int, now: float) -> None:
        self._away.discard(engine)
        self._router.add_worker(self._workers[engine], now=now)
        self._let_pull(engine)

    def leaves(self, engine: int, now: float) -> None:
        self._away.add(engine)
        self._router.remove_worker(self._workers[engine], now=now)
        if self._warm_ups is not None:
            self._warm_ups.forget(engine)
        if self._guess is not None:
            self._guess.forget(engine)

    def tell(self, other: RouterPlacer, now: float) -> None:
        """Report this router's requests in progress to another router."""
        self._router.tell(other._router, now=now)

    def _goes(self, request: Request, decision: Decision, now: float) -> int:
        if decision.worker is None:
            raise PolicyError(f"policy {self.name!r} refused request {request.number}: {decision.refused}")
        engine = self._numbers[decision.worker]
        if self._view is not None and self._fixed_pulls is not None:
            self._fixed_pulls.apply(request, engine, self._view)
        elif self._view is not None and self._plans:
            self._order(request, decision, self._view)
            if self._warm_ups is not None:
                self._warm_ups.look(request, engine, self._away, now)
        if self._guess is not None:
            self._guess.sent(request, request.block_hashes[: request.prompt_tokens // self._block_size], engine, now)
        return engine

    def _order(self, request: Request, decision: Decision, view: TierView) -> None:
        """Write the planned loads and pulls into the request, as a router's `kv_transfer_params` do."""
        request.max_load, request.pull, request.pull_blocks = decision.max_load_tokens, None, 0
        if decision.pull_source is not None:
            request.pull = view.source(self._numbers[decision.pull_source[0]])
            request.pull_blocks = decision.cached_tokens // self._block_size

    def _guessed(self, request: Request, now: float) -> dict[str, int]:
        if self._guess is None:
            return {}
        names = request.block_hashes[: request.prompt_tokens // self._block_size]
        return {self._workers[engine]: depth for engine, depth in self._guess.depths(names, now).items()}


class RoutersPlacer:
    """Placer of several routers, which take requests in turn and report their requests in progress to each other."""

    def __init__(self, routers: Sequence[RouterPlacer]) -> None:
        self.name = routers[0].name
        self.routers = list(routers)
        self._told = 0.0

    @property
    def uses_index(self) -> bool:
        return self.routers[0].uses_index

    def choose(
        self,
        request: Request,
        query: Hashes,
        match: IndexMatch | None,
        now: float,
        *,
        without: frozenset[int] = frozenset(),
        waited: float = 0.0,
    ) -> int | None:
        self._tell(now)
        return self._of(request).choose(request, query, match, now, without=without, waited=waited)

    @property
    def waiting(self) -> Sequence[Request]:
        return [request for router in self.routers for request in router.waiting]

    def avoid(self, request: Request, without: frozenset[int]) -> None:
        self._of(request).avoid(request, without)

    def bound(self, now: float) -> Sequence[tuple[Request, int]]:
        self._tell(now)
        return [placed for router in self.routers for placed in router.bound(now)]

    def first_token(self, request: Request, now: float) -> None:
        self._of(request).first_token(request, now)

    def finished(self, request: Request, now: float) -> None:
        self._of(request).finished(request, now)

    def failed(self, request: Request, now: float) -> None:
        self._of(request).failed(request, now)

    def observe(self, engines: Sequence[SteppedEngine | EngineReport], now: float) -> None:
        for router in self.routers:
            router.observe(engines, now)

    def joins(self, engine: int, now: float) -> None:
        for router in self.routers:
            router.joins(engine, now)

    def leaves(self, engine: int, now: float) -> None:
        for router in self.routers:
            router.leaves(engine, now)

    def _of(self, request: Request) -> RouterPlacer:
        return self.routers[request.number % len(self.routers)]

    def _tell(self, now: float) -> None:
        if now < self._told + TELL_EVERY:
            return
        self._told = now
        for router in self.routers:
            for other in self.routers:
                if other is not router:
                    router.tell(other, now)
