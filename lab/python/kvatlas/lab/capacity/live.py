"""Capacity plan of a running fleet, from the router's statistics of the last hour and the decisions seen meanwhile."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kvatlas.lab.capacity.plan import CACHES, Bottleneck, split_time

_WAIT, _ROOM, _PREFILL = "wait (s)", "wait for room (s)", "prefill (s)"


@dataclass(frozen=True, slots=True)
class LivePlan:
    """Capacity figures of a running fleet.

    Attributes:
        requests: Number of requests behind the rates; older requests have less weight.
        prompt_tokens: Number of prompt tokens of these requests.
        hit_rate: Share of the prompt tokens that engines found in their caches; None if no engine reports it.
        unlimited: Share of the prompt tokens that one unlimited cache could hold; None without prompts.
        fleet_tokens: Size of all engines' caches together, in tokens; None if an engine does not report its size.
        curve: Sizes of one cache in tokens, rising, each with the share of the prompt tokens that it could hold.
        decisions: Number of observed routing decisions with known cost terms.
        bottleneck: Mean expected seconds to the first token, by cause; None if no cost terms are known.
        waiting: Mean seconds, of those of `bottleneck`, in which a request waits for others: for blocks that they
            occupy, or for their computation.
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
        """Share of prompt tokens that one cache of `tokens` tokens could hold."""
        return max((rate for size, rate in self.curve if size <= tokens), default=0.0)

    def cache_rates(self) -> list[tuple[float, float]]:
        """Sizes of one cache in tokens, each with the share of prompt tokens that it could hold.

        The sizes include the total of the engines' caches, if known.
        """
        if self.fleet_tokens:
            return [(self.fleet_tokens * factor, self.rate(self.fleet_tokens * factor)) for factor in CACHES]
        most = self.unlimited or 0.0
        # The smallest that hold so much of what is possible.
        steps = [next((row for row in self.curve if row[1] >= share * most), None) for share in (0.25, 0.5, 0.75, 0.9)]
        return list(dict.fromkeys(row for row in steps if row is not None))


def live_plan(reuse: Mapping[str, Any], decisions: Iterable[Mapping[str, Any]]) -> LivePlan:
    """Compute a plan from a router's answer to `/reuse` and from its decisions with cost terms."""
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
    """Convert the plan to plain data for JSON."""
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
    """Expected seconds to the first token at the chosen engine, in three parts.

    The parts: waiting for free blocks, waiting in the queue, and computing the prompt.
    """
    for candidate in decision["candidates"] or ():
        terms = candidate["terms"]
        if (candidate["worker"], candidate["rank"]) == (decision["worker"], decision["rank"]) and _PREFILL in terms:
            return float(terms[_ROOM] or 0.0), float(terms[_WAIT] or 0.0), float(terms[_PREFILL] or 0.0)
    return None
