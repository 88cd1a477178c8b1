"""The hit rate of a cache of any size, held against simulated caches."""

import io

import pytest
from rich.console import Console

from kvatlas.lab.replay import ReplayConfig, replay
from kvatlas.lab.traffic import hit_curve, profile
from kvatlas.lab.traffic.report import about, print_profile
from kvatlas.sim import (
    BlockPool,
    EngineConfig,
    FleetConfig,
    Trace,
    TraceRequest,
    WorkloadConfig,
    generate,
    make_request,
)
from kvatlas.sim.statistics import infinite_cache


def asks(number: int, ids: tuple[int, ...]) -> TraceRequest:
    return TraceRequest(1_000 * number, 512 * len(ids), 1, ids)


def test_the_curve_of_four_prompts() -> None:
    # The last prompt finds block 1 if three others fit beside it: 2, and those of the prompt between. Block 2 was used
    # just before it. A prompt's last block is never found.
    lines = [asks(0, (1, 2, 3)), asks(1, (8, 9)), asks(2, (1, 2, 4))]
    curve = hit_curve(Trace(lines), 512)
    total = 8 * 512
    assert curve.rate(2 * 512) == 0.0
    assert curve.rate(3 * 512) == 512 / total
    assert curve.rate(4 * 512) == curve.most == 1_024 / total
    assert curve.tokens_for(512 / total) == 3 * 512
    assert curve.tokens_for(0.9) == float("inf")


@pytest.fixture(scope="module")
def trace() -> Trace:
    return generate(WorkloadConfig(requests=1_200, request_rate=6.0, agents=0.3, seed=3))


@pytest.mark.parametrize("size", [16, 64, 512])
def test_without_a_limit_it_is_the_infinite_cache(trace: Trace, size: int) -> None:
    curve = hit_curve(trace, size)
    assert curve.most == pytest.approx(sum(infinite_cache(trace.requests, size)) / curve.prompt_tokens, abs=1e-3)


def one_cache(trace: Trace, tokens: int, size: int) -> int:
    """Prompt tokens that a pool with room for `tokens` finds, one request after the other."""
    pool = BlockPool(tokens // size)
    found = 0
    for number, line in enumerate(trace.requests):
        names = make_request(line, number, size, trace.block).block_hashes
        hits = pool.lookup(names[: (line.input_length - 1) // size])
        new = len(names) - len(hits)
        if new + pool.idle(hits) > pool.free:
            continue
        pool.touch(hits)
        taken, _ = pool.take(new)
        pool.fill(taken, names[len(hits) :])
        pool.release(hits + taken)
        found += len(hits) * size
    return found


@pytest.mark.parametrize("size", [64, 512])
@pytest.mark.parametrize("tokens", [100_000, 400_000, 1_600_000, 6_400_000])
def test_it_is_within_a_point_of_a_simulated_cache(trace: Trace, tokens: int, size: int) -> None:
    curve = hit_curve(trace, size)
    simulated = one_cache(trace, tokens, size) / curve.prompt_tokens
    assert curve.rate(tokens) == pytest.approx(simulated, abs=0.01)


@pytest.mark.parametrize("tokens", [400_000, 1_600_000, 6_400_000])
def test_half_of_the_blocks_tell_nearly_the_same(trace: Trace, tokens: int) -> None:
    uses = sum(len(request.hash_ids) for request in trace.requests)
    whole, sampled = hit_curve(trace, 512), hit_curve(trace, 512, most_uses=uses // 2)
    assert sampled.share == pytest.approx(0.5, abs=0.01)
    # A few blocks of system prompts weigh much here, so chance does too.
    assert sampled.rate(tokens) == pytest.approx(whole.rate(tokens), abs=0.03)


def test_it_is_within_a_point_of_a_replayed_engine() -> None:
    # One engine in virtual time, with requests that overlap, prompts that wait a little and answers that take room.
    trace = generate(WorkloadConfig(requests=400, request_rate=0.3, agents=0.3, seed=5))
    curve = hit_curve(trace, 64)
    for blocks in (3_000, 6_000):
        fleet = FleetConfig(1, EngineConfig(64, blocks, chunk=512))
        done = replay(trace, ReplayConfig(fleet=fleet, policies=("round-robin",), check=0.0))
        assert curve.rate(64 * blocks) == pytest.approx(done.policies[0].hit_rate, abs=0.01)


@pytest.mark.parametrize("size", [1, 16, 64, 512])
def test_a_replay_counts_one_shared_cache_in_the_engines_blocks(size: int) -> None:
    # Of 1,000 tokens a trace block of 512 holds half; engines with smaller blocks find nearly all.
    trace = Trace([TraceRequest(60_000 * n, 1_000, 2, (1, 2)) for n in range(40)])
    fleet = FleetConfig(1, EngineConfig(size, 4_096 // size, chunk=512))
    done = replay(trace, ReplayConfig(fleet=fleet, policies=("round-robin",), check=0.0))
    assert done.shared_rate == pytest.approx(done.policies[0].hit_rate)
    assert done.shared_rate == pytest.approx(done.bound_rate)
    assert done.shared_rate == pytest.approx(39 / 40 * (999 // size * size) / 1_000)


def test_a_profile_of_sessions_of_one_request_says_so() -> None:
    it = profile(Trace([TraceRequest(n, 512, 1, (n,), f"s{n}") for n in range(3)]))
    assert it.sessions is not None
    assert it.sessions.kept is None
    assert "3 sessions of one request each." in about(it)


def test_prompts_that_share_nothing_have_no_share_of_the_possible() -> None:
    out = io.StringIO()
    print_profile(profile(Trace([TraceRequest(1_000 * n, 512, 1, (n,)) for n in range(3)])), Console(file=out))
    assert "100.0 %" not in out.getvalue()
    assert "—" in out.getvalue()


def test_a_profile_has_sessions_pauses_and_working_sets() -> None:
    lines = [
        TraceRequest(0, 1_024, 1, (1, 2), "a"),
        TraceRequest(30_000, 1_536, 1, (1, 2, 3), "a"),
        TraceRequest(61_000, 512, 1, (9,), "b"),
        TraceRequest(90_000, 1_024, 1, (1, 7), "a"),
    ]
    it = profile(Trace(lines))
    assert it.sessions is not None
    assert (it.sessions.sessions, it.sessions.kept) == (2, 0.5)
    assert it.sessions.turns["max"] == 3
    assert it.sessions.pauses is None
    assert it.sessions.between is not None
    assert it.sessions.between["max"] == 60.0
    assert it.working_set["60"] == (3 * 512, 3 * 512)
    assert it.peak == pytest.approx(2 / 60)
