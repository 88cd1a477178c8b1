"""LlamaIndex's models for OpenAI's APIs and Anthropic's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from llama_index.core.tools import FunctionTool
from llama_index.llms.openai import OpenAIResponses
from llama_index.llms.openai_like import OpenAILike
from tests.process.clients.expected import MODEL, TOOL

from .cases import Client, base, run

OPENAI = {"api_base": f"{base()}/v1", "api_key": "unused", "context_window": 4096}


def weather(city: str) -> str:
    """The weather of a city."""
    return f"sunny in {city}"


def client(name: str, package: str, make: Any, *, calls_tools: bool = True) -> Client:
    model = make(MODEL)

    def whole(prompt: str, name: str) -> str | None:
        return str(make(name).complete(prompt).text)

    def stream(prompt: str) -> Iterator[str | None]:
        pieces = model.stream_complete(prompt)
        try:
            for piece in pieces:
                yield piece.delta
        finally:
            pieces.close()

    def tools() -> Any:
        tool = FunctionTool.from_defaults(weather, name=TOOL)
        answer = model.chat_with_tools([tool], "weather?")
        (call,) = model.get_tool_calls_from_response(answer)
        return call.tool_kwargs

    return Client(name, package, whole, stream, tools if calls_tools else None)


run(
    [
        client(
            "LlamaIndex, OpenAILike",
            "llama-index-llms-openai-like",
            lambda model: OpenAILike(model=model, **OPENAI),
            calls_tools=False,
        ),
        client(
            "LlamaIndex, OpenAILike, chat",
            "llama-index-llms-openai-like",
            lambda model: OpenAILike(model=model, is_chat_model=True, is_function_calling_model=True, **OPENAI),
        ),
        client(
            "LlamaIndex, OpenAIResponses",
            "llama-index-llms-openai",
            lambda model: OpenAIResponses(model=model, **OPENAI),
        ),
    ]
)
