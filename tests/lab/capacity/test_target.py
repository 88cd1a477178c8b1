"""The engines that each policy needs for a target, and what the report says of them."""

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from kvatlas.errors import ConfigError
from kvatlas.lab.capacity.target import Target, TargetPlan, parse_target, search_target, target_as_json
from kvatlas.lab.capacity.target_report import print_target
from kvatlas.lab.replay import ReplayConfig
from kvatlas.lab.replay.runner import replay
from kvatlas.lab.replay.scenario import Scenario
from kvatlas.sim import EngineConfig, FleetConfig, Trace, TraceRequest
from kvatlas.sim.hardware import StepTime

POLICIES = ("kvatlas", "round-robin")


def trace() -> Trace:
    """Twelve contexts of eight blocks, each asked for again and again: what a policy finds counts."""
    lines = []
    for n in range(120):
        own = n * 7 % 12
        lines.append(TraceRequest(150 * n, 4_090, 8, tuple(range(100 * own + 1, 100 * own + 9))))
    return Trace(lines, name="t.jsonl")


def config(engines: int = 4, scenario: Scenario | None = None) -> ReplayConfig:
    fleet = FleetConfig(engines, EngineConfig(512, 60, chunk=512))
    steps = StepTime(base=0.01, prefill=2e-4, running=0.0, context=0.0)
    return ReplayConfig(fleet=fleet, steps=steps, policies=POLICIES, check=0.0, scenario=scenario or Scenario())


def loop(target: Target, policy: str, most: int) -> int | None:
    """The number that a loop of replays from one engine on finds."""
    its = replace(config(), policies=(policy,))
    for engines in range(1, most + 1):
        one = replay(trace(), replace(its, fleet=replace(its.fleet, engines=engines))).policies[0]
        if target.is_met(one):
            return engines
    return None


@pytest.mark.parametrize("text", ["p99<1.2s", "mean<400ms", "good>90%"])
@pytest.mark.parametrize("engines", [2, 9])
def test_the_search_finds_what_a_loop_of_replays_finds(text: str, engines: int) -> None:
    target = parse_target(text)
    found = search_target(trace(), config(engines), target)
    assert [need.engines for need in found.needs] == [loop(target, policy, found.most) for policy in POLICIES]
    assert all(target.is_met(need.result) for need in found.needs if need.engines is not None)


def test_a_target_that_no_fleet_meets() -> None:
    found = search_target(trace(), config(1), Target("p99", 0.001))
    assert [need.engines for need in found.needs] == [None, None]
    assert found.needs[0].tried[-1] == found.most == 8
    assert "does not meet p99 < 0.00 s with 8 engines, the most tried" in said(found)


def test_a_fleet_is_not_smaller_than_what_happens_in_it() -> None:
    found = search_target(trace(), config(4, Scenario(slow={2: 2.0})), Target("mean", 100.0))
    assert [need.engines for need in found.needs] == [3, 3]


def test_the_difference_and_its_price() -> None:
    found = search_target(trace(), config(), parse_target("p99<1.2s"), price=2.5)
    ours, theirs = (need.engines for need in found.needs)
    assert ours is not None
    assert theirs is not None
    assert ours < theirs
    more = theirs - ours
    text = said(found)
    assert f"kvatlas needs {ours} engine" in text
    assert f"round-robin needs {theirs} engines: {more} more, {2.5 * more:,.2f} an hour" in text
    assert "Prices are for 2.5 an hour for each engine" in text
    data = json.loads(json.dumps(target_as_json(found)))
    assert [one["price_per_hour"] for one in data["policies"]] == [2.5 * ours, 2.5 * theirs]


def test_an_interrupted_search_keeps_the_policies_that_are_done() -> None:
    found = search_target(trace(), config(), parse_target("p99<1.2s"), stop=lambda: True)
    assert found.partial
    assert found.needs == []
    assert "Interrupted" in said(found)


@pytest.mark.parametrize(
    ("text", "column", "limit"),
    [("p99<2s", "p99", 2.0), (" mean < 500ms ", "mean", 0.5), ("good>95%", "good", 0.95), ("good>0.9", "good", 0.9)],
)
def test_targets_are_read(text: str, column: str, limit: float) -> None:
    assert parse_target(text) == Target(column, limit)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fast", "cannot be read"),
        ("p95<2s", "'p95', which is no column"),
        ("p99>2s", "a time that should be low"),
        ("p99<2", "with a unit"),
        ("mean<0s", "must be above 0"),
        ("good<5%", "a share that should be high"),
        ("good>120%", "a share from 0 to 1"),
        ("p99<1.2.3s", "cannot be read"),
    ],
)
def test_targets_that_mean_nothing_are_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_target(text)


def said(found: TargetPlan) -> str:
    out = io.StringIO()
    print_target(found, Console(file=out, width=100))
    return " ".join(out.getvalue().split())
