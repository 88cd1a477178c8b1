"""The Anthropic SDK for Python."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import anthropic
from tests.process.clients.expected import MODEL, SCHEMA, TOOL

from .cases import Client, base, run

CLIENT = anthropic.Anthropic(base_url=base(), api_key="unused")
LOOP = asyncio.new_event_loop()
ASYNC = anthropic.AsyncAnthropic(base_url=base(), api_key="unused")


def asked(prompt: str, model: str = MODEL) -> Any:
    return {"model": model, "max_tokens": 64, "messages": [{"role": "user", "content": prompt}]}


def whole(prompt: str, model: str) -> str | None:
    answer: Any = CLIENT.messages.create(**asked(prompt, model))
    return answer.content[0].text  # type: ignore[no-any-return]


def stream(prompt: str) -> Iterator[str | None]:
    with CLIENT.messages.stream(**asked(prompt)) as pieces:
        yield from pieces.text_stream


def tools() -> Any:
    tool: Any = {"name": TOOL, "description": "The weather of a city.", "input_schema": SCHEMA}
    with CLIENT.messages.stream(**asked("weather?"), tools=[tool]) as pieces:
        (call,) = pieces.get_final_message().content
    assert call.type == "tool_use"
    return call.input


def whole_async(prompt: str, model: str) -> str | None:
    answer: Any = LOOP.run_until_complete(ASYNC.messages.create(**asked(prompt, model)))
    return answer.content[0].text  # type: ignore[no-any-return]


async def _pieces(prompt: str) -> AsyncIterator[str]:
    async with ASYNC.messages.stream(**asked(prompt)) as pieces:
        async for piece in pieces.text_stream:
            yield piece


def stream_async(prompt: str) -> Iterator[str | None]:
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
        Client("anthropic (Python)", "anthropic", whole, stream, tools),
        Client("anthropic (Python), asyncio", "anthropic", whole_async, stream_async),
    ]
)
