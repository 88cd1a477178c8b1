"""The replay: figures that add up, the same every time, agreeing with the reference."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvatlas import BlockIndex
from kvatlas.errors import ConfigError, PolicyError
from kvatlas.lab.replay import ReplayConfig, ReplayResult, replay
from kvatlas.lab.replay.check import watched_workers
from kvatlas.lab.replay.results import as_json
from kvatlas.routing import POLICIES, Depths, Load, Prompt
from kvatlas.sim import EngineConfig, FleetConfig, Trace, TraceRequest, read_trace


def test_every_policy_is_replayed_and_the_figures_add_up(result: ReplayResult, trace: Trace) -> None:
    assert [p.policy for p in result.policies] == list(POLICIES)
    tokens = sum(r.input_length for r in trace.requests)
    for p in result.policies:
        assert p.requests == p.first_tokens == len(trace.requests)
        assert p.prompt_tokens == tokens
        assert p.hit_rate == p.hit_tokens / tokens
        assert p.hit_rate <= p.bound_rate == result.bound_rate == result.statistics.seen_before
        assert p.preemptions or p.prefill_tokens == tokens - p.hit_tokens
        assert p.spread.max_over_mean >= 1
        assert 0 < p.ttft.p50 <= p.ttft.p99
        assert p.index.lookups == len(p.find_ns) == len(trace.requests)
        assert p.index.find_p50_ns > 0
        assert p.index.held_blocks <= 4 * 98_304 // 64
        assert p.index.bytes_per_block > 0
        assert not p.partial
    assert not result.partial


def test_the_index_agrees_with_both_oracles(result: ReplayResult) -> None:
    assert result.disagreements == 0
    for p in result.policies:
        assert p.agreement.checked > 20
        assert p.agreement.reference_workers == 4


def test_exact_finds_more_than_the_policies_that_know_nothing(result: ReplayResult) -> None:
    rates = {p.policy: p.hit_rate for p in result.policies}
    assert rates["exact"] > 1.2 * max(rates[name] for name in ("random", "round-robin", "least-loaded"))


def test_the_same_seed_gives_the_same_result(trace: Trace, config: ReplayConfig, result: ReplayResult) -> None:
    def simulated(one: ReplayResult) -> list[dict[str, Any]]:
        # Everything but what was measured on the clock of the machine.
        rows = as_json(one)["policies"]
        return [{k: v for k, v in row.items() if k not in {"index", "agreement", "seconds"}} for row in rows]

    # Whether and how answers are checked makes no difference either.
    assert simulated(replay(trace, replace(config, check=0.0))) == simulated(result)
    other = replay(trace, replace(config, check=0.0, fleet=replace(config.fleet, seed=5), policies=("random",)))
    assert simulated(other) != simulated(result)[:1]


def test_names_of_their_own_change_nothing(trace: Trace, config: ReplayConfig, result: ReplayResult) -> None:
    own = replay(trace, replace(config, fleet=replace(config.fleet, own_names=True), policies=("exact",))).policies[0]
    assert own.agreement.checked > 20
    assert own.agreement.disagreements == 0
    assert own.hit_rate == next(p.hit_rate for p in result.policies if p.policy == "exact")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engines", "changes"), [(4, {"block_size": 16, "blocks": 6_144}), (4, {"chunk": None}), (2, {"blocks": 1_875})]
)
def test_other_fleets_agree_too(trace: Trace, config: ReplayConfig, engines: int, changes: dict[str, Any]) -> None:
    few = Trace(trace.requests[:150], facts=trace.facts)
    fleet = replace(config.fleet, engines=engines, engine=replace(config.fleet.engine, **changes))
    one = replay(few, replace(config, fleet=fleet, policies=("exact",), check=1.0)).policies[0]
    assert one.agreement.checked > 20
    assert one.agreement.disagreements == 0


def test_tight_memory_preempts_and_still_agrees() -> None:
    rows = [TraceRequest(number * 40, 1000, 400, (number % 7, 100 + number)) for number in range(120)]
    fleet = FleetConfig(engines=2, engine=EngineConfig(blocks=256))
    result = replay(Trace(rows), ReplayConfig(fleet=fleet, policies=("random", "exact"), check=1.0))
    assert sum(p.preemptions for p in result.policies) > 0
    assert result.disagreements == 0
    assert all(p.first_tokens == 120 for p in result.policies)


def test_what_no_engine_can_hold_is_refused(config: ReplayConfig) -> None:
    rows = [TraceRequest(0, 99_000, 1, tuple(range(194))), TraceRequest(1, 600, 1, (0, 1))]
    for p in replay(Trace(rows), config).policies:
        assert (p.requests, p.refused, p.first_tokens, p.prompt_tokens) == (2, 1, 1, 600)


def test_prompts_below_a_block_are_routed(config: ReplayConfig) -> None:
    for p in replay(Trace([TraceRequest(0, 1, 0, ()), TraceRequest(0, 63, 5, (1,))]), config).policies:
        assert p.first_tokens == 2
        assert p.hit_rate == 0


def test_stopping_returns_what_was_done(trace: Trace, config: ReplayConfig) -> None:
    asked = 0

    def stop() -> bool:
        nonlocal asked
        asked += 1
        return asked > 500

    config = replace(config, check=0.0)
    result = replay(trace, config, stop=stop)
    assert result.partial
    assert [(p.policy, p.requests, p.partial) for p in result.policies] == [
        ("random", 400, False),
        ("round-robin", 100, True),
    ]
    assert 0 < result.policies[1].hit_rate < 1
    assert replay(trace, config, stop=lambda: True).policies == []


def test_progress_is_told(trace: Trace, config: ReplayConfig) -> None:
    told: list[tuple[str, int]] = []
    replay(trace, replace(config, check=0.0, policies=("random", "exact")), progress=lambda *args: told.append(args))
    assert told[-1] == ("exact", 400)
    assert ("random", 400) in told
    assert len(told) > 40


class Forgetful:
    """An index that does not see the third block of anything."""

    def __init__(self, block_size: int) -> None:
        self._index = BlockIndex(block_size=block_size)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._index, name)

    def find(self, *, content_hashes: Any) -> Any:
        return self._index.find(content_hashes=content_hashes[:2])


def test_a_wrong_index_is_found_out(trace: Trace, config: ReplayConfig) -> None:
    result = replay(trace, replace(config, policies=("random",)), make_index=Forgetful)
    assert result.disagreements > 0
    first = result.policies[0].agreement.examples[0]
    assert (first.policy, first.got) == ("random", 2)
    assert first.expected > 2
    assert first.blocks >= first.expected
    assert {e.oracle for e in result.policies[0].agreement.examples} == {"engine", "reference", "reference, any tier"}
    assert len(result.policies[0].agreement.examples) <= 20


def test_checking_can_be_left_out_and_is_bounded(trace: Trace, config: ReplayConfig) -> None:
    none = replay(trace, replace(config, check=0.0, policies=("random",))).policies[0].agreement
    assert (none.sampled, none.checked, none.reference_workers, none.feed_seconds) == (0, 0, 0, 0)
    brief = replay(trace, replace(config, check=1.0, check_seconds=0.0, policies=("random",))).policies[0].agreement
    assert brief.sampled == 400
    assert brief.checked == 1


def test_the_reference_follows_a_few_of_a_large_fleet() -> None:
    workers = [f"w{number}" for number in range(1000)]
    some = watched_workers(workers, 1000, seed=1)
    assert len(some) == 100
    assert set(some) <= set(workers)
    assert some == watched_workers(workers, 1000, seed=1) != watched_workers(workers, 1000, seed=2)
    assert watched_workers(workers, 10, seed=1) == workers
    assert len(watched_workers(workers, 10**9, seed=1)) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"engine": {"block_size": 100}},
        {"fleet": {"engines": 0}},
        {"fleet": {"seed": -1}},
        {"engine": {"blocks": 0}},
        {"speedup": 0.0},
        {"speedup": float("inf")},
        {"check": 1.5},
        {"check": float("nan")},
        {"check_seconds": -1.0},
        {"policies": ()},
        {"engine": {"prefill_rate": float("nan")}},
        {"engine": {"max_running": 0}},
        {"fleet": {"engines": 50_000}},
    ],
)
def test_a_config_that_cannot_be_is_refused(changes: dict[str, Any]) -> None:
    def make(engine: Any = (), fleet: Any = (), **others: Any) -> ReplayConfig:
        return ReplayConfig(fleet=FleetConfig(engine=EngineConfig(**dict(engine)), **dict(fleet)), **others)

    with pytest.raises(ConfigError) as caught:
        make(**changes)
    assert caught.value.code == "invalid_config"


class Thrower:
    uses_index = False

    def __init__(self, workers: Any, seed: int) -> None:
        pass

    def choose(self, prompt: Prompt, loads: Any, match: Depths) -> int:
        raise KeyError("oh")


class Outside(Thrower):
    def choose(self, prompt: Prompt, loads: list[Load], match: Depths) -> int:
        return len(loads)


class Unmade(Thrower):
    def __init__(self, workers: Any, seed: int) -> None:
        raise OSError("no")


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (Thrower, r"policy 'bad' failed at request 0: KeyError: 'oh' \(test_replay.py, line \d+\)"),
        (Outside, "policy 'bad' chose 4: engines are numbered 0 to 3"),
        (Unmade, "policy 'bad' failed when it was made: OSError"),
    ],
)
def test_a_policy_that_fails_is_named(
    trace: Trace, config: ReplayConfig, monkeypatch: pytest.MonkeyPatch, policy: Any, message: str
) -> None:
    monkeypatch.setitem(POLICIES, "bad", policy)
    with pytest.raises(PolicyError, match=message):
        replay(trace, replace(config, policies=("bad",)))


@pytest.mark.slow
def test_the_conversation_trace_agrees_everywhere(shared: Path) -> None:
    path = shared / "traces" / "conversation_trace.jsonl"
    if not path.exists():
        pytest.skip(f"no trace: {path} does not exist")
    fleet = FleetConfig(engine=EngineConfig(block_size=512, blocks=768))
    config = ReplayConfig(fleet=fleet, policies=("least-loaded", "exact"), check=0.01, check_seconds=60.0)
    result = replay(read_trace(path), config)
    assert result.disagreements == 0
    blind, exact = result.policies
    assert blind.agreement.checked > 50
    assert blind.agreement.reference_workers == fleet.engines
    assert result.bound_rate == pytest.approx(0.3734, abs=1e-4)
    assert exact.hit_rate > 3 * blind.hit_rate
    assert exact.ttft.mean < blind.ttft.mean
