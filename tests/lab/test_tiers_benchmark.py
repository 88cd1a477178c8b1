"""The bars of tiers, pools and pulls: which cells are compared, and what the table says of them."""

from dataclasses import replace
from pathlib import Path

from benchmarks.tiers.cells import Cell, run_and_keep
from benchmarks.tiers.plan import BARS, OURS, Bar
from benchmarks.tiers.report import table

SMALL = Cell("documents 2", OURS, host=200_000, cache=100_000, engines=2, requests=6, pulls=True)


def test_a_bar_compares_cells_of_the_same_requests() -> None:
    for make in BARS.values():
        for bar in make():
            assert bar.ours.policy == OURS
            for name in ("workload", "hardware", "requests", "seed", "speedup", "engines", "troubles"):
                assert getattr(bar.ours, name) == getattr(bar.other, name), bar
            assert bar.ours.key != bar.other.key


def test_a_cell_is_run_once(tmp_path: Path) -> None:
    assert run_and_keep(tmp_path, SMALL, only_kept=True) is None
    found = run_and_keep(tmp_path, SMALL)
    assert found is not None
    assert found["requests"] == 6
    assert found["throughput"] > 0
    kept = run_and_keep(tmp_path, SMALL, only_kept=True)
    assert kept is not None
    assert kept["ttft"] == found["ttft"]
    assert run_and_keep(tmp_path, replace(SMALL, pulls=False), only_kept=True) is None


def test_a_missed_bar_is_bold() -> None:
    def result(mean: float, throughput: float) -> dict[str, object]:
        return {"ttft": {"mean": mean, "p99": mean}, "throughput": throughput}

    cells = SMALL, replace(SMALL, pulls=False)
    bars = [
        Bar("a", "b", *cells, "mean", 0.6),
        Bar("a", "b", *cells, "throughput", 1.35),
        Bar("a", "b", *cells, "p99", 0),
    ]
    kept = table([(bar, result(1.0, 3.0), result(2.0, 2.0)) for bar in bars])
    assert "**" not in kept
    assert "| 0.50 | <= 0.6 |" in kept
    assert "| 1.50 | >= 1.35 |" in kept
    missed = table([(bar, result(2.0, 2.0), result(2.0, 2.0)) for bar in bars])
    assert missed.count("**1.00**") == 2
