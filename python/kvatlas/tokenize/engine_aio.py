"""A tokenizer that uses an engine, for asyncio. `kvatlas.tokenize.engine_sync` is generated from this file."""

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
    """Tokenizer that uses `POST /tokenize` of a vLLM or SGLang server: always exact, but each call is an HTTP request.

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
        """Create a tokenizer, without sending a request yet.

        Args:
            url: The engine's URL, for example `http://host:8000`.
            key: API key of the engine; None for no key.
            timeout: Maximum seconds for each of: connecting, sending, and each part of an answer.
            model: Name of the model in requests; not needed for engines that serve one model.
            ssl_context: TLS context; by default, one that trusts the system's certificates.

        Raises:
            InvalidArgumentError: The URL, the key or the timeout is not valid.
        """
        self._http = httpx.AsyncClient(**options(url, key, timeout, ssl_context))
        self.url = url.strip().rstrip("/")
        self.model = model

    async def encode(self, text: str, /, *, add_special_tokens: bool = True) -> list[int]:
        """Compute the token ids of a completion's prompt.

        Args:
            text: Text of the prompt.
            add_special_tokens: True to add special tokens, as engines do by default.
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
        """Compute the token ids of a chat.

        Args:
            messages: The messages, in the format of a chat request.
            tools: The tools offered to the model, in the format of a chat request.
            add_generation_prompt: True to end with the beginning of the assistant's answer, as chat requests do.
            template_kwargs: More variables for the chat template, as in `chat_template_kwargs` of requests.
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
        """Close the connections to the engine."""
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
