"""Threshold throughput of designs, and their throughput-latency curves.

**Threshold throughput**: the highest offered rate, in block operations per second, at which a run is valid, keeps up,
gives right answers, and has its p99 within a limit. `Search` finds it, with a fresh process for each point. Designs
take turns, point by point and in an order that changes every round, so that a disturbance of the machine affects all
designs. The search is repeated; the threshold is the median. Repeats after the first begin at the result of the
previous one.

A failing point that was not hopeless is tried once more, because one stall of the machine must not halve a threshold. A
passing point is not tried again: it already kept up for a whole window.

Then each design is measured at fractions of its own threshold, which gives its curve.

A point at rate r runs the part of the plan that fills its window: a slow design runs only the beginning, a fast one
more. Where the plan ends first, the window is shorter, and the result says so.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from kvatlas.errors import ConfigError, MeasurementError
from kvatlas.lab.bench.journal import Journal
from kvatlas.lab.bench.programs import Result
from kvatlas.lab.bench.search import Search
from kvatlas.lab.bench.verdict import Limit, Verdict, bound_of, hopeless, judge

FRACTIONS = (0.1, 0.25, 0.5, 0.7, 0.85, 1.0, 1.15)
SHORT_WINDOW = 0.25  # seconds, below which a figure says little

Measure = Callable[[str, dict[str, object], float], Result]
"""Function (index, options of the run, seconds of all windows) that measures a point. Raises `MeasurementError`."""


@dataclass(frozen=True, slots=True)
class SweepConfig:
    """Settings of a sweep.

    Attributes:
        repeats: Number of repeats of each search and of each point of a curve.
        seconds: Maximum length of a measured window.
        warm_up: Share of a point's operations that run before its measured window.
        width: Precision of the threshold, as a share of it.
        fractions: Rates at which the curve is measured, relative to the threshold.
        start: First rate of the first search, in block operations per second.
        limit: Limit of the p99 of lookups.
        options: Options of the runs of all points: threads, pinning and so on.
    """

    repeats: int = 3
    seconds: float = 2.0
    warm_up: float = 0.3
    width: float = 0.06
    fractions: tuple[float, ...] = FRACTIONS
    start: float = 500_000.0
    limit: Limit = field(default_factory=Limit)
    options: Mapping[str, object] = field(default_factory=dict)
    seed: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.repeats <= 1000:
            raise ConfigError(f"repeats must be from 1 to 1000, got {self.repeats}")
        if not 0 < self.seconds <= 3600:
            raise ConfigError(f"seconds must be above 0 and at most 3600, got {self.seconds}")
        if not 0 <= self.warm_up <= 0.95:
            raise ConfigError(f"warm_up must be from 0 to 0.95, got {self.warm_up}")
        if not 0.005 <= self.width <= 1:
            raise ConfigError(f"width must be from 0.005 to 1, got {self.width}")
        if not 1 <= self.start <= 1e10:
            raise ConfigError(f"start must be from 1 to 1e10 block operations per second, got {self.start}")
        if not all(0.001 <= f <= 10 for f in self.fractions):
            raise ConfigError("fractions must be from 0.001 to 10")


@dataclass(slots=True)
class CurvePoint:
    """Result of a design at a fraction of its threshold: medians over the runs that passed, or over all if most failed.

    `passed`: the run was valid, kept up with its rate and gave right answers, at any p99. Times are in ns; None if no
    operation was timed.
    """

    fraction: float
    rate: float  # offered, block operations per second
    achieved: float
    passed: bool
    reason: str
    runs: int
    service_p50: float | None = None
    service_p99: float | None = None
    deadline_p50: float | None = None
    deadline_p99: float | None = None


@dataclass(slots=True)
class IndexResult:
    """Results of a sweep for one design."""

    index: str
    deviates: bool
    threshold: float | None = None  # block operations per second; None: not found (see `note`)
    logical: float | None = None  # the same in lookups and events a second
    searches: list[float] = field(default_factory=list)  # what each repeat found
    bound_by: str = ""  # kind of the lowest failure: see `Verdict`
    reason: str = ""  # reason of that failure
    window: float | None = None  # seconds, of the threshold's point
    wrong: int | None = None  # answers and holdings that differ from the reference, at the threshold
    compared: int | None = None
    note: str = ""
    version: str = ""
    curve: list[CurvePoint] = field(default_factory=list)


@dataclass(slots=True)
class Sweep:
    """Results of a sweep for all designs."""

    indexes: list[IndexResult]
    config: SweepConfig
    plan: dict[str, Any]  # digest, facts and meta
    machine: dict[str, str | int]
    points: int = 0
    complete: bool = True

    def as_json(self) -> dict[str, Any]:
        """Convert the results of the sweep to plain data, for files."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Step:
    """Progress of a sweep, reported before each point and at the end."""

    index: str
    phase: str  # "threshold" or "curve"
    repeat: int
    rate: float
    done: int  # points so far
    share: float  # about how much of the work is done


class Sweeper:
    """Driver of one sweep. KeyboardInterrupt may stop `run` at any time; `result` has the points measured so far."""

    def __init__(
        self,
        indexes: Sequence[str],
        config: SweepConfig,
        plan: dict[str, Any],
        measure: Measure,
        machine: dict[str, str | int],
        *,
        journal: Journal | None = None,
        deviates: Callable[[str], bool] = lambda _: False,
        progress: Callable[[Step], None] | None = None,
    ) -> None:
        if not indexes:
            raise ConfigError("no index to sweep")
        facts = plan["facts"]
        self._blocks = sum(int(facts[name]) for name in ("lookup_blocks", "stored_blocks", "removed_blocks"))
        if not facts["lookups"] or not self._blocks:
            raise ConfigError("the plan has no lookups: there is nothing to sweep")
        self.config = config
        self.result = Sweep(
            [IndexResult(name, deviates(name)) for name in dict.fromkeys(indexes)], config, plan, machine
        )
        self._measure = measure
        self._journal = Journal(None) if journal is None else journal
        self._progress = progress or (lambda _: None)
        self._share = 0.0

    def run(self) -> Sweep:
        """Measure thresholds and curves of all designs. Raises `OSError` if the journal cannot be written."""
        self.result.complete = False
        for repeat in range(self.config.repeats):
            self._search(repeat)
        for repeat in range(self.config.repeats):
            self._curves(repeat)
        self.result.complete = True
        return self.result

    # Thresholds

    def _search(self, repeat: int) -> None:
        searches: dict[str, Search] = {}
        best: dict[str, Result] = {}
        worst: dict[str, tuple[Verdict, str]] = {}
        for one in self.result.indexes:
            if one.searches:
                searches[one.index] = Search(statistics.median(one.searches), self.config.width, step=1.25)
            elif repeat == 0:
                searches[one.index] = Search(self.config.start, self.config.width)
        rng = random.Random(f"{self.config.seed}/{repeat}")
        steps = 0
        by_name = {one.index: one for one in self.result.indexes}
        while open_ := [(name, rate) for name, s in searches.items() if (rate := s.next_rate()) is not None]:
            rng.shuffle(open_)
            # A search takes about ten points the first time, four afterwards.
            steps += 1
            self._at(repeat + min(steps / (10 if repeat == 0 else 4), 0.95), 0)
            for name, rate in open_:
                one = by_name[name]
                verdict, result = self._judged(one, rate, repeat)
                searches[name].tell(rate, verdict.passed)
                if verdict.passed and result is not None and rate == searches[name].passed:
                    best[name] = result
                elif not verdict.passed and rate == searches[name].failed:
                    worst[name] = (verdict, bound_of(result or {}, verdict))
                if verdict.kind == "error" or (verdict.kind == "wrong" and searches[name].passed is None):
                    # A wrong design is wrong at every rate.
                    one.note = f"{verdict.kind}: {verdict.reason}"
                    if searches[name].passed is None:
                        del searches[name]
        for name, search in searches.items():
            self._found(by_name[name], search, best.get(name), worst.get(name))

    def _found(self, one: IndexResult, search: Search, best: Result | None, worst: tuple[Verdict, str] | None) -> None:
        if worst is not None:
            one.bound_by, one.reason = worst[1], worst[0].reason
        if search.passed is None:
            if not one.searches and not one.note:
                reason = worst[0].reason if worst else ""
                one.note = f"no rate passes, not even {search.failed:,.0f} block operations per second: {reason}"
            return
        one.searches.append(search.passed)
        one.threshold = statistics.median(one.searches)
        if best is None:
            return
        offered = best["offered"]
        one.logical = one.threshold * offered["ops_per_s"] / offered["block_ops_per_s"]
        one.window = best["window_ns"] / 1e9
        one.version = str(best.get("version", ""))
        one.wrong, one.compared = wrong_of(best)
        if search.failed is None:
            one.note = "no rate that was tried failed"
        elif one.window < SHORT_WINDOW:
            one.note = f"its window was only {one.window:.2f} s: the plan is too short (take more duplication)"

    def _judged(self, one: IndexResult, rate: float, repeat: int) -> tuple[Verdict, Result | None]:
        for attempt in range(2):
            result, failed = self._point(one.index, rate, "threshold", repeat, attempt)
            if result is None:
                return Verdict("error", failed), None
            verdict = judge(result, self.config.limit, deviates=one.deviates)
            if verdict.passed or verdict.kind == "error" or hopeless(result):
                break
        return verdict, result

    # Curves

    def _curves(self, repeat: int) -> None:
        rng = random.Random(f"{self.config.seed}/curve/{repeat}")
        found = [one for one in self.result.indexes if one.threshold is not None]
        for number, fraction in enumerate(self.config.fractions):
            rng.shuffle(found)
            for one in found:
                self._at(repeat + number / len(self.config.fractions), 1)
                rate = (one.threshold or 0.0) * fraction
                self._point(one.index, rate, "curve", repeat, 0)
                runs = [
                    run
                    for r in range(repeat + 1)
                    if (run := self._journal.find(self._key(one.index, rate, "curve", r, 0))) is not None
                ]
                point = summarise(fraction, rate, runs, deviates=one.deviates)
                one.curve = sorted(
                    [p for p in one.curve if p.fraction != fraction] + ([point] if point else []),
                    key=lambda p: p.fraction,
                )

    # Points

    def options(self, rate: float) -> tuple[dict[str, object], float]:
        """Options of a point at `rate`, and the total seconds of its windows."""
        s = self.config
        until = min(1.0, rate * s.seconds / (1 - s.warm_up) / self._blocks)
        options = {**s.options, "rate": rate, "warm_up": s.warm_up * until}
        if until < 1:
            options["until"] = until
        return options, self._blocks * until / rate

    def _key(self, index: str, rate: float, phase: str, repeat: int, attempt: int) -> dict[str, object]:
        return {
            "plan": self.result.plan["digest"],
            "index": index,
            "options": self.options(rate)[0],
            "phase": phase,
            "repeat": repeat,
            "attempt": attempt,
            "machine": self.result.machine,
        }

    def _point(self, index: str, rate: float, phase: str, repeat: int, attempt: int) -> tuple[Result | None, str]:
        key = self._key(index, rate, phase, repeat, attempt)
        self._progress(Step(index, phase, repeat, rate, self.result.points, self._share))
        known = self._journal.find(key)
        if known is None:
            options, seconds = self.options(rate)
            try:
                known = self._measure(index, options, seconds)
            except MeasurementError as error:
                known = {"failed": str(error)}
            self._journal.add(key, known)
        self.result.points += 1
        return (None, known["failed"]) if "failed" in known else (known, "")

    def _at(self, repeats: float, phase: int) -> None:
        # Searches and curves take about as long as each other.
        share = (
            (repeats / self.config.repeats + phase) / 2 if self.config.fractions else (repeats / self.config.repeats)
        )
        self._share = max(self._share, share)


def wrong_of(result: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Numbers of wrong and of compared answers and holdings in a result; None if none were compared."""
    comparison = result.get("comparison")
    if not comparison:
        return None, None
    parts = [comparison.get(name) or {} for name in ("holdings", "depths", "reference")]
    return int(comparison["wrong"]), sum(int(part.get("compared") or 0) for part in parts)


def summarise(fraction: float, rate: float, runs: Sequence[Result], *, deviates: bool) -> CurvePoint | None:
    """Combine the repeated runs of one point of a curve."""
    usable = [(judge(run, deviates=deviates), run) for run in runs if "failed" not in run]
    good = [run for verdict, run in usable if verdict.passed]
    passed = 2 * len(good) > len(runs)
    reasons = [verdict.reason for verdict, _ in usable if not verdict.passed]
    # The times of an invalid run do not belong to its rate.
    chosen = good if passed else [run for verdict, run in usable if verdict.kind in ("pass", "behind")]
    if not chosen:
        return None

    def middle(values: Iterator[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return float(statistics.median(known)) if known else None

    def times(clock: str, which: str) -> float | None:
        return middle((run.get(clock) or {}).get(which) for run in chosen)

    return CurvePoint(
        fraction,
        rate,
        middle(run["achieved"]["block_ops_per_s"] for run in chosen) or 0.0,
        passed,
        "" if passed else reasons[0],
        len(chosen),
        times("service", "p50"),
        times("service", "p99"),
        times("from_deadline", "p50"),
        times("from_deadline", "p99"),
    )
