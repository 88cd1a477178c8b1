"""Results of a replay: plain data, ready for JSON. Times are in seconds unless the name says otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from kvatlas.lab.replay.check import Agreement
from kvatlas.lab.replay.config import ReplayConfig
from kvatlas.lab.replay.drive import Waits
from kvatlas.lab.replay.measure import IndexFigures
from kvatlas.sim.statistics import TraceStatistics


@dataclass(frozen=True, slots=True)
class Spread:
    """Spread of the prefill work over the engines."""

    max_over_mean: float  # 1 is even
    variation: float  # standard deviation / mean


@dataclass(frozen=True, slots=True)
class Latency:
    """Mean and quantiles of a latency, in seconds."""

    mean: float
    p50: float
    p99: float


@dataclass(frozen=True, slots=True)
class Slowdown:
    """Slowdown of sessions: time that they waited for answers, relative to an idle engine.

    The idle engine keeps the blocks that a session's prompts share.
    """

    sessions: int  # sessions with all answers
    mean: float
    p95: float
    within: float  # sessions an hour whose slowdown was at most `MOST_SLOWDOWN`


@dataclass(frozen=True, slots=True)
class MissShares:
    """Shares of computed tokens in all prompt tokens, by reason; together with the hit rate, they add up to 1."""

    never: float  # no request before had them
    evicted: float  # no engine held them any more
    on_the_way: float  # an engine that did not get the request was about to compute them
    elsewhere: float  # held when the request came: by another engine, or by the same and gone when it began


@dataclass(frozen=True, slots=True)
class LoadFigures:
    """Tokens that engines loaded into their caches from other tiers, and chunks that they could not store.

    Attributes:
        host_tokens: Number of tokens loaded from the engines' own host memory.
        pool_tokens: Number of tokens loaded from the shared pool.
        pulled_tokens: Number of tokens pulled from peers.
        pulls: Number of requests for which a peer was asked for blocks.
        pulls_failed: Number of requests for which a peer was asked and did not answer.
        short_tokens: Number of tokens that a peer had when the request was sent to its engine, but no longer when
            asked.
        dropped_chunks: Number of chunks that were not stored because host memory had no free slot.
    """

    host_tokens: int
    pool_tokens: int
    pulled_tokens: int
    pulls: int
    pulls_failed: int
    short_tokens: int
    dropped_chunks: int


MOST_SLOWDOWN = 1.5
"""Highest slowdown at which a session counts as served well."""


@dataclass(slots=True)
class PolicyResult:
    """Result of one policy over one trace."""

    policy: str
    requests: int  # routed
    first_tokens: int  # of those, answered: all but the refused ones when complete
    refused: int  # too large for any engine
    prompt_tokens: int  # of admitted requests
    hit_tokens: int  # of those, found cached: prefill saved
    hit_rate: float  # hit_tokens / prompt_tokens
    bound_rate: float  # hit rate of one infinite cache for the same requests
    prefill_tokens: int  # computed
    preemptions: int
    utilisation: float  # share of the engines' time until the last arrival that prefill took
    spread: Spread
    ttft: Latency
    waits: Waits  # parts of the mean time to first token
    between: Latency  # times between tokens
    missed: MissShares | None  # None: the trace has no sessions, or engines name blocks each in its own way
    slowdown: Slowdown | None  # None: the trace has no sessions
    goodput: float  # requests per second within both limits, until the last token
    good: float  # the same as a share of the requests
    throughput: float  # answered requests per second, until the last token
    waited: int  # requests held back in the router for a while
    longest_wait: float  # the longest time that one was
    retried: int  # requests sent again because their engine died or answered with an error
    lost_events: int  # events lost
    loaded: LoadFigures | None  # None: the engines have no tiers behind their caches
    index: IndexFigures
    agreement: Agreement
    seconds: float  # real time that the replay took
    partial: bool = False
    find_ns: list[int] = field(default_factory=list)  # each lookup; for plots, not in JSON


@dataclass(slots=True)
class ReplayResult:
    """Results of all policies over one trace."""

    version: str
    trace: str
    skipped: int
    generated: dict[str, float]  # facts from the generator; empty for a trace from a file
    config: ReplayConfig
    loop: str  # "open" or "closed"
    statistics: TraceStatistics
    bound_rate: float  # hit rate of one infinite cache over the whole trace
    shared_rate: float  # hit rate of one cache as large as all engines' together
    policies: list[PolicyResult] = field(default_factory=list)
    partial: bool = False

    @property
    def disagreements(self) -> int:
        """Number of answers of the index that differed from an oracle, over all policies."""
        return sum(result.agreement.disagreements for result in self.policies)


def spread(work: Sequence[float]) -> Spread:
    """Compute the spread of work over the engines."""
    values = np.array(work, dtype=np.float64)
    mean = float(values.mean()) if values.size else 0.0
    if mean == 0:
        return Spread(1.0, 0.0)
    return Spread(float(values.max()) / mean, float(values.std()) / mean)


def latency(values: Sequence[float]) -> Latency:
    """Compute the mean and quantiles of times."""
    if not values:
        return Latency(0.0, 0.0, 0.0)
    array = np.array(values, dtype=np.float64)
    p50, p99 = (float(value) for value in np.percentile(array, [50, 99]))
    return Latency(float(array.mean()), p50, p99)


def as_json(result: ReplayResult) -> dict[str, Any]:
    """Convert the result to plain data for JSON, without the single lookups."""
    data = asdict(result)
    data["disagreements"] = result.disagreements
    for policy in data["policies"]:
        del policy["find_ns"]
    return data
