"""Tokenizer that uses an engine, for asyncio. `kvatlas.tokenize.engine_sync` is generated from this file."""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import httpx

from kvatlas._http import options
from kvatlas.tokenize import engine_requests
from kvatlas.tokenize.protocol import Message


class AsyncEngineTokenizer:
    """Tokenizes with `POST /tokenize` of a vLLM or SGLang server: always right, at the cost of a request.

    Every method raises `TokenizerError` if the engine does not answer, refuses, or does not return tokens.
    """

    def __init__(
        self,
        url: str,
        key: str | None = None,
        timeout: float = 30.0,
        *,
        model: str | None = None,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        """Create a tokenizer. Nothing is sent yet.

        Args:
            url: The engine's URL: `http://host:8000`.
            key: Its API key.
            timeout: Seconds that connecting, sending and each part of an answer may take.
            model: The model to name in requests; engines that serve one model need none.
            ssl_context: The TLS context; one that trusts the system's certificates if not given.

        Raises:
            InvalidArgumentError: The URL, the key or the timeout cannot be used.
        """
        self._http = httpx.AsyncClient(**options(url, key, timeout, ssl_context))
        self.url = url.strip().rstrip("/")
        self.model = model

    async def encode(self, text: str, /, *, add_special_tokens: bool = True) -> list[int]:
        """The token ids of a completion's prompt.

        Args:
            text: The prompt.
            add_special_tokens: Whether to add special tokens, as engines do by default.
        """
        return await self._ask(engine_requests.prompt(text, self.model, add_special_tokens=add_special_tokens))

    async def encode_chat(
        self,
        messages: Sequence[Message],
        /,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """The token ids of a chat.

        Args:
            messages: As a chat request has them.
            tools: The tools offered, as a chat request has them.
            add_generation_prompt: Whether the beginning of the assistant's answer follows, as in chat requests.
            template_kwargs: More variables for the template: what requests have in `chat_template_kwargs`.
        """
        body = engine_requests.chat(
            messages,
            self.model,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            template_kwargs=template_kwargs,
        )
        return await self._ask(body)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _ask(self, body: dict[str, Any]) -> list[int]:
        with engine_requests.errors(self.url, closed=self._http.is_closed):
            return engine_requests.tokens(await self._answer(body))

    async def _answer(self, body: dict[str, Any]) -> httpx.Response:
        headers = engine_requests.HEADERS
        async with self._http.stream("POST", engine_requests.PATH, json=body, headers=headers) as answer:
            said = engine_requests.Body(answer)
            async for piece in answer.aiter_raw():
                said.add(piece)
        return said.whole()
