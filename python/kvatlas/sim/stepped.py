"""Simulated engine that works in steps, as real ones do: each computes parts of prompts and decodes all requests.

Times are virtual, in seconds. In one step every decoding request gets one token, and the rest of the `chunk` tokens
goes to prompts, first come first served: the partly computed prompt first, then new ones. `StepTime` gives the duration
of a step. So a prompt delays the requests behind it and slows all decoding requests, which is the effect that routing
influences.

Between two changes (a request arrives, a prompt is done, a block is full, an answer ends) decoding steps differ only in
their context, which grows by one token for each request. This sequence of steps (a run) is computed at once, as the
sum of an arithmetic series.

The cache follows the rules of `Scheduler` and `BlockPool`. Changes of a step are announced when the step ends.
"""

from __future__ import annotations

import heapq
import math
from collections import deque

from kvatlas.sim.events import Sink
from kvatlas.sim.gaps import Gaps
from kvatlas.sim.hardware import StepTime
from kvatlas.sim.offload import Offload
from kvatlas.sim.pool import BlockPool
from kvatlas.sim.request import Request, State
from kvatlas.sim.scheduler import EngineConfig, Listener, Scheduler


class SteppedEngine(Scheduler):
    """Simulated engine that computes prompts and decodes requests in steps.

    `submit` and `run_until` drive the engine; it announces changes of its cache to `sink`. `chunk` of the configuration
    is the maximum number of tokens in a step; the configured rates are not used.
    """

    def __init__(
        self,
        worker: str,
        config: EngineConfig,
        steps: StepTime,
        sink: Sink,
        listener: Listener | None = None,
        pool: BlockPool | None = None,
        offload: Offload | None = None,
    ) -> None:
        """Create an engine. `pool`: a shared cache; None for a new cache. `offload`: tiers behind the cache."""
        super().__init__(worker, config, sink, listener, pool, offload)
        self.steps = steps
        self.gaps = Gaps()
        self.decoding = 0  # requests that get a token in each step
        self.context = 0  # their tokens with KV
        self.busy = 0.0  # seconds of steps with prompts in them
        self.due: float | None = None  # when what runs now is done; None: idle
        self._awake = -math.inf  # until when it does nothing
        self._partial: Request | None = None  # a prompt that has begun
        self._step = 0  # steps done: all decoding requests have had a token in each since they began
        # Steps in which decoding requests fill a block or end: number of the step, order, generation, request.
        self._agenda: list[tuple[int, int, int, Request]] = []
        self._order = 0
        self._full: list[Request] = []  # need another block before the next step
        self._prompts: list[tuple[Request, int]] = []  # in the step that runs, and how many tokens of each
        self._began = 0.0
        self._loads: list[tuple[float, int, int, Request]] = []  # loads: time of the end, order, generation, request
        self._count = 0  # steps that run now; if it is 0 and `due` is set, the engine waits for a load
        self._first = self._growth = 0.0  # seconds of the first of them, and how much more each next one takes

    # Driving it

    def submit(self, request: Request, now: float) -> bool:
        """Queue a request at virtual time `now`, which must not be in the past.

        Returns False if the request is refused.
        """
        self.run_until(now)
        if not self._queue(request, now):
            return False
        self._look(now)
        return True

    def run_until(self, time: float) -> None:
        """Process everything that is due up to and including the virtual time `time`."""
        while self.due is not None and self.due <= time:
            now = self.due
            self._done(now)
            self._plan(now)

    def look_for_room(self, now: float) -> None:
        """Check the queue again, because another engine that shares the cache may have released blocks."""
        if self.waiting:
            self._look(now)

    def _look(self, now: float) -> None:
        """Schedule a check of the queue for the end of the current step."""
        if self._count == 0:
            self._plan(now)
        elif self._count > 1:
            self._stop_after(now)

    def die(self, now: float) -> list[Request]:
        """Stop the engine for good, as if its process died.

        Returns the unfinished requests, in the order of their arrival.
        """
        self.run_until(now)
        lost = [*self.running, *self.loading, *self.waiting]
        for request in [*self.loading]:
            self._drop_load(request)
        lost.sort(key=lambda request: (request.arrival, request.number))
        for request in lost:
            if request.state is State.DECODE:
                self._catch_up(request)
            request.generation += 1
            self.pool.release(request.blocks)  # the pool may be others' too
            request.blocks = []
        self._loads = []
        if self.offload is not None:
            self.offload.clear()
        self.running, self.waiting, self.due, self._partial = [], deque(), None, None
        self.decoding = self.context = self._count = 0
        self._prompts, self._full, self._agenda, self._unsent = [], [], [], []
        self._blocked_since = None
        return lost

    def restart(self, now: float) -> list[Request]:
        """Restart the engine with an empty cache. Returns the unfinished requests, in the order of their arrival."""
        lost = self.die(now)
        self.forget()
        return lost

    def forget(self) -> bool:
        """Clear the cache and host memory, and announce the reset.

        Returns False, and does nothing, while requests hold blocks.
        """
        if not self.pool.reset():
            return False
        if self.offload is not None:
            self.offload.clear()
        self._sink.clear(self.worker)
        return True

    def set_speed(self, steps: StepTime, now: float) -> None:
        """Replace the constants of the duration of steps, from the next step on."""
        self.run_until(now)
        self.steps = steps
        if self.due is not None and self._count > 1:
            self._stop_after(now)

    def hang(self, now: float, until: float) -> None:
        """Pause the engine from virtual time `now` to `until`; then it continues with its running requests."""
        self.run_until(now)
        self._awake = until
        if self.offload is not None:
            self.offload.frozen_until = until
        if self.due is not None and self._count == 0:
            self.due = max(self.due, until)
        elif self.due is not None:
            self._began += until - now
            self.due += until - now

    @property
    def begun_tokens(self) -> int:
        """Number of tokens still to be computed of the partly computed prompt; 0 if no prompt is partly computed."""
        begun = self._partial
        return begun.target - begun.computed if begun is not None else 0

    # A run of steps

    def _stop_after(self, now: float) -> None:
        """Shorten the planned run of steps so that it ends with the step in progress at time `now`."""
        passed, g = max(now - self._began, 0.0), self._growth
        first = self._first - g / 2
        # The number of steps, n, that take `passed` seconds: first·n + g·n²/2 = passed.
        n = (math.sqrt(first * first + 2 * g * passed) - first) / g if g > 0 else passed / self._first
        self._count = max(1, min(self._count, math.ceil(n - 1e-9)))
        self.due = self._began + self._length(self._count)

    def _length(self, count: int) -> float:
        return count * self._first + self._growth * (count * (count - 1) / 2)

    def _plan(self, now: float) -> None:
        """Plan the next run of steps (a sequence that is computed at once) from time `now` on."""
        now = max(now, self._awake)
        while self._loads and (self._loads[0][0] <= now or self._loads[0][2] != self._loads[0][3].generation):
            _, _, generation, loaded = heapq.heappop(self._loads)
            if generation == loaded.generation:
                self._load_ends(loaded, now)
        self._began = now
        preempted = self._extend(now)
        self._prompts = prompts = []
        size, limit = self.config.block_size, self.config.chunk
        left = limit - self.decoding if limit is not None else 1 << 60
        tokens = read = 0
        pairs = 0.0
        # At least one token of a prompt, or decoding could keep prompts out for ever.
        left = max(left, 1)
        while left > 0:
            request = self._partial
            if request is None:
                request = None if preempted else self._admit_first(now)
                if request is None:
                    break
                self._partial = request
            some = min(left, request.target - request.computed)
            end = request.computed + some
            before = self.counters.preemptions
            if not self._grow(request, -(-end // size), now):
                break  # it was preempted itself
            preempted = preempted or self.counters.preemptions > before
            self._store_full(request, end)
            prompts.append((request, some))
            tokens += some
            read += request.computed
            pairs += some * (request.computed + some / 2)
            left -= some
            if end == request.target:
                self._partial = None
        self.counters.prefill_tokens += tokens
        steps = self.steps
        if prompts:
            self._count, self._growth = 1, 0.0
            self._first = steps.of(tokens, self.decoding + len(prompts), self.context + read, pairs)
            self.busy += self._first
        elif self.decoding:
            agenda = self._agenda
            while agenda[0][2] != agenda[0][3].generation:
                heapq.heappop(agenda)
            self._count = agenda[0][0] - self._step
            self._first = steps.of(0, self.decoding, self.context)
            self._growth = steps.context * self.decoding
        else:
            self._count, self.due = 0, self._loads[0][0] if self._loads else None
            return
        self.due = now + self._length(self._count)
        if self._count > 1 and self._loads and self._loads[0][0] < self.due:
            self._stop_after(self._loads[0][0])

    def _done(self, now: float) -> None:
        """Complete the planned run of steps at time `now`."""
        count = self._count
        if self.decoding:
            self.gaps.add_rising(self._first, self._growth, count, self.decoding)
            self.context += count * self.decoding
        self._step += count
        agenda, size = self._agenda, self.config.block_size
        while agenda and agenda[0][0] <= self._step:
            _, _, generation, request = heapq.heappop(agenda)
            if generation != request.generation:
                continue
            self._catch_up(request)
            self._store_full(request, request.computed)
            if request.computed >= request.cacheable_tokens:
                self.decoding -= 1
                self.context -= request.computed
                self._finish(request, now)
            elif request.computed % size == 0:
                self._full.append(request)
            else:
                self._next(request)
        for request, some in self._prompts:
            request.computed += some
            if request.computed == request.target:
                self._prefilled(request, now)
        self._prompts = []
        self._announce()

    def _wake(self, request: Request, time: float) -> None:
        self._order += 1
        heapq.heappush(self._loads, (time, self._order, request.generation, request))

    # Prompts

    def _prefilled(self, request: Request, now: float) -> None:
        if not self._is_prefilled(request, now):
            self.gaps.add(now - request.since)  # it waited for this token since it was pushed out
        if request.computed >= request.cacheable_tokens:
            self._finish(request, now)
            return
        self.decoding += 1
        self.context += request.computed
        request.since_step = self._step
        if request.computed % self.config.block_size == 0:
            self._full.append(request)
        else:
            self._next(request)

    # Decoding

    def _next(self, request: Request) -> None:
        """Schedule the step in which a decoding request fills its block or ends."""
        size = self.config.block_size
        steps = min(request.cacheable_tokens - request.computed, size - request.computed % size)
        self._order += 1
        heapq.heappush(self._agenda, (self._step + steps, self._order, request.generation, request))

    def _catch_up(self, request: Request) -> None:
        """Add the tokens that a decoding request has generated since the last call."""
        request.computed += self._step - request.since_step
        request.since_step = self._step

    # Blocks

    def _extend(self, now: float) -> bool:
        """Give each decoding request with a full last block a new one. Returns True if this preempted a request."""
        before = self.counters.preemptions
        full, self._full = self._full, []
        for request in full:
            if request.state is State.DECODE and self._grow(request, len(request.blocks) + 1, now):
                self._next(request)
        return self.counters.preemptions > before

    def _interrupt(self, request: Request, now: float) -> None:
        if request.state is State.DECODE:
            self._catch_up(request)
            self.decoding -= 1
            self.context -= request.computed
            request.target = request.computed + 1
            request.since = now
        elif request is self._partial:
            self._partial = None
        # A planned step no longer computes the preempted request's prompt.
        kept = [(other, some) for other, some in self._prompts if other is not request]
        self._prompts[:] = kept
