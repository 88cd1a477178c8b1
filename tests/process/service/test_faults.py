"""Over real sockets, with things going wrong: at every quiet point the service answers what the engines hold."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.process.service.arena import PATIENCE, Arena
from tests.process.service.soak import soak

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def arena() -> Iterator[Arena]:
    with Arena(seed=7) as arena:
        yield arena


def counted(arena: Arena, name: str) -> int:
    """A counter of the service, over all streams; refused events are counted apart if their type is unknown."""
    total = 0
    for stream in arena.service.streams().values():
        unknown = stream["refused"].get("unknown_event", 0)
        refused = sum(stream["refused"].values()) - unknown
        total += {"unknown_events": unknown, "refused_events": refused, **stream, **stream["counters"]}[name]
    return total


def compare(arena: Arena) -> None:
    """Compare the answers; many must have found blocks."""
    compared, hits = arena.compared, arena.hits
    arena.compare()
    assert arena.compared - compared >= 60 * len(arena.engines)
    assert arena.hits - hits > 30


@pytest.mark.parametrize(
    ("faults", "counter"),
    [
        ({}, "batches"),
        ({"drop": 0.2}, "recovered_batches"),
        ({"duplicate": 0.3}, "duplicate_batches"),
        ({"reorder": 0.3}, "gaps"),
        ({"truncate": 0.1}, "undecodable_batches"),
        ({"corrupt": 0.05}, "lost_batches"),
        ({"poison_event": 0.2}, "refused_events"),
        ({"poison_type": 0.2}, "unknown_events"),
        ({"poison_payload": 0.2}, "undecodable_batches"),
        ({"restart": 0.02}, "epoch"),
        ({"drop": 0.2, "replay_socket": "closed"}, "resets"),
        ({"drop": 0.2, "replay_socket": "silent"}, "failed_replays"),
        ({"drop": 0.2, "replay_socket": "slow"}, "replays"),
    ],
    ids=lambda value: "+".join(value) or "none" if isinstance(value, dict) else "",
)
def test_a_fault(arena: Arena, faults: dict[str, Any], counter: str) -> None:
    before = counted(arena, counter)
    for engine in arena.engines:
        engine.faults(**faults)
    arena.run(1.2 if "replay_socket" in faults else 0.4)
    end = time.monotonic() + PATIENCE
    while counted(arena, counter) <= before and time.monotonic() < end:  # on a busy machine little happens in a second
        arena.run(0.5)
    arena.calm()
    if faults.keys() & {"poison_type", "restart"}:
        arena.run(1.0)  # what calmed the engines, or their last restart, has emptied the caches
        arena.calm()
    compare(arena)
    assert counted(arena, counter) > before


def test_delays(arena: Arena) -> None:
    """Batches that come late are all there in the end, and until then the service is behind the engine."""
    for engine in arena.engines:
        engine.faults(delay=0.2)
    arena.run(1.0)
    arena.calm()
    compare(arena)
    engine = arena.engines[0]
    engine.faults(delay=1.0, delay_seconds=2.0)
    late = 0
    for number in range(10):
        engine.complete([10_000 + number] * 8, 1)
        told = arena.service.streams()[engine.name, 0]["seq"]
        state = engine.state()[0]
        assert state.seq is not None
        late += not state.quiet and told < state.seq
    assert late > 0
    arena.calm()
    compare(arena)


def test_a_second_publisher_on_the_endpoint(arena: Arena) -> None:
    """The second publisher is recognised, costs the trust for a while, and leaves nothing behind."""
    before = counted(arena, "contradictions")
    for engine in arena.engines:
        engine.faults(stray=1.0)
        engine.complete([11_000] * 8, 1)
        engine.faults(stray=0.0)
    end = time.monotonic() + PATIENCE
    while counted(arena, "contradictions") < before + len(arena.engines):
        assert time.monotonic() < end
        time.sleep(0.05)
    arena.run(1.0)
    arena.calm()
    compare(arena)


def test_an_engine_is_killed_and_comes_back(arena: Arena) -> None:
    epochs = {key: stream["epoch"] for key, stream in arena.service.streams().items()}
    arena.start_load()
    time.sleep(0.5)
    victim = arena.engines[0]
    victim.kill()
    victim.respawn()
    time.sleep(0.5)
    arena.calm()
    compare(arena)
    now = {key: stream["epoch"] for key, stream in arena.service.streams().items()}
    assert now[victim.name, 0] > epochs[victim.name, 0]


def test_the_service_is_killed_under_load_and_comes_back_whole(arena: Arena) -> None:
    arena.start_load()
    time.sleep(0.5)
    for _ in range(3):
        arena.service.kill()
        arena.service.start()
        streams = when_ready(arena)
        # Ready means that every stream has its first replay behind it.
        assert all(stream["settled"] for stream in streams.values()), streams
        if not any(stream["partial"] for stream in streams.values()):
            break
        # On a busy machine an engine may be late with a replay, which is then given up.
    arena.calm()
    compare(arena)


def when_ready(arena: Arena) -> dict[tuple[str, int], dict[str, Any]]:
    """The streams when it says that it is ready."""
    while True:
        status, waiting = arena.service.call("GET", "/ready")
        if status == 200:
            return arena.service.streams()
        assert status == 503
        assert waiting
        time.sleep(0.01)


def test_any_mixture() -> None:
    arena = soak(3.0, seed=3)
    assert arena.compared > 100
    assert arena.hits > 25
