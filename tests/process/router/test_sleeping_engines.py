"""Engines that sleep: they get nothing until they wake."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.engine import MODEL, Engine, reply

from .running import MESSAGES, PLAIN, Router, ask_by_command, wait_until
from .test_conditions import condition
from .test_waiting import ThreadedRequest

FLAGS = (*PLAIN, "--health-interval", "100ms", "--load-interval", "100ms")
CHAT = {"model": MODEL, "messages": MESSAGES}


def metrics(state: str) -> str:
    """vLLM's metrics of an engine in this state."""
    states = ("awake", "weights_offloaded", "discard_all")
    sleep = 'vllm:engine_sleep_state{engine="0",model_name="m",sleep_state="%s"} %d.0\n'
    return "# HELP vllm:engine_sleep_state\n" + "".join(sleep % (one, one == state) for one in states)


AWAKE: dict[str, Any] = {"/is_sleeping": {"is_sleeping": False}, "/metrics": metrics("awake")}
ASLEEP: dict[str, dict[str, Any]] = {
    "route": {"/is_sleeping": {"is_sleeping": True}},
    "level 1": {"/metrics": metrics("weights_offloaded")},
    "level 2": {"/metrics": metrics("discard_all")},
    "both": {"/is_sleeping": {"is_sleeping": True}, "/metrics": metrics("weights_offloaded")},
    "a route that is not open": {"/is_sleeping": 403, "/metrics": metrics("discard_all")},
}


def wake(engine: Engine) -> None:
    for path in ("/is_sleeping", "/metrics"):
        if path in engine.answers and engine.answers[path] != 403:
            engine.answers[path] = AWAKE[path]


def standing(router: Router) -> str:
    return str(router.workers()[0]["standing"])


@pytest.mark.parametrize("said", ASLEEP)
def test_an_engine_that_sleeps_gets_nothing_until_it_wakes(engine: Engine, other: Engine, said: str) -> None:
    engine.answers |= ASLEEP[said]
    with Router(engine, other, flags=FLAGS) as router:
        wait_until(lambda: standing(router) == "asleep", "it is seen to sleep")
        assert [router.ask().headers["x-kvatlas-worker"] for _ in range(4)] == ["e1"] * 4
        wait_until(lambda: condition(router).get("name") == "asleep", "that is its condition")
        assert condition(router)["runbook"].endswith("/asleep.md")
        assert router.metric("kvatlas_router_engine_standing", engine="e0", standing="asleep") == 1
        assert router.metric("kvatlas_router_engine_condition", engine="e0", condition="asleep") == 1
        assert "asleep" in ask_by_command(router, "top", "--once").stdout
        wake(engine)
        wait_until(lambda: standing(router) == "up", "it is awake")
        assert {router.ask().headers["x-kvatlas-worker"] for _ in range(4)} == {"e0", "e1"}
        engine.answers |= ASLEEP[said]
        wait_until(lambda: standing(router) == "asleep", "it sleeps again")


@pytest.mark.parametrize(
    "answer",
    [
        401,
        403,
        404,
        500,
        503,
        "<html><body>is_sleeping: true</body></html>",
        {"is_sleeping": "true"},
        reply("200 OK", b""),
        {"detail": "Not Found"},
    ],
)
def test_an_answer_that_does_not_say_so_is_no_sleep(engine: Engine, answer: Any) -> None:
    engine.answers |= {"/is_sleeping": answer, "/metrics": answer}
    with Router(engine, flags=FLAGS) as router:
        wait_until(lambda: engine.times("/is_sleeping") > 0, "it was asked")
        asked = engine.times("/health")
        wait_until(lambda: engine.times("/health") > asked + 1, "the answer is known")
        assert standing(router) == "up"
        assert router.ask().status == 200


def test_when_all_engines_sleep_requests_wait_for_one_to_wake(engine: Engine, other: Engine) -> None:
    engine.answers |= ASLEEP["route"]
    other.answers |= ASLEEP["level 1"]
    with Router(engine, other, flags=(*FLAGS, "--wait-for-engine", "60s"), ready=False) as router:
        wait_until(lambda: {row["standing"] for row in router.workers()} == {"asleep"}, "both sleep")
        assert router.get("/ready")[0] == 503
        waiting = [ThreadedRequest(router, CHAT) for _ in range(3)]
        wait_until(lambda: router.metric("kvatlas_router_queue_for_engine") == 3, "they wait")
        wake(other)
        assert [one.result().headers["x-kvatlas-worker"] for one in waiting] == ["e1"] * 3
        assert engine.asked() == 0


@pytest.mark.parametrize("patience", ["0", "300ms"])
def test_a_request_that_finds_all_asleep_is_told_so(engine: Engine, patience: str) -> None:
    engine.answers |= ASLEEP["both"]
    with Router(engine, flags=(*FLAGS, "--wait-for-engine", patience), ready=False) as router:
        wait_until(lambda: standing(router) == "asleep", "it sleeps")
        answer = router.ask()
        assert (answer.status, answer.error["code"]) == (503, "engines_asleep")
        assert "e0 is asleep" in answer.error["message"]
        assert int(answer.headers["retry-after"]) >= 1
        assert engine.asked() == 0
