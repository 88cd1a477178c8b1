"""Sweeps over designs that are formulas: what is found, what is kept, what counts."""

import io
import json
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from kvatlas.errors import ConfigError, JournalError, MeasurementError
from kvatlas.lab.bench.journal import Journal
from kvatlas.lab.bench.report import print_sweep, run_rows, sweep_rows
from kvatlas.lab.bench.search import Search
from kvatlas.lab.bench.sweep import Sweep, SweepConfig, Sweeper, summarise
from kvatlas.lab.bench.verdict import Limit, judge, parse_time

from .fake import MACHINE, PLAN, Designs, result

CONFIG = SweepConfig(repeats=3, fractions=(0.5, 1.0, 1.15), limit=Limit(10e6))
CAPACITIES = {"slow": 12_345.0, "middle": 3.3e6, "fast": 4.1e7}


def run(designs: Designs, config: SweepConfig = CONFIG, journal: Journal | None = None, **how: Any) -> Sweep:
    return Sweeper(list(designs.capacities), config, PLAN, designs, MACHINE, journal=journal, **how).run()


@pytest.mark.parametrize("border", [1_700.0, 4e5, 5e5, 1.3e6, 7.7e8])
@pytest.mark.parametrize("width", [0.02, 0.06, 0.2])
def test_a_search_ends_just_below_the_border(border: float, width: float) -> None:
    search = Search(start=5e5, width=width)
    steps = 0
    while (rate := search.next_rate()) is not None:
        search.tell(rate, rate <= border)
        steps += 1
    assert search.passed is not None
    assert search.passed <= border < search.failed <= search.passed * (1 + width)  # type: ignore[operator]
    assert steps < 25


def test_a_search_gives_up_at_its_ends() -> None:
    for passes in (True, False):
        search = Search(start=5e5, lowest=1e4, highest=1e8)
        rates = []
        while (rate := search.next_rate()) is not None:
            rates.append(rate)
            search.tell(rate, passes)
        assert (search.passed, search.failed) == ((1e8, None) if passes else (None, 1e4))
        assert rates[-1] == (1e8 if passes else 1e4)


def test_thresholds_are_found() -> None:
    designs = Designs(CAPACITIES)
    sweep = run(designs)
    assert sweep.complete
    assert sweep.points == len(designs.calls)
    for one in sweep.indexes:
        assert one.threshold is not None
        # p99 ends it at 20 µs / (1 - load) = 10 ms: a little below the capacity.
        assert 0.93 * CAPACITIES[one.index] < one.threshold <= CAPACITIES[one.index]
        assert len(one.searches) == 3
        assert one.bound_by in ("slow", "behind")
        assert one.logical == pytest.approx(one.threshold / 10)
        assert (one.wrong, one.compared, one.version) == (0, 18, "fake 1")
        assert [point.fraction for point in one.curve] == [0.5, 1.0, 1.15]
        assert [point.passed for point in one.curve] == [True, True, False]
        assert one.curve[0].runs == 3
    assert run(Designs(CAPACITIES)).as_json() == sweep.as_json()


def test_designs_take_turns() -> None:
    designs = Designs({"a": 1e6, "b": 1.1e6, "c": 0.9e6})
    run(designs)
    names = [name for name, _ in designs.calls]
    # Among any ten neighbours all three are there, whatever the order of a round.
    assert all(len(set(names[i : i + 10])) == 3 for i in range(len(names) - 10))
    rounds = [tuple(names[i : i + 3]) for i in range(0, 12, 3)]
    assert len(set(rounds)) > 1


def test_windows_are_as_long_as_asked_and_slow_designs_run_a_part() -> None:
    sweeper = Sweeper(["a"], replace(CONFIG, seconds=2.0, warm_up=0.5), PLAN, Designs({"a": 1e6}), MACHINE)
    options, seconds = sweeper.options(1e6)
    assert options == {"rate": 1e6, "until": 0.04, "warm_up": 0.02}
    assert seconds == pytest.approx(4.0)
    options, seconds = sweeper.options(1e8)
    assert options == {"rate": 1e8, "warm_up": 0.5}
    assert seconds == pytest.approx(1.0)


class Flaky(Designs):
    """Every failure but the hopeless is a stall of the machine that does not come back."""

    def answer(self, index: str, rate: float, seconds: float) -> dict[str, Any]:
        first = self.calls.count((index, rate)) == 1
        if first and 0.9 < rate / self.capacities[index] < 1:
            return result(rate, rate / 1.1, seconds)
        return super().answer(index, rate, seconds)


def test_a_failure_near_the_border_is_tried_again() -> None:
    designs = Flaky({"a": 1e6})
    sweep = run(designs, replace(CONFIG, fractions=()))
    assert sweep.indexes[0].threshold is not None
    assert sweep.indexes[0].threshold > 0.93e6
    hopeless = [rate for _, rate in designs.calls if rate > 2e6]
    assert len(hopeless) == len(set(hopeless))


class InterruptedDesigns(Designs):
    """Ctrl-C at some call."""

    def __init__(self, capacities: dict[str, float], at: int) -> None:
        super().__init__(capacities)
        self.at = at

    def answer(self, index: str, rate: float, seconds: float) -> dict[str, Any]:
        if len(self.calls) == self.at:
            raise KeyboardInterrupt
        return super().answer(index, rate, seconds)


@pytest.mark.parametrize("at", [1, 7, 40, 70])
def test_a_sweep_goes_on_where_it_was_stopped(tmp_path: Path, at: int) -> None:
    path = tmp_path / "points.jsonl"
    whole = Designs(CAPACITIES)
    expected = run(whole).as_json()
    stopped = Sweeper(
        list(CAPACITIES), CONFIG, PLAN, InterruptedDesigns(CAPACITIES, at), MACHINE, journal=Journal(path)
    )
    with pytest.raises(KeyboardInterrupt):
        stopped.run()
    assert not stopped.result.complete
    assert (len(path.read_text().splitlines()) if path.exists() else 0) == at - 1
    # As if the machine had stopped in the middle of a line.
    with path.open("a") as file:
        file.write('{"key": {"pl')
    rest = Designs(CAPACITIES)
    assert run(rest, journal=Journal(path)).as_json() == expected
    assert len(rest.calls) == len(whole.calls) - (at - 1)
    nothing = Designs(CAPACITIES)
    assert run(nothing, journal=Journal(path)).as_json() == expected
    assert nothing.calls == []


def test_other_plans_options_and_machines_are_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "points.jsonl"
    run(Designs(CAPACITIES), journal=Journal(path))
    changes: list[dict[str, Any]] = [
        {"plan": {**PLAN, "digest": "1"}},
        {"machine": {**MACHINE, "kvatlas": "1"}},
        {"config": replace(CONFIG, options={"event_threads": 2})},
    ]
    for change in changes:
        given = {"plan": PLAN, "machine": MACHINE, "config": CONFIG, **change}
        designs = Designs(CAPACITIES)
        Sweeper(
            list(CAPACITIES), given["config"], given["plan"], designs, given["machine"], journal=Journal(path)
        ).run()
        assert len(designs.calls) > 20
        assert all(o.get("event_threads") == given["config"].options.get("event_threads") for o in designs.options)


def test_a_file_that_is_no_journal_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("dear diary\n" * 9)
    with pytest.raises(JournalError, match="does not contain points of a sweep"):
        Journal(tmp_path / "notes.txt")


class OddDesign(Designs):
    """A design with a fault in every run."""

    def __init__(self, **changes: Any) -> None:
        super().__init__({"odd": 1e6})
        self.changes = changes

    def answer(self, index: str, rate: float, seconds: float) -> dict[str, Any]:
        return {**super().answer(index, rate, seconds), **self.changes}


@pytest.mark.parametrize(
    ("changes", "kind", "note"),
    [
        ({"valid": False, "why": ["invalid: the generator was late"]}, "invalid", "no rate passes"),
        ({"kept_up": False, "why": ["did not keep up"]}, "behind", "no rate passes"),
        ({"agrees": False, "why": ["3 wrong"]}, "wrong", "wrong: 3 wrong"),
        ({"agrees": None, "why": ["nothing was compared"]}, "wrong", "nothing was compared"),
        ({"counts": {"errors": 2, "first_error": "ValueError: no"}}, "error", "error: ValueError: no"),
    ],
)
def test_what_is_not_a_result_gives_no_threshold_and_no_curve(changes: dict[str, Any], kind: str, note: str) -> None:
    assert judge(result(1.0, 2.0, **changes)).kind == kind
    sweep = run(OddDesign(**changes))
    one = sweep.indexes[0]
    assert one.threshold is None
    assert one.curve == []
    assert note in one.note
    row = sweep_rows(sweep)[0]
    assert row[1:7] == ("-",) * 6
    assert note in row[7]
    # Nor does a single run's table show a figure of one that says nothing.
    if kind in ("invalid", "error"):
        rows = dict(run_rows(result(1e6, 2e6, **changes), judge(result(1.0, 2.0, **changes))))
        assert rows.keys() == {"index", "version", "verdict"}
        assert rows["verdict"].startswith(("INVALID", "FAILED"))


def test_known_deviations_do_not_count_as_wrong_but_are_told() -> None:
    wrong = {"wrong": 7, "holdings": None, "depths": {"compared": 90}, "reference": {"compared": 10}}
    sweep = run(OddDesign(agrees=False, comparison=wrong, why=["7 wrong"]), deviates=lambda name: name == "odd")
    assert sweep.indexes[0].threshold is not None
    assert (sweep.indexes[0].wrong, sweep.indexes[0].compared) == (7, 100)
    row = sweep_rows(sweep)[0]
    assert row[0] == "odd *"
    assert row[6] == "7 of 100"


class FailingDesigns(Designs):
    def answer(self, index: str, rate: float, seconds: float) -> dict[str, Any]:
        if index == "bad":
            raise MeasurementError("bad: panicked")
        return super().answer(index, rate, seconds)


def test_a_design_that_fails_does_not_stop_the_others() -> None:
    designs = FailingDesigns({"bad": 1e6, "good": 1e6})
    bad, good = run(designs).indexes
    assert (bad.threshold, bad.note) == (None, "error: bad: panicked")
    assert sum(name == "bad" for name, _ in designs.calls) == 1
    assert good.threshold is not None


def test_a_threshold_that_the_generator_ends_is_a_lower_bound() -> None:
    class LaggingDesigns(Designs):
        def answer(self, index: str, rate: float, seconds: float) -> dict[str, Any]:
            return {**super().answer(index, rate, seconds), "valid": rate < 2e6}

    sweep = run(LaggingDesigns({"a": 1e9}))
    assert sweep.indexes[0].bound_by == "invalid"
    row = sweep_rows(sweep)[0]
    assert row[1].startswith("≥ 1.9")
    assert row[7] == "the generator"


def test_medians_are_over_the_runs_that_count() -> None:
    runs = [result(1e6, 2e6), result(1e6, 4e6), result(1e6, 8e6), result(1e6, 1e9, valid=False)]
    point = summarise(0.5, 1e6, runs, deviates=False)
    assert point is not None
    assert (point.passed, point.runs, point.service_p50) == (True, 3, 1e9 / 4e6)
    point = summarise(0.5, 1e6, [*runs[:1], *[result(1e6, 9e5)] * 2], deviates=False)
    assert point is not None
    assert (point.passed, point.runs) == (False, 3)
    assert "20.0 %" in point.reason
    assert summarise(0.5, 1e6, [result(1e6, 2e6, valid=False)], deviates=False) is None
    assert summarise(0.5, 1e6, [{"failed": "oh"}], deviates=False) is None


def test_the_limit_of_p99_decides() -> None:
    run_ = result(1e6, 2e6)  # 40 µs from the deadline, 2 µs in service
    assert judge(run_, Limit(50e3)).passed
    assert judge(run_, Limit(30e3)).kind == "slow"
    assert judge(run_, Limit(3e3, "service")).passed
    assert "p99 2 µs, wanted: p99 of service ≤ 1 µs" in judge(run_, Limit(1e3, "service")).reason
    assert judge({**run_, "from_deadline": None}, Limit(1e9)).kind == "slow"


@pytest.mark.parametrize(
    ("text", "ns"), [("5ms", 5e6), ("0.5 s", 5e8), ("20us", 2e4), ("20µs", 2e4), ("7ns", 7.0), ("1e3us", 1e6)]
)
def test_times(text: str, ns: float) -> None:
    assert parse_time(text) == ns


@pytest.mark.parametrize("text", ["", "5", "ms", "five ms", "5m", "-5ms", "1.2.3s", "nans"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a time"):
        parse_time(text)


@pytest.mark.parametrize(
    "make",
    [
        lambda: SweepConfig(repeats=0),
        lambda: SweepConfig(seconds=0),
        lambda: SweepConfig(warm_up=1),
        lambda: SweepConfig(width=0),
        lambda: SweepConfig(start=float("nan")),
        lambda: SweepConfig(fractions=(0.0,)),
        lambda: Limit(0),
        lambda: Limit(1, "wall"),
        lambda: Sweeper([], CONFIG, PLAN, Designs({}), MACHINE),
        lambda: Sweeper(["a"], CONFIG, {**PLAN, "facts": {**PLAN["facts"], "lookups": 0}}, Designs({}), MACHINE),
    ],
)
def test_config_that_cannot_be_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises(ConfigError):
        make()


def test_the_journal_has_what_is_needed_to_believe_it(tmp_path: Path) -> None:
    path = tmp_path / "points.jsonl"
    run(Designs({"a": 1e6}), replace(CONFIG, options={"query_threads": 2}), Journal(path))
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert all(row["key"]["machine"] == MACHINE and row["key"]["plan"] == PLAN["digest"] for row in rows)
    assert {row["key"]["options"]["query_threads"] for row in rows} == {2}
    assert len({json.dumps(row["key"], sort_keys=True) for row in rows}) == len(rows)
    assert all(a["key"] != b["key"] for a, b in pairwise(rows))


@pytest.mark.parametrize("width", [80, 110, 160])
def test_words_stay_whole_in_the_table(width: int) -> None:
    class Ill(Designs):
        def answer(self, index: str, rate: float, seconds: float) -> dict[str, Any]:
            if index == "dict":
                raise MeasurementError("a remark of many words. " * 9)
            return super().answer(index, rate, seconds)

    sweep = run(Ill({"dict": 1e6, "block-index-scores": 1e8, "radix-concurrent": 3e6}))
    out = io.StringIO()
    print_sweep(sweep, Console(file=out, width=width))
    text = out.getvalue()
    assert max(len(line.rstrip()) for line in text.splitlines()) <= width
    for word in ("block-index-scores", "radix-concurrent", "threshold", "logical", "service", "keeping", "wrong"):
        assert word in text
    assert "…" not in text
    # Long remarks are below the table, not in a narrow column.
    assert "dict: error: a remark of many words. a remark of" in text
