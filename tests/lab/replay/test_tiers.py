"""Replays over engines with host memory, a pool and pulls."""

from dataclasses import replace

import pytest

from kvatlas.errors import ConfigError
from kvatlas.lab.replay import PolicyResult, ReplayConfig, replay
from kvatlas.lab.replay.scenario import Scenario, Trouble
from kvatlas.sim import EngineConfig, FleetConfig, TierConfig, Trace, TraceRequest, Transfer
from kvatlas.sim.hardware import StepTime

SIZE = 512
QUICK = Transfer(0.01, 1e-6)
STEPS = StepTime(base=0.01, prefill=1e-3, running=0.0, context=0.0)
HOST = TierConfig(host_tokens=64 * SIZE, host=QUICK, pool=QUICK, pull=QUICK)


def config(policy: str, tiers: TierConfig, *, engines: int = 2, blocks: int = 12, **how: object) -> ReplayConfig:
    fleet = FleetConfig(engines, EngineConfig(SIZE, blocks, chunk=4_096))
    return ReplayConfig(fleet=fleet, steps=STEPS, policies=(policy,), tiers=tiers, check=1.0, check_seconds=60, **how)  # type: ignore[arg-type]


def run(trace: Trace, policy: str, tiers: TierConfig, **how: object) -> PolicyResult:
    result = replay(trace, config(policy, tiers, **how))  # type: ignore[arg-type]
    assert result.disagreements == 0
    return result.policies[0]


def burst(count: int = 12, blocks: int = 9) -> Trace:
    """One prompt computed by one engine; later many that continue it at once, more than one engine likes."""
    shared = tuple(range(blocks))
    first = [TraceRequest(0, SIZE * blocks + 100, 2, shared)]
    later = [
        TraceRequest(60_000 + n, SIZE * blocks + 2_000, 40, (*shared, 100 + n, 200 + n, 300 + n)) for n in range(count)
    ]
    return Trace(first + later)


def test_without_tiers_nothing_is_loaded() -> None:
    found = run(burst(), "kvatlas", TierConfig())
    assert found.loaded is None
    assert found.waits.load == 0.0


def test_our_policy_pulls_where_that_is_quicker() -> None:
    trace, room = burst(), {"blocks": 60}
    alone = run(trace, "kvatlas", HOST, **room)
    pulls = run(trace, "kvatlas", replace(HOST, pulls=True), **room)
    assert alone.loaded is not None
    assert pulls.loaded is not None
    assert alone.loaded.pulls == 0
    assert pulls.loaded.pulled_tokens >= 9 * SIZE
    assert pulls.ttft.mean < alone.ttft.mean


def test_the_fixed_rule_pulls_once_a_source_is_ahead() -> None:
    trace = burst()
    tiers = replace(HOST, pulls=True)
    for delta, pulls in ((9 * SIZE, True), (9 * SIZE + 1, False)):
        found = run(trace, "round-robin+pull", tiers, blocks=60, pull_delta=delta)
        assert found.loaded is not None
        assert (found.loaded.pulled_tokens > 0) == pulls
        assert found.policy == "round-robin+pull"


def test_a_policy_that_pulls_needs_engines_that_can() -> None:
    with pytest.raises(ConfigError, match="--pulls"):
        replay(burst(), config("round-robin+pull", HOST))
    with pytest.raises(ConfigError, match="own_names"):
        ReplayConfig(fleet=FleetConfig(2, own_names=True), tiers=replace(HOST, pulls=True))
    with pytest.raises(ConfigError, match="pull_delta"):
        ReplayConfig(pull_delta=-1)


def test_every_engine_loads_from_the_pool() -> None:
    trace = burst()
    tiers = TierConfig(pool_tokens=None, pool=QUICK)
    for policy in ("round-robin", "kvatlas", "dynamo-kv router_disk_cache_hit_weight=0.5"):
        found = run(trace, policy, tiers, blocks=60)
        assert found.loaded is not None
        assert found.loaded.pool_tokens >= 9 * SIZE
        assert found.hit_tokens >= 12 * 9 * SIZE


def test_a_pool_that_has_evicted_what_was_announced_is_believed_once() -> None:
    """Nothing is wrong but the first prediction: a chunk that an engine did not find is counted no more."""
    trace = Trace(
        [TraceRequest(20_000 * n, SIZE * 6 + 5, 2, tuple(range(100 * (n % 4), 100 * (n % 4) + 6))) for n in range(24)]
    )
    found = run(trace, "kvatlas", TierConfig(pool_tokens=8 * SIZE, pool=QUICK), blocks=8)
    assert found.first_tokens == 24
    assert found.refused == 0


def test_bounds_with_all_memory_are_ordered() -> None:
    trace, tiers = burst(), replace(HOST, pulls=True, pull=Transfer(0.2, 1e-5))
    free = run(trace, "all-memory-free", tiers, blocks=60)
    paid = run(trace, "all-memory-paid", tiers, blocks=60)
    assert free.ttft.mean < paid.ttft.mean
    assert free.waits.load == 0.0
    assert paid.waits.load > 0.0
    # What is on a device is in host memory as well: there is room for less.
    turns = Trace(
        [TraceRequest(20_000 * n, SIZE * 6 + 5, 2, tuple(range(n % 4 * 9, n % 4 * 9 + 6))) for n in range(24)]
    )
    tight = replace(tiers, host_tokens=SIZE * 10)
    host, every = (run(turns, f"{memory}-memory-paid", tight, engines=2, blocks=8) for memory in ("host", "all"))
    assert host.hit_tokens < every.hit_tokens


def test_a_mute_source_costs_its_consumers_their_patience() -> None:
    trace, tiers = burst(), replace(HOST, pulls=True)
    mute = Scenario(troubles=(Trouble("mute", 0, 30.0, 200.0), Trouble("mute", 1, 30.0, 200.0)))
    found = run(trace, "round-robin+pull", tiers, blocks=60, scenario=mute)
    assert found.loaded is not None
    assert found.loaded.pulls_failed > 0
    # The handshake takes 30 s, and then they compute.
    assert found.ttft.p99 > 30.0
    assert found.waits.load > 1.0
    # Our policy gives a pair up with its first failure.
    ours = run(trace, "kvatlas", tiers, blocks=60, scenario=mute)
    assert ours.loaded is not None
    assert ours.loaded.pulls == ours.loaded.pulls_failed <= 2


def test_pulls_from_an_engine_that_died_are_not_asked_for() -> None:
    trace, tiers = burst(), replace(HOST, pulls=True)
    found = run(trace, "kvatlas", tiers, engines=3, blocks=60, scenario=Scenario(dies={0: 59.0}))
    assert found.first_tokens == 13
    assert found.loaded is not None
    assert found.loaded.pulls_failed == 0


def passing(count: int = 30, blocks: int = 9) -> Trace:
    """A prompt that all requests begin with, each of which is alone in the fleet."""
    shared = tuple(range(blocks))
    return Trace([TraceRequest(2_000 * n, SIZE * blocks + 100, 2, shared) for n in range(count)])


def test_an_engine_that_joins_is_warmed_up_by_requests_for_others() -> None:
    trace, tiers = passing(), replace(HOST, pulls=True)
    joins = Scenario(joins={1: 30.0})
    cold = run(trace, "kvatlas", tiers, blocks=60, scenario=joins)
    warm = run(trace, "kvatlas", tiers, blocks=60, scenario=joins, warm_up=20 * SIZE)
    assert cold.loaded is not None
    assert warm.loaded is not None
    assert (cold.loaded.pulls, warm.loaded.pulls) == (0, 1)
    assert warm.loaded.pulled_tokens == 9 * SIZE
    # Its request is no client's.
    assert (warm.requests, warm.first_tokens) == (cold.requests, cold.first_tokens)


def test_a_warm_up_ends_at_its_tokens_and_with_what_is_not_brought() -> None:
    prompts = [tuple(range(20 * n, 20 * n + 9)) for n in range(6)]
    lines = [TraceRequest(2_000 * n, SIZE * 9 + 100, 2, prompts[n % 6]) for n in range(80)]
    tiers, joins = replace(HOST, pulls=True), Scenario(joins={1: 60.0})
    found = run(Trace(lines), "kvatlas", tiers, blocks=200, scenario=joins, warm_up=20 * SIZE)
    assert found.loaded is not None
    assert found.loaded.pulls == 3
    mute = replace(joins, troubles=(Trouble("mute", 0, 59.0, 300.0),))
    found = run(Trace(lines), "kvatlas", tiers, blocks=200, scenario=mute, warm_up=20 * SIZE)
    assert found.loaded is not None
    assert found.loaded.pulls == 0


def test_warm_ups_need_engines_that_pull() -> None:
    with pytest.raises(ConfigError, match="warm_up"):
        ReplayConfig(tiers=HOST, warm_up=1_000)
