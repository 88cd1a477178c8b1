"""The host tier behind a simulated engine's cache."""

from collections import Counter
from dataclasses import replace

import pytest

from kvatlas.events import Remove, Store
from kvatlas.lab.replay import ReplayConfig, replay
from kvatlas.sim import EngineConfig, FleetConfig, Recorder, Trace, TraceRequest, make_request
from kvatlas.sim.hardware import StepTime
from kvatlas.sim.host import LOAD, HostTier
from kvatlas.sim.stepped import SteppedEngine

STEPS = StepTime(base=1.0, prefill=0.0, running=0.0, context=0.0)


def asks(number: int, ids: tuple[int, ...]) -> TraceRequest:
    return TraceRequest(10_000 * number, 512 * len(ids) - 10, 1, ids)


def run(lines: list[TraceRequest], host: int) -> tuple[SteppedEngine, Recorder, list[int], list[float]]:
    """One engine of three blocks with a tier of `host` blocks; what each prompt found, and how long it took."""
    sink = Recorder()
    tier = HostTier(host, sink) if host else None
    engine = SteppedEngine("w", EngineConfig(512, 3, chunk=None), STEPS, sink, host=tier)
    hits, times = [], []
    for number, line in enumerate(lines):
        request = make_request(line, number, 512)
        at = line.timestamp / 1000
        engine.submit(request, at)
        engine.drain()
        assert request.first_token is not None
        hits.append(request.hit_tokens)
        times.append(request.first_token - at)
    return engine, sink, hits, times


TURNS = [asks(n, ids) for n, ids in enumerate([(1, 2, 3), (4, 5, 6), (1, 2, 3), (1, 2, 3), (4, 5, 7)])]


def test_what_was_pushed_out_is_loaded() -> None:
    assert run(TURNS, 0)[2] == [0, 0, 0, 1_024, 0]
    engine, _, hits, times = run(TURNS, 6)
    assert hits == [0, 0, 1_024, 1_024, 1_024]
    assert times == pytest.approx([1.0, 1.0, 1.0 + LOAD * 1_024, 1.0, 1.0 + LOAD * 1_024])
    assert engine.host is not None
    assert engine.host.loaded == 4


def test_the_least_recently_used_goes_first_and_a_block_before_its_parent() -> None:
    # Two blocks of each prompt are full. The tier has three: the second block of the first prompt goes.
    assert run(TURNS[:3], 3)[2] == [0, 0, 512]
    # What the cache itself still holds counts as used, so it stays in the tier.
    lines = [asks(n, ids) for n, ids in enumerate([(1, 2), (4, 5), (1, 2), (7, 8, 9), (1, 2)])]
    assert run(lines, 3)[2][-1] == 512


def test_every_copy_is_announced_and_removed_once() -> None:
    _, sink, _, _ = run(TURNS, 3)
    copies: Counter[object] = Counter()
    for event in sink.events:
        assert isinstance(event, Store | Remove)
        for name in event.block_hashes:
            copies[name] += 1 if isinstance(event, Store) else -1
            assert copies[name] >= 0
    assert max(copies.values()) <= 2
    assert sum(copies.values()) <= 6


def test_a_replayed_fleet_finds_what_its_tier_holds() -> None:
    fleet = FleetConfig(1, EngineConfig(512, 3, chunk=None))
    config = ReplayConfig(fleet=fleet, steps=STEPS, policies=("kvatlas",), check=0.5)
    alone = replay(Trace(TURNS), config)
    tiered = replay(Trace(TURNS), replace(config, host_tokens=6 * 512))
    assert alone.policies[0].hit_tokens == 1_024
    assert tiered.policies[0].hit_tokens == 3 * 1_024
    assert tiered.disagreements == 0
