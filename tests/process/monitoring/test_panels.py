"""Every panel's query, put to a real Prometheus that reads a router with faulty engines: each has an answer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import yaml  # type: ignore[import-untyped]

pytest.importorskip("zmq")
pytest.importorskip("aiohttp")

from tests.support.waiting import until

from .prometheus import Prometheus, panels, watched
from .tools import RULES, tool


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus that reads a router: an engine refuses all requests, one loses events, one is not there."""
    program = tool("prometheus")
    with watched(program, tmp_path_factory.mktemp("prometheus")) as (asked, _fleet, _router):
        yield asked


def test_no_panel_is_empty(prometheus: Prometheus) -> None:
    empty = {panel.name: panel.query for panel in panels()}

    def are_answered() -> bool:
        prometheus.ask()
        for panel, query in list(empty.items()):
            if prometheus.values(query):
                del empty[panel]
        return not empty

    try:
        until(are_answered, "answered")
    except AssertionError:
        assert not empty, empty


def test_an_alert_sees_the_engine_that_is_sick(prometheus: Prometheus) -> None:
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    alerts = {rule["alert"]: rule["expr"] for rule in group["rules"] if "alert" in rule}

    def is_seen() -> bool:
        prometheus.ask()
        return bool(prometheus.values(alerts["KvatlasEngineSick"]))

    until(is_seen, "seen")
    for quiet in ("KvatlasDown", "KvatlasDiscoveryAway", "KvatlasMemoryNearBound", "KvatlasLimitReached"):
        assert not prometheus.values(alerts[quiet]), quiet
