"""Replays in which requests wait for others."""

from dataclasses import replace

import pytest

from kvatlas.errors import ConfigError
from kvatlas.lab.replay import ReplayConfig, ReplayResult, replay
from kvatlas.lab.replay.sessions import time_alone
from kvatlas.lab.replay.summary import about_sessions
from kvatlas.sim import EngineConfig, FleetConfig, Trace, TraceRequest
from kvatlas.sim.dependencies import Dependency
from kvatlas.sim.hardware import StepTime

STEPS = StepTime(base=1.0, prefill=0.0, running=0.0, context=0.0)


def line(name: int, at: int, *after: Dependency, session: str = "s", output: int = 1) -> TraceRequest:
    return TraceRequest(at, 1_100, output, (2 * name, 2 * name + 1, 2 * name + 999), session, name, after)


def run(*lines: TraceRequest, timed: bool = True, engines: int = 1, **changes: object) -> ReplayResult:
    fleet = FleetConfig(engines, EngineConfig(512, 16, chunk=None))
    config = ReplayConfig(fleet=fleet, steps=STEPS, policies=("round-robin",), check=0.0)
    return replay(Trace(list(lines), timed=timed), replace(config, **changes))  # type: ignore[arg-type]


def test_a_turn_starts_when_those_it_waits_for_have_ended_plus_its_pause() -> None:
    # Three seconds for the first; then 2 s of pause, and 1 s. In the open loop they would come at 0 and 0.1 s.
    lines = (line(0, 0, output=3), line(1, 100, Dependency(0, 2_000)))
    closed = run(*lines)
    assert closed.loop == "closed"
    assert closed.policies[0].goodput == pytest.approx(1 / 6)  # limits: 4 s, and 0.1 s between tokens
    assert closed.policies[0].ttft.mean == pytest.approx(1.0)
    assert run(*lines, loop="open").policies[0].ttft.mean > 1.4


def test_what_counts_from_a_start_does_not_wait_for_the_end() -> None:
    lines = (line(0, 0, output=9), line(1, 0, Dependency(0, 2_000, on_start=True)))
    assert run(*lines, engines=2).policies[0].goodput == pytest.approx(1 / 9)


def test_the_speedup_does_not_shorten_pauses() -> None:
    lines = (line(0, 0), line(1, 0, Dependency(0, 5_000)), line(2, 8_000, session="t"))
    # The last of them ends at 1 + 5 + 1 s.
    assert run(*lines, speedup=4.0).policies[0].goodput == pytest.approx(3 / 7)


def test_a_refused_request_holds_nobody_back() -> None:
    huge = TraceRequest(0, 512 * 40, 1, tuple(range(40)), "s", 0)
    policy = run(huge, line(1, 0, Dependency(0, 10))).policies[0]
    assert (policy.refused, policy.first_tokens) == (1, 1)


def test_the_slowdown_is_against_an_idle_engine() -> None:
    alone = run(line(0, 0, output=3), line(1, 0, Dependency(0, 0), output=3))
    assert alone.policies[0].slowdown is not None
    assert alone.policies[0].slowdown.mean == pytest.approx(1.0)
    # Two sessions in step at an engine that takes one step for both: only the one that comes late waits.
    late = run(line(0, 0), line(1, 500, session="t"), line(2, 0, Dependency(1, 0), session="t"))
    slowdown = late.policies[0].slowdown
    assert slowdown is not None
    assert slowdown.sessions == 2
    assert slowdown.mean == pytest.approx((1.0 + 2.5 / 2) / 2)
    assert "closed loop" in about_sessions(late)[0]


def test_tokens_are_missed_for_a_reason() -> None:
    def asks(name: int, ids: tuple[int, ...]) -> TraceRequest:
        return TraceRequest(10_000 * name, 1_100, 1, ids, "s")

    # By turns to two engines of three blocks. The second is asked what the first holds; the next two push that out of
    # both; then no engine holds it.
    lines = [asks(0, (1, 2, 3)), asks(1, (1, 2, 4)), asks(2, (5, 6, 7)), asks(3, (8, 9, 10)), asks(4, (1, 2, 11))]
    fleet = FleetConfig(2, EngineConfig(512, 3, chunk=None))
    config = ReplayConfig(fleet=fleet, steps=STEPS, policies=("round-robin",), check=0.0)
    missed = replay(Trace(lines), config).policies[0].missed
    assert missed is not None
    total = 5 * 1_100
    assert missed.elsewhere == pytest.approx(1_024 / total)
    assert missed.evicted == pytest.approx(1_024 / total)
    assert missed.never == pytest.approx((total - 2 * 1_024) / total)


def test_time_alone_is_what_an_engine_takes() -> None:
    steps = StepTime(base=0.01, prefill=1e-4, running=1e-3, context=1e-6)
    request = TraceRequest(0, 1_000, 3, (1, 2))
    # Two steps of prefill after 512 cached tokens, and two more tokens.
    prefill = steps.of(244, 1, 512) + steps.of(244, 1, 756)
    expected = prefill + steps.of(0, 1, 1_000) + steps.of(0, 1, 1_001)
    assert time_alone(request, 512, steps, 256) == pytest.approx(expected)


def test_a_loop_that_the_trace_cannot_have_is_refused() -> None:
    with pytest.raises(ConfigError, match="only the open loop"):
        run(line(0, 0), loop="closed")
    with pytest.raises(ConfigError, match="only the closed loop"):
        run(line(0, 0), line(1, 0, Dependency(0)), timed=False, loop="open")


def test_sessions_reach_the_policies() -> None:
    lines = [line(n, 10 * n, session=f"s{n % 3}") for n in range(24)]
    fleet = FleetConfig(3, EngineConfig(512, 64, chunk=None))
    config = ReplayConfig(fleet=fleet, steps=STEPS, policies=("session",), options={"load_factor": 1e6}, check=0.0)
    one = [replace(each, session_id="s") for each in lines]
    assert replay(Trace(one), config).policies[0].spread.max_over_mean == pytest.approx(3.0)
    # Without its session each request goes where the fewest are.
    unnamed = [replace(each, session_id=None) for each in lines]
    assert replay(Trace(unnamed), config).policies[0].spread.max_over_mean < 2.0
