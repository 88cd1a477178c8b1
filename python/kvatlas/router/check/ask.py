"""Requests to one engine over HTTP, like those of clients and the router."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Self

import httpx

from kvatlas._http import authorization, failure, read_whole
from kvatlas.errors import ClientError

_MOST = 1 << 20  # bytes of an answer

ANSWER = 120.0
"""Time limit of a one-token answer, in seconds: a model may be compiled for its first request."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Generated answer of an engine, with its token counts.

    Attributes:
        prompt_tokens: Tokens of the prompt as the engine counts them; None if not reported.
        cached_tokens: Prompt tokens found in the engine's cache; None if not reported.
        seconds: Time until the answer was complete.
        body: The whole answer.
    """

    prompt_tokens: int | None
    cached_tokens: int | None
    seconds: float
    body: dict[str, Any]


class Engine:
    """HTTP client of one engine, used within `async with`."""

    def __init__(self, url: str, key: str | None, timeout: float) -> None:
        self._http = httpx.AsyncClient(
            base_url=url,
            timeout=timeout,
            headers={"Accept-Encoding": "identity", **authorization(key)},
            trust_env=False,
            follow_redirects=False,
        )
        self.waits_for = ""  # the request that has no answer yet

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_about: object) -> None:
        await self._http.aclose()

    async def get(self, path: str) -> tuple[int, float]:
        """Status code of a GET request, and the seconds until it arrived over an open connection."""
        await self._send("GET", path)
        began = time.monotonic()
        response = await self._send("GET", path)
        return response.status_code, time.monotonic() - began

    async def json(self, method: str, path: str, body: object = None, *, timeout: float | None = None) -> Any:
        """Send a request, and return the JSON body of an answer with status 200."""
        response = await self._send(method, path, body, timeout)
        if response.status_code != httpx.codes.OK:
            raise ClientError(
                f"{method} {path} returned status {response.status_code}{_reason(response)}",
                status=response.status_code,
            )
        try:
            return response.json()
        except ValueError:
            raise ClientError(f"{method} {path} did not return JSON: is this an engine?") from None

    async def generate(self, path: str, body: dict[str, Any]) -> Answer:
        """Generate an answer of about one token."""
        began = time.monotonic()
        found = await self.json("POST", path, body, timeout=ANSWER)
        usage = found.get("usage") if isinstance(found, dict) else None
        if not isinstance(usage, dict):
            raise ClientError(f"POST {path} returned no usage: is this an engine?")
        details = usage.get("prompt_tokens_details")
        cached = details.get("cached_tokens") if isinstance(details, dict) else None
        return Answer(_number(usage.get("prompt_tokens")), _number(cached), time.monotonic() - began, found)

    async def _send(self, method: str, path: str, body: object = None, timeout: float | None = None) -> httpx.Response:
        wait = httpx.USE_CLIENT_DEFAULT if timeout is None else timeout
        self.waits_for = f"{method} {path}"
        try:
            async with self._http.stream(method, path, json=body, timeout=wait) as answer:
                content = await read_whole(answer, _MOST)
        except (httpx.HTTPError, OSError) as error:
            raise ClientError(f"it {failure(error)[1]}") from error
        self.waits_for = ""
        if content is None:
            raise ClientError(f"{method} {path} returned more than {_MOST >> 10} KiB, or a packed answer")
        return httpx.Response(answer.status_code, content=content, request=answer.request)


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _reason(response: httpx.Response) -> str:
    """The error message in an engine's answer, as the end of a line; empty if there is none."""
    try:
        said = response.json()
    except ValueError:
        return ""
    error = said.get("error", said) if isinstance(said, dict) else None
    words = error.get("message") if isinstance(error, dict) else error
    return f": {' '.join(words.split())[:300]}" if isinstance(words, str) else ""
