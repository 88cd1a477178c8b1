"""The generated workload."""

import itertools
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from kvatlas.errors import ConfigError
from kvatlas.sim import WorkloadConfig, generate, trace_statistics

SMALL = WorkloadConfig(requests=1_500)


def test_the_same_seed_makes_the_same_trace() -> None:
    assert generate(SMALL).requests == generate(SMALL).requests
    assert generate(SMALL).requests != generate(replace(SMALL, seed=1)).requests


def test_it_makes_what_was_asked_for() -> None:
    trace = generate(SMALL)
    assert len(trace.requests) == 1_500
    stats = trace_statistics(trace, 512)
    assert stats.requests / stats.duration == pytest.approx(SMALL.request_rate, rel=0.2)
    assert trace.facts["agent_requests"] == pytest.approx(0.25, abs=0.1)
    assert trace.facts["turns_per_session"] > 1.5
    assert stats.input_quantiles["max"] <= SMALL.longest
    assert 0.4 < stats.seen_before < 0.95


def test_every_request_could_be_a_line_of_a_trace() -> None:
    before = 0
    for r in generate(SMALL).requests:
        assert r.timestamp >= before
        assert r.input_length >= 1
        assert r.output_length >= 1
        assert len(r.hash_ids) == -(-r.input_length // 512)
        before = r.timestamp


def test_a_block_follows_always_the_same_block() -> None:
    parents: dict[int, int | None] = {}
    for r in generate(SMALL).requests:
        chain = (None, *r.hash_ids)
        for parent, name in zip(chain, r.hash_ids, strict=False):
            assert parents.setdefault(name, parent) == parent


def test_popularity_follows_zipf() -> None:
    config = replace(SMALL, system_prompt=3000, requests=4_000, agents=0.0, chat_turns=1.0, with_document=0.0)
    counts = Counter(r.hash_ids[0] for r in generate(config).requests if len(r.hash_ids) > 1)
    ranked = [count for _, count in counts.most_common(8)]
    # The k-th of 24 has 1 / k**1.1 of the first: half, a third, a quarter, with noise.
    for k in (2, 3, 4):
        assert ranked[k - 1] / ranked[0] == pytest.approx(1 / k**1.1, rel=0.35)
    even = Counter(r.hash_ids[0] for r in generate(replace(config, zipf=0.0)).requests if len(r.hash_ids) > 1)
    assert max(even.values()) < 3 * min(count for _, count in even.most_common(15))


def test_agents_repeat_more_than_chats() -> None:
    chats = trace_statistics(generate(replace(SMALL, agents=0.0)), 512)
    agents = trace_statistics(generate(replace(SMALL, agents=1.0)), 512)
    assert agents.seen_before > chats.seen_before


def test_the_first_arrivals_are_poisson() -> None:
    config = replace(SMALL, requests=4_000, chat_turns=1.0, agents=0.0)
    times = [r.timestamp / 1000 for r in generate(config).requests]
    gaps = [b - a for a, b in itertools.pairwise(times)]
    mean = sum(gaps) / len(gaps)
    deviation = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    assert mean == pytest.approx(1 / config.request_rate, rel=0.1)
    assert deviation == pytest.approx(mean, rel=0.1)  # as exponential gaps have


@pytest.mark.parametrize(
    "changes",
    [
        {"requests": 0},
        {"request_rate": 0.0},
        {"request_rate": float("nan")},
        {"agents": 1.5},
        {"apps": 0},
        {"zipf": -1.0},
        {"decode_rate": 0.0},
        {"longest": 10},
    ],
)
def test_a_workload_that_cannot_be_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        generate(replace(SMALL, **changes))
