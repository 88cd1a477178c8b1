"""Search for the highest rate that passes: by factors until it is bracketed, then by bisection of logarithms.

The search does not measure: its driver asks for the next rate and reports the outcome. So it can be tested, and the
    searches of many designs can take turns, which spreads a noisy minute over all of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(slots=True)
class Search:
    """A search for the border between passing and failing.

    Attributes:
        start: The first rate.
        width: Stop when the lowest failure is at most this share above the highest pass.
        step: Factor of the steps until both a pass and a failure are known.
        lowest, highest: The limits of the rates that are tried.
    """

    start: float
    width: float = 0.06
    step: float = 4.0
    lowest: float = 1e3
    highest: float = 1e10
    passed: float | None = None
    failed: float | None = None

    def next_rate(self) -> float | None:
        """The rate to try next; None when the search is over."""
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
        """Note whether `rate` passed.

        The border is where a pass turns into a failure: noise the other way is ignored.
        """
        if passed:
            self.passed = rate if self.passed is None else max(self.passed, rate)
        else:
            self.failed = rate if self.failed is None else min(self.failed, rate)
