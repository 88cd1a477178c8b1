"""Search for the highest rate that passes: by constant factors until it is bracketed, then by bisection of logarithms.

The search does not measure: its driver asks for the next rate and reports the outcome. So it can be tested, and the
searches of many designs can take turns, which distributes a disturbance of the machine over all designs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(slots=True)
class Search:
    """Search for the rate between passing and failing.

    Attributes:
        start: The first rate to try.
        width: Precision: the search ends when the lowest failing rate is at most this share above the highest passing
            one.
        step: Factor between successive rates until both a pass and a failure are known.
        lowest, highest: Limits of the rates to try.
    """

    start: float
    width: float = 0.06
    step: float = 4.0
    lowest: float = 1e3
    highest: float = 1e10
    passed: float | None = None
    failed: float | None = None

    def next_rate(self) -> float | None:
        """Rate to try next; None when the search is over."""
        if self.passed is None:
            if self.failed is None:
                return min(max(self.start, self.lowest), self.highest)
            return max(self.failed / self.step, self.lowest) if self.failed > self.lowest else None
        if self.failed is None:
            return min(self.passed * self.step, self.highest) if self.passed < self.highest else None
        if self.failed <= self.passed * (1 + self.width):
            return None
        return math.sqrt(self.passed * self.failed)

    def tell(self, rate: float, passed: bool) -> None:
        """Record the outcome of a trial of `rate`.

        The result of the search is a rate where a pass turns into a failure; a failure at a lower rate than a pass is
        ignored as noise.
        """
        if passed:
            self.passed = rate if self.passed is None else max(self.passed, rate)
        else:
            self.failed = rate if self.failed is None else min(self.failed, rate)
