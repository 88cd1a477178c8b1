"""Engines that are watched, and listed in a file."""

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.engine import Engine, closed_port, sglang, vllm
from tests.support.waiting import until

from kvatlas.errors import ConfigError
from kvatlas.service import Config, DiscoveryConfig
from kvatlas.service.discovery import EngineDescription
from kvatlas.service.discovery.probe import Prober
from kvatlas.service.discovery.sources import files

from .fake_native import FakeNative, Starter, started

FAST = DiscoveryConfig(interval=0.05, timeout=60, request_timeout=30)


@contextmanager
def following(engines: list[str], discovery: DiscoveryConfig = FAST, **settings: Any) -> Iterator[FakeNative]:
    start = Starter()
    with started(start, engines, config=Config(discovery=discovery, **settings)):
        yield start.native


def test_engines_are_registered_and_readiness_waits_for_them() -> None:
    with Engine(vllm(ranks=2)) as one, Engine(sglang(port=6000)) as two:
        with following([one.url, f"two={two.url}"], routing_group="blue") as native:
            assert native.settings["holds"] == ["discovery"]
            until(lambda: not native.holds)
            assert native.endpoints() == {
                (f"127.0.0.1:{one.port}", 0): "tcp://127.0.0.1:5557",
                (f"127.0.0.1:{one.port}", 1): "tcp://127.0.0.1:5558",
                ("two", 0): "tcp://127.0.0.1:6000",
            }
            assert set(native.announced_by.values()) == {"127.0.0.1"}, "they may name themselves only"
            assert native.registered["two", 0] == {
                "instance_id": "two",
                "endpoint": "tcp://127.0.0.1:6000",
                "replay_endpoint": "tcp://127.0.0.1:6100",
                "topic": "kv",
                "model_name": "m",
                "routing_group": "blue",
                "block_size": 64,
                "dp_rank": 0,
                "aliases": [],
                "adapters": [],
                "source": f"engine {two.url}",
            }
        assert native.closed
        # What is registered ends with the service, not with discovery.
        assert not [what for what, *_rest in native.log if what == "unregister"]


def told(native: FakeNative, worker: str) -> tuple[str, str | None]:
    about = native.reports.get((worker, None), {"state": "", "code": None})
    return about["state"], about["code"]


def test_engines_that_are_not_registered_are_told_of(caplog: pytest.LogCaptureFixture) -> None:
    with (
        Engine(vllm()) as good,
        Engine(vllm() | {"/kv_event_sources": {}}) as silent,
        Engine({}) as other,
        Engine(vllm()) as refused,
    ):
        engines = {"good": good.url, "silent": silent.url, "other": other.url, "refused": refused.url}
        start = Starter()
        start.refuse["refused"] = "model 'm' has blocks of 4 tokens, not 16"
        with started(
            start, [f"{name}={url}" for name, url in engines.items()], config=Config(discovery=FAST)
        ) as service:
            native = start.native
            until(lambda: not native.holds)
            assert told(native, "good") == ("registered", None)
            assert told(native, "silent") == ("no_events", "no_events")
            assert told(native, "other") == ("unusable", "bad_answer")
            assert told(native, "refused") == ("refused", "block_size_mismatch")
            assert native.reports["refused", None]["reason"] == start.refuse["refused"]
            assert [state for worker, state in native.states if worker == "silent"][:2] == ["asking", "no_events"]
            assert "none of the configured" not in caplog.text
            not_registered = {engine.worker for engine in service.engines() if not engine.is_registered}
            assert not_registered == {"silent", "other", "refused"}
            # What is registered stays so, and its problem is told.
            good.answers = {"/kv_event_sources": 500}
            until(lambda: told(native, "good") == ("registered", "http_500"))
            silent.answers = vllm()
            until(lambda: told(native, "silent") == ("registered", None))


def test_an_engine_that_is_away_is_told_of_and_not_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    with closed_port() as port:
        away = f"away=http://user:secret@127.0.0.1:{port}"
        with following([away], DiscoveryConfig(interval=0.05, timeout=0.1, request_timeout=30)) as native:
            until(lambda: not native.holds)
            until(lambda: told(native, "away") == ("unreachable", "unreachable"))
            about = native.reports["away", None]
            assert about["url"] == f"http://***@127.0.0.1:{port}", "without the password"
            assert about["reason"].startswith("it cannot be reached")
            until(lambda: f"no longer waiting for engine http://***@127.0.0.1:{port}" in caplog.text)


def test_without_a_usable_engine_that_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with Engine({}) as engine, following([engine.url]) as native:
        until(lambda: not native.holds)
        until(lambda: "none of the configured engines can be used" in caplog.text)


def test_names_that_change_are_registered_without_a_new_stream() -> None:
    with Engine(vllm()) as engine, following([f"a={engine.url}"]) as native:
        until(lambda: native.registered)
        assert native.registered["a", 0]["adapters"] == ["adapter"]
        engine.answers = vllm(aliases=("alias",))
        until(lambda: native.registered["a", 0]["aliases"] == ["alias"])
        assert native.log == [("register", "a", 0)]


def test_readiness_waits_for_an_engine_that_comes_late() -> None:
    with Engine({}) as engine:
        engine.answers = {"/kv_event_sources": 503}
        with following([engine.url]) as native:
            until(lambda: engine.times("/kv_event_sources") > 2)
            assert native.holds
            engine.answers = vllm()
            until(lambda: not native.holds)
            assert len(native.registered) == 1


def test_readiness_does_not_wait_for_an_engine_that_cannot_be_registered() -> None:
    with Engine({"/kv_event_sources": {}}) as engine, following([engine.url]) as native:
        until(lambda: not native.holds)
        assert not native.registered
        # It is asked again: it may be started anew with events.
        engine.answers = vllm()
        until(lambda: native.registered)


def test_readiness_does_not_wait_forever(caplog: pytest.LogCaptureFixture) -> None:
    hasty = DiscoveryConfig(interval=0.05, timeout=0.05)
    with closed_port() as port, following([f"http://127.0.0.1:{port}"], hasty) as native:
        until(lambda: not native.holds)
    assert f"no longer waiting for engine http://127.0.0.1:{port}" in caplog.text


def test_an_engine_that_changes_is_registered_anew() -> None:
    with Engine(vllm(ranks=2)) as engine, following([f"a={engine.url}"]) as native:
        until(lambda: len(native.registered) == 2)
        moved = vllm(ranks=2)
        moved["/kv_event_sources"]["1"]["endpoint"] = "tcp://*:7000"
        engine.answers = moved
        until(lambda: native.endpoints().get(("a", 1)) == "tcp://127.0.0.1:7000")
        assert [entry for entry in native.log if entry[2] == 0] == [("register", "a", 0)]
        engine.answers = vllm(ranks=1)
        until(lambda: list(native.registered) == [("a", 0)])
        engine.answers = vllm(ranks=1, model="n")
        until(lambda: [about["model_name"] for about in native.registered.values()] == ["n"])
        engine.answers = vllm(ranks=1, model="n", block_size=32)
        until(lambda: [about["block_size"] for about in native.registered.values()] == [32])


def test_an_engine_that_is_away_stays_registered_and_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "kvatlas")
    with Engine(vllm()) as engine, following([f"a={engine.url}"]) as native:
        until(lambda: native.registered)
        before = engine.times("/kv_event_sources")
        engine.answers = {"/kv_event_sources": 500}
        until(lambda: engine.times("/kv_event_sources") > before + 5)
        assert native.endpoints() == {("a", 0): "tcp://127.0.0.1:5557"}
        assert caplog.text.count("GET /kv_event_sources returned status 500") == 1
        # Another engine may have taken its place: all is asked anew.
        engine.answers = vllm(block_size=8)
        until(lambda: [about["block_size"] for about in native.registered.values()] == [8])
        said = f"engine {engine.url}: recovered; the last problem was: GET /kv_event_sources returned status 500"
        until(lambda: said in caplog.text)


def test_a_restart_shorter_than_the_time_between_two_looks_is_asked_about(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvatlas.service.discovery.follow._WHOLE_EVERY", 1_000_000)
    with Engine(vllm()) as engine, following([f"a={engine.url}"]) as native:
        until(lambda: native.registered)
        engine.answers = vllm(block_size=8)
        native.restarts = ["a", "somebody else"]
        until(lambda: [about["block_size"] for (name, _), about in native.registered.items() if name == "a"] == [8])


def test_events_of_another_size_are_no_matter_of_the_peers_if_the_engine_announces_that_size() -> None:
    with Engine(vllm()) as engine, Engine(vllm()) as peer, following([f"a={engine.url}", f"b={peer.url}"]) as native:
        until(lambda: len(native.registered) == 2)
        engine.answers = vllm(block_size=8)
        native.other_sizes["a"] = 8
        until(lambda: [about["block_size"] for (name, _), about in native.registered.items() if name == "a"] == [8])
        asked = peer.times("/kv_event_sources")
        until(lambda: peer.times("/kv_event_sources") > asked + 5)
        assert native.registered["b", 0]["block_size"] == 16


def test_what_somebody_unregistered_comes_back() -> None:
    with Engine(vllm()) as engine, following([f"a={engine.url}"]) as native:
        until(lambda: native.registered)
        native.unregister("a")
        until(lambda: native.registered)


def test_a_refused_registration_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    with Engine(vllm()) as engine:
        start = Starter()

        def refusing(settings: dict[str, Any]) -> FakeNative:
            native = start(settings)
            native.refuse["a"] = "the model has blocks of 32 tokens"
            return native

        with started(refusing, [f"a={engine.url}"], config=Config(discovery=FAST)):
            until(lambda: not start.native.holds)
            until(lambda: "the model has blocks of 32 tokens" in caplog.text)
            assert not start.native.registered
            start.native.refuse.clear()
            until(lambda: start.native.registered)


def test_strange_answers_do_not_end_the_watch(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0

    async def whole(self: Prober) -> EngineDescription:
        nonlocal asked
        asked += 1
        raise KeyError("x")

    monkeypatch.setattr(Prober, "whole", whole)
    with following(["http://127.0.0.1:9"]) as native:
        until(lambda: asked > 2)
        assert not native.holds
    assert caplog.text.count("unexpected answer: KeyError('x')") == 1


def test_few_requests_for_an_engine_that_stays_the_same() -> None:
    with Engine(vllm()) as engine, following([engine.url]):
        until(lambda: engine.times("/kv_event_sources") >= 40)
    # Every sixth check asks for all; that check asks twice for the sources.
    assert engine.times("/v1/models") <= 1 + engine.times("/kv_event_sources") / 6
    assert engine.times("/metrics") == engine.times("/v1/models")


# The file


def test_a_file_of_engines_is_followed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_POLL", 0.05)
    caplog.set_level(logging.INFO, "kvatlas")
    file = tmp_path / "engines.toml"
    with Engine(vllm(port=6000)) as one, Engine(vllm(port=7000)) as two:
        entry = "[[engine]]\nurl = '{}'\nname = '{}'\n"
        first, second = entry.format(one.url, "one"), entry.format(two.url, "two")
        by_hand = "[[stream]]\nworker = 'w'\nendpoint = 'tcp://h:{}'\nmodel = 'm'\nblock_size = 16\nrank = {}\n"
        file.write_text(first)
        with following([], engines_file=file) as native:
            until(lambda: not native.holds)
            assert native.endpoints() == {("one", 0): "tcp://127.0.0.1:6000"}
            # Added.
            file.write_text(first + second + by_hand.format(1, 0) + by_hand.format(2, 1))
            four = {("one", 0): "tcp://127.0.0.1:6000", ("two", 0): "tcp://127.0.0.1:7000"}
            four |= {("w", 0): "tcp://h:1", ("w", 1): "tcp://h:2"}
            until(lambda: native.endpoints() == four)
            # Changed: one rank of the worker, and the engine behind a name.
            file.write_text(entry.format(two.url, "one") + by_hand.format(1, 0) + by_hand.format(3, 1))
            three = {("one", 0): "tcp://127.0.0.1:7000", ("w", 0): "tcp://h:1", ("w", 1): "tcp://h:3"}
            until(lambda: native.endpoints() == three)
            assert ("unregister", "w", 0) not in native.log
            # Broken: the last good one counts.
            before = list(native.log)
            file.write_text("[[engine]]\nurl = 'http://'\n")
            until(lambda: "the host is missing" in caplog.text)
            assert f"{file}, line 1: engine " in caplog.text
            assert "keeping the previous content" in caplog.text
            file.unlink()
            until(lambda: "No such file or directory" in caplog.text)
            assert native.log == before
            # Removed.
            file.write_text(by_hand.format(1, 0))
            until(lambda: native.endpoints() == {("w", 0): "tcp://h:1"})
            assert "no longer listed; unregistered" in caplog.text


def test_what_was_given_at_the_start_comes_before_the_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "engines.toml"
    with Engine(vllm(port=6000)) as one, Engine(vllm(port=7000)) as two:
        file.write_text(f"engine = ['one={two.url}', 'two={two.url}']")
        with following([f"one={one.url}"], engines_file=file) as native:
            until(lambda: not native.holds)
            assert native.endpoints() == {("one", 0): "tcp://127.0.0.1:6000", ("two", 0): "tcp://127.0.0.1:7000"}
    assert "ignored engine one, which another source has already" in caplog.text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file or directory"),
        (b"\xff\xff", "is not UTF-8 text"),
        (b"x = [", "is not TOML"),
        (b"model = 'm'", "line 1: unknown key model: it must be one of [[engine]], [[stream]]"),
        (b"[[engine]]\n", "line 1: engine: url is missing"),
        (b"engine = ['http://a', 'http://a']", "are both named"),
        (b"\n[[stream]]\nworker = 'w'\nendpoint = 'tcp://h:1'", 'line 2: stream of worker "w": model is missing'),
    ],
)
def test_a_file_that_is_wrong_at_the_start(content: bytes | None, message: str, tmp_path: Path) -> None:
    file = tmp_path / "engines.toml"
    if content is not None:
        file.write_bytes(content)
    start = Starter()
    with pytest.raises(ConfigError, match=re.escape(message)):
        started(start, config=Config(engines_file=file))
    assert not start.made
