"""Units of times in traces: those that are said, and those that cannot be right."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvatlas.errors import TraceError
from kvatlas.sim.times import UNITS, check_unit, parse_time
from kvatlas.sim.trace import read_trace

SECONDS = [0.0, 1.0, 1.0, 3.0, 4.0, 6.0, 7.0, 9.0, 12.0, 13.0, 14.0, 20.0]  # times of requests
EPOCH = 1_764_000_000


def write(path: Path, times: list[Any]) -> Path:
    rows = [
        {"timestamp": at, "input_length": 600, "output_length": 2, "hash_ids": [1, n]} for n, at in enumerate(times)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("begin", [0, EPOCH])
@pytest.mark.parametrize("unit", UNITS)
def test_times_of_any_unit_are_read_if_it_is_said(tmp_path: Path, unit: str, begin: int) -> None:
    path = write(tmp_path / "t.jsonl", [round((begin + at) / UNITS[unit]) for at in SECONDS])
    times = [request.timestamp for request in read_trace(path, unit=unit).requests]
    assert [at - times[0] for at in times] == pytest.approx([1_000 * at for at in SECONDS], abs=1)


@pytest.mark.parametrize("begin", [0, EPOCH])
@pytest.mark.parametrize("unit", [unit for unit in UNITS if unit != "ms"])
def test_a_wrong_unit_is_noticed_and_the_right_one_named(tmp_path: Path, unit: str, begin: int) -> None:
    path = write(tmp_path / "t.jsonl", [round((begin + at) / UNITS[unit]) for at in SECONDS])
    with pytest.raises(TraceError, match=f"--time-unit {unit}"):
        read_trace(path)
    assert len(read_trace(path, unit="ms" if unit != "ns" or not begin else unit).requests) == len(SECONDS)


def test_milliseconds_need_no_word(tmp_path: Path) -> None:
    for begin in (0, EPOCH):
        path = write(tmp_path / "t.jsonl", [round(1_000 * (begin + at)) for at in SECONDS])
        assert len(read_trace(path).requests) == len(SECONDS)


@pytest.mark.parametrize("text", ["2026-11-28T10:00:0{}Z", "2026-11-28 10:00:0{}.250+00:00", "2026-11-28T10:00:0{}"])
def test_dates_need_no_unit(tmp_path: Path, text: str) -> None:
    path = write(tmp_path / "t.jsonl", [text.format(at) for at in (0, 1, 1, 5)])
    times = [request.timestamp for request in read_trace(path).requests]
    assert [at - times[0] for at in times] == [0, 1_000, 1_000, 5_000]
    assert read_trace(path, unit="s").requests == read_trace(path).requests


@pytest.mark.parametrize("value", [61.114, "61.114", "1753780607550317897", 1753780607550317897])
def test_numbers_that_are_no_milliseconds_ask_for_their_unit(tmp_path: Path, value: Any) -> None:
    with pytest.raises(TraceError, match=r"line 1: timestamp must be .*--time-unit .*says what it is"):
        read_trace(write(tmp_path / "t.jsonl", [value]))
    assert read_trace(write(tmp_path / "t.jsonl", [value]), unit="ns").requests


@pytest.mark.parametrize("value", [True, None, -1, "soon", [], 1e300])
@pytest.mark.parametrize("unit", [None, "s"])
def test_what_is_no_time_is_refused(tmp_path: Path, value: Any, unit: str | None) -> None:
    with pytest.raises(TraceError, match="line 1: timestamp must be"):
        read_trace(write(tmp_path / "t.jsonl", [value]), unit=unit)


def test_what_cannot_be_told_is_left_alone() -> None:
    check_unit([], "ms", "t")
    check_unit([0.0] * 5_000, "ms", "t")  # all at once
    check_unit([0.0, 0.001], "ms", "t")  # two say nothing
    check_unit([0.01 * n for n in range(5_000)], "ms", "t")  # a hundred a second
    check_unit([86_400.0 * n + m for n in range(5) for m in range(10)], "ms", "t")  # days, with pauses of nights


@pytest.mark.parametrize(
    ("gap", "unit", "likely"), [(0.0003, "ms", "s"), (300.0, "ms", "us"), (3_000.0, "s", "ms"), (1e-6, "us", "s")]
)
def test_the_message_says_how_it_was_noticed(gap: float, unit: str, likely: str) -> None:
    what = "within" if gap < 1 else "a request every"
    with pytest.raises(TraceError, match=rf"t\.jsonl has .*{what}.*--time-unit {likely} .*--time-unit {unit} as"):
        check_unit([gap * n for n in range(100)], unit, "t.jsonl")


def test_numbers_with_and_without_a_unit() -> None:
    assert parse_time("1.5") == 1.5
    assert parse_time(EPOCH * 1_000) == EPOCH  # as large as that it must be milliseconds
    assert parse_time(EPOCH * 1_000, "s") == EPOCH * 1_000
    assert parse_time(2_500, "ms") == 2.5
    assert parse_time("1970-01-01T00:00:07Z", "ns") == 7.0
