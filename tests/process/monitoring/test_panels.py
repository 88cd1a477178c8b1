"""Every panel's query, put to a real Prometheus that reads a router with faulty engines: each has an answer."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
import yaml  # type: ignore[import-untyped]

pytest.importorskip("zmq")
pytest.importorskip("aiohttp")

from tests.support.waiting import until

from kvatlas.router import Router, RouterConfig, RouterHttpConfig, RouterSection
from kvatlas.sim import EngineConfig
from kvatlas.sim.server import Fleet, ServerConfig
from kvatlas.sim.server.ports import free_block

from .tools import ROOT, RULES, tool

BOARDS = sorted((ROOT / "deploy/grafana").glob("*.json"))
FAST = EngineConfig(prefill_rate=1e6, decode_rate=1e4, blocks=4_000)
PROMPT = "One prompt with enough words for some blocks, so that there is something to be cached of it. " * 4


class Prometheus:
    """A Prometheus that reads a router."""

    def __init__(self, url: str, router: str) -> None:
        self.url = url
        self._router = router
        self._asked = 0

    def values(self, query: str) -> list[str]:
        """The numbers of an answer. Raises `AssertionError` with the problem of a bad query."""
        answer = httpx.get(f"{self.url}/api/v1/query", params={"query": query}, timeout=60)
        assert answer.status_code == 200, (query, answer.text)
        values = [series["value"][1] for series in answer.json()["data"]["result"]]
        return [value for value in values if value != "NaN"]

    def ask(self) -> None:
        """Sends the router one request more, so that rates are not 0."""
        self._asked += 1
        body = {
            "model": "sim-model",
            "stream": True,
            "max_tokens": 4,
            "messages": [{"role": "user", "content": f"{self._asked} {PROMPT}"}],
        }
        httpx.post(f"{self._router}/v1/chat/completions", json=body, timeout=60)

    def is_ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/-/ready", timeout=60).status_code == 200
        except httpx.HTTPError:
            return False


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus that reads a router: an engine refuses all requests, one loses events, one is not there."""
    program = tool("prometheus")
    folder = tmp_path_factory.mktemp("prometheus")
    with Fleet(3, ServerConfig(engine=FAST), processes=1) as fleet:
        fleet.engines[1].faults(http_refuse=1.0)
        fleet.engines[2].faults(drop=0.5, poison_event=0.2)
        config = RouterConfig(http=RouterHttpConfig(bind="127.0.0.1:0"), router=RouterSection(tokenizer="engine"))
        engines = [*(engine.url for engine in fleet.engines), "http://127.0.0.1:9"]
        with Router(engines=engines, config=config) as router:
            settings = {
                "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
                "rule_files": [str(RULES)],
                "scrape_configs": [
                    {"job_name": "kvatlas-router", "static_configs": [{"targets": [urlsplit(router.url).netloc]}]}
                ],
            }
            with served(program, folder, settings) as url:
                asked = Prometheus(url, router.url)
                until(asked.is_ready, "ready")
                yield asked


@contextmanager
def served(program: str, folder: Path, settings: Mapping[str, object]) -> Iterator[str]:
    """A Prometheus with these settings; gives its URL."""
    file = folder / "prometheus.yml"
    file.write_text(yaml.safe_dump(settings))
    address = f"127.0.0.1:{free_block('127.0.0.1')}"
    flags = [f"--config.file={file}", f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address={address}"]
    with (folder / "log").open("wb") as log, subprocess.Popen([program, *flags], stdout=log, stderr=log) as process:
        try:
            yield f"http://{address}"
        finally:
            process.terminate()


def queries() -> Iterator[tuple[str, str]]:
    """The panels' names, and their queries with all variables filled in."""
    for path in BOARDS:
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel["targets"]:
                query = target["expr"].replace("$__rate_interval", "30s")
                for variable in ("$job", "$instance"):
                    query = query.replace(variable, ".*")
                yield f"{path.stem}: {panel['title']}, {target['refId']}", query


def test_no_panel_is_empty(prometheus: Prometheus) -> None:
    empty = dict(queries())

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
