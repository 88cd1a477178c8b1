"""The load of the live benchmark, against an engine that answers at once or not."""

import asyncio
import threading

from benchmarks.live.load import ClientView, replay
from tests.support.engine import Engine, Talk, chunk, delta, event, head

from kvatlas.sim import TraceRequest
from kvatlas.sim.dependencies import Dependency

SPEED = 1_000.0


def line(name: int, at: int, *after: Dependency) -> TraceRequest:
    return TraceRequest(at, 100, 3, (name, name + 50), "s" if after else None, name, after)


async def drive(lines: list[TraceRequest]) -> tuple[ClientView, list[tuple[str, str | None]], int]:
    """Sends the requests; the first is answered late. Returns what came, and how many before that answer."""
    came: list[tuple[str, str | None]] = []
    answered = threading.Event()

    async def answer(talk: Talk) -> None:
        came.append((talk.request.json["messages"][0]["content"], talk.request.headers.get("x-session-id")))
        is_first = len(came) == 1
        while is_first and not answered.is_set():
            await asyncio.sleep(0.01)
        usage = {"prompt_tokens": 100, "prompt_tokens_details": {"cached_tokens": 40}}
        await talk.send(head("200 OK", "transfer-encoding: chunked", kind="text/event-stream"))
        await talk.send(chunk(event(delta("x")) + event({"choices": [], "usage": usage})) + b"0\r\n\r\n")

    with Engine(behaviour=answer) as engine:
        sending = asyncio.create_task(replay(engine.url, lines, SPEED, {}, block=64))
        while not came:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)  # far longer than the trace's own times
        before = len(came)
        answered.set()
        return await sending, came, before


def test_a_request_waits_for_the_answer_before_it() -> None:
    seen, came, before = asyncio.run(drive([line(1, 0), line(2, 10, Dependency(1, 5))]))
    assert before == 1  # the second did not come before the first one's answer
    assert [session for _, session in came] == [None, "s"]
    assert (seen.sent, len(seen.first_token), seen.failures) == (2, 2, {})
    assert seen.cached_tokens == 80


def test_requests_of_an_open_loop_come_at_their_times() -> None:
    _, came, before = asyncio.run(drive([line(1, 0), line(2, 10)]))
    assert before == 2
    assert came[0][0] != came[1][0]
    assert len(came[0][0]) == 100
