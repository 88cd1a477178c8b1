"""Trouble that is no engine's: a policy that fails, a record that cannot be written, a bound that is not known yet."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.support.engine import Engine, whole

from .running import PLAIN, Router, ask_by_command, wait_until


@pytest.mark.parametrize("policy", ["Raises", "Outside", "Awaits"])
def test_a_policy_that_fails_is_counted_and_named(engine: Engine, other: Engine, policy: str) -> None:
    """F7: it counted as a choice of the policy."""
    flags = ("--no-events", "--tokenizer", "none", "--policy", f"tests.support.own_policies:{policy}")
    with Router(engine, other, flags=flags) as router:
        for _ in range(3):
            answer = router.ask()
            assert (answer.status, answer.headers["x-kvatlas-reason"]) == (200, "policy_failed")
        wait_until(lambda: router.in_flight() == 0, "all is counted")
        assert router.metric("kvatlas_router_decisions_total", reason="policy_failed") == 3
        assert router.metric("kvatlas_router_decisions_total", reason="policy") == 0
        assert json.loads(router.get("/router")[1])["policy_failed"] == 3
        assert {decision["why"] for decision in json.loads(router.get("/decisions")[1])} == {"policy_failed"}
        wait_until(lambda: router.log.count(f"policy {policy}: ") == 1, "the log says it once")
        assert "The policy failed at 3 decisions" in " ".join(ask_by_command(router, "top", "--once").stdout.split())


def test_a_policy_that_works_is_no_trouble(engine: Engine) -> None:
    flags = ("--no-events", "--tokenizer", "none", "--policy", "tests.support.own_policies:First")
    with Router(engine, flags=flags) as router:
        assert router.ask().headers["x-kvatlas-reason"] != "policy_failed"
        shown = ask_by_command(router, "top", "--once").stdout
        assert "failed at" not in shown
        assert "record of decisions" not in shown


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="it is a full disk")
def test_a_record_on_a_full_disk(engine: Engine) -> None:
    with Router(engine, flags=(*PLAIN, "--record", "/dev/full")) as router:
        for _ in range(3):
            assert router.ask().status == 200, "requests go on"
        failed = {"written": 0, "dropped": 0, "failed": 3}
        wait_until(lambda: json.loads(router.get("/router")[1])["record"] == failed, "the lines are lost")
        assert router.metric("kvatlas_router_recorded_decisions_total", result="failed") == 3
        assert "No space left on device" in router.log
        shown = " ".join(ask_by_command(router, "top", "--once").stdout.split())
        assert "The record of decisions lost 3 lines" in shown


def test_a_bound_below_what_it_bounds_is_not_shown(engine: Engine) -> None:
    """F8: of engines with full caches, a router that was started again has seen no prompts."""
    engine.behaviour = whole(prompt=100, cached=96)
    body = {"model": "model", "prompt": list(range(100)), "max_tokens": 1}
    with Router(engine, flags=("--no-events", "--tokenizer", "none", "--ask-usage", "on")) as router:
        assert router.ask(body, path="/v1/completions").status == 200
        wait_until(lambda: json.loads(router.get("/router")[1])["possible_hit_rate"]["unlimited"] == 0, "a bound")
        shown = ask_by_command(router, "top", "--once").stdout
        assert "hits 96.0 %" in shown
        assert "possible" not in shown
        engine.behaviour = whole(prompt=100, cached=0)
        for _ in range(50):
            assert router.ask(body, path="/v1/completions").status == 200

        def is_bounded() -> bool:
            return ", possible 9" in ask_by_command(router, "top", "--once").stdout

        wait_until(is_bounded, "a bound that is one is shown")
