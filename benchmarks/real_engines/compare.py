"""A comparison of what the index predicted of a prompt with what the engine reused, and why they differ if they do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

Verdict = Literal["equal", "low", "high"]

NOT_SURE = "untrusted"  # the index said that it does not know this engine now
PARTIAL = "partial"  # it said that the engine may hold more
UPPER_BOUND = "upper bound"  # it said that the engine may be able to use less
IN_FLIGHT = "in flight"  # the engine worked on other prompts between the question and the request
UNEXPLAINED = "unexplained"


@dataclass(frozen=True)
class Sample:
    """One prompt: what the index said before it was sent, and what the engine said after."""

    scenario: str
    worker: str
    prompt: int  # tokens
    block_size: int
    held: int | None  # tokens that the index says the engine holds; None if it does not answer for this engine
    cached: int  # tokens that the engine reused
    usable: int | None = None  # tokens that the index says the engine can reuse; None if it does not say
    trusted: bool = True  # whether the index answered for this engine without reserve
    partial: bool = False  # whether it said that the engine may hold more
    upper_bound: bool = False  # whether it said that the engine may hold less
    overlapping: int = 0  # other requests that this engine worked on meanwhile
    unannounced: str = ""  # what tells these prompts' blocks apart in the engine, but is not in its events
    note: str = ""

    @property
    def predicted(self) -> int:
        """Tokens that the engine should reuse: what it holds, but never the last token of the prompt."""
        if self.usable is not None:
            return self.usable
        return min(self.held or 0, (self.prompt - 1) // self.block_size * self.block_size)

    @property
    def verdict(self) -> Verdict:
        """The comparison of the prediction with the engine's reuse: "equal", or "low" or "high" if it was wrong."""
        if self.predicted == self.cached:
            return "equal"
        return "low" if self.predicted < self.cached else "high"

    @property
    def cause(self) -> str | None:
        """The reason why the prediction is not what the engine reused; None if it is."""
        verdict = self.verdict
        if verdict == "equal":
            return None
        if self.held is None or not self.trusted:
            return NOT_SURE
        if self.upper_bound and verdict == "high":
            return UPPER_BOUND
        if self.partial and verdict == "low":
            return PARTIAL
        if self.unannounced:
            return f"no {self.unannounced} in events"
        if self.overlapping and verdict == "low":
            return IN_FLIGHT
        return UNEXPLAINED

    def __str__(self) -> str:
        said = "nothing" if self.held is None else str(self.held)
        text = f"{self.scenario}: {self.worker}, prompt of {self.prompt}: index {said}, engine {self.cached}: "
        if self.usable is not None:
            text += f"{self.usable} usable, "
        return f"{text}{self.verdict}, {self.cause}{f' ({self.note})' if self.note else ''}"


@dataclass
class Tally:
    """Samples counted."""

    verdicts: Counter[str] = field(default_factory=Counter)
    causes: Counter[tuple[str, str]] = field(default_factory=Counter)  # of a verdict and its cause

    @property
    def total(self) -> int:
        """All of them."""
        return self.verdicts.total()

    @property
    def wrong(self) -> int:
        """Differences without an explanation."""
        return sum(count for (_, cause), count in self.causes.items() if cause == UNEXPLAINED)

    def add(self, sample: Sample) -> None:
        """Counts one."""
        self.verdicts[sample.verdict] += 1
        if sample.cause is not None:
            self.causes[sample.verdict, sample.cause] += 1


def tally(samples: Iterable[Sample]) -> dict[str, Tally]:
    """Samples counted by scenario, in the order in which these came."""
    found: dict[str, Tally] = {}
    for sample in samples:
        found.setdefault(sample.scenario, Tally()).add(sample)
    return found
