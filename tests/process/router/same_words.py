"""The words of all places that describe an engine: three routes, two commands, the page, the log."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from kvatlas.sim import EngineConfig
from kvatlas.sim.server import ServerConfig

from .running import Router, ask_by_command, wait_until

MODEL = "sim-model"
CHECKS = ("--health-interval", "100ms", "--health-timeout", "300ms", "--discovery-interval", "100ms")
EVENTS = (*CHECKS, "--policy", "kvatlas", "--tokenizer", "none", "--probe-interval", "100ms", "--stale-after", "1s")
PLACES = ("GET /workers", "top", "workers", "page", "metrics", "log", "/explain")
QUICK = ServerConfig(speed=100, engine=EngineConfig(block_size=16))


def ask(router: Router, number: int) -> int:
    """The status of a request with a prompt of its own, in tokens."""
    body = {"model": MODEL, "prompt": [number * 1000 + token for token in range(64)], "max_tokens": 2}
    return router.ask(body, path="/v1/completions").status


def of_page(router: Router) -> list[dict[str, Any]]:
    """The page's rows of engines."""
    return list(page(router)["engines"].values())


def page(router: Router) -> dict[str, Any]:
    """The state that the page shows."""
    connection = http.client.HTTPConnection("127.0.0.1", router.port, timeout=60)
    try:
        connection.request("GET", "/ui/events")
        answer = connection.getresponse()
        while True:
            line = answer.readline()
            if line.startswith(b"data: "):
                sent = json.loads(line[6:])
                state: dict[str, Any] = sent.get("state", sent)
                return state
    finally:
        connection.close()


def plain(words: str) -> str:
    """Words without line breaks, and without figures, which go on changing."""
    return re.sub(r"\d+(\.\d+)?", "N", " ".join(words.split()))


def places(router: Router, name: str, condition: str) -> dict[str, bool]:
    """True for each place that has the engine's condition, with the reason that `GET /workers` gives."""
    engine = next(engine for engine in router.workers() if engine["name"] == name)
    found = engine["condition"] or {}
    if found.get("name") != condition:
        return dict.fromkeys(PLACES, False)
    reason = plain(found["reason"])
    commands = [plain(ask_by_command(router, *words).stdout) for words in (("top", "--once"), ("workers",))]
    top, workers = (plain(f"{name}: {condition} since") in words and reason in words for words in commands)
    shown = [row["condition"] or {} for row in of_page(router) if row["worker"] == name]
    explained = router.ask({"model": MODEL, "prompt": [1] * 64}, path="/explain").json
    said = [line for line in router.log.splitlines() if f'"{condition}"' in line or f"condition={condition}" in line]
    metric = "kvatlas_router_engine_condition"
    is_alone = router.metric(metric, engine=name, condition=condition) == router.metric(metric, engine=name) == 1
    return {
        "GET /workers": found["runbook"].endswith(f"docs/runbooks/{condition}.md"),
        "top": top,
        "workers": workers,
        "page": [(one.get("name"), plain(one.get("reason", ""))) for one in shown] == [(condition, reason)],
        "metrics": is_alone,
        "log": any(reason in plain(line) for line in said),
        "/explain": plain(explained["conditions"].get(name, {}).get("reason", "")) == reason,
    }


def has_same_words(router: Router, name: str, condition: str) -> bool:
    """True if all places have the engine's condition, with the same reason."""
    return all(places(router, name, condition).values())


@contextmanager
def routing(engines: Iterable[Any], flags: tuple[str, ...] = EVENTS) -> Iterator[Router]:
    with Router(*engines, flags=flags, ready=False) as router:
        wait_until(lambda: router.get("/ready")[0] == 200, "the router is ready")
        yield router


def live(router: Router, count: int) -> bool:
    return [(engine["events"] or {}).get("state") for engine in router.workers()].count("live") == count
