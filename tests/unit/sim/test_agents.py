"""The generated agents and questions on documents."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kvatlas.errors import ConfigError
from kvatlas.sim import Trace, trace_statistics
from kvatlas.sim.agents import AgentConfig, generate_agents
from kvatlas.sim.dependencies import check_dependencies
from kvatlas.sim.documents import DocumentConfig, generate_documents


@pytest.fixture(scope="module")
def trace() -> Trace:
    return generate_agents(AgentConfig(requests=4_000))


def test_agents_follow_from_their_seed() -> None:
    small = AgentConfig(requests=100)
    assert generate_agents(small).requests == generate_agents(small).requests
    assert generate_agents(small).requests != generate_agents(replace(small, seed=1)).requests


def test_lengths_and_pauses_are_those_of_recorded_agents(trace: Trace) -> None:
    assert len(trace.requests) == 4_000
    statistics = trace_statistics(trace, 512)
    assert statistics.seen_before > 0.9
    assert statistics.output_quantiles["p50"] == pytest.approx(216, rel=0.1)
    assert 40_000 < statistics.input_quantiles["p50"] < 110_000
    pauses = [max(each.delay for each in line.after) / 1000 for line in trace.requests if line.after]
    p10, p50, p90 = np.quantile(pauses, [0.1, 0.5, 0.9])
    assert (p10, p50) == (pytest.approx(4.0, rel=0.2), pytest.approx(8.9, rel=0.2))
    assert 60 < p90 < 130
    assert max(pauses) <= 600


def test_who_waits_for_whom_is_whole(trace: Trace) -> None:
    check_dependencies(trace.requests, "the trace")
    times = {line.id: line.timestamp for line in trace.requests}
    assert all(times[each.id] <= line.timestamp for line in trace.requests for each in line.after)
    assert [line.timestamp for line in trace.requests] == sorted(line.timestamp for line in trace.requests)


def test_sub_agents_share_with_their_siblings_and_their_parent_waits(trace: Trace) -> None:
    by_session: dict[str, list[Any]] = {}
    for line in trace.requests:
        by_session.setdefault(str(line.session_id), []).append(line)
    groups = [name for name in by_session if f"{name}.1" in by_session and f"{name}.2" in by_session]
    assert groups
    joins = 0
    for name in groups:
        parent, one, other = by_session[name], by_session[f"{name}.1"], by_session[f"{name}.2"]
        assert one[0].hash_ids[0] == other[0].hash_ids[0]
        assert one[0].hash_ids[0] != parent[0].hash_ids[0]
        ends = {one[-1].id, other[-1].id}
        joins += any(ends & {each.id for each in line.after} for line in parent)
    assert joins > len(groups) / 3  # some are cut by the end of the trace


@pytest.mark.parametrize(
    "changes", [{"requests": 0}, {"session_rate": 0}, {"person": 1.5}, {"longest": 10_000}, {"turns": -1}]
)
def test_agents_that_cannot_be_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        AgentConfig(**changes)


def test_questions_share_their_document_and_nothing_else() -> None:
    config = DocumentConfig(requests=300, documents=20, document=4_096, question=900)
    trace = generate_documents(config)
    assert len({line.hash_ids[:8] for line in trace.requests}) == 20
    owned = [name for line in trace.requests for name in line.hash_ids[8:]]
    assert len(owned) == len(set(owned)) > 200
    assert all(line.input_length // 512 == len(line.hash_ids) for line in trace.requests)
    assert trace_statistics(trace, 512).duration == pytest.approx(100, rel=0.3)
    assert trace.requests != generate_documents(replace(config, seed=1)).requests


@pytest.mark.parametrize("changes", [{"documents": 0}, {"request_rate": 0}, {"question": -1}])
def test_documents_that_cannot_be_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        DocumentConfig(**changes)


def test_questions_that_are_asked_again_are_the_same_prompts() -> None:
    config = DocumentConfig(requests=400, documents=6, document=6_000, question=1_200, spread=0.0, variants=5)
    trace = generate_documents(config)
    assert {line.input_length for line in trace.requests} == {7_200}
    assert len({line.hash_ids for line in trace.requests}) == 30
    assert len({line.hash_ids[:11] for line in trace.requests}) == 6
    spread = generate_documents(replace(config, spread=0.6))
    lengths: dict[tuple[int, ...], set[int]] = {}
    for line in spread.requests:
        lengths.setdefault(line.hash_ids, set()).add(line.input_length)
    # Questions that add no block cannot be told apart by their blocks.
    assert all(len(of) == 1 for ids, of in lengths.items() if len(ids) > 12)
