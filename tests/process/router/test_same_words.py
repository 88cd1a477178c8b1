"""Faults of engines, each with one name and one reason in all places that describe an engine."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from kvatlas.sim import EngineConfig
from kvatlas.sim.server import Fleet, write_tokenizer

from .running import PLAIN, Router, ask_by_command, wait_until
from .same_words import CHECKS, MODEL, QUICK, ask, has_same_words, live, of_page, routing


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
            assert warned(router) == ["down"], "the cause, and not what follows from it"
        finally:
            if not ends:
                os.kill(fleet[0].pid, signal.SIGCONT)


def test_an_engine_that_comes_back() -> None:
    """Events that come some time after the first answers are no trouble."""
    with Fleet(2, QUICK) as fleet, routing(fleet.engines) as router:
        wait_until(lambda: live(router, 2), "events are followed")
        fleet[0].kill()
        wait_until(lambda: router.workers()[0]["condition"] is not None, "it is down")
        fleet[0].respawn()
        wait_until(lambda: live(router, 2) and router.workers()[0]["condition"] is None, "it is well again")
        assert warned(router) == ["down"]


def warned(router: Router) -> list[str]:
    """The conditions that the log warns of, in order."""
    return re.findall(r'WARN .*condition="?(\w+)', router.log)


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
        lags = [engine["events"]["lag_ms"], streams[0]["streams"]["0"]["lag_ms"], of_page(router)[0]["lag_ms"]]
        assert all(lag > 500 for lag in lags), f"the lag of a dead stream grows everywhere: {lags}"
        assert router.metric("kvatlas_stream_lag_seconds", worker="e0") > 0.5
        assert "silent" not in router.log, "that is about answers, and those come"
        fleet[0].faults(drop=0.0, replay_socket="on")
        wait_until(lambda: router.workers()[0]["condition"] is None, "it is well again")
        wait_until(lambda: "the engine is well again: it was no_events" in router.log, "it is logged")


def test_an_engine_whose_events_cannot_be_decoded() -> None:
    with Fleet(1, QUICK) as fleet, routing(fleet.engines) as router:
        wait_until(lambda: live(router, 1), "events are followed")
        fleet[0].faults(poison_event=1.0)
        assert ask(router, 1) == 200
        wait_until(lambda: has_same_words(router, "e0", "refusing"), "some of its events are refused")


def test_an_engine_that_was_added_by_a_request_is_well() -> None:
    with Fleet(2, QUICK) as fleet, routing([fleet[0]]) as router:
        status, _ = router.call("POST", "/engines", {"url": fleet[1].url, "name": "added"})
        assert status == 201
        wait_until(lambda: live(router, 2), "its events are followed like those of the other")
        assert [row["condition"] for row in router.workers()] == [None, None]


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

        def holds_some() -> bool:
            assert ask(router, next(numbers)) == 200
            return held(router) > 0

        numbers = iter(range(1_000_000))
        wait_until(holds_some, "it holds blocks")
        fleet[0].kill()
        fleet[0].config = replace(fleet[0].config, engine=EngineConfig(block_size=32))
        fleet[0].respawn()
        wait_until(lambda: has_same_words(router, "e0", "refused"), "its events are refused")
        reason = router.workers()[0]["condition"]["reason"]
        assert "16" in reason
        assert "32" in reason
        assert router.workers()[1]["condition"] is None
        assert sorted(row["worker"] for row in of_page(router)) == ["e0", "e1"], "each engine once"
        wait_until(lambda: held(router) == 0, "its stream is gone, and so is what was known")
        fleet[0].kill()
        fleet[0].config = replace(fleet[0].config, engine=EngineConfig(block_size=16))
        fleet[0].respawn()
        wait_until(lambda: live(router, 2) and router.workers()[0]["condition"] is None, "it is well again")
        assert held(router) == 0, "its cache is empty"


def held(router: Router) -> float:
    """The blocks that the first engine is known to hold, as `top` shows them."""
    [rank] = router.workers()[0]["ranks"]
    return float(rank["held_blocks"])


def test_an_engine_that_takes_no_requests_and_has_no_peer() -> None:
    """Clients get its answers, and it counts as busy all the same."""
    with Fleet(1, QUICK) as fleet, routing(fleet.engines, (*PLAIN, *CHECKS)) as router:
        fleet[0].faults(http_refuse=1.0, http_retry_after=0)
        assert [ask(router, 1) for _ in range(5)] == [503] * 5
        wait_until(lambda: has_same_words(router, "e0", "busy"), "it is busy everywhere")


def test_an_engine_that_has_requests_and_sends_nothing() -> None:
    with Fleet(2, QUICK) as fleet, routing(fleet.engines, (*PLAIN, *CHECKS, "--health-silence", "300ms")) as router:
        fleet[0].faults(http_hang=1.0)

        def ask_on() -> None:
            with suppress(OSError, http.client.HTTPException):
                while router.ask({"model": MODEL, "prompt": [1], "max_tokens": 1}, path="/v1/completions").status:
                    pass

        asking = [threading.Thread(target=ask_on) for _ in range(2)]
        for thread in asking:
            thread.start()
        try:
            wait_until(lambda: has_same_words(router, "e0", "silent"), "it is silent everywhere")
        finally:
            router.kill()
            for thread in asking:
                thread.join()


def test_an_engine_whose_events_are_late() -> None:
    flags = (*CHECKS, "--policy", "kvatlas", "--tokenizer", "none", "--probe-interval", "100ms", "--stale-after", "1h")
    with Fleet(2, QUICK) as fleet, routing(fleet.engines, flags) as router:
        wait_until(lambda: live(router, 2), "events are followed")
        fleet[0].faults(drop=1.0, replay_socket="silent")
        wait_until(lambda: has_same_words(router, "e0", "overdue"), "it is late everywhere")
        assert router.workers()[0]["standing"] == "up"


def test_an_engine_that_makes_other_tokens(tmp_path: Path) -> None:
    """F12: the speeds that were learnt as if it computed what it had cached were 30 and 60 times too high."""
    rate = 4_000.0
    engine = EngineConfig(block_size=16, prefill_rate=rate, decode_rate=1e4)
    write_tokenizer(tmp_path)
    about = json.loads((tmp_path / "tokenizer_config.json").read_text())
    about["chat_template"] = "<|system|>Today<|end|>" + about["chat_template"]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(about))
    flags = (*CHECKS, "--policy", "kvatlas", "--tokenizer", str(tmp_path))
    with Fleet(1, replace(QUICK, speed=1.0, engine=engine)) as fleet, routing(fleet.engines, flags) as router:
        chat = {"model": MODEL, "messages": [{"role": "user", "content": "word " * 2_000}], "max_tokens": 1}
        for _ in range(6):
            assert router.ask(chat | {"stream": True, "stream_options": {"include_usage": True}}).status == 200
        wait_until(lambda: has_same_words(router, "e0", "other_tokens"), "it makes other tokens, everywhere")
        assert router.metric("kvatlas_router_cached_tokens_off_count", reason="template_mismatch") >= 6
        assert router.workers()[0]["ranks"][0]["prefill_rate"] < 3 * rate


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
