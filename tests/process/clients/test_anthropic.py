"""The Anthropic SDK in front of the router."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import pytest
from anthropic import Anthropic
from tests.process.router.running import PLAIN, Router, wait_until
from tests.support.engine import Engine

from .answers import Engines, wait_for_engines
from .expected import ARGUMENTS, CACHED, MODEL, OUTPUT, PROMPT, REFUSAL, SCHEMA, TEXT, TOOL, order

TOOLS: Any = [{"name": TOOL, "description": "The weather of a city.", "input_schema": SCHEMA}]


@pytest.fixture
def client(base: str) -> Iterator[Anthropic]:
    with Anthropic(base_url=base, api_key="unused") as made:
        yield made


def ask(client: Anthropic, prompt: Any = "hello", **more: Any) -> Any:
    asked = more.pop("messages", [{"role": "user", "content": prompt}])
    return client.messages.create(model=more.pop("model", MODEL), max_tokens=16, messages=asked, **more)


def test_messages(client: Anthropic) -> None:
    answer = ask(client, system=[{"type": "text", "text": "Be brief."}])
    assert answer.content[0].text == TEXT
    usage = answer.usage
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens) == (PROMPT - CACHED, CACHED, OUTPUT)
    kinds = [event.type for event in ask(client, stream=True)]
    assert (kinds[0], kinds[-1]) == ("message_start", "message_stop")
    with client.messages.stream(model=MODEL, max_tokens=16, messages=[{"role": "user", "content": "hello"}]) as stream:
        assert "".join(stream.text_stream) == TEXT
        assert stream.get_final_message().usage.output_tokens == OUTPUT


def test_tools(client: Anthropic) -> None:
    (call,) = ask(client, tools=TOOLS).content
    assert (call.type, call.name, call.input) == ("tool_use", TOOL, ARGUMENTS)
    asked: Any = [{"role": "user", "content": "weather?"}]
    with client.messages.stream(model=MODEL, max_tokens=16, messages=asked, tools=TOOLS) as stream:
        (streamed,) = stream.get_final_message().content
    assert streamed.type == "tool_use"
    assert streamed.input == ARGUMENTS
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}
    asked += [{"role": "assistant", "content": [call.to_dict()]}, {"role": "user", "content": [result]}]
    assert ask(client, messages=asked, tools=TOOLS).content[0].text == TEXT


def test_tokens_and_models(client: Anthropic) -> None:
    assert count(client).input_tokens == PROMPT
    assert [model.id for model in client.models.list()] == [MODEL]


def test_a_stream_that_is_closed_ends_the_request(client: Anthropic, router: Router, engines: Engines) -> None:
    prompt, tag = order("slow")
    stream = ask(client, prompt, stream=True)
    next(iter(stream))
    stream.close()
    wait_until(lambda: tag in engines.given_up, "the engine notices")
    wait_until(lambda: router.in_flight() == 0, "nothing is in flight")


def test_the_router_tries_again(client: Anthropic, router: Router, engines: Engines) -> None:
    wait_for_engines(router)
    prompt, tag = order("busy-1")
    ask(client.with_options(max_retries=0), prompt)
    assert engines.tries[tag] == 2


def test_the_sdk_tries_again(client: Anthropic, engines: Engines) -> None:
    prompt, tag = order("busy-3")
    assert list(ask(client, prompt, stream=True))
    assert engines.tries[tag] > 3


def test_what_every_engine_is_too_busy_for(client: Anthropic) -> None:
    prompt, _ = order("busy-99")
    with pytest.raises(anthropic.APIStatusError) as caught:
        ask(client.with_options(max_retries=0), prompt)
    assert (caught.value.status_code, caught.value.type) == (503, "overloaded_error")
    assert int(caught.value.response.headers["retry-after"]) >= 1


@pytest.mark.parametrize("stream", [False, True])
def test_an_engine_that_refuses(client: Anthropic, engines: Engines, stream: bool) -> None:
    prompt, tag = order("refuse")
    with pytest.raises(anthropic.BadRequestError) as caught:
        ask(client, prompt, stream=stream)
    assert (caught.value.type, caught.value.api_message) == ("invalid_request_error", REFUSAL)
    assert engines.tries[tag] == 1


def test_a_stream_that_breaks_off(client: Anthropic) -> None:
    prompt, _ = order("cut")
    with pytest.raises(anthropic.APIStatusError, match=r"engine e\d") as caught:
        list(ask(client, prompt, stream=True))
    assert caught.value.type == "api_error"


def count(client: Anthropic, prompt: str = "hello", *, model: str = MODEL) -> Any:
    return client.messages.count_tokens(model=model, messages=[{"role": "user", "content": prompt}])


@pytest.mark.parametrize("ask", [ask, count])
def test_a_model_that_nobody_serves(client: Anthropic, ask: Any) -> None:
    with pytest.raises(anthropic.NotFoundError) as caught:
        ask(client, model="nobody's")
    assert caught.value.type == "not_found_error"
    assert "nobody's" in (caught.value.api_message or "")
    # As the API has it: clients that are strict about the form show nothing otherwise.
    assert caught.value.response.json()["type"] == "error"


def test_a_key_in_either_header(tmp_path: Path) -> None:
    engines, key = Engines(), tmp_path / "key"
    key.write_text("right-key", encoding="ascii")
    with (
        Engine(behaviour=engines.answer) as engine,
        Router(engine, flags=(*PLAIN, "--key-file", str(key)), ready=False) as router,
    ):
        base = f"http://127.0.0.1:{router.port}"
        for header in ("Authorization", "x-api-key"):
            scheme = "Bearer " if header == "Authorization" else ""
            with Anthropic(base_url=base, api_key="wrong", default_headers={header: f"{scheme}right-key"}) as client:
                assert ask(client).content[0].text == TEXT
            assert b"right-key" not in repr(engine.last.headers).encode()
            with Anthropic(base_url=base, api_key="wrong", default_headers={header: f"{scheme}wrong"}) as client:
                with pytest.raises(anthropic.AuthenticationError) as caught:
                    ask(client)
                assert caught.value.type == "authentication_error"
