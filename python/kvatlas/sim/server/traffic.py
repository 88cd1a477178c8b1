"""Requests that engines generate themselves, to have events without a client."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import count
from typing import Any, Self

import numpy as np

from kvatlas._hashes import Hashes
from kvatlas.errors import KvatlasError
from kvatlas.sim.hashing import expand
from kvatlas.sim.loop import Starts, choose_loop, groups
from kvatlas.sim.server.core import ServedRequest
from kvatlas.sim.server.engine import ServedEngine
from kvatlas.sim.server.rank import Rank
from kvatlas.sim.trace import TRACE_BLOCK, Trace, TraceRequest, read_trace
from kvatlas.sim.workload import WorkloadConfig, generate

VOCABULARY = 32_000
_BEHIND = 0.5  # seconds
_MOST = 1_000  # requests that wait or run at a rank


@dataclass(frozen=True, slots=True)
class TrafficConfig:
    """Settings of requests that engines generate themselves: from a trace, or at a rate over the whole fleet.

    Both start over at their end. Requests go to the engines in turn, at the engines' own speed. In the closed loop, a
    request goes to the same engine as the requests that it depends on.
    """

    trace: str | None = None
    loop: str | None = None  # of the trace: "open" or "closed"; None: closed if its requests wait for each other
    limit: int | None = None  # number of the trace's first requests that are used
    unit: str | None = None  # of the times; None: milliseconds, if that is plausible
    skip_bad: bool = False
    request_rate: float | None = None
    seed: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Convert the configuration to plain data, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Create a configuration from the result of `as_dict`."""
        return cls(**data)

    def read(self) -> Trace | None:
        """Read the trace, if one is configured.

        Raises `TraceError`, and `ConfigError` if the trace does not fit the loop.
        """
        if self.trace is None:
            return None
        trace = read_trace(self.trace, limit=self.limit, skip_bad=self.skip_bad, unit=self.unit)
        choose_loop(trace, self.loop)
        return trace


def prompt_tokens(line: TraceRequest, block: int = TRACE_BLOCK) -> list[int]:
    """Generate the prompt tokens of a line of a trace, `block` tokens for each id: equal ids give equal tokens."""
    ids: Hashes = np.array(line.hash_ids, dtype=np.uint64)
    found = (expand(ids, block)[: line.input_length] % np.uint64(VOCABULARY)).tolist()
    # The last block, which may be partial, may have no id: like no other block, but engines do not cache it anyway.
    return [*found, *([0] * (line.input_length - len(found)))]


class Traffic:
    """Sender of the share of the requests that belongs to the engines of this process."""

    def __init__(self, config: TrafficConfig, engines: Mapping[int, ServedEngine], count: int) -> None:
        self.config = config
        self.engines = engines  # by their number among all `count`
        self.count = count
        self.sent = 0
        self.refused = 0

    async def run(self, trace: Trace | None) -> None:
        """Send requests until cancelled. `trace`: the result of `TrafficConfig.read`."""
        if trace is not None and choose_loop(trace, self.config.loop) == "closed":
            await self._run_closed(trace)
            return
        speed = next(iter(self.engines.values())).config.speed
        loop = asyncio.get_running_loop()
        due, number = loop.time(), 0
        block = trace.block if trace is not None else TRACE_BLOCK
        for make in self._rounds(trace):
            lines = await asyncio.to_thread(make)
            previous = lines[0].timestamp
            for line in lines:
                due += (line.timestamp - previous) / 1000 / speed
                previous = line.timestamp
                number += 1
                if (engine := self.engines.get(number % self.count)) is None:
                    continue
                # Engines always get time to run; requests that are too late are sent late, not faster.
                due = max(due, loop.time() - _BEHIND)
                await asyncio.sleep(max(due - loop.time(), 0))
                self._send(engine, line, block)
            # The next round begins one interval after the last request.
            due += max((previous - lines[0].timestamp) / 1000 / speed / len(lines), 0.01)

    def _rounds(self, trace: Trace | None) -> Iterator[Callable[[], Sequence[TraceRequest]]]:
        if trace is not None:
            requests = trace.requests
            while True:
                yield lambda: requests
        for seed in count(self.config.seed):
            yield functools.partial(_generated, self.config.request_rate or 1.0, seed)

    async def _run_closed(self, trace: Trace) -> None:
        """Replay a trace in the closed loop, again and again.

        A request starts a pause after those that it depends on.
        """
        own: dict[int, ServedEngine] = {}
        for turn, group in enumerate(groups(trace.requests)):
            if (engine := self.engines.get((turn + 1) % self.count)) is not None:
                own |= dict.fromkeys(group, engine)
        if not own:
            await asyncio.Event().wait()  # others have all of it
        numbers = sorted(own)
        lines = [trace.requests[number] for number in numbers]
        engines = [own[number] for number in numbers]
        while True:
            await self._round(Starts(lines), lines, engines, trace.block)

    async def _round(
        self, starts: Starts, lines: Sequence[TraceRequest], engines: Sequence[ServedEngine], block: int
    ) -> None:
        """Send each request of a closed loop once, and wait until all of them have ended."""
        speed, loop = engines[0].config.speed, asyncio.get_running_loop()
        begin = loop.time()
        ended, under_way = asyncio.Event(), set[int]()

        async def finish(number: int) -> None:
            sent = self._send(engines[number], lines[number], block)
            try:
                if sent is None:
                    await asyncio.sleep(_BEHIND)  # or a session would be over at once while its engine starts
                else:
                    with contextlib.suppress(KvatlasError):  # its engine ended: the traffic goes on
                        await sent[0].finish(sent[1])
            finally:
                starts.ended(number, (loop.time() - begin) * speed)
                under_way.discard(number)
                ended.set()

        async with asyncio.TaskGroup() as tasks:
            while under_way or starts.next < math.inf:
                now = (loop.time() - begin) * speed
                if starts.next <= now:
                    number = starts.start(now)
                    under_way.add(number)
                    tasks.create_task(finish(number))
                    await asyncio.sleep(0)
                    continue
                ended.clear()
                with contextlib.suppress(TimeoutError):
                    until = (starts.next - now) / speed if starts.next < math.inf else None
                    async with asyncio.timeout(until):
                        await ended.wait()

    def _send(self, engine: ServedEngine, line: TraceRequest, block: int) -> tuple[Rank, ServedRequest] | None:
        if sum(rank.load for rank in engine.ranks) < _MOST * len(engine.ranks):
            with contextlib.suppress(KvatlasError):  # too long, or just restarting: the traffic goes on
                sent = engine.submit(prompt_tokens(line, block), max(line.output_length, 1))
                self.sent += 1
                return sent
        self.refused += 1
        return None


def _generated(rate: float, seed: int) -> list[TraceRequest]:
    """Requests of the default workload, with times scaled to a mean rate of `rate` requests per second."""
    usual = WorkloadConfig(requests=2_000, seed=seed)
    stretch = usual.request_rate / rate
    return [replace(line, timestamp=round(line.timestamp * stretch)) for line in generate(usual).requests]
