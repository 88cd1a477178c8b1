"""LiteLLM's SDK with its ways to OpenAI-compatible servers, and with Anthropic's API."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import litellm
from tests.process.clients.expected import MODEL, SCHEMA, TOOL

from .cases import Client, base, run

TOOLS = [{"type": "function", "function": {"name": TOOL, "description": "Weather.", "parameters": SCHEMA}}]


def client(name: str, provider: str, address: str) -> Client:
    def ask(prompt: str, model: str = MODEL, **more: Any) -> Any:
        return litellm.completion(
            model=f"{provider}/{model}",
            messages=[{"role": "user", "content": prompt}],
            api_base=address,
            api_key="unused",
            num_retries=3,
            # It asks again at once otherwise, whatever `Retry-After` says.
            retry_strategy="exponential_backoff_retry",
            **more,
        )

    def whole(prompt: str, model: str) -> str | None:
        return ask(prompt, model).choices[0].message.content  # type: ignore[no-any-return]

    def stream(prompt: str) -> Iterator[str | None]:
        pieces = ask(prompt, stream=True)
        try:
            for piece in pieces:
                yield piece.choices[0].delta.content
        finally:
            # It has no `close`: what it reads from has.
            getattr(pieces.completion_stream, "close", lambda: None)()

    def tools() -> Any:
        return json.loads(ask("weather?", tools=TOOLS).choices[0].message.tool_calls[0].function.arguments)

    return Client(name, "litellm", whole, stream, tools, asks_again=True)


run(
    [
        client("LiteLLM, openai/", "openai", f"{base()}/v1"),
        client("LiteLLM, hosted_vllm/", "hosted_vllm", f"{base()}/v1"),
        client("LiteLLM, anthropic/", "anthropic", base()),
    ]
)
