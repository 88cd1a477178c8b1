"""GET requests to engines."""

from __future__ import annotations

import asyncio
import json
import ssl
from types import TracebackType
from typing import Any, Self

import httpx

from kvatlas.client.transport import reason
from kvatlas.service.discovery.problem import Problem

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
            headers={"Authorization": f"Bearer {key}"} if key else {},
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
            Problem: There is no answer, or another one.
        """
        try:
            async with self._turn, self._http.stream("GET", url) as answer:
                body = bytearray()
                async for piece in answer.aiter_bytes():
                    body += piece
                    if len(body) > _MOST:
                        raise Problem(f"GET {answer.url.path} answers with more than {_MOST >> 20} MiB")
        except httpx.TimeoutException as error:
            raise Problem("it does not answer in time", temporary=True) from error
        except httpx.ConnectError as error:
            raise Problem(f"it cannot be reached: {reason(error)}", temporary=True) from error
        except (httpx.HTTPError, OSError) as error:
            raise Problem(f"the connection failed: {reason(error)}", temporary=True) from error
        except (httpx.InvalidURL, ValueError) as error:
            raise Problem(f"it cannot be asked: {error}") from error
        status, path = answer.status_code, answer.url.path
        if status == httpx.codes.OK:
            return body.decode(errors="replace")
        if status in absent:
            return None
        if status in (401, 403):
            raise Problem(
                f"it refuses GET {path} with status {status}: give its API key by --engine-key-file or "
                "KVATLAS_ENGINE_KEY"
            )
        raise Problem(f"GET {path} answers with status {status}", temporary=status >= 500 or status == 429)

    async def get_json(self, url: str, *, absent: tuple[int, ...] = ()) -> Any:
        """An answer in JSON; None for the statuses of `absent`.

        Raises:
            Problem: There is no answer, or another one.
        """
        text = await self.get(url, absent=absent)
        if text is None:
            return None
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            path = httpx.URL(url).path
            raise Problem(f"GET {path} answers with something that is not JSON: is this an engine?") from error
