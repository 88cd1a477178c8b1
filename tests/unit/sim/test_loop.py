"""When the requests of a trace start, and what engines send themselves in a closed loop."""

import asyncio
import math
from typing import Any, cast

import pytest

from kvatlas.sim import TraceRequest
from kvatlas.sim.dependencies import Dependency
from kvatlas.sim.loop import Starts, groups
from kvatlas.sim.server import ServerConfig
from kvatlas.sim.server.engine import ServedEngine
from kvatlas.sim.server.traffic import Traffic, TrafficConfig
from kvatlas.sim.trace import Trace


def line(name: int, at: int, *after: Dependency) -> TraceRequest:
    return TraceRequest(at, 10 + name, 1, (name,), "s", name, after)


def test_a_request_starts_when_those_it_waits_for_have_ended_plus_its_pause() -> None:
    starts = Starts([line(0, 0), line(1, 9_000), line(2, 0, Dependency(0, 500), Dependency(1, on_start=True))], 3.0)
    assert (starts.next, starts.start(0.0)) == (0.0, 0)
    assert (starts.next, starts.start(3.0)) == (3.0, 1)
    assert starts.next == math.inf
    starts.ended(0, 4.0)
    assert (starts.next, starts.start(4.5)) == (4.5, 2)


def test_requests_that_wait_for_each_other_belong_together() -> None:
    lines = [line(0, 0), line(1, 0), line(2, 0, Dependency(0)), line(3, 0), line(4, 0, Dependency(3), Dependency(2))]
    assert groups(lines) == [[0, 2, 3, 4], [1]]


class Engine:
    """An engine whose requests end when the test says so."""

    config = ServerConfig()

    def __init__(self) -> None:
        self.sent: list[int] = []
        self.over = [asyncio.Event() for _ in range(9)]
        self.ranks = [self]
        self.load = 0

    def submit(self, prompt: list[int], output: int) -> tuple[Any, int]:
        assert output == 1
        self.sent.append(len(prompt) - 10)
        return self, self.sent[-1]

    async def finish(self, request: int) -> None:
        await self.over[request].wait()


async def until(engine: Engine, sent: list[int]) -> None:
    while engine.sent != sent:
        await asyncio.sleep(0)


@pytest.mark.parametrize("processes", [1, 2])
def test_a_turn_is_sent_when_those_it_waits_for_have_ended(processes: int) -> None:
    async def run() -> None:
        engines = [Engine(), Engine()]
        lines = [line(0, 0), line(1, 0), line(2, 0, Dependency(0)), line(3, 0, Dependency(2, on_start=True))]
        trace = Trace(lines, timed=False)
        shares = [[0, 1]] if processes == 1 else [[0], [1]]
        all_traffic = [
            Traffic(TrafficConfig(), {number: cast("ServedEngine", engines[number]) for number in share}, 2)
            for share in shares
        ]
        tasks = [asyncio.create_task(traffic.run(trace)) for traffic in all_traffic]
        # One session to each engine, however they are spread over processes.
        first, second = engines[1], engines[0]
        async with asyncio.timeout(30):
            await until(first, [0])
            await until(second, [1])
            for _ in range(20):
                await asyncio.sleep(0)
            assert first.sent == [0]
            first.over[0].set()
            await until(first, [0, 2, 3])
            # All is over: it begins again.
            for over in (*first.over, *second.over):
                over.set()
            while first.sent[3:6] != [0, 2, 3] or second.sent[1:2] != [1]:
                await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert sum(traffic.refused for traffic in all_traffic) == 0

    asyncio.run(run())
