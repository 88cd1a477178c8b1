"""Policies with values of their options: what `--policy-option` makes of them."""

import pytest

from kvatlas.errors import ConfigError, PolicyError
from kvatlas.lab.replay import ReplayConfig
from kvatlas.lab.replay.runner import make_placer
from kvatlas.lab.replay.variants import split_policy, with_options


def make(policy: str) -> object:
    return make_placer(policy, ReplayConfig())


def test_a_range_makes_one_row_for_each_value() -> None:
    made = with_options(("kvatlas", "round-robin", "greedy"), ("hold=0..2:0.5",), make)
    assert made == (*(f"kvatlas hold={value}" for value in ("0", "0.5", "1", "1.5", "2")), "round-robin", "greedy")
    assert [make_placer(policy, ReplayConfig()).name for policy in made] == list(made)


def test_two_options_make_every_combination() -> None:
    made = with_options(("kvatlas",), ("hold=0..0.2:0.1", "price=1"), make)
    assert made == tuple(f"kvatlas hold={value} price=1" for value in ("0", "0.1", "0.2"))
    assert split_policy(made[1]) == ("kvatlas", {"hold": 0.1, "price": 1})
    assert split_policy("kvatlas") == ("kvatlas", {})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("hold",), "write NAME=VALUE, or a range"),
        (("hold=",), "write NAME=VALUE, or a range"),
        (("hold=2..0:0.5",), "FROM must not be above TO"),
        (("hold=0..2",), "bad range: write NAME=VALUE"),
        (("hold=0..2:0",), "STEP above 0"),
        (("hold=0..2:0.0001",), "use a larger step"),
        (("hold=0..9:0.1", "price=0..9:0.1"), "8281 rows, and the most are 200"),
        (("hold=1", "hold=2"), "hold is given twice"),
    ],
)
def test_options_that_cannot_be_read_are_refused(options: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        with_options(("kvatlas",), options, make)


def test_unknown_names_and_bad_values_are_refused_by_the_policy() -> None:
    with pytest.raises(PolicyError, match='no option "nope"; it has evict'):
        with_options(("round-robin", "kvatlas"), ("nope=1",), make)
    with pytest.raises(PolicyError, match='"nope"; it has by; policy "kvatlas" has no option "nope"; it has evict'):
        with_options(("least-loaded", "kvatlas"), ("nope=1",), make)
    with pytest.raises(PolicyError, match='no option "nope"; it has none'):
        with_options(("round-robin",), ("nope=1",), make)
    with pytest.raises(PolicyError, match="hold must be a number from 0"):
        with_options(("kvatlas", "round-robin"), ("hold=-1",), make)
    with pytest.raises(ConfigError, match="hold means nothing to greedy"):
        with_options(("greedy",), ("hold=1",), make)
