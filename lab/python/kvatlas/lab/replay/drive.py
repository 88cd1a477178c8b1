"""Driver of a replay: requests, engines, announcements and a router, on one virtual clock."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial

from kvatlas._hashes import Hashes
from kvatlas.lab.replay.delivery import Delivery
from kvatlas.lab.replay.measure import IndexMatch
from kvatlas.lab.replay.misbehaviour import RETRIES, Misbehaviour
from kvatlas.lab.replay.placing import Placer
from kvatlas.lab.replay.scenario import Scenario, Trouble
from kvatlas.lab.replay.trouble import SLOW
from kvatlas.sim.gaps import Gaps
from kvatlas.sim.hardware import StepTime
from kvatlas.sim.offload import Offload
from kvatlas.sim.pool import BlockPool
from kvatlas.sim.request import Request, State
from kvatlas.sim.scheduler import EngineConfig
from kvatlas.sim.stepped import SteppedEngine
from kvatlas.sim.tiers import SharedPool, TierConfig

Change = Callable[[int, float], None]  # with the engine's number and the time
Find = Callable[[Hashes], IndexMatch]
Look = Callable[[Request, Hashes, IndexMatch], None]

STUCK = 3_600.0  # seconds of virtual time after which a request that a router keeps is a mistake


@dataclass(frozen=True, slots=True)
class Limits:
    """Latency limits, in seconds, within which a request counts as served well.

    Attributes:
        ttft: Maximum time to the first token of a request.
        between: Maximum mean time between the tokens of a request.
    """

    ttft: float = 4.0
    between: float = 0.1


@dataclass(slots=True)
class Waits:
    """Parts of the time to first token of a request, in seconds.

    Attributes:
        router: Until the request was sent to the engine that answered.
        queue: In the engine's queue, behind other requests.
        room: In the engine's queue, while the first request there could not start because of too few free blocks or too
            many running requests.
        load: While blocks of the prompt were loaded or pulled.
        compute: From the start of the prompt's computation to the first token.
    """

    router: float = 0.0
    queue: float = 0.0
    room: float = 0.0
    load: float = 0.0
    compute: float = 0.0

    def over(self, requests: int) -> Waits:
        """Mean of each part over `requests` requests, from their sums."""
        count = max(requests, 1)
        return Waits(*(getattr(self, f.name) / count for f in fields(self)))


@dataclass(slots=True)
class Outcome:
    """Outcome of the requests of one replay. Times are in virtual seconds."""

    requests: int = 0  # arrived requests
    ends: dict[int, float] = field(default_factory=dict)  # when each request got its last token, by number
    hits: dict[int, int] = field(default_factory=dict)  # tokens that each found cached, by number
    refused: int = 0  # too large for any engine, or failed at as many engines as a router asks
    waited: int = 0  # held back in the router for a while
    longest_wait: float = 0.0  # in the router, of those that were
    retried: int = 0  # sent again as their engine died or answered with an error
    ttft: list[float] = field(default_factory=list)  # from coming to the router, in the order of the first tokens
    waits: Waits = field(default_factory=Waits)  # summed over the requests with a first token
    good: int = 0  # within both limits
    last_arrival: float = 0.0
    end: float = 0.0  # the last token


@dataclass(slots=True)
class _Life:
    """State of a request that the router has accepted."""

    request: Request
    query: Hashes
    arrived: float
    engine: int = -1
    asked: float = 0.0  # when the router was asked last: again after it has failed
    waited: float = 0.0  # in the router, before each engine that it was sent to
    sent: float = 0.0
    first: float = -1.0  # when its first token was seen, on whichever engine
    failed: frozenset[int] = frozenset()  # engines that have answered it with an error


class Drive:
    """Driver of one replay. Call `arrive` for each request in the order of time, then `drain`."""

    def __init__(
        self,
        workers: Sequence[str],
        config: EngineConfig,
        steps: StepTime,
        scenario: Scenario,
        placer: Placer,
        delivery: Delivery,
        find: Find | None,
        limits: Limits | None = None,
        pool: BlockPool | None = None,
        prepare: Callable[[Request, int], None] | None = None,
        tiers: TierConfig | None = None,
        store: SharedPool | None = None,
    ) -> None:
        """Create a replay.

        `find` queries the index; None if no policy uses it. `pool` is one cache for all engines; None for a cache of
        each engine. `tiers`: tiers behind each engine's own cache. `store`: pool that all engines share behind these.
        `prepare` is called with a request and its engine's number before the request is sent.
        """
        tiers, size = tiers or TierConfig(), config.block_size
        self.placer = placer
        self.outcome = Outcome()
        self.engines = [
            SteppedEngine(
                name,
                replace(config, max_running=scenario.limits.get(n, config.max_running)),
                steps.slower(scenario.slow.get(n, 1.0)),
                delivery,
                self,
                pool,
                Offload(name, size, tiers, delivery, store) if tiers.host_tokens or store is not None else None,
            )
            for n, name in enumerate(workers)
        ]
        self.limits = limits or Limits()
        self._delivery, self._find, self._prepare, self._pool = delivery, find, prepare, pool
        self._scenario = scenario
        self._heap: list[tuple[float, int]] = []  # when an engine is due; entries that are no longer true are skipped
        self._late: list[
            tuple[float, int, int]
        ] = []  # when a request reaches its engine's queue: its number, the engine's
        self._lives: dict[int, _Life] = {}
        self._aside: dict[int, Callable[[], None]] = {}  # what is called at the end of requests that no client sent
        self._freed = False
        self._now = 0.0
        self.ended: Callable[[int, float], None] | None = None  # at each request's end: number, time
        self._trouble = Misbehaviour()
        self._avoided: frozenset[int] = frozenset()  # what waiting requests know of that
        self._steps = [engine.steps for engine in self.engines]
        self._changes: list[tuple[float, int, Change]] = [
            *((at, n, self._joins) for n, at in scenario.joins.items()),
            *((at, n, self._dies) for n, at in scenario.dies.items()),
        ]
        for trouble in scenario.troubles:
            self._changes.append((trouble.begin, trouble.engine, partial(self._begins, trouble)))
            self._changes.append((trouble.end, trouble.engine, partial(self._ends, trouble)))
        self._changes.sort(key=lambda change: change[:2])
        for n in scenario.joins:
            placer.leaves(n, 0.0)

    # What engines tell

    def first_token(self, request: Request) -> None:
        """Record that the prompt of a request is computed."""
        if request.number in self._aside:
            return
        now, life = self._now, self._lives[request.number]
        self.placer.first_token(request, now)
        self._trouble.note_answer(life.engine)
        self._freed = True
        if life.first < 0:
            life.first = now
            self.outcome.ttft.append(now - life.arrived)
            waits, admitted = self.outcome.waits, now if request.admitted is None else request.admitted
            waits.router += life.sent - life.arrived
            waits.queue += admitted - life.sent - request.room
            waits.room += request.room
            waits.load += request.loading
            waits.compute += now - admitted - request.loading

    def finished(self, request: Request) -> None:
        """Record that the last token of a request is generated."""
        if (ended := self._aside.pop(request.number, None)) is not None:
            ended()
            return
        now, outcome, limits = self._now, self.outcome, self.limits
        self.placer.finished(request, now)
        self._freed = True
        life = self._lives.pop(request.number)
        outcome.end = max(outcome.end, now)
        outcome.ends[request.number] = now
        outcome.hits[request.number] = request.hit_tokens
        gaps = max(request.output_tokens - 1, 1)
        if life.first - life.arrived <= limits.ttft and (now - life.first) / gaps <= limits.between:
            outcome.good += 1
        if self.ended is not None:
            self.ended(request.number, now)

    # The loop

    def arrive(self, request: Request, query: Hashes, now: float, look: Look | None = None) -> None:
        """Process the arrival of a request at the router at virtual time `now`, after everything that is due before.

        `query`: the content hashes of the prompt. `look` is called with the answer of the index.
        """
        self.run_until(now)
        self.outcome.requests += 1
        self.outcome.last_arrival = now
        life = self._lives[request.number] = _Life(request, query, now)
        self._choose(life, now, look)

    def ask(self, request: Request, engine: int, now: float, ended: Callable[[], None]) -> None:
        """Send an engine a request that no client sent; its number must differ from theirs. It counts in no figure."""
        self._aside[request.number] = ended
        if self._trouble.refuses(engine) or not self.engines[engine].submit(request, now):
            del self._aside[request.number]
            ended()
        else:
            self._wake(engine)

    def run_until(self, time: float) -> None:
        """Advance the virtual clock to `time`, and process everything that is due up to it."""
        heap, engines = self._heap, self.engines
        while True:
            due = heap[0][0] if heap else math.inf
            change = self._changes[0][0] if self._changes else math.inf
            late = self._late[0][0] if self._late else math.inf
            now = min(due, change, late)
            if now > time or now == math.inf:
                break
            self._at(now)
            free = self._pool.free if self._pool is not None else 0
            if change <= now:
                _, n, happens = self._changes.pop(0)
                happens(n, now)
            elif late <= now:
                _, number, n = heapq.heappop(self._late)
                self._submit(self._lives[number].request, n, now)
            else:
                _, n = heapq.heappop(heap)
                engine = engines[n]
                if engine.due != due:
                    continue
                engine.run_until(due)
                if engine.due is not None:
                    heapq.heappush(heap, (engine.due, n))
            if self._pool is not None and (self._freed or self._pool.free > free):
                self._share_room(now)
            if self._freed:
                self._freed = False
                self._bind(now)
        if time < math.inf:
            self._at(time)

    @property
    def now(self) -> float:
        """Virtual time of the replay, in seconds."""
        return self._now

    @property
    def open(self) -> int:
        """Number of requests that have not ended."""
        return len(self._lives)

    def next_due(self) -> float:
        """Virtual time at which something is due next; infinite if nothing is."""
        due = self._heap[0][0] if self._heap else math.inf
        change = self._changes[0][0] if self._changes else math.inf
        return min(due, change, self._late[0][0] if self._late else math.inf)

    def wait_a_second(self) -> None:
        """Advance the virtual clock by one second without arrivals.

        The router may hold requests for some time.
        """
        self._at(self._now + 1.0)
        self._bind(self._now)

    def drain(self) -> None:
        """Advance the virtual clock until all requests have ended."""
        self.run_until(math.inf)
        idle = 0.0
        while self._lives:
            # All engines are idle and the router still holds requests: it may wait for a time.
            idle += 1.0
            self.wait_a_second()
            self.run_until(math.inf)
            if idle > STUCK:
                raise RuntimeError(f"{self.placer.name} keeps {len(self._lives)} requests though all engines are idle")

    def gaps(self) -> Gaps:
        """Histogram of the times between tokens of all requests."""
        every = Gaps()
        for engine in self.engines:
            every.merge(engine.gaps)
        return every

    def _share_room(self, now: float) -> None:
        """Have every engine check its queue again, because another engine may have freed blocks of the shared pool."""
        for n, engine in enumerate(self.engines):
            due = engine.due
            engine.look_for_room(now)
            if engine.due is not None and engine.due != due:
                heapq.heappush(self._heap, (engine.due, n))

    def _at(self, now: float) -> None:
        self._now = max(self._now, now)
        self._delivery.now = self._now

    def _without(self, life: _Life, now: float) -> frozenset[int]:
        """Engines excluded for a request: those that failed it before, and those that the router avoids."""
        without = self._trouble.avoided(self.engines, now) | life.failed
        return without if len(without) < len(self.engines) else life.failed

    def _choose(self, life: _Life, now: float, look: Look | None = None) -> None:
        placer, request, life.asked = self.placer, life.request, now
        match = None
        if self._find is not None:
            self._delivery.run_until(now)
            match = self._find(life.query)
            if look is not None:
                look(request, life.query, match)
        placer.observe(self._trouble.reports(self.engines), now)
        self._tell_who_waits(now)
        engine = placer.choose(request, life.query, match, now, without=self._without(life, now), waited=life.waited)
        if engine is None:
            self.outcome.waited += 1
            self._bind(now)
        else:
            self._send(life, engine, now)

    def _tell_who_waits(self, now: float) -> None:
        """Update the excluded engines of waiting requests if the set of avoided engines has changed."""
        avoided = self._trouble.avoided(self.engines, now)
        if avoided != self._avoided:
            self._avoided = avoided
            for request in self.placer.waiting:
                self.placer.avoid(request, self._without(self._lives[request.number], now))

    def _bind(self, now: float) -> None:
        self._tell_who_waits(now)
        for request, engine in self.placer.bound(now):
            life = self._lives[request.number]
            life.waited += now - life.asked
            self.outcome.longest_wait = max(self.outcome.longest_wait, life.waited)
            self._send(life, engine, now)

    def _send(self, life: _Life, n: int, now: float) -> None:
        request = life.request
        life.engine, life.sent = n, now
        if self._prepare is not None:
            self._prepare(request, n)
        if late := self._scenario.lateness(request.number):
            heapq.heappush(self._late, (now + late, request.number, n))
        else:
            self._submit(request, n, now)

    def _submit(self, request: Request, n: int, now: float) -> None:
        engine = self.engines[n]
        if self._trouble.refuses(n):
            self._fails(request, n, now)
        elif not engine.submit(request, now):
            self.placer.failed(request, now)
            self._refuse(request, now)
        else:
            self._wake(n)

    def _wake(self, n: int) -> None:
        due = self.engines[n].due
        if due is not None:
            heapq.heappush(self._heap, (due, n))

    def _refuse(self, request: Request, now: float) -> None:
        self.outcome.refused += 1
        del self._lives[request.number]
        if self.ended is not None:
            self.ended(request.number, now)

    def _fails(self, request: Request, n: int, now: float) -> None:
        """Fail a request at once, as an engine that answers with an error does."""
        self.placer.failed(request, now)
        self._trouble.note_failure(n, now)
        self._freed = True
        life = self._lives[request.number]
        life.failed |= {n}
        if len(life.failed) > RETRIES or len(life.failed) == len(self.engines):
            self._refuse(request, now)
        else:
            self.outcome.retried += 1
            self._choose(life, now)

    # What happens to engines

    def _joins(self, n: int, now: float) -> None:
        self.placer.joins(n, now)
        self._freed = True

    def _dies(self, n: int, now: float) -> None:
        self.placer.leaves(n, now)
        if (offload := self.engines[n].offload) is not None:
            offload.refuses = True
        self._lose(n, self.engines[n].die(now), now)

    def _lose(self, n: int, lost: list[Request], now: float) -> None:
        """Remove an engine from the fleet, and send its unfinished requests again."""
        for request in lost:
            if (ended := self._aside.pop(request.number, None)) is not None:
                ended()
        lost = [request for request in lost if request.number in self._lives]
        lost += [self._lives[number].request for _, number, other in sorted(self._late) if other == n]
        self._late = sorted(each for each in self._late if each[2] != n)
        self._delivery.gone(self.engines[n].worker)
        for request in lost:
            self.placer.failed(request, now)
        for request in lost:
            self.outcome.retried += 1
            life = self._lives[request.number]
            _again(request)
            self._choose(life, now)

    def _begins(self, trouble: Trouble, n: int, now: float) -> None:
        engine = self.engines[n]
        self._trouble.begin(trouble, engine)
        offload = engine.offload
        if trouble.kind == "mute" and offload is not None:
            offload.frozen_until = trouble.end
        elif trouble.kind == "stops":
            engine.hang(now, trouble.end)
        elif trouble.kind == "slow":
            engine.set_speed(self._steps[n].slower(SLOW), now)
        elif trouble.kind == "restarts":
            self._lose(n, engine.restart(now), now)
            if offload is not None:
                offload.refuses = True
        self._wake(n)

    def _ends(self, trouble: Trouble, n: int, now: float) -> None:
        self._trouble.end(trouble)
        if trouble.kind == "slow":
            self.engines[n].set_speed(self._steps[n], now)
        elif trouble.kind == "sleeps":
            self.engines[n].forget()
        elif trouble.kind == "restarts" and (offload := self.engines[n].offload) is not None:
            offload.refuses = False
        self._freed = True
        self._wake(n)


def _again(request: Request) -> None:
    """Reset a request whose engine has left the fleet: its computed blocks are lost."""
    request.state, request.first_token, request.preempted = State.WAITING, None, 0
    request.blocks, request.stored, request.computed = [], 0, 0
    request.admitted, request.room, request.load, request.loading = None, 0.0, None, 0.0
