"""Engines that work and do not say how they are: late is not dead."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import os
import signal
import threading
import time
from collections.abc import Callable

import pytest
from tests.support.engine import (
    MODEL,
    Behaviour,
    Engine,
    Talk,
    chunk,
    delta,
    event,
    hang,
    reply,
    sglang,
    stream,
    usual,
)

from kvatlas.sim.server import Fleet, ServerConfig

from .running import MESSAGES, PLAIN, Router, in_threads, wait_until
from .test_conditions import condition
from .test_waiting import ThreadedRequest

# Without comments, a stream begins with the engine's own answer.
CHECKS = ("--health-interval", "100ms", "--health-timeout", "300ms", "--load-interval", "100ms")
FLAGS = (*PLAIN, *CHECKS, "--comment-after", "0")
LONG = 3.0
"""Seconds that a prompt is computed for: ten time-outs of a health check."""
CHAT = {"model": MODEL, "messages": MESSAGES}
OK = reply("200 OK", b"")


class Scheduler:
    """An engine that says how it is only when it has nothing to compute."""

    def __init__(self, engine: Engine) -> None:
        self.computing = 0
        self.released = threading.Event()
        self._engine = engine
        engine.behaviour = self.generate

    async def generate(self, talk: Talk) -> None:
        self.computing += 1
        gone = asyncio.ensure_future(talk.gone())
        while not self.released.is_set() and not gone.done():
            await asyncio.sleep(0.01)
        self.computing -= 1
        if gone.done():
            self._engine.given_up.append(time.monotonic())
        else:
            gone.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await gone
            await usual(talk)

    def free(self, then: Behaviour = OK, *, sooner: float = 600.0, instead: Behaviour = OK) -> Behaviour:
        """An answer when nothing is computed, or another one after some seconds."""

        async def act(talk: Talk) -> None:
            until = time.monotonic() + sooner
            while self.computing:
                if time.monotonic() > until:
                    await instead(talk)
                    return
                await asyncio.sleep(0.01)
            await then(talk)

        return act


async def closes(talk: Talk) -> None:
    talk.writer.close()


def as_sglang(engine: Engine, scheduler: Scheduler) -> None:
    engine.answers |= {"/server_info": sglang(), "/ping": 200, "/health": scheduler.free()}


def as_unknown(engine: Engine, scheduler: Scheduler) -> None:
    engine.answers["/health"] = scheduler.free()


def as_late_503(engine: Engine, scheduler: Scheduler) -> None:
    """SGLang says so when its scheduler has put nothing out for 20 s."""
    engine.answers["/health"] = scheduler.free(sooner=0.6, instead=reply("503 Service Unavailable", b""))


def as_closing(engine: Engine, scheduler: Scheduler) -> None:
    engine.answers["/health"] = scheduler.free(sooner=0.6, instead=closes)


def as_blocked(engine: Engine, scheduler: Scheduler) -> None:
    """The whole process of the engine has no time for others."""
    about = {
        "/health": 200,
        "/metrics": "",
        "/version": {"version": "0.33.0"},
        "/v1/models": engine.answers["/v1/models"],
    }
    for path, said in about.items():
        then = said if callable(said) else OK if isinstance(said, int) else reply("200 OK", said)
        engine.answers[path] = scheduler.free(then)


@pytest.mark.parametrize("kind", [as_sglang, as_unknown, as_late_503, as_closing, as_blocked])
@pytest.mark.parametrize("streams", [True, False], ids=["streamed", "whole"])
def test_a_prompt_that_is_computed_for_long_is_left_alone(
    engine: Engine, other: Engine, kind: Callable[[Engine, Scheduler], None], streams: bool
) -> None:
    scheduler = Scheduler(engine)
    kind(engine, scheduler)
    with Router(engine, other, flags=FLAGS) as router:
        other.behaviour = hang
        asked = []
        while scheduler.computing == 0:  # round-robin may begin at the other one
            asked.append(ThreadedRequest(router, CHAT | {"stream": streams}))
            wait_until(lambda: engine.asked() + other.asked() == len(asked), "one of them has it")
        other.behaviour = usual
        long = asked[-1]
        wait_until(lambda: router.workers()[0]["standing"] == "busy", "it is busy")
        wait_until(lambda: condition(router).get("name") == "busy", "that is its condition")
        about = condition(router)
        assert "GET /health" in about["reason"]
        assert about["runbook"].endswith("/busy.md")
        assert router.metric("kvatlas_router_engine_standing", engine="e0", standing="busy") == 1
        before = other.asked()
        answers = [router.ask() for _ in range(4)]
        assert {answer.headers["x-kvatlas-worker"] for answer in answers} == {"e1"}, "new ones go elsewhere"
        time.sleep(LONG)
        assert router.workers()[0]["standing"] == "busy"
        scheduler.released.set()
        answer = long.result()
        assert (answer.status, answer.headers["x-kvatlas-worker"]) == (200, "e0")
        assert (engine.asked(), other.asked() - before, engine.given_up) == (1, 4, [])
        assert router.metric("kvatlas_router_engine_faults_total", engine="e0") == 0
        wait_until(lambda: router.workers()[0]["standing"] == "up", "it is up again")
        assert "the engine is down" not in router.log


def test_the_only_engine_takes_requests_while_it_is_busy(engine: Engine) -> None:
    scheduler = Scheduler(engine)
    as_sglang(engine, scheduler)
    with Router(engine, flags=FLAGS) as router:
        first = ThreadedRequest(router, CHAT)
        wait_until(lambda: router.workers()[0]["standing"] == "busy", "it is busy")
        second = ThreadedRequest(router, CHAT)
        wait_until(lambda: scheduler.computing == 2, "it has both")
        assert router.get("/ready")[0] == 200
        scheduler.released.set()
        assert [first.result().status, second.result().status] == [200, 200]
        assert engine.asked() == 2


def test_streams_that_flow_show_that_an_engine_lives(engine: Engine) -> None:
    """Nothing but its streams comes, for longer than an engine may be silent."""
    done = threading.Event()

    async def flows(talk: Talk) -> None:
        await stream(100_000, pause=0.05)(talk)

    with Router(engine, flags=FLAGS) as router:
        for path in ("/health", "/metrics", "/version", "/v1/models"):
            engine.answers[path] = hang
        engine.behaviour = flows
        answer = router.open()
        engine.behaviour = hang

        def open_second() -> None:
            with contextlib.suppress(http.client.HTTPException, OSError):  # at the end the router leaves
                router.open()
                done.set()

        late = threading.Thread(target=open_second, daemon=True)
        late.start()
        wait_until(lambda: engine.asked() == 2, "both are there")
        wait_until(lambda: router.workers()[0]["standing"] == "busy", "it is busy")
        end = time.monotonic() + 14.0  # an engine from which nothing came would be dead after 10 s
        while time.monotonic() < end:
            assert answer.readline()
        assert router.workers()[0]["standing"] == "busy"
        assert not done.is_set()
        assert engine.asked() == 2


def test_an_engine_whose_answers_flow_takes_requests_though_its_health_checks_are_late(
    engine: Engine, other: Engine
) -> None:
    flowing = threading.Event()
    flowing.set()

    async def go_on(talk: Talk) -> None:
        while True:
            if flowing.is_set():
                await talk.send(chunk(event(delta("more "))))
            await asyncio.sleep(0.02)

    def asked_engines(router: Router) -> set[str]:
        return {router.ask().headers["x-kvatlas-worker"] for _ in range(4)}

    engine.behaviour = stream(1, after=go_on)
    with Router(engine, other, flags=FLAGS) as router:
        answers = []
        while engine.asked() == 0:  # round-robin may begin at the other one
            answers.append(router.open())
            wait_until(lambda: engine.asked() + other.asked() == len(answers), "one of them has it")
        engine.behaviour = usual
        engine.answers["/health"] = hang
        wait_until(lambda: router.workers()[0]["standing"] == "busy", "its health check is late")
        assert asked_engines(router) == {"e0", "e1"}
        flowing.clear()
        time.sleep(1.0)  # three time-outs of a health check
        assert asked_engines(router) == {"e1"}, "nothing comes from it any more"
        assert router.workers()[0]["standing"] == "busy"
        flowing.set()
        wait_until(lambda: asked_engines(router) == {"e0", "e1"}, "its answer goes on")


def test_an_engine_without_work_that_says_nothing_is_down(engine: Engine, other: Engine) -> None:
    with Router(engine, other, flags=FLAGS) as router:
        answers = dict(engine.answers)
        for path in ("/health", "/metrics", "/version"):
            engine.answers[path] = hang
        wait_until(lambda: router.workers()[0]["standing"] == "down", "it is down")
        wait_until(lambda: "is not answered within" in condition(router).get("reason", ""), "it says why")
        before = engine.asked()
        assert [router.ask().status for _ in range(4)] == [200] * 4
        assert engine.asked() == before
        engine.answers = answers
        wait_until(lambda: router.workers()[0]["standing"] == "up", "it is up again")


def test_an_engine_that_always_answers_late_is_up_once_that_is_known(engine: Engine) -> None:
    async def late(talk: Talk) -> None:
        await asyncio.sleep(1.0)
        await OK(talk)

    engine.answers["/health"] = late
    with Router(engine, flags=FLAGS, ready=False) as router:
        wait_until(
            lambda: router.log.count("the engine is well again") == 1 or router.get("/ready")[0] == 200, "it answered"
        )
        downs = router.log.count("the engine is down")
        asked = engine.times("/health")
        wait_until(lambda: engine.times("/health") > asked + 3, "it was asked again")
        assert router.log.count("the engine is down") == downs, "it needs so long"
        assert router.ask().status == 200


def test_a_process_that_is_stopped_for_a_while_keeps_its_requests() -> None:
    with Fleet(2, ServerConfig(speed=100)) as fleet:
        engines = [f"e{number}={url}" for number, url in enumerate(fleet.urls)]
        flags = (*FLAGS, *(part for one in engines for part in ("--engine", one)))
        with Router(flags=flags) as router:
            body = {"model": "sim-model", "prompt": [7] * 64, "max_tokens": 2}

            def ask(_: int) -> None:
                assert router.ask(body, path="/v1/completions").status == 200

            for number in range(4):
                ask(number)
            process = fleet[0].pid
            os.kill(process, signal.SIGSTOP)
            try:
                with in_threads(4, ask) as errors:
                    wait_until(lambda: router.workers()[0]["standing"] == "busy", "it does not answer")
                    time.sleep(2.0)
                    os.kill(process, signal.SIGCONT)
                assert not errors, errors
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGCONT)
            assert router.metric("kvatlas_router_retries_total") == 0
            wait_until(lambda: router.workers()[0]["standing"] == "up", "it is up")
