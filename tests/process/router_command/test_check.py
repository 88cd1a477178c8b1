"""`kvatlas router --check`: what is right is found, and what is wrong is named with what to change."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.support.engine import Engine as FakeEngine
from tests.support.engine import reply, vllm

from kvatlas.cli.router import router as command
from kvatlas.router import RouterConfig, RouterSection
from kvatlas.router.check import EngineReport, check
from kvatlas.service import DiscoveryConfig, Engine
from kvatlas.sim.server import Fleet, ServerConfig, write_tokenizer

from .conftest import FAST

pytest.importorskip("tokenizers")


def checked(*urls: str, **router: Any) -> list[EngineReport]:
    config = RouterConfig(
        engines=tuple(map(Engine.of, urls)),
        router=RouterSection(**router),
        discovery=DiscoveryConfig(request_timeout=60),
    )
    return check(config)


def levels(report: EngineReport) -> dict[str, str]:
    return {finding.what: finding.level for finding in report.findings}


def problems(report: EngineReport) -> dict[str, str]:
    return {finding.what: f"{finding.words} -> {finding.change}" for finding in report.problems}


@contextmanager
def engine(**changes: Any) -> Iterator[str]:
    with Fleet(1, replace(ServerConfig(engine=FAST), **changes)) as fleet:
        yield fleet.urls[0]


ALL_WELL = dict.fromkeys(("reachable", "models", "events", "tokens", "stream", "answers", "cache", "index"), "ok")


def test_all_is_well(fleet: Fleet, tokenizer: Path) -> None:
    reports = checked(*fleet.urls, tokenizer=str(tokenizer))
    assert [levels(report) for report in reports] == [{**ALL_WELL, "agents": "ok"}] * 2
    words = {finding.what: finding.words for finding in reports[0].findings}
    assert "for text, a chat, a chat with a system prompt and two turns" in words["tokens"]
    assert "blocks of 16 tokens (vllm)" in words["events"]


def test_requests_of_agents_are_compared_with_the_engines_own_rendering(fleet: Fleet, tmp_path: Path) -> None:
    words = {
        finding.what: finding.words
        for finding in checked(*fleet.urls, tokenizer=str(write_tokenizer(tmp_path / "t")))[0].findings
    }
    assert words["agents"].startswith(
        "the same as in the engine for requests with two blocks of a system prompt, a line"
    )
    # A template that writes one role in another way.
    other = write_tokenizer(tmp_path / "other")
    about = json.loads((other / "tokenizer_config.json").read_text())
    about["chat_template"] = about["chat_template"].replace("messages", "messages[-1:]", 1)
    (other / "tokenizer_config.json").write_text(json.dumps(about))
    report = checked(*fleet.urls, tokenizer=str(other))[0]
    named = [finding.words for finding in report.problems if finding.what == "agents"]
    assert len(named) >= 3
    assert "two blocks of a system prompt becomes" in named[0]


def test_sglang_and_ranks(tokenizer: Path) -> None:
    with engine(dialect="sglang", ranks=2) as url:
        [report] = checked(url, tokenizer=str(tokenizer))
    assert report.problems == []
    assert levels(report)["index"] == "ok"
    assert any("2 ranks" in finding.words for finding in report.findings)


def test_tokens_from_the_engine(fleet: Fleet) -> None:
    [report, _] = checked(*fleet.urls, tokenizer="engine")
    assert levels(report) == {**ALL_WELL, "tokens": "note", "agents": "ok"}


@pytest.mark.parametrize("by", ["engine", "here"])
def test_an_engine_that_renders_nothing_is_told_which_flag_does(by: str, tokenizer: Path) -> None:
    """Stock vLLM 0.33 refuses to render; others lack the routes, or have a page of a proxy there."""
    message = "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them."
    disabled = {"error": {"message": message, "type": "PermissionDeniedError", "param": None, "code": 403}}
    for answer in (reply("403 Forbidden", disabled), 401, 405, 302, "<html>sign in</html>"):
        with FakeEngine() as fake:
            fake.answers |= {
                "/version": {"version": "0.33.0"},
                "/tokenize": {"tokens": [5, 6, 7], "count": 3},
                "/v1/messages/render": answer,
                "/v1/responses/render": answer,
            }
            at = fake.url
            [report] = checked(at, tokenizer="engine" if by == "engine" else str(tokenizer), no_events=True)
        [found] = [finding for finding in report.findings if finding.what == "agents"]
        assert (found.level, "--enable-scale-out" in found.change) == ("note", True), found
        assert "/v1/messages" in found.words
        assert "/v1/responses" in found.words


def test_nobody_there() -> None:
    [report] = checked("http://127.0.0.1:9")
    assert problems(report) == {
        "reachable": "it cannot be reached: Connection refused -> start the engine, or correct its address"
    }


def test_another_chat_template(fleet: Fleet, tokenizer: Path, tmp_path: Path) -> None:
    for file in tokenizer.iterdir():
        (tmp_path / file.name).write_text(file.read_text())
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    config["chat_template"] = "<|system|>Today<|end|>" + config["chat_template"]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    [report, _] = checked(*fleet.urls, tokenizer=str(tmp_path))
    said = problems(report)
    assert said.keys() == {"template", "agents", "index"}
    assert "the engine counts" in said["template"]
    assert "its tokens differ from the first block on" in said["index"]
    first = next(finding for finding in report.problems if finding.what == "template")
    assert "a chat becomes" in first.words
    assert "different from token 0 on" in first.words
    assert "chat_template.jinja" in first.change


def test_another_tokenizer(fleet: Fleet, tokenizer: Path, tmp_path: Path) -> None:
    for file in tokenizer.iterdir():
        (tmp_path / file.name).write_text(file.read_text())
    made = json.loads((tmp_path / "tokenizer.json").read_text())
    vocab = made["model"]["vocab"]
    vocab["e"], vocab["q"] = vocab["q"], vocab["e"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(made))
    [report, _] = checked(*fleet.urls, tokenizer=str(tmp_path))
    said = problems(report)
    assert "text becomes" in said["tokens"]
    assert "different from token 2 on" in said["tokens"]
    assert "give the model's own tokenizer as --tokenizer" in said["tokens"]
    assert "index" in said


def test_block_sizes_that_differ(fleet: Fleet, tokenizer: Path) -> None:
    with engine(engine=replace(FAST, block_size=32)) as url:
        first, _, last = checked(*fleet.urls, url, tokenizer=str(tokenizer))
    said = problems(last)
    assert "its blocks have 32 tokens, but 16 at" in said["block size"]
    assert "--page-size" in said["block size"]
    assert "block size" in problems(first)


@pytest.mark.parametrize("size", [17, 32])
def test_a_block_size_that_the_engine_does_not_have(fleet: Fleet, tokenizer: Path, size: int) -> None:
    config = RouterConfig(
        engines=(Engine.of(fleet.urls[0]),),
        router=RouterSection(tokenizer=str(tokenizer)),
        discovery=DiscoveryConfig(request_timeout=60),
        block_size=size,
    )
    [report] = check(config)
    said = problems(report)
    assert f"another size than the {size} tokens set here" in said["block size"]
    assert "index" not in said, "the tokenizer is not blamed"


def test_without_a_replay_socket(tokenizer: Path) -> None:
    with engine(replay_socket="none") as url:
        [report] = checked(url, tokenizer=str(tokenizer))
    assert report.problems == []
    [warning] = [finding for finding in report.findings if finding.level == "warning"]
    assert warning.what == "replay"
    assert '"replay_endpoint"' in warning.change


def test_models_that_differ(fleet: Fleet, tokenizer: Path) -> None:
    with engine(model="other") as url:
        reports = checked(fleet.urls[0], url, tokenizer=str(tokenizer))
    [words] = [finding.words for finding in reports[1].findings if finding.level == "note"]
    assert words.startswith("no other engine serves other; others serve sim-model: requests for one model never reach")


def test_a_model_that_the_engine_does_not_serve(fleet: Fleet) -> None:
    config = RouterConfig(engines=(Engine(fleet.urls[0], model="gone"),))
    [report] = check(config)
    assert "it serves sim-model, but its model is configured as gone" in problems(report)["models"]


def test_events_are_off() -> None:
    with FakeEngine({**vllm(), "/health": "", "/kv_event_sources": {}}) as fake:
        [report] = checked(fake.url)
    said = problems(report)
    assert "start it with --kv-events-config" in said["events"]
    assert "--no-events" in said["events"]


def test_no_events_wanted(fleet: Fleet, tokenizer: Path) -> None:
    reports = checked(*fleet.urls, tokenizer=str(tokenizer), no_events=True)
    assert all(not report.problems for report in reports)
    assert levels(reports[0])["events"] == "note"
    assert "index" not in levels(reports[0])


@pytest.mark.parametrize("dialect", ["vllm", "sglang"])
def test_prefill_and_decode(dialect: str, tokenizer: Path) -> None:
    with engine(dialect=dialect, role="prefill") as first, engine(dialect=dialect, role="decode") as second:
        engines = (Engine(first, role="prefill"), Engine(second, role="decode"))
        reports = check(RouterConfig(engines=engines, router=RouterSection(tokenizer=str(tokenizer))))
        [taken] = [finding for finding in reports[1].findings if finding.what == "handover"]
        assert taken.level == "ok"
        assert "tokens taken over" in taken.words
        assert all(not report.problems for report in reports), [report.problems for report in reports]


def test_a_handover_that_fails(tokenizer: Path) -> None:
    with engine(role="prefill") as first, engine(role="prefill") as second:
        engines = (Engine(first, role="prefill"), Engine(second, role="decode"))
        reports = check(RouterConfig(engines=engines, router=RouterSection(tokenizer=str(tokenizer))))
    [problem] = [finding for finding in reports[0].problems if finding.what == "handover"]
    assert "this engine only does prefill" in problem.words
    assert "--kv-transfer-config" in problem.change


def test_the_command(fleet: Fleet, tokenizer: Path) -> None:
    flags = ["--check", "--tokenizer", str(tokenizer), "--engine", fleet.urls[0]]
    done = CliRunner().invoke(command, flags)
    assert done.exit_code == 0, done.output
    assert "No problems with 1 engine." in done.output
    done = CliRunner().invoke(command, [*flags, "--engine", "http://127.0.0.1:9"], env={"COLUMNS": "40"})
    assert done.exit_code == 3
    assert "1 problem at 1 of 2 engines." in " ".join(done.output.split())
    assert max(map(len, done.output.splitlines())) <= 40
    assert CliRunner().invoke(command, ["--check"]).exit_code == 2
