"""Comments and pings that engines send to keep a connection open: they show that an engine lives, and are no answer."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from tests.support.engine import MODEL, Behaviour, Engine, Talk, chunk, delta, event, hang, head, usual

from .conftest import QUICK
from .running import MESSAGES, PLAIN, Router, wait_until

STREAMED = {"model": MODEL, "messages": MESSAGES, "stream": True}
BEGINS = head("200 OK", "transfer-encoding: chunked", kind="text/event-stream")
PING = b'event: ping\ndata: {"type": "ping"}\n\n'
WELL = event(delta("well")) + event(delta("", "stop")) + event(b"[DONE]")

KEPT_OPEN = {
    "comment": b": ping\n\n",
    "without-a-text": b":\n\n",
    "crlf": b": ping\r\n\r\n",
    "one-line": b": ping\n",
    "empty-lines": b"\n\n",
    "retry": b"retry: 3000\n\n",
    "id": b"id: 1\n\n",
    "no-data": b"data:\n\n",
    "ping": PING,
    "ping-without-a-name": b'data: {"type": "ping"}\n\n',
    "ping-by-name": b"event: ping\ndata: {}\n\n",
    "keepalive": b'event: keepalive\ndata: {"type": "keepalive", "sequence_number": 3}\n\n',
    "half-a-comment": b": pi",
}


def keeps_open(data: bytes, *first: bytes, kind: str = "text/event-stream") -> Behaviour:
    """Sends this again and again, after the first pieces."""

    async def act(talk: Talk) -> None:
        await talk.send(head("200 OK", "transfer-encoding: chunked", kind=kind))
        for piece in first:
            await talk.send(chunk(piece))
        gone = asyncio.ensure_future(hang(talk))
        while not gone.done():
            await talk.send(chunk(data))
            await asyncio.sleep(0.02)

    return act


def then(data: bytes, last: Behaviour) -> Behaviour:
    """Sends this, and something else after a while."""

    async def act(talk: Talk) -> None:
        await talk.send(BEGINS + chunk(data))
        await asyncio.sleep(0.05)
        await last(talk)

    return act


async def die(talk: Talk) -> None:
    talk.abort()


async def end(talk: Talk) -> None:
    await talk.send(b"0\r\n\r\n")


async def fail(talk: Talk) -> None:
    await talk.send(chunk(event({"error": {"message": "x"}})) + b"0\r\n\r\n")


async def answer_well(talk: Talk) -> None:
    await talk.send(chunk(WELL) + b"0\r\n\r\n")


@pytest.mark.parametrize("last", [die, end, fail])
@pytest.mark.parametrize("name", KEPT_OPEN)
def test_what_fails_after_a_comment_goes_to_another_engine(
    router: Router, engine: Engine, other: Engine, name: str, last: Behaviour
) -> None:
    engine.behaviour = then(KEPT_OPEN[name], last)
    for _ in range(2):
        answer = router.ask(STREAMED)
        assert (answer.status, answer.broken) == (200, False)
        assert answer.events[-1] == b"[DONE]"
        assert b"error" not in answer.body
    assert router.metric("kvatlas_router_retries_total") == engine.asked() >= 1


@pytest.mark.parametrize("limit", ["--first-byte-timeout", "--stall-timeout"])
@pytest.mark.parametrize("name", ["comment", "ping", "retry", "half-a-comment"])
def test_an_engine_that_sends_nothing_else_is_given_up(engine: Engine, other: Engine, name: str, limit: str) -> None:
    engine.behaviour = keeps_open(KEPT_OPEN[name])
    with Router(engine, other, flags=(*QUICK, limit, "1s")) as router:
        answers = [router.ask(STREAMED) for _ in range(2)]
        assert [answer.events[-1] for answer in answers] == [b"[DONE]"] * 2
        reason = "stalled" if limit == "--stall-timeout" else "first_byte_timeout"
        assert router.metric("kvatlas_router_engine_faults_total", reason=reason) == engine.asked() >= 1
        wait_until(lambda: len(engine.given_up) == engine.asked(), "the engine's requests are cancelled")
        other.behaviour = engine.behaviour
        answer = router.ask(STREAMED)
        assert (answer.status, answer.error["code"]) == (504, "engine_timeout")


def test_white_space_is_no_answer_either(engine: Engine, other: Engine) -> None:
    engine.behaviour = keeps_open(b"\n", kind="application/json")
    with Router(engine, other, flags=(*QUICK, "--first-byte-timeout", "1s")) as router:
        assert [router.ask().json["choices"][0]["message"]["content"] for _ in range(2)] == ["ok"] * 2
        assert router.metric("kvatlas_router_engine_faults_total", reason="first_byte_timeout") == engine.asked() >= 1


@pytest.mark.parametrize("name", ["comment", "ping", "empty-lines", "no-data"])
def test_a_stream_that_goes_on_with_comments_only_has_stalled(engine: Engine, name: str) -> None:
    engine.behaviour = keeps_open(KEPT_OPEN[name], event(delta("a")))
    with Router(engine, flags=(*PLAIN, "--stall-timeout", "1s")) as router:
        answer = router.ask(STREAMED)
        last = [one for one in answer.events if one.startswith(b"{") and one != b'{"type": "ping"}'][-1]
        assert "stopped sending" in json.loads(last)["error"]["message"]
        assert router.metric("kvatlas_router_engine_faults_total", reason="stalled") == 1
        wait_until(lambda: len(engine.given_up) == 1, "the engine's request is cancelled")


def test_an_engine_that_sends_comments_is_not_silent(engine: Engine) -> None:
    engine.behaviour = keeps_open(KEPT_OPEN["comment"])
    with Router(engine, flags=(*QUICK, "--health-silence", "1s")) as router:
        made = router.connect()
        body = json.dumps(STREAMED).encode()
        made.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: %d\r\n\r\n" % len(body) + body
        )
        wait_until(lambda: router.metric("kvatlas_router_engine_requests_waiting") == 1, "it is at the engine")
        standings: set[Any] = set()
        asyncio.run(_look(router, standings))
        assert standings == {"up"}
        assert router.metric("kvatlas_router_engine_requests_waiting") == 1, "nothing of the answer has come"
        made.close()


async def _look(router: Router, standings: set[Any]) -> None:
    for _ in range(30):
        standings.add(router.workers()[0]["standing"])
        await asyncio.sleep(0.1)


@pytest.mark.parametrize("name", KEPT_OPEN)
def test_comments_reach_the_client_with_the_answer_that_they_belong_to(
    router: Router, engine: Engine, other: Engine, name: str
) -> None:
    data = KEPT_OPEN[name] + (b"ng\n\n" if name == "half-a-comment" else b"")
    engine.behaviour = other.behaviour = then(data, answer_well)
    assert router.ask({**STREAMED, "stream_options": {"include_usage": True}}).body == data + WELL
    # A client that has not asked for usage gets the same.
    assert router.ask(STREAMED).body == data + WELL


@pytest.mark.parametrize("length", [False, True])
def test_comments_without_end_are_bounded(router: Router, engine: Engine, other: Engine, length: bool) -> None:
    comments = b": " + b"x" * 1000 + b"\n\n"

    async def act(talk: Talk) -> None:
        body = comments * 1000 + WELL
        if length:
            await talk.send(head("200 OK", f"content-length: {len(body)}", kind="text/event-stream") + body)
        else:
            await talk.send(BEGINS + chunk(body) + b"0\r\n\r\n")

    engine.behaviour = other.behaviour = act
    answer = router.ask(STREAMED)
    assert answer.body.endswith(WELL)
    assert not answer.broken
    assert answer.body.count(b"\n\n") <= 1003


def test_a_comment_does_not_end_hedging(engine: Engine, other: Engine) -> None:
    with Router(engine, other, flags=(*PLAIN, "--hedge-after", "0.9", "--retries", "0")) as router:
        for _ in range(110):
            assert router.ask(STREAMED).status == 200
        engine.behaviour = keeps_open(KEPT_OPEN["comment"])
        for _ in range(4):
            assert router.ask(STREAMED).events[-1] == b"[DONE]"
        hedged = "kvatlas_router_hedged_requests_total"
        assert router.metric(hedged, outcome="won") >= 2 - router.metric(hedged, outcome="left_out")
        wait_until(lambda: len(engine.given_up) >= 2, "what was hedged is cancelled there")
        engine.behaviour = usual
