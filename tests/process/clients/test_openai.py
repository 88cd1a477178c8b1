"""The OpenAI SDK in front of the router."""

import asyncio
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI
from tests.process.router.running import Router, wait_until

from .answers import Engines, wait_for_engines
from .expected import CACHED, MODEL, PROMPT, REFUSAL, SCHEMA, TEXT, TOOL, VECTOR, WORDS, order

FUNCTION: Any = {
    "name": TOOL,
    "description": "The weather of a city.",
    "parameters": SCHEMA,
}
TOOLS: Any = [{"type": "function", "function": FUNCTION}]
FLAT_TOOLS: Any = [{"type": "function", "strict": None, **FUNCTION}]


@pytest.fixture
def client(base: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{base}/v1", api_key="unused") as made:
        yield made


def chat(client: OpenAI, prompt: str = "hello", **more: Any) -> Any:
    return client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": prompt}], **more)


def complete(client: OpenAI, prompt: str = "hello", **more: Any) -> Any:
    return client.completions.create(model=MODEL, prompt=prompt, **more)


def respond(client: OpenAI, prompt: str = "hello", **more: Any) -> Any:
    return client.responses.create(model=MODEL, input=prompt, **more)


APIS = pytest.mark.parametrize("ask", [chat, complete, respond])


def test_chats(client: OpenAI) -> None:
    answer = chat(client)
    assert answer.choices[0].message.content == TEXT
    assert answer.usage.prompt_tokens_details.cached_tokens == CACHED
    chunks = list(chat(client, stream=True))
    # Every chunk has a choice, which many programs count on.
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == TEXT
    *chunks, last = chat(client, stream=True, stream_options={"include_usage": True})
    assert (last.choices, last.usage.prompt_tokens) == ([], PROMPT)


def test_completions(client: OpenAI) -> None:
    assert complete(client).choices[0].text == TEXT
    assert [chunk.choices[0].text for chunk in complete(client, stream=True)] == [*WORDS, ""]


def test_responses(client: OpenAI) -> None:
    answer = respond(client)
    assert answer.output_text == TEXT
    assert answer.usage.input_tokens_details.cached_tokens == CACHED
    events = list(respond(client, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == TEXT
    with client.responses.stream(model=MODEL, input="hello") as stream:
        assert stream.get_final_response().output_text == TEXT


def test_tools_in_a_chat(client: OpenAI) -> None:
    messages: list[Any] = [{"role": "user", "content": "weather?"}]
    message = client.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS).choices[0].message
    assert message.tool_calls is not None
    with client.chat.completions.stream(model=MODEL, messages=messages, tools=TOOLS) as stream:
        streamed = stream.get_final_completion().choices[0].message
    assert streamed.tool_calls is not None
    for call in (message.tool_calls[0], streamed.tool_calls[0]):
        assert call.type == "function"
        assert call.function.arguments == '{"city": "Paris"}'
    messages += [message, {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "sunny"}]
    answer = client.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS)
    assert answer.choices[0].message.content == TEXT


def test_tools_in_responses(client: OpenAI) -> None:
    (call,) = respond(client, tools=FLAT_TOOLS).output
    assert (call.type, call.name) == ("function_call", TOOL)
    with client.responses.stream(model=MODEL, input="hello", tools=FLAT_TOOLS) as stream:
        (streamed,) = stream.get_final_response().output
    assert streamed.type == "function_call"
    assert streamed.arguments == call.arguments
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    items: Any = [{"role": "user", "content": "weather?"}, call.to_dict(), result]
    assert respond(client, items, tools=FLAT_TOOLS).output_text == TEXT


def test_embeddings_and_models(client: OpenAI) -> None:
    # The SDK asks for them in base64, and decodes them.
    answer = client.embeddings.create(model=MODEL, input=["a", "b"])
    assert [one.embedding for one in answer.data] == [VECTOR, VECTOR]
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL


@APIS
def test_a_stream_that_is_closed_ends_the_request(client: OpenAI, router: Router, engines: Engines, ask: Any) -> None:
    prompt, tag = order("slow")
    stream = ask(client, prompt, stream=True)
    next(iter(stream))
    stream.close()
    wait_until(lambda: tag in engines.given_up, "the engine notices")
    assert engines.tries[tag] == 1
    wait_until(lambda: router.in_flight() == 0, "nothing is in flight")


def test_a_task_that_is_cancelled_ends_the_request(base: str, engines: Engines) -> None:
    prompt, tag = order("slow")

    async def main() -> None:
        async with openai.AsyncOpenAI(base_url=f"{base}/v1", api_key="unused") as client:
            asked = client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": prompt}])
            task = asyncio.create_task(asked)
            await asyncio.to_thread(wait_until, lambda: engines.tries[tag] == 1, "the engine has the request")
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            # The client is still there: it is the request that ended.
            await asyncio.to_thread(wait_until, lambda: tag in engines.given_up, "the engine notices")

    asyncio.run(main())


@APIS
def test_the_router_tries_again(client: OpenAI, router: Router, engines: Engines, ask: Any) -> None:
    wait_for_engines(router)
    prompt, tag = order("busy-1")
    ask(client.with_options(max_retries=0), prompt)
    assert engines.tries[tag] == 2


@APIS
def test_the_sdk_tries_again(client: OpenAI, engines: Engines, ask: Any) -> None:
    prompt, tag = order("busy-3")
    assert list(ask(client, prompt, stream=True))
    assert engines.tries[tag] > 3


@APIS
def test_what_every_engine_is_too_busy_for(client: OpenAI, ask: Any) -> None:
    prompt, _ = order("busy-99")
    with pytest.raises(openai.InternalServerError) as caught:
        ask(client.with_options(max_retries=0), prompt)
    assert caught.value.status_code == 503
    assert int(caught.value.response.headers["retry-after"]) >= 1


@APIS
@pytest.mark.parametrize("stream", [False, True])
def test_an_engine_that_refuses(client: OpenAI, engines: Engines, ask: Any, stream: bool) -> None:
    prompt, tag = order("refuse")
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, prompt, stream=stream)
    assert isinstance(caught.value.body, dict)
    assert caught.value.body["message"] == REFUSAL
    assert engines.tries[tag] == 1


@APIS
def test_a_stream_that_breaks_off(client: OpenAI, ask: Any) -> None:
    prompt, _ = order("cut")
    with pytest.raises(openai.APIError, match=r"engine e\d"):
        list(ask(client, prompt, stream=True))


def test_a_model_that_nobody_serves(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.responses.create(model="nobody's", input="hello")
    assert (caught.value.code, caught.value.type) == ("model_not_found", "not_found_error")
    assert isinstance(caught.value.body, dict)
    assert "nobody's" in caught.value.body["message"]
