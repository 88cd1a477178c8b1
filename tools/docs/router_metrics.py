"""The metrics of a router, as those that run in this process describe them."""

from __future__ import annotations

import http.client
import re
import tempfile
from pathlib import Path
from urllib.parse import urlsplit

from tools.docs.markdown import cell, code, table
from tools.docs.metrics import described

_LABEL = re.compile(r'[{,](\w+)="([^"]*)"')
_SAMPLE = re.compile(r"(kvatlas_router_\w+?)(_bucket|_sum|_count)?(?:[{ ])")


def page() -> str:
    """A table of all metrics with their labels and, where these are few, their values."""
    rows = []
    for name, (labels, about) in served().items():
        words = (f"{label}: {', '.join(map(code, values))}" if values else label for label, values in labels.items())
        shown = "; ".join(words)
        rows.append((code(name), shown, cell(about)))
    return table(("metric", "labels", "meaning"), rows)


def served() -> dict[str, tuple[dict[str, list[str]], str]]:
    """The labels of each metric, with the values that are always there, and its text."""
    found: dict[str, tuple[dict[str, list[str]], str]] = {}
    with tempfile.TemporaryDirectory() as directory:
        # No server listens at port 9. Settings that add metrics:
        nowhere = "http://127.0.0.1:9"
        variants: tuple[dict[str, object], ...] = (
            {"index": nowhere, "peers": (nowhere,), "record": Path(directory) / "decisions"},
            {"gateway_bind": "127.0.0.1:0"},
            {"global_url": nowhere},
        )
        for settings in variants:
            text = _scraped(settings)
            labels = _labels(text)
            for name, about in described(text).items():
                if name.startswith("kvatlas_router_"):
                    found.setdefault(name, (labels.get(name, {}), about))
    return found


def _scraped(settings: dict[str, object]) -> str:
    """The text of a router that has refused a request, with an engine that is not there."""
    from kvatlas.router import Router, RouterConfig, RouterHttpConfig, RouterSection  # noqa: PLC0415 - only for the page

    section = RouterSection(tokenizer="none", **settings)  # type: ignore[arg-type]
    config = RouterConfig(http=RouterHttpConfig(bind="127.0.0.1:0"), router=section)
    with Router(engines=["http://127.0.0.1:9"], config=config) as router:
        address = urlsplit(router.url).netloc
        for path in ("/nothing", "/metrics"):
            connection = http.client.HTTPConnection(address, timeout=60)
            connection.request("GET", path)
            text = connection.getresponse().read().decode()
            connection.close()
    return text


def _labels(text: str) -> dict[str, dict[str, list[str]]]:
    """The labels of each metric by its name, with their values unless these are of this fleet or have happened here."""
    found: dict[str, dict[str, list[str]]] = {}
    for line in text.splitlines():
        sample = _SAMPLE.match(line)
        if sample is None:
            continue
        labels = found.setdefault(sample[1], {})
        for label, value in _LABEL.findall(line):
            if label == "le":
                continue
            values = labels.setdefault(label, [])
            # Of requests for what an engine keeps, it is the result.
            of_engine = label == "engine" and sample[1] != "kvatlas_router_stored_answer_requests_total"
            is_open = of_engine or label in {"policy", "model"} or sample[1] == "kvatlas_router_refused_requests_total"
            if not is_open and value not in values:
                values.append(value)
    return found
