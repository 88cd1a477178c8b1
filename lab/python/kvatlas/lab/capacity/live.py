"""Capacity plan of a running fleet, from the router's figures of the last hour and the decisions watched meanwhile."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kvatlas.lab.capacity.plan import CACHES, Bottleneck, split_time

_WAIT, _ROOM, _PREFILL = "wait (s)", "wait for room (s)", "prefill (s)"


@dataclass(frozen=True, slots=True)
class LivePlan:
    """Figures of a running fleet.

    Attributes:
        requests: Requests behind the rates, older ones weighted less.
        prompt_tokens: Their prompt tokens.
        hit_rate: Share of these that engines found in their caches; None if no engine reports it.
        unlimited: Share that one cache without limit could hold; None without prompts.
        fleet_tokens: Tokens that fit into all engines' caches; None if an engine does not report it.
        curve: Sizes of one cache in tokens, and the share that each could hold, rising.
        decisions: Watched decisions with known terms.
        bottleneck: Mean seconds that requests are expected to wait, by cause; None if no terms are known.
        waiting: The part of that in which others are computed, or hold the room.
    """

    requests: int
    prompt_tokens: int
    hit_rate: float | None
    unlimited: float | None
    fleet_tokens: float | None
    curve: tuple[tuple[float, float], ...]
    decisions: int = 0
    bottleneck: Bottleneck | None = None
    waiting: float = 0.0

    def rate(self, tokens: float) -> float:
        """The share of prompt tokens that one cache of `tokens` could hold."""
        return max((rate for size, rate in self.curve if size <= tokens), default=0.0)

    def cache_rates(self) -> list[tuple[float, float]]:
        """Sizes of one cache in tokens, the engines' total among them if known, and the share that each could hold."""
        if self.fleet_tokens:
            return [(self.fleet_tokens * factor, self.rate(self.fleet_tokens * factor)) for factor in CACHES]
        most = self.unlimited or 0.0
        # The smallest that hold so much of what is possible.
        steps = [next((row for row in self.curve if row[1] >= share * most), None) for share in (0.25, 0.5, 0.75, 0.9)]
        return list(dict.fromkeys(row for row in steps if row is not None))


def live_plan(reuse: Mapping[str, Any], decisions: Iterable[Mapping[str, Any]]) -> LivePlan:
    """Make a plan from a router's `/reuse` and from its decisions with terms."""
    waits = [wait for decision in decisions if (wait := _wait(decision)) is not None]
    hit_rate, unlimited = reuse["hit_rate"], reuse["unlimited"]
    bottleneck, waiting = None, 0.0
    if waits and unlimited is not None:
        room, queue, prefill = (sum(part) / len(waits) for part in zip(*waits, strict=True))
        bottleneck, waiting = split_time(room, queue + prefill, hit_rate or 0.0, unlimited), room + queue
    return LivePlan(
        requests=int(reuse["requests"]),
        prompt_tokens=int(reuse["prompt_tokens"]),
        hit_rate=hit_rate,
        unlimited=unlimited,
        fleet_tokens=reuse["fleet_tokens"],
        curve=tuple((row["tokens"], row["hit_rate"]) for row in reuse["curve"]),
        decisions=len(waits),
        bottleneck=bottleneck,
        waiting=waiting,
    )


def live_as_json(plan: LivePlan) -> dict[str, Any]:
    """The plan as JSON's types."""
    parts = plan.bottleneck
    return {
        "requests": plan.requests,
        "prompt_tokens": plan.prompt_tokens,
        "hit_rate": plan.hit_rate,
        "hit_rate_without_limit": plan.unlimited,
        "fleet_tokens": plan.fleet_tokens,
        "cache": [{"tokens": tokens, "hit_rate": rate} for tokens, rate in plan.cache_rates()],
        "decisions": plan.decisions,
        "limit": None
        if parts is None
        else {"largest": parts.largest, "room": parts.room, "cache": parts.cache, "compute": parts.compute},
    }


def _wait(decision: Mapping[str, Any]) -> tuple[float, float, float] | None:
    """Expected seconds to the first token at the chosen engine: for room, in its queue, to compute the prompt."""
    for candidate in decision["candidates"] or ():
        terms = candidate["terms"]
        if (candidate["worker"], candidate["rank"]) == (decision["worker"], decision["rank"]) and _PREFILL in terms:
            return float(terms[_ROOM] or 0.0), float(terms[_WAIT] or 0.0), float(terms[_PREFILL] or 0.0)
    return None
