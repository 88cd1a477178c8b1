"""The replay: figures that add up, the same every time, agreeing with the reference."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvatlas import BlockIndex
from kvatlas.errors import ConfigError, PolicyError
from kvatlas.lab.replay import ReplayConfig, ReplayResult, replay
from kvatlas.lab.replay.bounds import BOUNDS
from kvatlas.lab.replay.check import watched_workers
from kvatlas.lab.replay.results import as_json
from kvatlas.lab.replay.scenario import Scenario, Trouble
from kvatlas.lab.replay.summary import about_trace
from kvatlas.lab.replay.workloads import WORKLOADS, find_workload
from kvatlas.routing import policy_names
from kvatlas.sim import EngineConfig, FleetConfig, Trace, TraceRequest, read_trace
from kvatlas.sim.agents import AgentConfig, generate_agents
from kvatlas.sim.bursts import BurstConfig, generate_bursts
from kvatlas.sim.conversations import ConversationConfig, generate_conversations
from kvatlas.sim.documents import DocumentConfig, generate_documents
from kvatlas.sim.statistics import trace_statistics
from kvatlas.sim.workload import WorkloadConfig, generate

from .conftest import POLICIES


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


def test_ours_finds_more_than_the_policies_that_know_nothing(result: ReplayResult) -> None:
    rates = {p.policy: p.hit_rate for p in result.policies}
    assert rates["kvatlas"] > 1.2 * max(rates[name] for name in ("random", "round-robin", "least-loaded"))


def test_the_same_seed_gives_the_same_result(trace: Trace, config: ReplayConfig, result: ReplayResult) -> None:
    def simulated(one: ReplayResult) -> list[dict[str, Any]]:
        # Everything but what was measured on the clock of the machine.
        rows = as_json(one)["policies"]
        return [{k: v for k, v in row.items() if k not in {"index", "agreement", "seconds"}} for row in rows]

    # Whether and how answers are checked makes no difference either.
    two = ("prefix-hash", "kvatlas")
    again = replay(trace, replace(config, check=0.0, policies=two))
    assert simulated(again) == [row for row in simulated(result) if row["policy"] in two]
    other = replay(trace, replace(config, check=0.0, fleet=replace(config.fleet, seed=5), policies=("random",)))
    assert simulated(other) != simulated(result)[:1]


def test_names_of_their_own_change_nothing(trace: Trace, config: ReplayConfig, result: ReplayResult) -> None:
    own = replay(trace, replace(config, fleet=replace(config.fleet, own_names=True), policies=("kvatlas",))).policies[0]
    assert own.agreement.checked > 20
    assert own.agreement.disagreements == 0
    assert own.hit_rate == next(p.hit_rate for p in result.policies if p.policy == "kvatlas")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engines", "changes"), [(4, {"block_size": 16, "blocks": 6_144}), (4, {"chunk": None}), (2, {"blocks": 1_875})]
)
def test_other_fleets_agree_too(trace: Trace, config: ReplayConfig, engines: int, changes: dict[str, Any]) -> None:
    few = Trace(trace.requests[:150], facts=trace.facts)
    fleet = replace(config.fleet, engines=engines, engine=replace(config.fleet.engine, **changes))
    one = replay(few, replace(config, fleet=fleet, policies=("kvatlas",), check=1.0)).policies[0]
    assert one.agreement.checked > 20
    assert one.agreement.disagreements == 0


def test_tight_memory_preempts_and_still_agrees() -> None:
    rows = [TraceRequest(number * 40, 1000, 400, (number % 7, 100 + number)) for number in range(120)]
    fleet = FleetConfig(engines=2, engine=EngineConfig(blocks=256))
    result = replay(Trace(rows), ReplayConfig(fleet=fleet, policies=("random", "kvatlas"), check=1.0))
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
        return asked > 300

    config = replace(config, check=0.0)
    result = replay(trace, config, stop=stop)
    assert result.partial
    assert [(p.policy, p.requests, p.partial) for p in result.policies] == [
        ("random", 240, False),
        ("round-robin", 60, True),
    ]
    assert 0 < result.policies[1].hit_rate < 1
    assert replay(trace, config, stop=lambda: True).policies == []


def test_progress_is_told(trace: Trace, config: ReplayConfig) -> None:
    told: list[tuple[str, int]] = []
    replay(trace, replace(config, check=0.0, policies=("random", "kvatlas")), progress=lambda *args: told.append(args))
    assert told[-1] == ("kvatlas", 240)
    assert ("random", 240) in told
    assert len(told) > 24


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
    assert brief.sampled == 240
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
        {"guess": "none"},
        {"scenario": Scenario(slow={4000: 2.0})},
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


def test_blocks_that_do_not_divide_the_trace_s_are_refused(trace: Trace, config: ReplayConfig) -> None:
    odd = replace(config, fleet=replace(config.fleet, engine=replace(config.fleet.engine, block_size=100)))
    with pytest.raises(ConfigError, match="100 does not divide 512"):
        replay(trace, odd)


class Thrower:
    uses_index = False

    def __init__(self, seed: int) -> None:
        pass

    def choose(self, request: Any, candidates: Any) -> int:
        raise KeyError("oh")


class Outside(Thrower):
    def choose(self, request: Any, candidates: Any) -> int:
        return len(candidates.depth)


@pytest.mark.parametrize(("policy", "message"), [("Thrower", "KeyError: 'oh'"), ("Outside", "4")])
def test_a_policy_that_fails_is_named(trace: Trace, config: ReplayConfig, policy: str, message: str) -> None:
    name = f"{__name__}:{policy}"
    with pytest.raises(PolicyError, match=message) as caught:
        replay(trace, replace(config, policies=(name,)))
    assert policy in str(caught.value)


def test_every_policy_can_be_replayed(trace: Trace, config: ReplayConfig) -> None:
    some = replace(trace, requests=trace.requests[:80])
    result = replay(some, replace(config, check=0.0, policies=(*policy_names(), *BOUNDS)))
    assert [p.first_tokens for p in result.policies] == [80] * len(result.policies)
    assert all(0 < p.between.mean <= p.between.p99 for p in result.policies)


def test_a_cache_without_limit_hits_as_much_as_anything_can(trace: Trace, config: ReplayConfig) -> None:
    # Far apart, so that each prompt is computed before the next one comes.
    slow = replace(config, speedup=0.01, check=0.0, policies=("infinite-cache", "kvatlas"))
    infinite, ours = replay(replace(trace, requests=trace.requests[:100]), slow).policies
    assert infinite.hit_rate >= infinite.bound_rate
    assert infinite.hit_rate == pytest.approx(infinite.bound_rate, abs=0.01)
    assert ours.hit_rate <= infinite.hit_rate


def test_an_idle_engine_takes_room_that_another_gives_back_to_the_shared_cache() -> None:
    # The first and the third decode at one engine and hold six of eight blocks. The last comes to the other, idle one,
    # and needs three.
    trace = Trace(
        [
            TraceRequest(0, 1_100, 400, (1, 2)),
            TraceRequest(1_000, 1_000, 1, (11,)),
            TraceRequest(1_020, 1_100, 400, (21, 22)),
            TraceRequest(6_000, 1_100, 10, (31, 32)),
        ]
    )
    fleet = FleetConfig(2, EngineConfig(512, 4, chunk=512))
    config = ReplayConfig(fleet=fleet, policies=("shared-cache",), check=0.0)
    assert replay(trace, config).policies[0].first_tokens == 4


def test_late_events_are_late_and_lost_ones_come_again(trace: Trace, config: ReplayConfig) -> None:
    one = replace(config, policies=("kvatlas",))
    late = replay(trace, replace(one, scenario=Scenario(event_delay=1e6))).policies[0]
    blind = replay(trace, replace(one, scenario=Scenario(no_events=True))).policies[0]
    lossy = replay(trace, replace(one, scenario=Scenario(lose_events=0.1))).policies[0]
    whole = replay(trace, one).policies[0]
    assert late.index.held_blocks == blind.index.held_blocks == 0
    assert lossy.lost_events > 10
    assert whole.lost_events == 0
    assert abs(lossy.index.held_blocks - whole.index.held_blocks) < 0.1 * whole.index.held_blocks
    assert late.hit_rate < lossy.hit_rate
    assert blind.hit_rate > 0.5 * whole.hit_rate  # the guess is not bad


@pytest.mark.parametrize("guess", ["mock", "ttl"])
def test_caches_can_be_guessed(trace: Trace, config: ReplayConfig, guess: str) -> None:
    quiet = replace(config, policies=("kvatlas", "random"), scenario=Scenario(no_events=True), guess=guess)
    ours, chance = replay(trace, quiet).policies
    assert ours.hit_rate > 1.5 * chance.hit_rate


def test_requests_of_an_engine_that_dies_are_sent_again(trace: Trace, config: ReplayConfig) -> None:
    middle = (trace.requests[120].timestamp - trace.requests[0].timestamp) / 1000
    for policy in ("kvatlas", "round-robin"):
        config = replace(config, policies=(policy,), scenario=Scenario(dies={1: middle}))
        found = replay(trace, config).policies[0]
        assert found.retried > 0
        assert found.first_tokens == len(trace.requests)


def test_an_engine_that_joins_gets_nothing_before(trace: Trace, config: ReplayConfig) -> None:
    end = (trace.requests[-1].timestamp - trace.requests[0].timestamp) / 1000
    never = replace(config, policies=("kvatlas", "random"), scenario=Scenario(joins={0: end + 1}), check=0.0)
    fewer = replace(never, scenario=Scenario(), fleet=replace(config.fleet, engines=3))
    for without, three in zip(replay(trace, never).policies, replay(trace, fewer).policies, strict=True):
        assert without.spread.max_over_mean == pytest.approx(4 / 3 * three.spread.max_over_mean, rel=0.2)


def test_a_slow_engine_is_slow(trace: Trace, config: ReplayConfig) -> None:
    plain = replace(config, policies=("round-robin",), check=0.0)
    slow = replay(trace, replace(plain, scenario=Scenario(slow={0: 2.0}))).policies[0]
    even = replay(trace, plain).policies[0]
    assert slow.ttft.mean > 1.1 * even.ttft.mean


def test_an_engine_that_hangs_goes_on_where_it_was(trace: Trace, config: ReplayConfig) -> None:
    middle = (trace.requests[120].timestamp - trace.requests[0].timestamp) / 1000
    plain = replace(config, policies=("round-robin",), check=0.0)
    hanging = replay(
        trace, replace(plain, scenario=Scenario(troubles=(Trouble("stops", 1, middle, middle + 60),)))
    ).policies[0]
    even = replay(trace, plain).policies[0]
    assert (hanging.first_tokens, hanging.retried) == (len(trace.requests), 0)
    assert hanging.ttft.mean > even.ttft.mean + 1


def test_late_prompts_are_late_and_keep_no_others_waiting(trace: Trace, config: ReplayConfig) -> None:
    for policy in ("kvatlas", "round-robin"):
        plain = replace(config, policies=(policy,), check=0.0, speedup=0.1)
        late = replay(trace, replace(plain, scenario=Scenario(late=0.05))).policies[0]
        even = replay(trace, plain).policies[0]
        assert late.first_tokens == len(trace.requests)
        # One in twenty waits for 12 s, and the others hardly longer than without them.
        assert 0.05 * 12 * 0.9 < late.ttft.mean - even.ttft.mean < 0.05 * 12 * 1.2, policy


def test_scenarios_that_cannot_be() -> None:
    for bad in ({"late": 1.5}, {"late_by": -1.0}, {"late_to": 1.0}, {"limits": {0: 0}}):
        with pytest.raises(ConfigError):
            Scenario(**bad)


def test_workloads_follow_from_their_seed() -> None:
    for name in ("chat", "bursts"):
        workload = find_workload(name)
        assert workload.make(1).requests == workload.make(1).requests != workload.make(2).requests
    for name in ("agents", "documents", "code-generation", "reasoning", "b2b-saas", "retrieval", "mixed", "rollouts"):
        assert find_workload(name).make(1).requests
    assert find_workload("agents").make(1).closed
    with pytest.raises(ConfigError, match="retrieval"):
        find_workload("nothing")
    assert all(name == workload.name and workload.text for name, workload in WORKLOADS.items())


@pytest.mark.parametrize(
    "made",
    [
        generate(WorkloadConfig(requests=20)),
        generate_agents(AgentConfig(requests=20)),
        generate_bursts(BurstConfig(requests=20)),
        generate_conversations(ConversationConfig(requests=20, clients=4)),
        generate_documents(DocumentConfig(requests=20)),
    ],
    ids=lambda trace: trace.name.split()[0],
)
def test_a_report_says_what_was_generated(made: Trace) -> None:
    config = ReplayConfig(policies=("least-loaded",), fleet=FleetConfig(engines=2), check=0.0)
    lines = about_trace(replay(made, config))
    assert sum(line.startswith("Generated: ") for line in lines) == 1


def test_bursts_are_of_the_asked_size_and_rate() -> None:
    config = BurstConfig(requests=5_000, seed=3, request_rate=20.0, fewest=8, most=64)
    made = generate_bursts(config)
    families: dict[tuple[int, ...], int] = {}
    for line in made.requests:
        families[line.hash_ids[:-1]] = families.get(line.hash_ids[:-1], 0) + 1
    seconds = (made.requests[-1].timestamp - made.requests[0].timestamp) / 1000
    assert len(made.requests) / seconds == pytest.approx(20.0, rel=0.3)
    assert made.facts["singles"] / len(made.requests) == pytest.approx(config.singles, abs=0.1)
    assert max(families.values()) <= 64
    assert made.facts["bursts"] > 50


@pytest.mark.slow
def test_the_conversation_trace_agrees_everywhere(conversation_trace: Path) -> None:
    fleet = FleetConfig(engine=EngineConfig(block_size=512, blocks=768))
    config = ReplayConfig(fleet=fleet, policies=("least-loaded", "kvatlas"), check=0.04, check_seconds=60.0)
    whole = read_trace(conversation_trace)
    assert trace_statistics(whole, 512).seen_before == pytest.approx(0.3734, abs=1e-4)
    result = replay(replace(whole, requests=whole.requests[:2_000]), config)
    assert result.disagreements == 0
    blind, ours = result.policies
    assert blind.agreement.checked > 50
    assert blind.agreement.reference_workers == fleet.engines
    assert ours.hit_rate > 3 * blind.hit_rate
    assert ours.ttft.mean < blind.ttft.mean


def test_routers_know_what_others_have_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    # Each prompt comes twice, to one router after the other, long before the index hears of it.
    ids = [tuple(range(30 * n, 30 * n + 21)) for n in range(8)]
    lines = [TraceRequest(20_000 * n + 60 * nth, 10_300, 4, ids[n]) for n in range(8) for nth in (0, 1)]
    fleet, late = FleetConfig(4, EngineConfig(512, 600, chunk=512)), Scenario(event_delay=5.0)
    config = ReplayConfig(fleet=fleet, scenario=late, policies=("kvatlas",), check=0.0)

    def hits(routers: int) -> int:
        return replay(Trace(lines), replace(config, routers=routers)).policies[0].hit_tokens

    assert hits(1) == hits(2) > 0
    assert hits(3) == hits(1)
    monkeypatch.setattr("kvatlas.lab.replay.placing.TELL_EVERY", 1e9)
    assert hits(2) < hits(1)
    with pytest.raises(ConfigError, match="routers must be at least 1"):
        ReplayConfig(routers=0)
