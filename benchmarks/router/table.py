"""Medians of the rounds, and the table of them with ratios."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from statistics import median
from typing import Any

Rounds = Mapping[str, Mapping[str, list[dict[str, Any]]]]  # cell -> router -> a result for each round

BASE = "vllm-router round robin"


def at(cell: Mapping[str, Any], *path: str) -> float | None:
    """A figure of a result; None if there were errors in it, or nothing was measured."""
    if "failed" in cell or cell.get("requests", 1) == 0:
        return None
    value: Any = cell
    for name in path:
        value = value[name]
    if isinstance(value, int | float) and (path[-1] not in ("p50", "p99") or cell[path[0]]["n"]):
        return float(value)
    return None


def middle(results: Iterable[Mapping[str, Any]], *path: str) -> float | None:
    """The median over the rounds."""
    found = [value for value in (at(one, *path) for one in results) if value is not None]
    return median(found) if found else None


def _errors(results: Iterable[Mapping[str, Any]]) -> int:
    return int(sum(sum(one.get("errors", {}).values()) for one in results))


def _figure(value: float | None, scale: float = 1.0, digits: int = 0) -> str:
    return "-" if value is None else f"{value * scale:,.{digits}f}"


Column = tuple[str, Callable[[list[dict[str, Any]]], str]]

COLUMNS: dict[str, list[Column]] = {
    "saturation": [
        ("requests/s", lambda r: _figure(middle(r, "per_second"))),
        ("p50 ms", lambda r: _figure(middle(r, "whole_us", "p50"), 1e-3, 2)),
        ("p99 ms", lambda r: _figure(middle(r, "whole_us", "p99"), 1e-3, 2)),
        ("router CPU us a request", lambda r: _figure(middle(r, "router_cpu_us"))),
    ],
    "streams": [
        ("first token p50 ms", lambda r: _figure(middle(r, "first_token_us", "p50"), 1e-3, 2)),
        ("p99 ms", lambda r: _figure(middle(r, "first_token_us", "p99"), 1e-3, 2)),
        ("token delay p99 ms", lambda r: _figure(middle(r, "token_delay_us", "p99"), 1e-3, 2)),
        ("router CPU us a request", lambda r: _figure(middle(r, "router_cpu_us"))),
    ],
    "open": [
        ("KB a stream", lambda r: _figure(middle(r, "bytes_a_stream"), 1 / 1024, 1)),
        ("token delay p50 ms", lambda r: _figure(middle(r, "token_delay_us", "p50"), 1e-3, 2)),
        ("p99 ms", lambda r: _figure(middle(r, "token_delay_us", "p99"), 1e-3, 2)),
        ("open at once", lambda r: _figure(middle(r, "peak_open"))),
        ("router CPU us a token", lambda r: _figure(middle(r, "router_cpu_us_a_token"), 1.0, 1)),
    ],
    "churn": [
        ("requests", lambda r: _figure(middle(r, "requests"))),
        ("MB after each tenth", lambda r: " ".join(f"{size / 2**20:.0f}" for size in r[-1].get("memory", []))),
        ("last / second tenth", lambda r: _figure(middle(r, "growth"), 1.0, 3)),
    ],
}


def _key(cell: str) -> tuple[tuple[str, ...], bool]:
    """The figure by which routers are compared in a cell, and whether more is better."""
    kind = cell.partition("-")[0]
    return {
        "saturation": (("per_second",), True),
        "streams": (("first_token_us", "p50"), False),
        "open": (("token_delay_us", "p99"), False),
        "churn": (("growth",), False),
    }[kind]


def markdown(rounds: Rounds, missing: Mapping[str, str]) -> str:
    """A table for each cell: medians over the rounds, ratios to vllm-router's round robin, errors over all rounds."""
    parts = []
    for cell, routers in rounds.items():
        columns = COLUMNS[cell.partition("-")[0]]
        path, more = _key(cell)
        base = middle(routers.get(BASE, []), *path)
        heads = ["router", *(name for name, _ in columns), f"x {BASE}", "rounds", "errors"]
        lines = [f"### {cell}", "", "| " + " | ".join(heads) + " |", "|---|" + "---:|" * (len(heads) - 1)]
        for name, results in routers.items():
            good = [one for one in results if "failed" not in one]
            if not good:
                lines.append(f"| {name} | failed: {results[-1]['failed'][:120]} |" + " |" * (len(heads) - 2))
                continue
            value = middle(good, *path)
            ratio = "-" if not value or not base else f"{value / base:.2f}"
            texts = [name, *(figure(good) for _, figure in columns), ratio, str(len(good)), str(_errors(good))]
            lines.append("| " + " | ".join(texts) + " |")
        lines.append("")
        lines.append("More is better." if more else "Less is better.")
        parts.append("\n".join(lines))
    if missing:
        parts.append("\n".join(["### not measured", "", *(f"- {name}: {why}" for name, why in missing.items())]))
    return "\n\n".join(parts) + "\n"
