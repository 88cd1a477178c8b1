"""Tests of what goes wrong with answers over HTTP, on purpose; and of another model."""

import http.client
import json
from collections.abc import Iterator
from typing import Any

import pytest

from kvatlas.errors import ConfigError
from kvatlas.sim.server import EngineHandle, Faults, Fleet, ServerConfig

from .conftest import FAST

BODY = {"prompt": [1, 2, 3], "max_tokens": 8}


@pytest.fixture(scope="module")
def fleet() -> Iterator[Fleet]:
    with Fleet(1, ServerConfig(engine=FAST)) as fleet:
        yield fleet


@pytest.fixture
def engine(fleet: Fleet) -> Iterator[EngineHandle]:
    yield fleet[0]
    fleet[0].faults(**{name: getattr(Faults(), name) for name in Faults.__slots__})


def ask(
    engine: EngineHandle, body: dict[str, Any], path: str = "/v1/completions", timeout: float = 30.0
) -> tuple[http.client.HTTPResponse, bytes]:
    connection = http.client.HTTPConnection(engine.url.removeprefix("http://"), timeout=timeout)
    try:
        connection.request("POST", path, json.dumps(body))
        response = connection.getresponse()
        return response, response.read()
    finally:
        connection.close()


def count(engine: EngineHandle, fault: str) -> int:
    return engine.state()[0].counts.get(fault, 0)


def test_refused_with_a_time_to_come_back(engine: EngineHandle) -> None:
    engine.faults(http_refuse=1.0, http_retry_after=7)
    response, body = ask(engine, BODY)
    assert (response.status, response.headers["Retry-After"]) == (503, "7")
    assert "too much" in json.loads(body)["error"]["message"]
    assert count(engine, "http_refuse") == 1


def test_never_answered(engine: EngineHandle) -> None:
    engine.faults(http_hang=1.0)
    with pytest.raises(TimeoutError):
        ask(engine, BODY, timeout=0.2)
    assert engine.state()[0].running == 0


@pytest.mark.parametrize("stream", [False, True])
def test_dies_before_the_first_byte(engine: EngineHandle, stream: bool) -> None:
    engine.faults(http_die_before=1.0)
    with pytest.raises((http.client.RemoteDisconnected, ConnectionResetError)):
        ask(engine, {**BODY, "stream": stream})


def test_not_http(engine: EngineHandle) -> None:
    engine.faults(http_garbage=1.0)
    with pytest.raises(http.client.BadStatusLine):
        ask(engine, BODY)


def test_a_whole_answer_that_ends_in_its_middle(engine: EngineHandle) -> None:
    engine.faults(http_die_after=1.0)
    with pytest.raises(http.client.IncompleteRead):
        ask(engine, BODY)


def test_a_stream_that_ends_in_its_middle(engine: EngineHandle) -> None:
    engine.faults(http_die_after=1.0)
    with pytest.raises(http.client.IncompleteRead) as caught:
        ask(engine, {**BODY, "max_tokens": 200, "stream": True})
    text = caught.value.partial.decode()
    assert 1 <= text.count("data: {") <= 2
    assert "[DONE]" not in text


@pytest.mark.parametrize("stream", [False, True])
def test_slow_answers_are_whole(engine: EngineHandle, stream: bool) -> None:
    plain = ask(engine, {**BODY, "stream": stream})[1].decode()
    engine.faults(http_slow=1.0, http_slow_seconds=0.01)
    slow = ask(engine, {**BODY, "stream": stream})[1].decode()
    assert plain.count("data: ") > 1 if stream else json.loads(plain)["choices"] == json.loads(slow)["choices"]
    assert slow.endswith("data: [DONE]\n\n") == stream
    assert count(engine, "http_slow") >= 1


def test_what_is_not_an_answer_of_the_model_is_spared(engine: EngineHandle) -> None:
    engine.faults(http_die_before=1.0)
    connection = http.client.HTTPConnection(engine.url.removeprefix("http://"), timeout=30)
    connection.request("GET", "/v1/models")
    assert connection.getresponse().status == 200
    connection.close()


def test_chances_that_come_to_more_than_one() -> None:
    with pytest.raises(ConfigError, match=r"must add up to 1 at most, got 1\.5"):
        Faults(http_hang=0.75, http_slow=0.75)


def test_another_model(engine: EngineHandle) -> None:
    prompt = list(range(100, 120))
    engine.complete(prompt)
    epoch = engine.state()[0].epoch
    engine.serve_model("other")
    assert ask(engine, {**BODY, "model": "sim-model"})[0].status == 404
    response, body = ask(engine, {**BODY, "model": "other"})
    assert (response.status, json.loads(body)["model"]) == (200, "other")
    assert engine.state()[0].epoch == epoch + 1
    assert engine.match(prompt).held == 0
    engine.serve_model("sim-model")


def test_streams_that_begin_before_the_first_token(engine: EngineHandle) -> None:
    chat = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2, "stream": True}
    plain = ask(engine, chat, "/v1/chat/completions")[1]
    engine.faults(http_early=1.0)
    early = ask(engine, chat, "/v1/chat/completions")[1]
    assert plain.startswith(b"data: ")
    assert early.startswith(b": ")
    assert plain.count(b'"role"') == early.count(b'"role"') == 1
