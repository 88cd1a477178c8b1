"""A streamed request whose first byte takes unusually long goes to a second engine too, if that is asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from tests.support.engine import MODEL, Engine, Talk, hang, reply, usual

from .running import MESSAGES, PLAIN, Router, in_threads, wait_until

STREAMED = {"model": MODEL, "messages": MESSAGES, "stream": True}


@pytest.fixture
def hedging(engine: Engine, other: Engine) -> Iterator[Router]:
    """A router that has seen enough first tokens to know which ones are late."""
    with Router(engine, other, flags=(*PLAIN, "--hedge-after", "0.9", "--retries", "0")) as router:
        for _ in range(110):
            assert router.ask(STREAMED).status == 200
        yield router


def test_the_answer_that_comes_first_is_the_answer(hedging: Router, engine: Engine, other: Engine) -> None:
    engine.behaviour = hang
    before = engine.asked(), other.asked()
    for _ in range(4):
        answer = hedging.ask(STREAMED)
        assert answer.status == 200
        assert answer.events[-1] == b"[DONE]"
    hedged = "kvatlas_router_hedged_requests_total"
    assert hedging.metric(hedged, outcome="won") >= 2 - hedging.metric(hedged, outcome="left_out")
    assert engine.asked() > before[0]
    assert other.asked() >= before[1] + 4
    # What was cancelled is at no engine any more.
    wait_until(lambda: hedging.metric("kvatlas_router_engine_requests_in_flight") == 0, "none is left")


def test_what_fails_at_the_second_engine_waits_for_the_first(hedging: Router, engine: Engine, other: Engine) -> None:
    other.behaviour = reply("500 Internal Server Error", {"error": {"message": "no"}})
    statuses = {hedging.ask(STREAMED).status for _ in range(4)}
    assert 200 in statuses
    engine.behaviour = other.behaviour = usual
    assert hedging.ask(STREAMED).status == 200


def test_five_in_a_hundred_are_sent_twice_and_more_when_they_are_over(
    hedging: Router, engine: Engine, other: Engine
) -> None:
    hedged = "kvatlas_router_hedged_requests_total"
    for round_ in (1, 2):
        slow = asyncio.Event()

        async def late(talk: Talk, slow: asyncio.Event = slow) -> None:
            await slow.wait()
            await usual(talk)

        engine.behaviour = other.behaviour = late
        before = engine.asked() + other.asked()
        left_out = hedging.metric(hedged, outcome="left_out")
        statuses: list[int] = []

        def ask(_number: int, told: list[int] = statuses) -> None:
            told.append(hedging.ask(STREAMED).status)

        with in_threads(100, ask) as errors:
            most = left_out + 95
            wait_until(lambda most=most: hedging.metric(hedged, outcome="left_out") >= most, "all are late")  # type: ignore[misc]
            assert 100 < engine.asked() + other.asked() - before <= 105, f"round {round_}"
            engine._loop.call_soon_threadsafe(slow.set)
        assert (errors, statuses) == ([], [200] * 100)
        wait_until(lambda: hedging.metric("kvatlas_router_engine_requests_in_flight") == 0, "none is left")
    engine.behaviour = hang
    other.behaviour = usual
    for _ in range(4):
        assert hedging.ask(STREAMED).status == 200, "hedging goes on"


def test_only_streams_are_hedged(hedging: Router, engine: Engine, other: Engine) -> None:
    before = engine.asked() + other.asked()
    for _ in range(4):
        assert hedging.ask({"model": MODEL, "messages": MESSAGES}).status == 200
    assert engine.asked() + other.asked() == before + 4
