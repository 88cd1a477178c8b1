"""The parts of the time to first token, and tokens that were on the way, in cases worked out by hand."""

import io

import pytest
from rich.console import Console

from kvatlas.lab.replay import ReplayConfig, ReplayResult, replay
from kvatlas.lab.replay.report import print_report
from kvatlas.lab.replay.results import PolicyResult
from kvatlas.lab.replay.scenario import Scenario
from kvatlas.sim import EngineConfig, FleetConfig, Trace, TraceRequest
from kvatlas.sim.hardware import StepTime

STEPS = StepTime(base=1.0, prefill=0.0, running=0.0, context=0.0)


def asks(at: int, name: int, output: int = 1, ids: tuple[int, ...] | None = None) -> TraceRequest:
    return TraceRequest(at, 1_100, output, ids or (3 * name, 3 * name + 1, 3 * name + 2), "s")


def run(
    *lines: TraceRequest,
    engines: int = 1,
    blocks: int = 3,
    max_running: int = 128,
    scenario: Scenario | None = None,
) -> ReplayResult:
    fleet = FleetConfig(engines, EngineConfig(512, blocks, max_running=max_running, chunk=None))
    config = ReplayConfig(
        fleet=fleet, steps=STEPS, scenario=scenario or Scenario(), policies=("round-robin",), check=0.0
    )
    return replay(Trace(list(lines)), config)


def parts(policy: PolicyResult) -> tuple[float, ...]:
    waits = policy.waits
    return tuple(round(policy.requests * part, 6) for part in (waits.router, waits.queue, waits.room, waits.compute))


def test_a_request_waits_for_its_turn_then_for_room_then_for_its_prompt() -> None:
    # The first takes all three blocks from 0 to 3 s. The second comes in a step that ends at 1 s; then it has no room.
    policy = run(asks(0, 0, output=3), asks(500, 1)).policies[0]
    assert parts(policy) == (0.0, 0.5, 2.0, 2.0)
    assert sum(parts(policy)) == pytest.approx(2 * policy.ttft.mean)


def test_those_behind_a_head_without_room_wait_for_room_too() -> None:
    # At 3 s the second has room, and the third not before 4 s.
    policy = run(asks(0, 0, output=3), asks(500, 1), asks(2_500, 2)).policies[0]
    assert parts(policy) == (0.0, 0.5, 2.0 + 0.5 + 1.0, 3.0)


def test_too_many_running_is_no_room() -> None:
    policy = run(asks(0, 0, output=3), asks(500, 1), blocks=100, max_running=1).policies[0]
    assert parts(policy) == (0.0, 0.5, 2.0, 2.0)


def test_a_full_step_is_a_turn_to_wait_for() -> None:
    assert parts(run(asks(0, 0), asks(250, 1), blocks=100).policies[0]) == (0.0, 0.75, 0.0, 2.0)


def test_time_on_an_engine_that_died_counts_as_the_routers() -> None:
    policy = run(asks(0, 0), engines=2, scenario=Scenario(dies={0: 0.25, 1: 1e6})).policies[0]
    if policy.retried == 0:
        policy = run(asks(0, 0), engines=2, scenario=Scenario(dies={1: 0.25, 0: 1e6})).policies[0]
    assert policy.retried == 1
    assert parts(policy) == (0.25, 0.0, 0.0, 1.0)


def test_tokens_that_another_engine_is_computing_are_on_the_way() -> None:
    # To two engines in turn: the second prompt comes while the first one computes what both begin with.
    missed = run(asks(0, 0, ids=(1, 2, 3)), asks(500, 1, ids=(1, 2, 4)), engines=2, blocks=100).policies[0].missed
    assert missed is not None
    total = 2 * 1_100
    # Blocks count as cached from when their step is scheduled: this is "held elsewhere" in the simulated engine.
    assert missed.elsewhere == pytest.approx(1_024 / total)
    # Behind a queue they are nowhere yet.
    lines = (asks(0, 0), asks(0, 1), asks(500, 2, ids=(50, 51, 52)), asks(600, 3, ids=(50, 51, 53)))
    missed = run(*lines, engines=2, blocks=100).policies[0].missed
    assert missed is not None
    assert missed.on_the_way == pytest.approx(1_024 / (4 * 1_100))
    assert (missed.elsewhere, missed.evicted) == (0.0, 0.0)


def test_the_report_has_the_parts() -> None:
    out = io.StringIO()
    print_report(run(asks(0, 0, output=3), asks(500, 1)), Console(file=out, width=60))
    assert "for room" in out.getvalue()
    assert "1.00 s" in out.getvalue()
    assert max(map(len, out.getvalue().splitlines())) <= 60
