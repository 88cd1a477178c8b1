"""The OpenAI SDK for Python, with each of its APIs, and with asyncio."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import openai
from tests.process.clients.expected import MODEL, SCHEMA, TOOL

from .cases import Client, base, run

CLIENT = openai.OpenAI(base_url=f"{base()}/v1", api_key="unused")
FUNCTION: Any = {"name": TOOL, "description": "The weather of a city.", "parameters": SCHEMA}


def messages(prompt: str) -> Any:
    return [{"role": "user", "content": prompt}]


def chat(prompt: str, model: str) -> str | None:
    return CLIENT.chat.completions.create(model=model, messages=messages(prompt)).choices[0].message.content


def chat_stream(prompt: str) -> Iterator[str | None]:
    with CLIENT.chat.completions.create(model=MODEL, messages=messages(prompt), stream=True) as stream:
        for chunk in stream:
            yield chunk.choices[0].delta.content


def chat_tools() -> Any:
    tools: Any = [{"type": "function", "function": FUNCTION}]
    with CLIENT.chat.completions.stream(model=MODEL, messages=messages("weather?"), tools=tools) as stream:
        calls: Any = stream.get_final_completion().choices[0].message.tool_calls
    return json.loads(calls[0].function.arguments)


def completion(prompt: str, model: str) -> str | None:
    return CLIENT.completions.create(model=model, prompt=prompt).choices[0].text


def completion_stream(prompt: str) -> Iterator[str | None]:
    with CLIENT.completions.create(model=MODEL, prompt=prompt, stream=True) as stream:
        for chunk in stream:
            yield chunk.choices[0].text


def embedding() -> list[float]:
    return CLIENT.embeddings.create(model=MODEL, input="hello").data[0].embedding


def response(prompt: str, model: str) -> str | None:
    return CLIENT.responses.create(model=model, input=prompt).output_text


def response_stream(prompt: str) -> Iterator[str | None]:
    with CLIENT.responses.create(model=MODEL, input=prompt, stream=True) as stream:
        for event in stream:
            if event.type == "response.output_text.delta":
                yield event.delta


def response_tools() -> Any:
    tools: Any = [{"type": "function", "strict": None, **FUNCTION}]
    with CLIENT.responses.stream(model=MODEL, input="weather?", tools=tools) as stream:
        (call,) = stream.get_final_response().output
    assert call.type == "function_call"
    return json.loads(call.arguments)


LOOP = asyncio.new_event_loop()
ASYNC = openai.AsyncOpenAI(base_url=f"{base()}/v1", api_key="unused")


def chat_async(prompt: str, model: str) -> str | None:
    answer = LOOP.run_until_complete(ASYNC.chat.completions.create(model=model, messages=messages(prompt)))
    return answer.choices[0].message.content


async def _pieces(prompt: str) -> AsyncIterator[str | None]:
    async with await ASYNC.chat.completions.create(model=MODEL, messages=messages(prompt), stream=True) as stream:
        async for chunk in stream:
            yield chunk.choices[0].delta.content


def chat_stream_async(prompt: str) -> Iterator[str | None]:
    pieces: Any = _pieces(prompt)
    try:
        while True:
            yield LOOP.run_until_complete(anext(pieces))
    except StopAsyncIteration:
        pass
    finally:
        LOOP.run_until_complete(pieces.aclose())


run(
    [
        Client("openai (Python), chat", "openai", chat, chat_stream, chat_tools),
        Client("openai (Python), completions", "openai", completion, completion_stream, embed=embedding),
        Client("openai (Python), responses", "openai", response, response_stream, response_tools),
        Client("openai (Python), chat, asyncio", "openai", chat_async, chat_stream_async),
    ]
)
