"""Simulated engine: vLLM's block pool with a simple model of time.

Times are virtual, in seconds. Prefill is one queue, first come first served: a prompt occupies it for `uncached tokens
/ prefill_rate`, in chunks of at most `chunk` tokens, so

    time to first token = wait in the queue + uncached tokens / prefill_rate.

Every running request then generates `decode_rate` tokens per second, independent of the others, and at most
`max_running` requests run at once. The model ignores the cost of batching and the effect of prefill on decoding: it is
good enough to compare routing policies, but does not predict the speed of a real machine.

The cache follows the rules of `Scheduler` and `BlockPool`. A chunk of prefill is a step: changes of the cache during a
step, including blocks that decoding fills, are announced when the step ends. Outside steps, each block that decoding
fills is announced at once.
"""

from __future__ import annotations

import heapq

from kvatlas.sim.events import Sink
from kvatlas.sim.offload import Offload
from kvatlas.sim.request import Request, State
from kvatlas.sim.scheduler import EngineConfig, Listener, Scheduler


class Engine(Scheduler):
    """Simulated engine, driven by `submit` and `run_until`, which announces changes of its cache to `sink`."""

    def __init__(
        self,
        worker: str,
        config: EngineConfig,
        sink: Sink,
        listener: Listener | None = None,
        offload: Offload | None = None,
    ) -> None:
        super().__init__(worker, config, sink, listener, offload=offload)
        self._prefilling: Request | None = None
        self._timers: list[tuple[float, int, int, Request]] = []  # time, order, generation, request
        self._order = 0

    def submit(self, request: Request, now: float) -> bool:
        """Queue a request at virtual time `now`, which must not be in the past.

        Returns False if the request is refused.
        """
        self.run_until(now)
        if not self._queue(request, now):
            return False
        self._admit(now)
        self._announce_between_chunks()
        return True

    def run_until(self, time: float) -> None:
        """Process everything that is due up to and including the virtual time `time`."""
        timers = self._timers
        while timers and timers[0][0] <= time:
            now, _, generation, request = heapq.heappop(timers)
            if generation != request.generation:
                continue
            if request is self._prefilling:
                self._chunk_done(request, now)
            elif request.state is State.LOADING:
                self._load_ends(request, now)
                self._admit(now)
            else:
                self._block_done(request, now)
            self._announce_between_chunks()

    @property
    def due(self) -> float | None:
        """Virtual time, in seconds, at which the engine next has something to do; None if it is idle."""
        timers = self._timers
        while timers and timers[0][2] != timers[0][3].generation:
            heapq.heappop(timers)
        return timers[0][0] if timers else None

    # Prefill

    def _admit(self, now: float) -> None:
        while self._prefilling is None and (request := self._admit_first(now)) is not None:
            self._prefilling = request
            self._start_chunk(request, now)

    def _start_chunk(self, request: Request, now: float) -> None:
        chunk = self.config.chunk or request.target
        end = min(request.computed + chunk, request.target)
        if not self._grow(request, -(-end // self.config.block_size), now):
            return
        self._store_full(request, end)
        tokens = end - request.computed
        self.counters.prefill_tokens += tokens
        request.since = now
        self._timer(request, now + tokens / self.config.prefill_rate)

    def _chunk_done(self, request: Request, now: float) -> None:
        self._announce()
        chunk = self.config.chunk or request.target
        request.computed = min(request.computed + chunk, request.target)
        if request.computed < request.target:
            self._start_chunk(request, now)
            return
        self._prefilling = None
        request.since = now
        self._is_prefilled(request, now)
        self._decode(request, now)
        self._admit(now)

    def _announce_between_chunks(self) -> None:
        if self._prefilling is None:
            self._announce()

    # Decode

    def _decode(self, request: Request, now: float) -> None:
        """Continue the decoding of a request until its next block is full, or until its last token."""
        left = request.cacheable_tokens - request.computed
        if left <= 0:
            self._finish(request, now)
            return
        size = self.config.block_size
        to_fill = size - request.computed % size
        if not self._grow(request, request.computed // size + 1, now):
            return
        self._timer(request, now + min(left, to_fill) / self.config.decode_rate)

    def _block_done(self, request: Request, now: float) -> None:
        size = self.config.block_size
        left = request.cacheable_tokens - request.computed
        request.computed += min(left, size - request.computed % size)
        request.since = now
        self._store_full(request, request.computed)
        self._decode(request, now)
        self._admit(now)

    def _interrupt(self, request: Request, now: float) -> None:
        if request.state is State.DECODE:
            # Whole tokens generated so far; the token that fills the block, or the last, comes with its own timer.
            size = self.config.block_size
            made = int((now - request.since) * self.config.decode_rate)
            left = request.cacheable_tokens - request.computed
            request.computed += min(made, left - 1, size - 1 - request.computed % size)
            request.target = request.computed + 1
        else:
            self._prefilling = None

    def _wake(self, request: Request, time: float) -> None:
        self._timer(request, time)

    def _timer(self, request: Request, time: float) -> None:
        self._order += 1
        heapq.heappush(self._timers, (time, self._order, request.generation, request))
