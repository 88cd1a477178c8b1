"""Engines that are sick, not dead: what is said of them, and what to do."""

import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvatlas.sim.server.ports import free_block

from .deciding import BLOCK
from .engines import Engine, reply
from .running import Router, wait_until
from .test_unverified import publish, publishing


def condition(router: Router) -> dict[str, Any]:
    """Of the first engine."""
    found: dict[str, Any] = router.workers()[0]["condition"] or {}
    return found


def ask_by_command(router: Router, command: str, *more: str) -> subprocess.CompletedProcess[str]:
    """Runs `kvatlas`, with the router as its service."""
    line = [sys.executable, "-m", "kvatlas.cli", command, "--url", f"http://127.0.0.1:{router.port}", *more]
    return subprocess.run(
        line, capture_output=True, text=True, timeout=60, check=False, env={**os.environ, "COLUMNS": "200"}
    )


def test_an_engine_that_fails_all_its_requests(router: Router, engine: Engine) -> None:
    assert router.workers()[0]["condition"] is None
    engine.behaviour = reply("500 Internal Server Error", {"error": {"message": "out of memory"}})
    for _ in range(10):
        router.ask()
    assert engine.asked() == 5
    wait_until(lambda: condition(router).get("name") == "failing", "the engine is failing")
    about = condition(router)
    assert about["reason"] == "5 of the last 5 requests failed"
    assert about["advice"]
    assert about["runbook"].endswith("sick-engines.md#failing")
    assert router.log.count("the engine is failing") == 1
    shown = ask_by_command(router, "top", "--once")
    assert "failing" in shown.stdout
    assert "5 of the last 5 requests failed" in " ".join(shown.stdout.split())


def test_every_engine_is_down(router: Router, engine: Engine, other: Engine) -> None:
    engine.healthy = other.healthy = False
    wait_until(lambda: "every engine is down" in router.log, "the log has it")
    warned = [line for line in router.log.splitlines() if "the engine is down" in line]
    assert len(warned) == 2
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
        assert router.log.count("the engine is misconfigured") == 1


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
            publisher.send_multipart([b"", struct.pack(">Q", 0), unknown])
        else:
            publish(publisher, 3)  # the first that is heard
        wait_until(lambda: condition(router).get("name") == name, f"the engine is {name}")
        assert condition(router)["advice"]
        assert f"the engine is {name}" in router.log


def test_commands_for_a_service_say_that_this_is_a_router(router: Router) -> None:
    for command, more in (("workers", ()), ("query", ("--tokens", "1,2,3"))):
        ended = ask_by_command(router, command, *more)
        assert ended.returncode == 1
        assert "this is the address of a kvatlas router: `kvatlas top`" in ended.stderr, ended
        assert "KeyError" not in ended.stderr
    assert json.loads(router.get("/workers")[1])
