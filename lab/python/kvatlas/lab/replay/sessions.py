"""Slowdown of sessions relative to an idle engine."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from kvatlas.lab.replay.results import MOST_SLOWDOWN, Slowdown
from kvatlas.sim.hardware import StepTime
from kvatlas.sim.trace import TraceRequest


def time_alone(line: TraceRequest, cached: int, steps: StepTime, chunk: int | None) -> float:
    """Seconds from arrival to the last token on an idle engine that holds the first `cached` tokens of the prompt."""
    uncached = line.input_length - cached
    count = -(-uncached // chunk) if chunk else 1
    others = max(line.output_length - 1, 0)
    # A step's time is linear in all three, so that sums over the steps will do.
    read = count * cached + uncached * (count - 1) // 2
    read += others * line.input_length + others * (others - 1) // 2
    pairs = uncached * (cached + uncached / 2)
    return steps.of(uncached, count + others, read, pairs) + (count + others - 1) * steps.base


def session_slowdown(
    requests: Sequence[TraceRequest],
    alone: Sequence[float],
    arrivals: Mapping[int, float],
    ends: Mapping[int, float],
) -> Slowdown | None:
    """Compute the slowdown of the sessions whose requests were all answered; None if the trace has no sessions."""
    times: dict[object, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    lost: set[object] = set()
    for number, line in enumerate(requests):
        if line.session_id is None:
            continue
        if number not in ends:
            lost.add(line.session_id)
            continue
        its = times[line.session_id]
        its[0] += ends[number] - arrivals[number]
        its[1] += alone[number]
        its[2] = max(its[2], ends[number])
    ratios = [took / least for name, (took, least, _) in times.items() if name not in lost]
    if not ratios:
        return None
    last = max(end for _, _, end in times.values())
    values = np.array(ratios)
    within = int((values <= MOST_SLOWDOWN).sum())
    return Slowdown(len(ratios), float(values.mean()), float(np.percentile(values, 95)), within / last * 3600)
