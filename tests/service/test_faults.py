"""Over real sockets, with things going wrong: at every quiet point the service answers what the engines hold."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.service.arena import Arena
from tests.service.soak import soak


@pytest.fixture(scope="module")
def arena() -> Iterator[Arena]:
    with Arena(seed=7) as arena:
        yield arena
        assert arena.compared > 1_000
        assert arena.hits > 300


def counted(arena: Arena, name: str) -> int:
    """A counter of the service, over all streams."""
    return sum({**stream, **stream["counters"]}[name] for stream in arena.service.streams().values())


@pytest.mark.parametrize(
    ("faults", "counter"),
    [
        ({}, "batches"),
        ({"drop": 0.2}, "recovered_batches"),
        ({"duplicate": 0.3}, "duplicate_batches"),
        ({"reorder": 0.3}, "gaps"),
        ({"delay": 0.1}, "batches"),
        ({"poison_event": 0.2, "poison_type": 0.2}, None),
        ({"poison_payload": 0.2}, "undecodable_batches"),
        ({"restart": 0.02}, "epoch"),
        ({"drop": 0.2, "replay": "closed"}, "resets"),
        ({"drop": 0.2, "replay": "silent"}, "failed_replays"),
    ],
    ids=lambda value: "+".join(value) or "none" if isinstance(value, dict) else "",
)
def test_a_fault(arena: Arena, faults: dict[str, Any], counter: str | None) -> None:
    before = counted(arena, counter) if counter else 0
    for engine in arena.engines:
        engine.faults(**faults)
    arena.run(2.5 if "replay" in faults else 1.5)
    arena.calm()
    arena.compare()
    if counter:
        assert counted(arena, counter) > before
    else:
        refused = [sum(stream["refused"].values()) for stream in arena.service.streams().values()]
        assert sum(refused) > 0


def test_an_engine_is_killed_and_comes_back(arena: Arena) -> None:
    epochs = {key: stream["epoch"] for key, stream in arena.service.streams().items()}
    arena.start_load()
    time.sleep(0.5)
    victim = arena.engines[0]
    victim.kill()
    victim.respawn()
    time.sleep(0.5)
    arena.calm()
    arena.compare()
    now = {key: stream["epoch"] for key, stream in arena.service.streams().items()}
    assert now[victim.name, 0] > epochs[victim.name, 0]


def test_the_service_is_killed_under_load_and_comes_back_whole(arena: Arena) -> None:
    arena.start_load()
    time.sleep(0.5)
    arena.service.kill()
    arena.service.start()
    while True:
        status, waiting = arena.service.call("GET", "/ready")
        streams = arena.service.streams()
        if status == 200:
            break
        assert status == 503
        assert waiting
        time.sleep(0.01)
    # Ready means that every stream has its first replay behind it.
    assert all(stream["trusted"] and not stream["partial"] for stream in streams.values()), streams
    arena.calm()
    arena.compare()


def test_any_mixture() -> None:
    arena = soak(8.0, seed=3)
    assert arena.compared > 200
    assert arena.hits > 50
