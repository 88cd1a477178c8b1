"""The load of the live benchmark, against an engine that answers at once or not."""

import asyncio
import json

from aiohttp import web
from benchmarks.live.load import ClientView, replay

from kvatlas.sim import TraceRequest
from kvatlas.sim.dependencies import Dependency

SPEED = 1_000.0


def line(name: int, at: int, *after: Dependency) -> TraceRequest:
    return TraceRequest(at, 100, 3, (name, name + 50), "s" if after else None, name, after)


async def drive(lines: list[TraceRequest], answered: asyncio.Event) -> tuple[ClientView, list[tuple[str, str | None]]]:
    came: list[tuple[str, str | None]] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        came.append((body["messages"][0]["content"], request.headers.get("x-session-id")))
        if len(came) == 1:
            await answered.wait()
        response = web.StreamResponse()
        await response.prepare(request)
        piece = {"choices": [{"delta": {"content": "x"}}]}
        usage = {"choices": [], "usage": {"prompt_tokens": 100, "prompt_tokens_details": {"cached_tokens": 40}}}
        for each in (piece, usage):
            await response.write(f"data: {json.dumps(each)}\n\n".encode())
        return response

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert site._server is not None
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
    sending = asyncio.create_task(replay(f"http://127.0.0.1:{port}", lines, SPEED, {}, block=64))
    while not came:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.3)  # far longer than the trace's own times
    before = len(came)
    answered.set()
    seen = await sending
    await runner.cleanup()
    came.append((str(before), None))
    return seen, came


def test_a_request_waits_for_the_answer_before_it() -> None:
    async def run() -> tuple[ClientView, list[tuple[str, str | None]]]:
        return await drive([line(1, 0), line(2, 10, Dependency(1, 5))], asyncio.Event())

    seen, came = asyncio.run(run())
    assert came.pop()[0] == "1"  # the second did not come before the first one's answer
    assert [session for _, session in came] == [None, "s"]
    assert (seen.sent, len(seen.first_token), seen.failures) == (2, 2, {})
    assert seen.cached_tokens == 80


def test_requests_of_an_open_loop_come_at_their_times() -> None:
    async def run() -> tuple[ClientView, list[tuple[str, str | None]]]:
        return await drive([line(1, 0), line(2, 10)], asyncio.Event())

    _, came = asyncio.run(run())
    assert came.pop()[0] == "2"
    assert came[0][0] != came[1][0]
    assert len(came[0][0]) == 100
