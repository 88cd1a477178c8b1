"""Engines that misbehave in a replay: every request has its end, and figures show what happened."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast, get_args

import pytest

from kvatlas.errors import ConfigError
from kvatlas.lab.replay import ReplayConfig, replay
from kvatlas.lab.replay.misbehaviour import FAILURES, Misbehaviour
from kvatlas.lab.replay.scenario import Kind, Scenario, Trouble
from kvatlas.lab.replay.trouble import TROUBLES, parse_troubles, trace_seconds, with_troubles
from kvatlas.sim import Trace
from kvatlas.sim.stepped import SteppedEngine

POLICIES = ("kvatlas", "round-robin")


def troubled(trace: Trace, config: ReplayConfig, *texts: str) -> ReplayConfig:
    rates = parse_troubles(texts)
    scenario = with_troubles(Scenario(), rates, config.fleet.engines, trace_seconds(trace, config.speedup))
    return replace(config, policies=POLICIES, scenario=scenario)


@pytest.mark.parametrize("kind", [*TROUBLES, "all"])
def test_every_request_has_its_end(trace: Trace, config: ReplayConfig, kind: str) -> None:
    text = kind if kind == "all" else f"{kind}=0.1"
    for result in replay(trace, troubled(trace, config, text)).policies:
        assert result.first_tokens + result.refused == len(trace.requests)
        assert result.agreement.disagreements == 0


def test_rates_say_how_much_goes_wrong(trace: Trace, config: ReplayConfig) -> None:
    seconds = 10_000.0
    for kind in get_args(Kind):
        scenario = with_troubles(Scenario(), {kind: 0.05}, 8, seconds)
        assert {trouble.kind for trouble in scenario.troubles} == {kind}
        share = sum(trouble.end - trouble.begin for trouble in scenario.troubles) / (8 * seconds)
        assert share == pytest.approx(0.05, rel=0.2)
        assert len({trouble.engine for trouble in scenario.troubles}) > 4
        assert all(0 <= trouble.begin <= trouble.end <= seconds for trouble in scenario.troubles)
    assert with_troubles(Scenario(), {"limit": 0.5}, 8, seconds).limits.keys() == {0, 2, 4, 6}
    late = with_troubles(Scenario(), {"late": 0.1}, 8, seconds)
    waits = [late.lateness(number) for number in range(1_000)]
    assert sum(wait > 0 for wait in waits) == pytest.approx(100, abs=2)
    assert 10 <= min(wait for wait in waits if wait) <= max(waits) <= 60
    assert with_troubles(Scenario(), {}, 8, seconds) == Scenario()


def test_errors_are_another_engine_s_to_answer(trace: Trace, config: ReplayConfig) -> None:
    end = trace_seconds(trace, 1.0)
    scenario = Scenario(troubles=(Trouble("errors", 1, 0.0, end),))
    for result in replay(trace, replace(config, policies=POLICIES, scenario=scenario)).policies:
        assert (result.first_tokens, result.refused) == (len(trace.requests), 0)
        # It is left alone after three of them, and tried again more and more rarely.
        assert FAILURES <= result.retried < len(trace.requests) / 4


def test_caches_are_lost_where_they_are(trace: Trace, config: ReplayConfig) -> None:
    one = replace(config, policies=("round-robin",))
    whole = replay(trace, one).policies[0]
    for kind in ("restarts", "sleeps"):
        middle = trace_seconds(trace, 1.0) / 2
        # One after the other: requests that all engines refuse would end twice.
        times = [middle + 2.0 * n for n in range(4)]
        scenario = Scenario(troubles=tuple(Trouble(kind, n, at, at + 1.0) for n, at in enumerate(times)))
        lost = replay(trace, replace(one, scenario=scenario)).policies[0]
        assert lost.first_tokens + lost.refused == len(trace.requests)
        assert lost.hit_rate < whole.hit_rate


def test_a_slow_time_and_a_limit_cost_time(trace: Trace, config: ReplayConfig) -> None:
    plain = replace(config, policies=("round-robin",), check=0.0)
    even = replay(trace, plain).policies[0]
    end = trace_seconds(trace, 1.0)
    for scenario in (Scenario(troubles=(Trouble("slow", 0, 0.0, end / 2),)), Scenario(limits={0: 1})):
        assert replay(trace, replace(plain, scenario=scenario)).policies[0].ttft.mean > 1.1 * even.ttft.mean


def test_who_waits_in_the_router_does_not_go_to_an_engine_that_is_gone(
    trace: Trace, config: ReplayConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed: list[int] = []
    monkeypatch.setattr(Misbehaviour, "note_failure", lambda self, engine, now: failed.append(engine))
    speedup = 2.5
    half = trace_seconds(trace, speedup) / 2
    scenario = Scenario(troubles=tuple(Trouble("restarts", n, half + n, half + n + 10.0) for n in range(2)))
    one = replay(trace, replace(config, policies=("kvatlas",), scenario=scenario, speedup=speedup)).policies[0]
    assert one.waited > 10
    assert one.retried > 0
    assert failed == []


def test_a_request_waits_no_longer_in_all_though_it_failed(trace: Trace, config: ReplayConfig) -> None:
    speedup, timeout = 2.5, 5.0
    seconds = trace_seconds(trace, speedup)
    troubles = tuple(Trouble("errors", n, seconds / 4 * n, seconds / 4 * (n + 1) - 1) for n in range(4))
    patience = {"queue_timeout": timeout}
    one = replay(
        trace,
        replace(
            config, policies=("kvatlas",), scenario=Scenario(troubles=troubles), speedup=speedup, settings=patience
        ),
    ).policies[0]
    assert one.retried > 0
    assert timeout - 1 < one.longest_wait < 1.5 * timeout


def test_late_health_checks_count_only_where_no_answer_comes() -> None:
    engines = [cast("SteppedEngine", SimpleNamespace(decoding=count)) for count in (0, 2, 0)]
    trouble = Misbehaviour()
    for n in (0, 1):
        trouble.begin(Trouble("busy", n, 0.0, 10.0), engines[n])
    assert trouble.avoided(engines, 5.0) == {0}
    trouble.end(Trouble("busy", 0, 0.0, 10.0))
    assert trouble.avoided(engines, 10.0) == set()


def test_an_engine_that_fails_is_left_alone_for_longer_and_longer() -> None:
    engines = Misbehaviour()
    now = 0.0
    for failure, left in enumerate((0, 0, 1, 2, 4, 8, 16, 30, 30)):
        engines.note_failure(3, now)
        assert engines.avoided([], now) == ({3} if left else set()), failure
        assert not left or engines.avoided([], now + left - 0.01) == {3}
        now += left
        assert engines.avoided([], now) == set()
    engines.note_answer(3)
    engines.note_failure(3, now)
    assert engines.avoided([], now) == set()


@pytest.mark.parametrize(
    ("text", "what"),
    [("lat", "late"), ("late=2", "RATE"), ("late=x", "RATE"), ("all=0.5", "KIND=RATE"), ("stops=nan", "RATE")],
)
def test_troubles_that_cannot_be(text: str, what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        parse_troubles((text,))


@pytest.mark.parametrize("bad", [("loud", 0, 0.0, 1.0), ("slow", -1, 0.0, 1.0), ("slow", 0, 2.0, 1.0)])
def test_times_that_cannot_be(bad: Any) -> None:
    with pytest.raises(ConfigError):
        Trouble(*bad)
    assert Trouble("slow", 0, 0.0, 1.0).overlaps(Trouble("stops", 0, 1.0, 2.0))
