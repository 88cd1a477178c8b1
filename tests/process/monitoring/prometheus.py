"""A real Prometheus that reads a router with faulty engines, and the queries of the dashboards."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import yaml  # type: ignore[import-untyped]
from tests.support.waiting import until

from kvatlas.router import Router, RouterConfig, RouterHttpConfig, RouterSection
from kvatlas.sim import EngineConfig
from kvatlas.sim.server import Fleet, ServerConfig
from kvatlas.sim.server.ports import free_block

from .tools import ROOT, RULES

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
        values = [series["value"][1] for series in self._get("query", query=query)]
        return [value for value in values if value != "NaN"]

    def series(self, query: str, start: float, end: float, step: float) -> list[dict[str, Any]]:
        """The series of an answer from `start` to `end`, each with `metric` and `values`. Raises `AssertionError`."""
        return self._get("query_range", query=query, start=start, end=end, step=step)

    def ask(self) -> None:
        """Sends the router one request more, every fourth with sound in its prompt, so that rates are not 0."""
        self._asked += 1
        content: Any = f"{self._asked} {PROMPT}"
        if self._asked % 4 == 0:
            sound = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
            content = [{"type": "text", "text": content}, sound]
        body = {
            "model": "sim-model",
            "stream": True,
            "max_tokens": 4,
            "messages": [{"role": "user", "content": content}],
        }
        httpx.post(f"{self._router}/v1/chat/completions", json=body, timeout=60)

    def is_ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/-/ready", timeout=60).status_code == 200
        except httpx.HTTPError:
            return False

    def _get(self, kind: str, **params: Any) -> list[dict[str, Any]]:
        answer = httpx.get(f"{self.url}/api/v1/{kind}", params=params, timeout=60)
        assert answer.status_code == 200, (params, answer.text)
        found: list[dict[str, Any]] = answer.json()["data"]["result"]
        return found


@contextmanager
def watched(
    program: str, folder: Path, engine: EngineConfig = FAST, processes: int = 1
) -> Iterator[tuple[Prometheus, Fleet, Router]]:
    """A Prometheus that reads a router: an engine refuses all requests, one loses events, one is not there."""
    with Fleet(3, ServerConfig(engine=engine), processes=processes) as fleet:
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
            with _served(program, folder, settings) as url:
                asked = Prometheus(url, router.url)
                until(asked.is_ready, "ready")
                yield asked, fleet, router


@contextmanager
def _served(program: str, folder: Path, settings: Mapping[str, object]) -> Iterator[str]:
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


@dataclass(frozen=True)
class Panel:
    """One query of a panel, with all variables filled in.

    Attributes:
        board: The dashboard's file name without its suffix.
        title: The panel's title.
        unit: The unit of its values, in Grafana's words.
        ref: The letter of the query.
        query: The query.
        legend: The name of each series, with `{{label}}` for a label's value.
    """

    board: str
    title: str
    unit: str
    ref: str
    query: str
    legend: str

    @property
    def name(self) -> str:
        return f"{self.board}: {self.title}, {self.ref}"


def panels() -> Iterator[Panel]:
    """The queries of all panels of all dashboards."""
    for path in BOARDS:
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel["targets"]:
                query = target["expr"].replace("$__rate_interval", "30s")
                for variable in ("$job", "$instance"):
                    query = query.replace(variable, ".*")
                unit = panel["fieldConfig"]["defaults"].get("unit", "")
                yield Panel(path.stem, panel["title"], unit, target["refId"], query, target.get("legendFormat", ""))
