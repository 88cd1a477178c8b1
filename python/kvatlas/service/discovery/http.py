"""HTTP client for requests to engines."""

from __future__ import annotations

import asyncio
import copy
import json
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self

import httpx

from kvatlas._http import authorization, failure
from kvatlas.errors import DiscoveryError

SHORT = 256 << 10  # bytes of an answer
LIST = 1 << 20  # bytes of an answer that is a list: a thousand adapters, or the settings of each rank
_METRICS = 16 << 20  # bytes of metrics, which are read line by line
_LINE = 16 << 10  # bytes of a line of them; a longer one is left out
_AT_ONCE = 32  # requests under way
_KEEP = 1.0  # seconds that a connection is kept: for the other questions to the same engine


class Asker:
    """HTTP client of many engines, open within `async with`.

    Engines close idle connections before the next request, so connections are kept only briefly. Proxies named by the
    environment are ignored, because engines are internal.
    """

    def __init__(self, timeout: float, key: str | None = None) -> None:
        self._http = httpx.AsyncClient(
            timeout=httpx.Timeout(timeout, pool=None),
            limits=httpx.Limits(max_keepalive_connections=_AT_ONCE, keepalive_expiry=_KEEP),
            # As it is: what an encoding becomes has no bound.
            headers={"Accept-Encoding": "identity"},
            verify=ssl.create_default_context(),
            trust_env=False,
            follow_redirects=False,
        )
        # Waiting here is cheaper than in httpx's pool, which looks through all who wait, each time.
        self._turn = asyncio.Semaphore(_AT_ONCE)
        self._shown = authorization(key)

    def showing(self, key: str | None) -> Asker:
        """Create a client that shares the connections but sends another key."""
        other = copy.copy(self)
        other.show(key)
        return other

    def show(self, key: str | None) -> None:
        """Send a key with each request from now on; None for no key."""
        self._shown = authorization(key)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def get(self, url: str, *, absent: tuple[int, ...] = (), most: int = SHORT) -> str | None:
        """Get the body of an answer with status 200, of limited size; None for the statuses in `absent`.

        Raises:
            DiscoveryError: There is no answer, or an unexpected one.
        """
        status, body = await self._ask("GET", url, most)
        return body if _is_there("GET", url, status, absent) else None

    async def get_bytes(self, url: str, *, most: int) -> bytes:
        """Get the body of an answer with status 200, of limited size, undecoded.

        Raises:
            DiscoveryError: There is no answer, or an unexpected one.
        """
        body = bytearray()
        async with self._answer("GET", url) as answer:
            _is_there("GET", url, answer.status_code, ())
            async for piece in _pieces(answer, "GET", most):
                body += piece
        return bytes(body)

    async def lines(self, url: str, *beginnings: str, absent: tuple[int, ...] = ()) -> list[str]:
        """Get the lines with one of the beginnings from an answer with status 200; empty for the statuses in `absent`.

        Raises:
            DiscoveryError: There is no answer, or an unexpected one, or too many lines match.
        """
        found: list[str] = []
        wanted = tuple(each.encode() for each in beginnings)
        size = 0
        async with self._answer("GET", url) as answer:
            if not _is_there("GET", url, answer.status_code, absent):
                return found
            async for line in _lines(_pieces(answer, "GET", _METRICS)):
                if line.startswith(wanted):
                    size += len(line)
                    if size > LIST:
                        raise _too_long("GET", answer, LIST)
                    found.append(line.decode(errors="replace"))
        return found

    async def post(self, url: str, body: object, headers: Mapping[str, str]) -> tuple[int, str]:
        """Post a JSON body, and return the status and the body of the answer.

        Raises:
            DiscoveryError: There is no answer.
        """
        return await self._ask("POST", url, SHORT, json=body, headers=headers)

    async def _ask(self, method: str, url: str, most: int, **more: Any) -> tuple[int, str]:
        body = bytearray()
        async with self._answer(method, url, **more) as answer:
            async for piece in _pieces(answer, method, most):
                body += piece
        return answer.status_code, body.decode(errors="replace")

    @asynccontextmanager
    async def _answer(
        self, method: str, url: str, *, headers: Mapping[str, str] | None = None, **more: Any
    ) -> AsyncIterator[httpx.Response]:
        shown = {**(headers or {}), **self._shown}
        try:
            async with self._turn, self._http.stream(method, url, headers=shown, **more) as answer:
                yield answer
        except (httpx.HTTPError, OSError) as error:
            code, words = failure(error)
            raise DiscoveryError(f"it {words}", code, temporary=True) from error
        except (httpx.InvalidURL, ValueError) as error:
            raise DiscoveryError(f"the request cannot be sent: {error}", "unreachable") from error

    async def get_json(self, url: str, *, absent: tuple[int, ...] = (), most: int = SHORT) -> Any:
        """Get the value of a JSON answer; None for the statuses in `absent`.

        Raises:
            DiscoveryError: There is no answer, or an unexpected one.
        """
        text = await self.get(url, absent=absent, most=most)
        if text is None:
            return None
        try:
            return json.loads(text)
        except (ValueError, RecursionError) as error:
            path = httpx.URL(url).path
            words = f"GET {path} did not return JSON: is this an engine?"
            raise DiscoveryError(words, "bad_answer") from error


def _is_there(method: str, url: str, status: int, absent: tuple[int, ...]) -> bool:
    """True for status 200, False for the statuses in `absent`.

    Raises:
        DiscoveryError: The status is another one.
    """
    path = httpx.URL(url).path
    if status == httpx.codes.OK or status in absent:
        return status == httpx.codes.OK
    if status in (401, 403):
        raise DiscoveryError(
            f"it refuses {method} {path} with status {status}: set its API key with --engine-key-file or "
            "KVATLAS_ENGINE_KEY",
            f"http_{status}",
        )
    temporary = status >= 500 or status == 429
    raise DiscoveryError(f"{method} {path} returned status {status}", f"http_{status}", temporary=temporary)


async def _pieces(answer: httpx.Response, method: str, most: int) -> AsyncIterator[bytes]:
    """Pieces of a body as they arrive.

    Raises:
        DiscoveryError: The body exceeds the limit, or is compressed.
    """
    if answer.headers.get("Content-Encoding", "identity") != "identity":
        raise DiscoveryError(
            f"{method} {answer.url.path} returned a packed answer, which was not asked for", "bad_answer"
        )
    size = 0
    async for piece in answer.aiter_raw():
        size += len(piece)
        if size > most:
            raise _too_long(method, answer, most)
        yield piece


async def _lines(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Lines of a text that comes in pieces; a line that is too long is cut."""
    rest = b""
    async for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            yield line[:_LINE]
        rest = rest[:_LINE]
    yield rest


def _too_long(method: str, answer: httpx.Response, most: int) -> DiscoveryError:
    return DiscoveryError(f"{method} {answer.url.path} returned more than {most >> 10} KiB", "bad_answer")
