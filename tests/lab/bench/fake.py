"""Designs that are formulas: what a run of them would print, without one."""

from collections.abc import Mapping
from typing import Any

PLAN: dict[str, Any] = {
    "digest": "0" * 32,
    "facts": {
        "ops": 3_000,
        "lookups": 1_000,
        "stores": 1_000,
        "removes": 1_000,
        "clears": 0,
        "lookup_blocks": 40_000_000,
        "stored_blocks": 30_000_000,
        "removed_blocks": 30_000_000,
        "workers": 32,
        "block_size": 16,
        "span_ns": 10**9,
    },
    "meta": {"trace": "made up"},
}
MACHINE: dict[str, str | int] = {
    "processor": "none",
    "cpus": 1,
    "usable_cpus": 1,
    "system": "none",
    "architecture": "none",
    "python": "3",
    "numpy": "2",
    "kvatlas": "0",
}


def times(p50: float, p99: float) -> dict[str, float]:
    return {"count": 9, "mean": p50, "p50": p50, "p90": p99 * 0.7, "p99": p99, "p999": 2 * p99, "max": 5 * p99}


def result(rate: float, capacity: float, seconds: float = 1.0, **changes: Any) -> dict[str, Any]:
    """A server with a queue: waits grow as 1 / (1 - load), beyond its capacity it falls behind."""
    load = rate / capacity
    up = load < 1
    service = 1e9 / capacity
    wait = 20e3 / (1 - load) if up else 5e8
    made: dict[str, Any] = {
        "ok": up,
        "why": [] if up else ["did not keep up: 20.0 % of the events were queued"],
        "valid": True,
        "kept_up": up,
        "agrees": True,
        "version": "fake 1",
        "window_ns": round(seconds * 1e9),
        "offered": {"block_ops_per_s": rate, "ops_per_s": rate / 10},
        "achieved": {"block_ops_per_s": min(rate, capacity), "ops_per_s": min(rate, capacity) / 10},
        "drain_ns": 1000,
        "queued_at_close": {"events": 0, "lookups": 0, "events_share": 0.0, "lookups_share": 0.0},
        "lag": times(100, 200),
        "service": times(service, 4 * service),
        "from_deadline": times(service + 5e3, service + wait),
        "counts": {},
        "comparison": {"wrong": 0, "holdings": {"compared": 9}, "depths": {"compared": 9}, "reference": None},
    }
    return {**made, **changes}


class Designs:
    """A `Measure` over formulas, which counts its calls and may do something at one of them."""

    def __init__(self, capacities: Mapping[str, float]) -> None:
        self.capacities = capacities
        self.calls: list[tuple[str, float]] = []
        self.options: list[dict[str, object]] = []

    def __call__(self, index: str, options: dict[str, object], seconds: float) -> dict[str, Any]:
        rate = float(str(options["rate"]))
        self.calls.append((index, rate))
        self.options.append(options)
        return self.answer(index, rate, seconds)

    def answer(self, index: str, rate: float, seconds: float) -> dict[str, Any]:
        return result(rate, self.capacities[index], seconds)
