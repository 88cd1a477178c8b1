"""`kvatlas router --check` and what engines say of themselves: adapters, sleep, models with tokenizers of their own."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.support.engine import MODEL
from tests.support.engine import Engine as FakeEngine

from kvatlas.cli.router import router as command
from kvatlas.router import RouterConfig, RouterSection
from kvatlas.router.check import EngineReport, check
from kvatlas.service import Engine

pytest.importorskip("tokenizers")

ASLEEP: dict[str, dict[str, Any]] = {
    "route": {"/is_sleeping": {"is_sleeping": True}},
    "metric": {
        "/is_sleeping": 403,
        "/metrics": 'vllm:engine_sleep_state{engine="0",model_name="m",sleep_state="awake"} 0.0\n'
        'vllm:engine_sleep_state{engine="0",model_name="m",sleep_state="weights_offloaded"} 1.0\n',
    },
}
AWAKE: dict[str, dict[str, Any]] = {
    "route": {"/is_sleeping": {"is_sleeping": False}, "/metrics": ASLEEP["metric"]["/metrics"]},
    "metric": {"/metrics": 'vllm:engine_sleep_state{engine="0",sleep_state="awake"} 1.0\n'},
    "neither": {"/metrics": "vllm:engine_sleep_state{broken\n"},
}


def checked(*fakes: FakeEngine, **router: Any) -> list[EngineReport]:
    section = RouterSection(**{"tokenizer": "none", "no_events": True, **router})
    return check(RouterConfig(engines=tuple(Engine.of(fake.url) for fake in fakes), router=section))


def said(report: EngineReport, what: str) -> list[tuple[str, str]]:
    return [
        (finding.level, f"{finding.words} -> {finding.change}") for finding in report.findings if finding.what == what
    ]


def test_an_adapter_that_is_listed_first_is_not_taken_for_the_model() -> None:
    with FakeEngine() as fake:
        cards = [{"id": "adapter", "parent": MODEL}, {"id": MODEL, "parent": None}]
        fake.answers["/v1/models"] = {"object": "list", "data": cards}
        [report] = checked(fake)
        asked = {one.json["model"] for one in fake.received if one.method == "POST"}
    assert report.problems == []
    assert said(report, "models") == [("ok", f"serves {MODEL}; adapters: adapter -> ")]
    assert asked == {MODEL}


@pytest.mark.parametrize("by", ASLEEP)
def test_an_engine_that_sleeps_is_named_and_gets_no_prompts(by: str) -> None:
    with FakeEngine() as fake:
        fake.answers |= ASLEEP[by]
        [report] = checked(fake)
        assert fake.asked() == 0
        done = CliRunner().invoke(command, ["--check", "--no-events", "--engine", fake.url])
    [(level, words)] = said(report, "asleep")
    assert level == "warning"
    assert "POST /wake_up" in words
    assert said(report, "answers") == []
    assert done.exit_code == 0, done.output
    assert "No problems with 1 engine. 1 asleep, so not tested with prompts." in done.output


@pytest.mark.parametrize("by", AWAKE)
def test_an_engine_that_is_awake_or_does_not_say_is_tested(by: str) -> None:
    with FakeEngine() as fake:
        fake.answers |= AWAKE[by]
        [report] = checked(fake)
        assert fake.asked() >= 2
    assert said(report, "asleep") == []


def test_a_tokenizer_for_a_model_that_no_engine_serves(tokenizer: Path) -> None:
    own = ((MODEL, "none"), ("adapter", "none"), (f"{MODEL}x", str(tokenizer)))
    with FakeEngine() as fake:
        cards = [{"id": "adapter", "parent": MODEL}, {"id": MODEL, "parent": None}]
        fake.answers["/v1/models"] = {"object": "list", "data": cards}
        engine, settings = checked(fake, tokenizers=own)
        flags = ["--check", "--no-events", "--tokenizer", "none", "--model-tokenizer", f"{MODEL}x={tokenizer}"]
        done = CliRunner().invoke(command, [*flags, "--engine", fake.url])
        fake.answers["/v1/models"] = 500
        _, unsure = checked(fake, tokenizers=own[2:])
    assert engine.problems == []
    [(level, words)] = said(settings, "tokenizers")
    assert level == "problem"
    assert f"names {MODEL}x, which no engine serves: the tokenizer is never used" in words
    assert f"did you mean {MODEL}?" in words
    assert done.exit_code == 1, done.output
    assert "1 problem at settings." in done.output
    assert said(unsure, "tokenizers")[0][0] == "warning", "the engine did not say what it serves"
    assert said(unsure, "tokenizers")[0][1].startswith(f"--model-tokenizer names {MODEL}x, which no engine serves; not")
