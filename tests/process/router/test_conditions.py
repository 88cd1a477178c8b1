"""Engines that are sick, not dead: what is said of them, and what to do."""

import re
import struct
from pathlib import Path
from typing import Any

import pytest
from tests.support.engine import Engine, reply

from kvatlas.sim.server.ports import free_block

from .deciding import BLOCK
from .running import Router, ask_by_command, wait_until
from .test_unverified import publish, publishing


def condition(router: Router) -> dict[str, Any]:
    """The condition of the first engine."""
    found: dict[str, Any] = router.workers()[0]["condition"] or {}
    return found


def test_an_engine_that_fails_all_its_requests(router: Router, engine: Engine) -> None:
    assert router.workers()[0]["condition"] is None
    engine.behaviour = reply("500 Internal Server Error", {"error": {"message": "out of memory"}})
    for _ in range(10):
        router.ask()
    assert engine.asked() == 5
    # The router may have looked in between, at fewer of them.
    failed = "5 of the last 5 requests failed"
    wait_until(lambda: condition(router).get("reason") == failed, "the engine is failing")
    about = condition(router)
    assert about["name"] == "failing"
    assert about["advice"]
    assert about["runbook"].endswith("docs/runbooks/failing.md")
    wait_until(lambda: router.log.count("the engine is failing") == 1, "the log says so")
    assert router.metric("kvatlas_router_engine_condition", engine="e0", condition="failing") == 1
    assert router.metric("kvatlas_router_engine_condition", engine="e0") == 1, "one at a time"
    # What has failed is forgotten after a few seconds without requests: a busy machine may take longer to ask.
    wait_until(lambda: is_shown_as_failing(router), "the command shows it")


def is_shown_as_failing(router: Router) -> bool:
    for _ in range(10):
        router.ask()
    shown = " ".join(ask_by_command(router, "top", "--once").stdout.split())
    return "failing" in shown and re.search(r"\d+ of the last \d+ requests failed", shown) is not None


def test_every_engine_is_down(router: Router, engine: Engine, other: Engine) -> None:
    engine.healthy = other.healthy = False
    wait_until(lambda: "every engine is down" in router.log, "the log has it")
    warned = [line for line in router.log.splitlines() if "the engine is down" in line]
    assert len(warned) == 2, warned
    assert {name for line in warned for name in ("e0", "e1") if f'engine="{name}"' in line} == {"e0", "e1"}, warned
    assert all("WARN" in line and "GET /health returns status 503" in line for line in warned), warned
    wait_until(lambda: condition(router).get("name") == "down", "the engine is down")
    assert "503" in condition(router)["reason"]
    assert "EVERY ENGINE IS DOWN" in ask_by_command(router, "top", "--once").stdout
    engine.healthy = True
    wait_until(lambda: router.workers()[0]["condition"] is None, "it is well again")


@pytest.mark.parametrize("size", [BLOCK + 1, BLOCK // 2])
def test_events_with_blocks_of_another_size(engine: Engine, tokenizer: Path, size: int) -> None:
    port = free_block("127.0.0.1")
    flags = ("--policy", "kvatlas", "--tokenizer", str(tokenizer), "--block-size", str(size))
    with (
        Router(engine, flags=(*flags, "--events-port", str(port)), ready=False) as router,
        publishing(port) as publisher,
    ):
        for number in range(4):
            publish(publisher, number)
        wait_until(lambda: condition(router).get("name") == "misconfigured", "the engine is misconfigured")
        assert f"another size than {size}" in condition(router)["reason"]
        publish(publisher, 4)
        wait_until(lambda: condition(router)["reason"].startswith("5 events"), "the fifth is refused too")
        wait_until(lambda: router.log.count("the engine is misconfigured") == 1, "the log says so, once")


@pytest.mark.parametrize("name", ["refusing", "partial"])
def test_events_that_are_refused_or_missed(engine: Engine, tokenizer: Path, name: str) -> None:
    port = free_block("127.0.0.1")
    flags = ("--policy", "kvatlas", "--tokenizer", str(tokenizer), "--block-size", str(BLOCK))
    with (
        Router(engine, flags=(*flags, "--events-port", str(port)), ready=False) as router,
        publishing(port) as publisher,
    ):
        if name == "refusing":
            unknown = b"\x92\xcb" + struct.pack(">d", 1.0) + b"\x91\x91\xa7Mystery"
            publisher.send(0, unknown)
        else:
            publish(publisher, 3)  # the first that is heard
        wait_until(lambda: condition(router).get("name") == name, f"the engine is {name}")
        assert condition(router)["advice"]
        wait_until(lambda: f"the engine is {name}" in router.log, "the log says so")
