"""Requests to the Kubernetes API server: lists of objects, and watches of their changes, with bounded answers."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from kvatlas._http import failure
from kvatlas.errors import DiscoveryError
from kvatlas.service.discovery.sources.account import Account

PAGE = 250  # objects of one answer
_LONGEST_LINE = 4 << 20  # bytes of an event; the largest object is 1.5 MB
_LONGEST_PAGE = 64 << 20
_LONGEST_PROBLEM = 64 << 10
_MOST_PATIENCE = 300.0  # seconds that an API server can ask to be left alone for
GONE, NO_WATCH_LIST = "gone", "no_watch_list"  # codes
OPEN = "OPEN"  # the type of what comes before the first event, once the server has agreed to a watch


@dataclass(frozen=True)
class ObjectSelection:
    """Selection of objects of a namespace.

    Attributes:
        kind: Plural name of the objects' kind, for messages.
        resource: Path of the objects' kind below a namespace: `pods`.
        namespace: The namespace.
        query: Parameters that select the objects.
        group: Path of the kind's API group and version.
    """

    kind: str
    resource: str
    namespace: str
    query: tuple[tuple[str, str], ...]
    group: str = "/api/v1"

    @property
    def path(self) -> str:
        """Path of the objects' list."""
        return f"{self.group}/namespaces/{self.namespace}/{self.resource}"


class ObjectApi:
    """Client that lists and watches objects of a namespace, within `async with connection()`."""

    def __init__(self, account: Account, objects: ObjectSelection, timeout: float) -> None:
        self._account = account
        self._objects = objects
        self._what = f"{objects.kind} in namespace {objects.namespace}"
        self._timeout = timeout

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[httpx.AsyncClient]:
        """HTTP client for a series of requests; its errors become a `DiscoveryError`."""
        try:
            async with self._account.client(self._timeout) as http:
                yield http
        except (httpx.HTTPError, OSError) as error:
            code, words = failure(error)
            raise DiscoveryError(f"the API server at {self._account.url} {words}", code, temporary=True) from error
        except (ValueError, RecursionError) as error:
            raise DiscoveryError(f"the API server at {self._account.url} did not return JSON", "bad_answer") from error

    async def pages(self, http: httpx.AsyncClient) -> AsyncIterator[tuple[list[Any], str]]:
        """Existing objects, page by page, each page with the version of the list.

        Raises:
            DiscoveryError: The server refuses; with the code "gone", the list has changed too much meanwhile.
        """
        more: dict[str, str] = {}
        while True:
            answer = await self._whole(http, limit=str(PAGE), **more)
            meta = answer.get("metadata") or {}
            yield [it for it in answer.get("items") or [] if isinstance(it, dict)], str(meta.get("resourceVersion", ""))
            if not meta.get("continue"):
                return
            more = {"continue": str(meta["continue"])}

    async def is_there(self, http: httpx.AsyncClient) -> None:
        """Check with a minimal request that the server answers.

        Raises:
            DiscoveryError: The server does not answer.
        """
        await self._whole(http, limit="1")

    async def annotate(self, http: httpx.AsyncClient, name: str, annotations: dict[str, str]) -> None:
        """Set annotations of an object.

        Raises:
            DiscoveryError: The server refuses.
        """
        body = json.dumps({"metadata": {"annotations": annotations}})
        headers = self._account.headers() | {"Content-Type": "application/merge-patch+json"}
        path, timeout = f"{self._objects.path}/{name}", httpx.Timeout(self._timeout, pool=None)
        async with http.stream("PATCH", path, content=body, headers=headers, timeout=timeout) as answer:
            await self._check(answer, "patch")
            await _read(answer, _LONGEST_PAGE)

    async def events(
        self, http: httpx.AsyncClient, version: str | None, seconds: int
    ) -> AsyncGenerator[tuple[str, dict[str, Any]], None]:
        """Changes since a version, or all existing objects and then their changes, each as type and object.

        Args:
            http: A client of `connection`.
            version: The version of the last list or event; None to start with the existing objects.
            seconds: Seconds for which the server should keep the watch open.

        Raises:
            DiscoveryError: The server refuses; with the code "gone", the version is too old; with "no_watch_list", it
                cannot start with the existing objects.
        """
        query = {"watch": "1", "allowWatchBookmarks": "true", "timeoutSeconds": str(seconds)}
        if version is None:
            query |= {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
        else:
            query["resourceVersion"] = version
        # A quiet cluster sends no events for minutes.
        timeout = httpx.Timeout(self._timeout, read=None, pool=None)
        async with self._asked(http, query, timeout) as answer:
            if version is None and answer.status_code in (400, 422):
                raise DiscoveryError("the API server cannot begin a watch with what is there", NO_WATCH_LIST)
            await self._check(answer)
            yield OPEN, {}
            async for line in _lines(answer):
                event = json.loads(line)
                kind, about = event.get("type"), event.get("object")
                if not isinstance(kind, str) or not isinstance(about, dict):
                    raise DiscoveryError(f"a watch of {self._what} has an event without type and object", "bad_answer")
                if kind == "ERROR":
                    raise self._problem(int(about.get("code") or 500), about, None)
                yield kind, about

    async def _whole(self, http: httpx.AsyncClient, **query: str) -> dict[str, Any]:
        async with self._asked(http, query, httpx.Timeout(self._timeout, pool=None)) as answer:
            await self._check(answer)
            body = await _read(answer, _LONGEST_PAGE)
        value = json.loads(body)
        if not isinstance(value, dict):
            raise DiscoveryError(f"a list of {self._what} is not a JSON object", "bad_answer")
        return value

    @asynccontextmanager
    async def _asked(
        self, http: httpx.AsyncClient, query: dict[str, str], timeout: httpx.Timeout
    ) -> AsyncIterator[httpx.Response]:
        params = {**dict(self._objects.query), **query}
        headers = self._account.headers()
        async with http.stream("GET", self._objects.path, params=params, headers=headers, timeout=timeout) as answer:
            yield answer

    async def _check(self, answer: httpx.Response, verb: str = "get, list and watch") -> None:
        if answer.status_code == httpx.codes.OK:
            return
        try:
            about = json.loads(await _read(answer, _LONGEST_PROBLEM))
        except (ValueError, RecursionError):
            about = {}
        about = about if isinstance(about, dict) else {}
        raise self._problem(answer.status_code, about, answer.headers.get("Retry-After"), verb)

    def _problem(
        self, status: int, about: dict[str, Any], after: str | None, verb: str = "get, list and watch"
    ) -> DiscoveryError:
        message = str(about.get("message") or about.get("reason") or f"status {status}")[:500]
        if status == httpx.codes.GONE:
            return DiscoveryError(message, GONE, temporary=True)
        words = f"the API server refuses {self._what} with status {status}: {message}"
        if status in (401, 403):
            words += f"; its Role must allow {verb} of {self._objects.resource} there"
        elif status == httpx.codes.NOT_FOUND:
            words += f"; it knows no {self._objects.kind}: install their CustomResourceDefinition"
        details = about.get("details")
        seconds = after if after is not None else (details or {}).get("retryAfterSeconds")
        wait = float(str(seconds)) if str(seconds).isdecimal() else None
        return DiscoveryError(
            words, f"http_{status}", temporary=True, after=None if wait is None else min(wait, _MOST_PATIENCE)
        )


def watch_seconds() -> int:
    """Duration of a watch in seconds, different for each watch."""
    return int(300 * random.uniform(1, 2))


async def _read(answer: httpx.Response, most: int) -> bytes:
    body = bytearray()
    async for piece in answer.aiter_raw():
        body += piece
        if len(body) > most:
            raise DiscoveryError(f"the API server's answer is longer than {most >> 20} MiB", "bad_answer")
    return bytes(body)


async def _lines(answer: httpx.Response) -> AsyncIterator[bytes]:
    rest = bytearray()
    async for piece in answer.aiter_raw():
        begin = len(rest)
        rest += piece
        if b"\n" not in piece:
            if len(rest) > _LONGEST_LINE:
                raise DiscoveryError(f"an event of a watch is longer than {_LONGEST_LINE >> 20} MiB", "bad_answer")
            continue
        end = rest.rindex(b"\n", begin)
        whole, rest = bytes(rest[:end]), rest[end + 1 :]
        for line in whole.split(b"\n"):
            if line.strip():
                yield line
        await asyncio.sleep(0)  # others have their turn between the events of a long piece
