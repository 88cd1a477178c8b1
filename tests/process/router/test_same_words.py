"""Faults of engines, each with one name and one reason in all places that describe an engine."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from kvatlas.sim import EngineConfig
from kvatlas.sim.server import Fleet, ServerConfig

from .running import PLAIN, Router, ask_by_command, wait_until

MODEL = "sim-model"
CHECKS = ("--health-interval", "100ms", "--health-timeout", "300ms", "--discovery-interval", "100ms")
EVENTS = (*CHECKS, "--policy", "kvatlas", "--tokenizer", "none", "--probe-interval", "100ms", "--stale-after", "1s")
QUICK = ServerConfig(speed=100, engine=EngineConfig(block_size=16))


def ask(router: Router, number: int) -> int:
    """The status of a request with a prompt of its own, in tokens."""
    body = {"model": MODEL, "prompt": [number * 1000 + token for token in range(64)], "max_tokens": 2}
    return router.ask(body, path="/v1/completions").status


def of_page(router: Router, name: str) -> list[dict[str, Any]]:
    """The page's rows of an engine."""
    connection = http.client.HTTPConnection("127.0.0.1", router.port, timeout=60)
    try:
        connection.request("GET", "/ui/events")
        answer = connection.getresponse()
        while True:
            line = answer.readline()
            if line.startswith(b"data: "):
                sent = json.loads(line[6:])
                rows = sent.get("state", sent)["engines"]
                return [row for row in rows.values() if row["worker"] == name]
    finally:
        connection.close()


def plain(words: str) -> str:
    """Words without line breaks, and without figures, which go on changing."""
    return re.sub(r"\d+(\.\d+)?", "N", " ".join(words.split()))


def has_same_words(router: Router, name: str, condition: str) -> bool:
    """True if all places have the engine's condition, with the same reason."""
    engine = next(engine for engine in router.workers() if engine["name"] == name)
    found = engine["condition"] or {}
    if found.get("name") != condition:
        return False
    reason = plain(found["reason"])
    commands = [plain(ask_by_command(router, *words).stdout) for words in (("top", "--once"), ("workers",))]
    rows = of_page(router, name)
    explained = router.ask({"model": MODEL, "prompt": [1] * 64}, path="/explain").json
    said = [line for line in router.log.splitlines() if f'"{condition}"' in line or f"condition={condition}" in line]
    return (
        all(plain(f"{name}: {condition} since") in words and reason in words for words in commands)
        and len(rows) == 1
        and (rows[0]["condition"]["name"], plain(rows[0]["condition"]["reason"])) == (condition, reason)
        and router.metric("kvatlas_router_engine_condition", engine=name, condition=condition) == 1
        and router.metric("kvatlas_router_engine_condition", engine=name) == 1
        and any(reason in plain(line) for line in said)
        and plain(explained["conditions"][name]["reason"]) == reason
        and found["runbook"].endswith(f"docs/runbooks/{condition}.md")
    )


@contextmanager
def routing(engines: Iterable[Any], flags: tuple[str, ...] = EVENTS) -> Iterator[Router]:
    with Router(*engines, flags=flags, ready=False) as router:
        wait_until(lambda: router.get("/ready")[0] == 200, "the router is ready")
        yield router


def live(router: Router, count: int) -> bool:
    return [(engine["events"] or {}).get("state") for engine in router.workers()].count("live") == count


@pytest.mark.parametrize("ends", [False, True], ids=["stopped", "killed"])
def test_an_engine_that_is_gone(ends: bool) -> None:
    with Fleet(2, QUICK) as fleet, routing(fleet.engines) as router:
        wait_until(lambda: live(router, 2), "events are followed")
        if ends:
            fleet[0].kill()
        else:
            os.kill(fleet[0].pid, signal.SIGSTOP)
        try:
            wait_until(lambda: has_same_words(router, "e0", "down"), "it is down everywhere")
        finally:
            if not ends:
                os.kill(fleet[0].pid, signal.SIGCONT)


def test_an_engine_whose_events_have_stopped() -> None:
    with Fleet(2, QUICK) as fleet, routing(fleet.engines) as router:
        wait_until(lambda: live(router, 2), "events are followed")
        for number in range(8):
            assert ask(router, number) == 200
        fleet[0].faults(drop=1.0, replay_socket="silent")
        wait_until(lambda: has_same_words(router, "e0", "no_events"), "it is without events everywhere")
        engine = router.workers()[0]
        assert (engine["standing"], engine["events"]["state"]) == ("up", "stale")
        streams = json.loads(router.get("/streams")[1])
        lags = [engine["events"]["lag_ms"], streams[0]["streams"]["0"]["lag_ms"], of_page(router, "e0")[0]["lag_ms"]]
        assert all(lag > 500 for lag in lags), f"the lag of a dead stream grows everywhere: {lags}"
        fleet[0].faults(drop=0.0, replay_socket="on")
        wait_until(lambda: router.workers()[0]["condition"] is None, "it is well again")
        assert "the engine is well again: it was no_events" in router.log


def test_an_engine_whose_events_cannot_be_decoded() -> None:
    with Fleet(1, QUICK) as fleet, routing(fleet.engines) as router:
        wait_until(lambda: live(router, 1), "events are followed")
        fleet[0].faults(poison_event=1.0)
        assert ask(router, 1) == 200
        wait_until(lambda: has_same_words(router, "e0", "refusing"), "some of its events are refused")


def test_an_engine_that_was_added_by_a_request_is_not_followed() -> None:
    with Fleet(2, QUICK) as fleet, routing([fleet[0]]) as router:
        status, _ = router.call("POST", "/engines", {"url": fleet[1].url, "name": "added"})
        assert status == 201
        wait_until(lambda: has_same_words(router, "added", "unfollowed"), "it is not followed")


def test_an_engine_that_takes_no_requests_again_and_again() -> None:
    """Requests go to its peer, and the engine, which says that it is full, counts as busy and not as failing."""
    with Fleet(2, QUICK) as fleet, routing(fleet.engines, (*PLAIN, *CHECKS)) as router:
        fleet[0].faults(http_refuse=1.0, http_retry_after=0)

        def is_busy() -> bool:
            assert ask(router, 1) == 200
            return (router.workers()[0]["condition"] or {}).get("name") == "busy"

        wait_until(is_busy, "it is busy")
        wait_until(lambda: has_same_words(router, "e0", "busy"), "it is busy everywhere")
        assert "requests of the last minute (status 429 or 503)" in router.workers()[0]["condition"]["reason"]
        assert router.workers()[1]["condition"] is None


def test_an_engine_that_is_slower_than_its_peer() -> None:
    fast = replace(QUICK, speed=1.0, engine=EngineConfig(prefill_rate=50_000.0, decode_rate=200.0))
    slow = replace(fast, engine=replace(fast.engine, prefill_rate=2_000.0))
    with Fleet(1, slow) as one, Fleet(1, fast) as other, routing([one[0], other[0]], (*PLAIN, *CHECKS)) as router:
        numbers = iter(range(1_000_000))

        def is_slow() -> bool:
            first = next(numbers) * 1000
            body = {"model": MODEL, "prompt": [first + token for token in range(600)], "max_tokens": 2, "stream": True}
            assert router.ask(body, path="/v1/completions").status == 200
            return (router.workers()[0]["condition"] or {}).get("name") == "slow"

        wait_until(is_slow, "it is slow")
        wait_until(lambda: has_same_words(router, "e0", "slow"), "it is slow everywhere")
        assert router.workers()[0]["condition"]["reason"].endswith(" times as slowly as its peer")
        assert router.workers()[1]["condition"] is None


def test_an_engine_that_comes_back_with_another_block_size() -> None:
    with Fleet(2, QUICK) as fleet, routing(fleet.engines) as router:
        wait_until(lambda: live(router, 2), "events are followed")
        fleet[0].kill()
        fleet[0].config = replace(fleet[0].config, engine=EngineConfig(block_size=32))
        fleet[0].respawn()
        wait_until(lambda: has_same_words(router, "e0", "refused"), "its events are refused")
        reason = router.workers()[0]["condition"]["reason"]
        assert "16" in reason
        assert "32" in reason
        assert router.workers()[1]["condition"] is None


def test_an_engine_that_takes_no_requests_and_has_no_peer() -> None:
    """Clients get its answers, and it counts as busy all the same."""
    with Fleet(1, QUICK) as fleet, routing(fleet.engines, (*PLAIN, *CHECKS)) as router:
        fleet[0].faults(http_refuse=1.0, http_retry_after=0)
        assert [ask(router, 1) for _ in range(5)] == [503] * 5
        wait_until(lambda: has_same_words(router, "e0", "busy"), "it is busy everywhere")


def test_refused_requests_are_told_by_their_reason() -> None:
    with Fleet(1, QUICK) as fleet, routing([fleet[0]], (*PLAIN, *CHECKS)) as router:
        for _ in range(3):
            assert router.ask({"model": "nothing", "prompt": [1]}, path="/v1/completions").status == 404
        code = next(iter(json.loads(router.get("/router")[1])["refused"]))
        wait_until(
            lambda: f"3 requests were refused since the last such line: 3 {code}" in router.log, "the log says so"
        )
        shown = ask_by_command(router, "top", "--once").stdout
        assert f"Refused since the router started: 3 {code}" in shown
