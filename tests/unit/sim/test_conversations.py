"""The generated conversations of a fixed number of clients."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from kvatlas.errors import ConfigError
from kvatlas.sim.conversations import (
    ConversationConfig,
    Length,
    code_generation,
    document_questions,
    generate_conversations,
    reasoning,
)


def test_a_client_sends_a_turn_when_the_last_one_has_ended() -> None:
    config = replace(code_generation(3), requests=300, clients=20)
    trace = generate_conversations(config)
    assert len(trace.requests) == 300
    assert trace.closed
    assert trace.requests == generate_conversations(config).requests
    assert trace.requests != generate_conversations(replace(config, seed=4)).requests
    firsts = [line for line in trace.requests if not line.after]
    assert len(firsts) == 20
    # No request is waited for by two, so each chain is one client's.
    waited = Counter(each.id for line in trace.requests for each in line.after)
    assert set(waited.values()) == {1}
    by_id = {line.id: line for line in trace.requests}
    for line in trace.requests:
        for each in line.after:
            assert by_id[each.id].timestamp <= line.timestamp
            assert each.delay == 0


def test_a_prompt_is_the_last_one_with_its_answer_and_a_message() -> None:
    trace = generate_conversations(replace(code_generation(1), requests=400, clients=20, shared=3_000))
    sessions: dict[object, list[Any]] = {}
    for line in trace.requests:
        sessions.setdefault(line.session_id, []).append(line)
    assert any(len(turns) > 3 for turns in sessions.values())
    for turns in sessions.values():
        for before, line in itertools.pairwise(turns):
            assert line.hash_ids[: len(before.hash_ids)] == before.hash_ids
            assert line.input_length >= before.input_length + before.output_length + 100
        assert all(line.input_length // 512 == len(line.hash_ids) for line in turns)
    # Nothing but what all begin with is shared by conversations.
    assert len({turns[0].hash_ids[:5] for turns in sessions.values()}) == 1
    assert len({turns[0].hash_ids[5] for turns in sessions.values()}) == len(sessions)


def test_conversations_are_held_again() -> None:
    config = replace(reasoning(2), requests=90, clients=30, conversations=30)
    trace = generate_conversations(config)
    assert all(500 <= line.output_length <= 32_000 for line in trace.requests)
    assert Counter(Counter(line.input_length for line in trace.requests).values()).most_common(1)[0][0] == 3
    assert len({line.session_id for line in trace.requests}) == 90


def test_questions_on_documents_are_six_turns_of_each_document_with_pauses() -> None:
    trace = generate_conversations(document_questions(5))
    assert len(trace.requests) == 1_152
    assert set(Counter(line.session_id for line in trace.requests).values()) == {6}
    assert sum(not line.after for line in trace.requests) == 128
    assert [line.timestamp for line in trace.requests] == sorted(line.timestamp for line in trace.requests)
    by_id = {line.id: line for line in trace.requests}
    for line in trace.requests:
        for each in line.after:
            goes_on = by_id[each.id].session_id == line.session_id
            assert (1_000 <= each.delay <= 2_000) if goes_on else each.delay == 0
            if goes_on:
                assert line.input_length == by_id[each.id].input_length + 2 * 256
    # Each document belongs to one conversation alone.
    assert len({line.hash_ids[:96] for line in trace.requests}) == 192


def test_clients_stop_when_all_conversations_have_begun() -> None:
    config = replace(document_questions(5), requests=1_000, clients=4, conversations=6)
    trace = generate_conversations(config)
    assert Counter(Counter(line.session_id for line in trace.requests).values()) == {6: 6}


def test_lengths_have_their_means_and_limits() -> None:
    random = np.random.default_rng(0)
    drawn = [Length(1_500, 1_200, 100, 10_000).draw(random) for _ in range(4_000)]
    assert np.mean(drawn) == pytest.approx(1_500, rel=0.06)
    assert min(drawn) >= 100
    assert max(drawn) <= 10_000
    assert {Length(6_000, 0, 1, 10_000).draw(random) for _ in range(5)} == {6_000}
    exponential = [Length(8_000, None, 500, 32_000).draw(random) for _ in range(4_000)]
    assert np.median(exponential) == pytest.approx(8_000 * np.log(2), rel=0.08)


@pytest.mark.parametrize(
    "changes",
    [
        {"requests": 0},
        {"clients": 0},
        {"shared": -1},
        {"turns": Length(6, 4, 0, 20)},
        {"conversations": -1},
        {"once": True},
    ],
)
def test_conversations_that_cannot_be_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        ConversationConfig(**changes)


@pytest.mark.parametrize("values", [(0, 1, 1, 2), (5, -1, 1, 2), (5, 1, 3, 2), (float("nan"), 1, 1, 2)])
def test_lengths_that_cannot_be_are_refused(values: tuple[float, float, int, int]) -> None:
    with pytest.raises(ConfigError):
        Length(*values)
