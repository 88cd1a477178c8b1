"""A streamed request whose first byte takes unusually long goes to a second engine too, if that is asked for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.support.engine import MODEL, Engine, hang, reply, usual

from .running import MESSAGES, PLAIN, Router, wait_until

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


def test_only_streams_are_hedged(hedging: Router, engine: Engine, other: Engine) -> None:
    before = engine.asked() + other.asked()
    for _ in range(4):
        assert hedging.ask({"model": MODEL, "messages": MESSAGES}).status == 200
    assert engine.asked() + other.asked() == before + 4
