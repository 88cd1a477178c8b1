"""LangChain's models for OpenAI's APIs and Anthropic's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from langchain_anthropic import ChatAnthropic
from langchain_openai import ChatOpenAI, OpenAI
from tests.process.clients.expected import MODEL, SCHEMA, TOOL

from .cases import Client, base, run

OPENAI = {"base_url": f"{base()}/v1", "api_key": "unused"}
FUNCTION = {"type": "function", "function": {"name": TOOL, "description": "Weather.", "parameters": SCHEMA}}


def client(name: str, package: str, make: Any) -> Client:
    model = make(MODEL)

    def stream(prompt: str) -> Iterator[str | None]:
        chunks = model.stream(prompt)
        try:
            for chunk in chunks:
                yield chunk if isinstance(chunk, str) else chunk.text
        finally:
            chunks.close()

    def whole(prompt: str, name: str) -> str | None:
        answer = make(name).invoke(prompt)
        return answer if isinstance(answer, str) else str(answer.text)

    def tools() -> Any:
        (call,) = model.bind_tools([FUNCTION]).invoke("weather?").tool_calls
        return call["args"]

    return Client(name, package, whole, stream, tools if hasattr(model, "bind_tools") else None)


run(
    [
        client("LangChain, ChatOpenAI", "langchain-openai", lambda model: ChatOpenAI(model=model, **OPENAI)),
        client(
            "LangChain, ChatOpenAI, responses",
            "langchain-openai",
            lambda model: ChatOpenAI(model=model, use_responses_api=True, **OPENAI),
        ),
        client("LangChain, OpenAI (completions)", "langchain-openai", lambda model: OpenAI(model=model, **OPENAI)),
        client(
            "LangChain, ChatAnthropic",
            "langchain-anthropic",
            lambda model: ChatAnthropic(model_name=model, base_url=base(), api_key="unused", max_tokens=64),
        ),
    ]
)
