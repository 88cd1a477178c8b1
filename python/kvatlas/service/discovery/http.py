"""Requests to engines."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

import httpx

from kvatlas._http import authorization, failure
from kvatlas.errors import DiscoveryError

_MOST = 16 << 20  # bytes of an answer
_AT_ONCE = 32  # requests under way
_KEEP = 1.0  # seconds that a connection is kept: for the other questions to the same engine


class Asker:
    """A client of many engines, open within `async with`.

    Engines close idle connections sooner than they are asked again, so connections are kept only briefly. Proxies of
    the environment are for the way out, and engines are inside.
    """

    def __init__(self, timeout: float, key: str | None = None) -> None:
        self._http = httpx.AsyncClient(
            timeout=httpx.Timeout(timeout, pool=None),
            limits=httpx.Limits(max_keepalive_connections=_AT_ONCE, keepalive_expiry=_KEEP),
            headers=authorization(key),
            verify=ssl.create_default_context(),
            trust_env=False,
            follow_redirects=False,
        )
        # Waiting here is cheaper than in httpx's pool, which looks through all who wait, each time.
        self._turn = asyncio.Semaphore(_AT_ONCE)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def get(self, url: str, *, absent: tuple[int, ...] = ()) -> str | None:
        """The body of an answer with status 200; None for the statuses of `absent`.

        Raises:
            DiscoveryError: There is no answer, or an unexpected one.
        """
        status, body = await self._ask("GET", url)
        path = httpx.URL(url).path
        if status == httpx.codes.OK:
            return body
        if status in absent:
            return None
        if status in (401, 403):
            raise DiscoveryError(
                f"it refuses GET {path} with status {status}: set its API key with --engine-key-file or "
                "KVATLAS_ENGINE_KEY",
                f"http_{status}",
            )
        temporary = status >= 500 or status == 429
        raise DiscoveryError(f"GET {path} returned status {status}", f"http_{status}", temporary=temporary)

    async def post(self, url: str, body: object, headers: Mapping[str, str]) -> tuple[int, str]:
        """The status and the body of the answer to a body in JSON.

        Raises:
            DiscoveryError: There is no answer.
        """
        return await self._ask("POST", url, json=body, headers=headers)

    async def _ask(self, method: str, url: str, **more: Any) -> tuple[int, str]:
        try:
            async with self._turn, self._http.stream(method, url, **more) as answer:
                body = bytearray()
                async for piece in answer.aiter_bytes():
                    body += piece
                    if len(body) > _MOST:
                        raise DiscoveryError(
                            f"{method} {answer.url.path} returned more than {_MOST >> 20} MiB", "bad_answer"
                        )
        except (httpx.HTTPError, OSError) as error:
            code, words = failure(error)
            raise DiscoveryError(f"it {words}", code, temporary=True) from error
        except (httpx.InvalidURL, ValueError) as error:
            raise DiscoveryError(f"the request cannot be sent: {error}", "unreachable") from error
        return answer.status_code, body.decode(errors="replace")

    async def get_json(self, url: str, *, absent: tuple[int, ...] = ()) -> Any:
        """The value of an answer in JSON; None for the statuses of `absent`.

        Raises:
            DiscoveryError: There is no answer, or an unexpected one.
        """
        text = await self.get(url, absent=absent)
        if text is None:
            return None
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            path = httpx.URL(url).path
            words = f"GET {path} did not return JSON: is this an engine?"
            raise DiscoveryError(words, "bad_answer") from error
