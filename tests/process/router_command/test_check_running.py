"""`kvatlas check`: the engines of a running router are tested, with what the router says of each."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.support.engine import closed_port
from tests.support.waiting import until

from kvatlas.cli.check import check as command
from kvatlas.cli.router_reader import RouterReader
from kvatlas.router import Router, RouterConfig, RouterHttpConfig, RouterSection
from kvatlas.router.check import EngineReport
from kvatlas.router.check.running import RunningRouter
from kvatlas.service import DiscoveryConfig, Engine
from kvatlas.sim.server import Fleet, ServerConfig
from kvatlas.sim.tiers import TierConfig

from .conftest import FAST

pytest.importorskip("tokenizers")


def row(**changes: Any) -> dict[str, Any]:
    about = {"name": "a", "url": "http://a:1", "role": "both", "standing": "up", "condition": None, "in_flight": 0}
    return about | changes


def stream(**changes: Any) -> dict[str, Any]:
    return {"trusted": True, "state": "live", "blocks": 3, "last_error": None} | changes


def said(
    worker: dict[str, Any], streams: dict[str, Any], role: str = "both", *, follows: bool = True
) -> dict[str, Any]:
    report = EngineReport("a", "http://a:1", role)
    RunningRouter([worker], [{"instance_id": "a", "streams": streams}]).add_to(report, follows=follows)
    return {finding.what: (finding.level, finding.code) for finding in report.findings}


def test_what_a_router_says_of_an_engine() -> None:
    ok, live = ("ok", "ok"), {"0": stream()}
    assert said(row(), live) == {"router": ok, "router's stream": ok}
    assert said(row(), {}, follows=False) == {"router": ok}
    assert said(row(), {})["router's stream"] == ("problem", "router_follows_none")
    assert said(row(), {}, "decode")["router's stream"] == ("note", "router_follows_none")
    assert said(row(), {"0": stream(trusted=False)})["router's stream"] == ("problem", "router_stream_not_live")
    assert said(row(standing="draining"), live)["router"] == ("note", "router_pauses")
    why = {"name": "failing", "reason": "8 of 10 requests failed", "advice": "look into its log"}
    assert said(row(standing="failing", condition=why), live)["router"] == ("problem", "router_keeps_away")
    assert said(row(condition=why | {"name": "partial"}), live)["router"] == ("warning", "router_doubts")


def test_the_engines_of_a_running_router_are_tested(fleet: Fleet, tokenizer: Path) -> None:
    with closed_port() as port:
        config = RouterConfig(
            engines=(Engine.of(f"well={fleet.urls[0]}"), Engine.of(f"away=http://127.0.0.1:{port}")),
            http=RouterHttpConfig(bind="127.0.0.1:0"),
            router=RouterSection(tokenizer=str(tokenizer)),
            discovery=DiscoveryConfig(request_timeout=60),
        )
        with Router(config=config) as router:
            flags = ["--url", router.url, "--tokenizer", str(tokenizer), "--json"]
            done = CliRunner().invoke(command, flags)
    assert done.exit_code == 3, done.output
    found = {engine["name"]: engine for engine in map(json.loads, done.stdout.splitlines())}
    well = {check["check"]: check["outcome"] for check in found["well"]["checks"]}
    assert {well[each] for each in ("reachable", "tokens", "index", "router")} == {"ok"}
    assert "router's stream" in well
    away = {check["check"]: check["code"] for check in found["away"]["checks"]}
    assert away["reachable"] == "unreachable"
    assert away["router's stream"] == "router_follows_none"


def test_addresses_for_pulls_come_from_the_router(tokenizer: Path) -> None:
    tiers = TierConfig(host_tokens=4_000 * FAST.block_size, pulls=True)
    with Fleet(2, ServerConfig(engine=FAST, tiers=tiers)) as fleet:
        engines = [
            Engine(it.url, name=name, pull=it.pull_endpoint()) for name, it in zip("ab", fleet.engines, strict=True)
        ]
        config = RouterConfig(
            engines=tuple(engines),
            http=RouterHttpConfig(bind="127.0.0.1:0"),
            router=RouterSection(tokenizer=str(tokenizer)),
            discovery=DiscoveryConfig(request_timeout=60),
        )
        with Router(config=config) as router:
            router.wait_ready(60)
            with RouterReader(router.url, None, None) as reader:
                told = {"address": engines[0].pull, "group": "", "possible": True}
                until(lambda: {row["name"]: row["pull"] for row in reader.look(0).workers}["a"] == told, "its version")
            done = CliRunner().invoke(command, ["--url", router.url, "--tokenizer", str(tokenizer), "--json"])
    assert done.exit_code == 0, done.output
    for about in map(json.loads, done.stdout.splitlines()):
        pulls = {check["code"] for check in about["checks"] if check["check"] == "pulls"}
        assert pulls == {"ok", "pull_timeout"}, about


def test_a_router_that_is_not_there() -> None:
    with closed_port() as port:
        done = CliRunner().invoke(command, ["--url", f"http://127.0.0.1:{port}"])
    assert done.exit_code == 1
    assert "start `kvatlas router` there" in done.output
