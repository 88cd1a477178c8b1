"""The workload of rollouts."""

from __future__ import annotations

import itertools

import pytest

from kvatlas.errors import ConfigError
from kvatlas.sim.rollouts import BLOCK, RolloutConfig, generate_rollouts
from kvatlas.sim.trace import TraceRequest


def test_samples_of_a_group_begin_together_and_with_the_same_prompt() -> None:
    trace = generate_rollouts(RolloutConfig(steps=2, groups=3, samples=4, seed=5))
    first = [line for line in trace.requests if not line.after]
    assert (len(first), {line.timestamp for line in first}) == (12, {0})
    assert len({line.hash_ids for line in first}) == 3
    assert len({line.session_id for line in trace.requests}) == 24
    assert trace.block == BLOCK
    assert trace.closed


def test_the_second_step_waits_for_the_last_turn_of_each_sample() -> None:
    trace = generate_rollouts(RolloutConfig(steps=2, groups=2, samples=3, seed=1, fewest=2, most=4))
    turns: dict[object, list[TraceRequest]] = {}
    for line in trace.requests:
        turns.setdefault(line.session_id, []).append(line)
    ends = {lines[-1].id for name, lines in turns.items() if str(name).startswith("0.")}
    for name, lines in turns.items():
        assert 2 <= len(lines) <= 4
        for before, line in itertools.pairwise(lines):
            assert line.hash_ids[: len(before.hash_ids)] == before.hash_ids
            assert [each.id for each in line.after] == [before.id]
        if str(name).startswith("1."):
            assert {each.id for each in lines[0].after} == ends


def test_settings_that_cannot_be() -> None:
    for bad in ({"groups": 0}, {"pause": -1.0}, {"fewest": 6}):
        with pytest.raises(ConfigError):
            RolloutConfig(**bad)
