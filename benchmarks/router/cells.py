"""The measurements of a router: a cell is a load, and what it gives."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .corpora import Corpora
from .fleet import Engines
from .routers import Router

INTERVAL = 20_000  # microseconds between two tokens of a stream
TOKENS = 100

Cell = dict[str, Any]


@dataclass
class Bench:
    """One router, ready, with its engines."""

    client: Path
    corpora: Corpora
    engines: Engines
    router: Router
    seconds: float
    number: int = 0  # requests sent so far: each has a number of its own

    def load(self, corpus: str, *arguments: str, tokens: int | None = None, limit: float = 600.0) -> Cell:
        """Runs the client. The router's CPU time covers the whole run; its memory is measured at the end."""
        bodies = self.corpora.bodies(corpus, tokens=tokens, model=self.router.setup.model)
        line = [str(self.client), "--port", str(self.router.port), "--bodies", str(bodies)]
        line += ["--first-number", str(self.number), *arguments]
        if self.router.setup.header:
            line += ["--header", self.router.setup.header]
        if tokens is not None and not self.router.setup.own_engines:
            line += ["--tokens", str(tokens)]
        before, first = self.router.cpu_seconds(), self.number
        done = subprocess.run(line, capture_output=True, text=True, timeout=limit, check=False)
        if done.returncode:
            raise RuntimeError(f"{self.router.setup.name}: the client failed: {done.stderr.strip()}")
        cell: Cell = json.loads(done.stdout)
        self.number = cell["next_number"]
        cell["router_cpu_us"] = (self.router.cpu_seconds() - before) * 1e6 / max(1, cell["next_number"] - first)
        cell["router_memory"] = self.router.memory()
        return cell


def saturation(bench: Bench, corpus: str) -> Cell:
    """Answers a second at 32 connections that ask without a pause."""
    warm = 3.0 if corpus == "48k-seen" else 1.0
    return bench.load(corpus, "--connections", "32", "--seconds", str(bench.seconds), "--warmup", str(warm))


def streams(bench: Bench, corpus: str, opened: int) -> Cell:
    """First tokens and delays while about `opened` streams of 100 tokens, 20 ms apart, are open."""
    bench.engines.interval(INTERVAL)
    rate = opened / (TOKENS * INTERVAL / 1e6)
    warm = TOKENS * INTERVAL / 1e6
    count = round(rate * (bench.seconds * 2 + warm))
    arguments = ["--rate", str(rate), "--requests", str(count), "--connections", str(20 * opened)]
    cell = bench.load(corpus, *arguments, "--window", f"{warm},1000", tokens=TOKENS)
    bench.engines.interval(0)
    return cell


def many(bench: Bench, opened: int) -> Cell:
    """`opened` streams open at once, 20,000 tokens a second over all of them; the router's memory for each."""
    interval = opened / 20_000
    bench.engines.interval(round(interval * 1e6))
    rate = 500.0
    ramp = opened / rate
    held = 20.0
    tokens = round((ramp + held) / interval)
    before = bench.router.memory()
    peak = [before]
    arguments = ["--rate", str(rate), "--requests", str(opened), "--connections", str(opened + 1000)]
    bodies = bench.corpora.bodies("1k", tokens=tokens, model=bench.router.setup.model)
    line = [str(bench.client), "--port", str(bench.router.port), "--bodies", str(bodies), "--tokens", str(tokens)]
    line += ["--first-number", str(bench.number), *arguments, "--window", f"{ramp + 1},{ramp + held - 1}"]
    if bench.router.setup.header:
        line += ["--header", bench.router.setup.header]
    busy = bench.router.cpu_seconds()
    process = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
    end = time.monotonic() + ramp + held * 3 + 120
    while process.poll() is None and time.monotonic() < end:
        peak.append(bench.router.memory())
        time.sleep(0.5)
    process.kill()
    out = process.communicate()[0]
    bench.engines.interval(0)
    if not out:
        raise RuntimeError(f"{bench.router.setup.name}: the client did not end")
    cell: Cell = json.loads(out)
    bench.number = cell["next_number"]
    cell["router_cpu_us_a_token"] = (bench.router.cpu_seconds() - busy) * 1e6 / max(1, cell["tokens"])
    cell["bytes_a_stream"] = (max(peak) - before) / opened
    return cell


def churn(bench: Bench, minutes: float) -> Cell:
    """Ever new prompts at full speed; the router's memory at each tenth of the time."""
    sizes, errors, requests = [], 0, 0
    for _ in range(10):
        cell = bench.load("1k", "--connections", "32", "--seconds", str(minutes * 6), "--warmup", "0")
        errors += sum(cell["errors"].values())
        requests += cell["requests"]
        sizes.append(cell["router_memory"])
    return {"requests": requests, "errors": {"all": errors}, "memory": sizes, "growth": sizes[-1] / max(1, sizes[1])}


def cells(minutes: float, opened: int) -> dict[str, Callable[[Bench], Cell]]:
    """The cells by name."""
    return {
        "saturation-1k": lambda bench: saturation(bench, "1k"),
        "saturation-48k-seen": lambda bench: saturation(bench, "48k-seen"),
        "saturation-48k-new": lambda bench: saturation(bench, "48k-new"),
        "streams-50-1k": lambda bench: streams(bench, "1k", 50),
        "streams-200-1k": lambda bench: streams(bench, "1k", 200),
        "streams-50-48k": lambda bench: streams(bench, "48k-seen", 50),
        "streams-200-48k": lambda bench: streams(bench, "48k-seen", 200),
        "open": lambda bench: many(bench, opened),
        "churn": lambda bench: churn(bench, minutes),
    }
