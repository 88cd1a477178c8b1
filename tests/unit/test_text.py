"""Words and numbers as people read them."""

import pytest

from kvatlas import _text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.25, "0.25"),
        (7, "7"),
        (999, "999"),
        (999.7, "1 k"),
        (9_994, "9.99 k"),
        (393_970, "394 k"),
        (999_700, "1 M"),
        (2_500_000, "2.5 M"),
        (99_960_000, "100 M"),
        (7_777e9, "7,777 G"),
    ],
)
def test_short_counts_have_three_figures(value: float, text: str) -> None:
    assert _text.short(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0 ns"), (870.4, "870 ns"), (1_500, "1.5 µs"), (999_999, "1 ms"), (2.25e9, "2.25 s")]
)
def test_times_have_three_figures_and_the_unit_that_fits(value: float, text: str) -> None:
    assert _text.nanoseconds(value) == text


def test_numbers_in_sentences() -> None:
    assert [_text.count(value) for value in (12_031, 999_999, 144_793_823, 3e12)] == [
        "12,031",
        "999,999",
        "144.8 M",
        "3.0 T",
    ]
    assert _text.percent(0.3734) == "37.3 %"
    assert [_text.counted(number, "worker") for number in (0, 1, 1_204)] == ["0 workers", "1 worker", "1,204 workers"]
    assert [_text.seconds(value) for value in (0.314, 12.49, 1_400.2)] == ["0.31 s", "12.5 s", "1,400 s"]
    assert [_text.duration(value) for value in (45, 720, 12_600)] == ["45 seconds", "12 minutes", "3.5 hours"]
    assert [_text.milliseconds(value) for value in (12.51, 3_210)] == ["12.5 ms", "3.2 s"]


def test_an_unknown_name_gets_a_hint() -> None:
    names = ("random", "round-robin", "exact")
    assert _text.nearest("exakt", names) == "did you mean 'exact'?"
    assert _text.nearest("zzz", names) == "it must be one of random, round-robin, exact"
    assert _text.nearest("zzz", names, otherwise="name a class") == "name a class"
    assert _text.closest("zzz", names) is None
