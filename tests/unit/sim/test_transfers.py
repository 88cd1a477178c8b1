"""Durations of transfers, and links that carry one after the other."""

import math

import pytest

from kvatlas.errors import ConfigError
from kvatlas.sim.transfers import TRANSFERS, Link, Transfer, find_transfer


def test_the_pulls_of_gpt_oss_are_as_published() -> None:
    """llm-d published times to the first token in seconds by tokens; the fit is within 7.5 %."""
    published = {2_048: 0.035, 8_192: 0.057, 16_384: 0.086, 32_768: 0.165, 49_152: 0.235}
    pull = find_transfer("h200-rdma")
    for tokens, seconds in published.items():
        assert pull.of(tokens) == pytest.approx(seconds, rel=0.075)


def test_a_name_that_is_not_known_is_refused_with_those_that_are() -> None:
    with pytest.raises(ConfigError, match="pcie-host"):
        find_transfer("pigeon")
    assert find_transfer("free") == Transfer()


@pytest.mark.parametrize("name", ["floor", "per_token", "connect"])
@pytest.mark.parametrize("value", [-1e-9, math.inf, math.nan])
def test_constants_that_cannot_be_are_refused(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=name):
        Transfer(**{name: value})


def test_transfers_of_one_link_follow_each_other_and_their_floors_overlap() -> None:
    link, one = Link(), Transfer(floor=1.0, per_token=0.5)
    assert link.carry(one, 4, 10.0) == 13.0
    assert link.carry(one, 4, 10.0) == 15.0
    assert link.carry(one, 2, 20.0) == 22.0


def test_every_named_transfer_takes_longer_for_more() -> None:
    for name, transfer in TRANSFERS.items():
        assert transfer.of(2_000) > transfer.of(1_000) or name == "free"
