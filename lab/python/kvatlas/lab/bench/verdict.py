"""Verdict on a result: a point passed, or failed in one of several ways."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvatlas import _text
from kvatlas.errors import ConfigError

CLOCKS = ("deadline", "service")
_UNITS = {"ns": 1.0, "us": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9}


@dataclass(frozen=True, slots=True)
class Limit:
    """Highest allowed p99 of lookups: from the deadline (a user's wait) or in service (the cost of a lookup)."""

    p99_ns: float = 10e6
    clock: str = "deadline"

    def __post_init__(self) -> None:
        if self.clock not in CLOCKS:
            raise ConfigError(f"p99 must be of {' or '.join(CLOCKS)}, got {self.clock!r}")
        if not (math.isfinite(self.p99_ns) and self.p99_ns > 0):
            raise ConfigError(f"the limit of p99 must be above 0, got {self.p99_ns}")

    def __str__(self) -> str:
        return f"p99 {'from deadline' if self.clock == 'deadline' else 'of service'} ≤ {_text.nanoseconds(self.p99_ns)}"


def parse_time(text: str) -> float:
    """Parse a time such as `5ms` as nanoseconds. Raises `ConfigError`."""
    found = re.fullmatch(r"\s*([0-9.]+(?:e[0-9]+)?)\s*(ns|us|µs|ms|s)\s*", text)
    try:
        if found:
            return float(found[1]) * _UNITS[found[2]]
    except ValueError:
        pass
    raise ConfigError(f"{text!r} is not a time: write a number and ns, us, ms or s, such as 5ms")


@dataclass(frozen=True, slots=True)
class Verdict:
    """Verdict on a point: passed, or the way in which it failed.

    Attributes:
        kind: "pass"; "invalid" (the load generator did not keep its schedule, so the run says nothing about the index);
            "behind" (the index did not keep up); "slow" (p99 beyond the limit); "wrong" (answers or holdings differ
            from the reference's); "error" (the index raised an error, or there was no result).
        reason: Reason of the failure in words; "" for a pass.
    """

    kind: str
    reason: str = ""

    @property
    def passed(self) -> bool:
        return self.kind == "pass"


def judge(result: Mapping[str, Any], limit: Limit | None = None, *, deviates: bool = False) -> Verdict:
    """Judge one result. `deviates`: wrong answers are expected of this design, and do not fail it."""
    reasons = [str(reason) for reason in result.get("why") or ()]
    why = "; ".join(reasons)
    counts = result.get("counts") or {}
    if counts.get("errors"):
        return Verdict("error", str(counts.get("first_error") or why or "the index failed"))
    if result.get("valid") is not True:
        # A late generator makes everything late, so the other reasons mean nothing then.
        mine = "; ".join(r.removeprefix("invalid: ") for r in reasons if r.startswith("invalid: "))
        return Verdict("invalid", mine or why or "the generator did not keep its schedule")
    if result.get("kept_up") is not True:
        return Verdict("behind", why or "it did not keep up")
    if result.get("agrees") is not True and not deviates:
        return Verdict("wrong", why or "it was not compared with the reference")
    if limit is not None:
        times = result.get("from_deadline" if limit.clock == "deadline" else "service")
        if times is None:
            return Verdict("slow", "no lookup was timed")
        if times["p99"] > limit.p99_ns:
            return Verdict("slow", f"p99 {_text.nanoseconds(times['p99'])}, wanted: {limit}")
    return Verdict("pass")


def bound_of(result: Mapping[str, Any], verdict: Verdict) -> str:
    """Kind of the failure that ended a search: the verdict's kind, or "behind" for an invalid run with a late index.

    On few processors, an index that cannot keep up also takes processor time from the load generator. If operations
    ended long after the generator issued them (late as the issue was), the index was the cause.
    """
    if verdict.kind != "invalid":
        return verdict.kind
    total, issued = result.get("total_ns"), result.get("issue_span_ns")
    if result.get("kept_up") is True or issued is None:
        return "invalid"
    late = total is None or total > 1.1 * max(float(issued), float(result.get("window_ns") or 0.0))
    return "behind" if late else "invalid"


def hopeless(result: Mapping[str, Any]) -> bool:
    """True if a point failed so clearly that a second try is not worthwhile."""
    offered = (result.get("offered") or {}).get("block_ops_per_s") or 0.0
    achieved = (result.get("achieved") or {}).get("block_ops_per_s") or 0.0
    return result.get("kept_up") is not True and achieved < 0.7 * offered
