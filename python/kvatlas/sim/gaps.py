"""Histogram of the times between successive tokens of many requests, with bins 1 % wide."""

from __future__ import annotations

import math

_PER_E = 100.0  # bins for each factor of e: 1 % wide
_LOWEST = -1_000  # the bin of 45 microseconds, and all below


class Gaps:
    """Histogram of gaps: the times between successive tokens of a request, in seconds."""

    def __init__(self) -> None:
        self.bins: dict[int, int] = {}
        self.count = 0
        self.total = 0.0  # seconds

    def add(self, seconds: float, count: int = 1) -> None:
        """Add `count` gaps of `seconds` each to the histogram."""
        if count <= 0:
            return
        place = max(int(math.log(seconds) * _PER_E // 1), _LOWEST) if seconds > 0 else _LOWEST
        self.bins[place] = self.bins.get(place, 0) + count
        self.count += count
        self.total += seconds * count

    def add_rising(self, first: float, growth: float, steps: int, count: int) -> None:
        """Add the gaps of `count` requests in `steps` steps of `first`, `first + growth`, … seconds."""
        if first + growth * (steps - 1) <= first * 1.01:
            # All gaps are in one bin or two, so their mean is precise enough.
            self.add(first + growth * (steps - 1) / 2, steps * count)
            return
        done = 0
        while done < steps:
            now = first + growth * done
            some = min(max(int(0.01 * now / growth), 1), steps - done)
            self.add(now + growth * (some - 1) / 2, some * count)
            done += some

    def merge(self, other: Gaps) -> None:
        """Add the gaps of another histogram to this one."""
        for place, count in other.bins.items():
            self.bins[place] = self.bins.get(place, 0) + count
        self.count += other.count
        self.total += other.total

    @property
    def mean(self) -> float:
        """Mean gap, in seconds; 0 if there are no gaps."""
        return self.total / self.count if self.count else 0.0

    def quantile(self, share: float) -> float:
        """Quantile of the gaps, in seconds, within 1 %: the share `share` of them is not longer.

        0 if there are no gaps.
        """
        left = share * self.count
        for place in sorted(self.bins):
            left -= self.bins[place]
            if left <= 0:
                return math.exp((place + 0.5) / _PER_E)
        return 0.0
