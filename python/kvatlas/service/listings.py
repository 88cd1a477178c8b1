"""Reader of what LMCache holds, as its coordinators list it.

For each pool that LMCache fills, a thread asks the coordinator for all keys, page by page, again and again. The native
part reads the pages and says which one to ask for next.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import Protocol

import httpx

from kvatlas._http import failure, options
from kvatlas.errors import KvatlasError
from kvatlas.service.config.pools import Pool

PAGE = 5_000  # keys on a page; a coordinator goes through all its keys for each page
SHARE = 4  # times that a listing's duration passes before the next one begins
LARGEST = 64 << 20  # bytes of an answer
SLOWEST = 30.0  # seconds that an answer may take


class ListingTaker(Protocol):
    """Part of the native service or router that takes in listings."""

    def begin_listing(self, pool: str, /) -> None: ...
    def add_listing_page(self, pool: str, offset: int, limit: int, page: bytes, /) -> int | None: ...
    def fail_listing(self, pool: str, why: str, /) -> None: ...


class ListingReader:
    """Threads that read the listings of pools until they are stopped."""

    def __init__(self, pools: Iterable[Pool], to: ListingTaker, *, page: int = PAGE) -> None:
        self._to, self._page = to, page
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(pool,), name="kvatlas-listing", daemon=True)
            for pool in pools
            if pool.lmcache is not None
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, pool: Pool) -> None:
        every = pool.seconds_between_looks
        with httpx.Client(**options(pool.lmcache or "", None, SLOWEST, None)) as client:
            while True:
                begun = time.monotonic()
                problem = self._read(client, pool.name)
                if problem is not None:
                    self._to.fail_listing(pool.name, problem)
                if self._stop.wait(max(every, SHARE * (time.monotonic() - begun))):
                    return

    def _read(self, client: httpx.Client, pool: str) -> str | None:
        """Read the whole listing of a pool. Returns the error message; None if there was no error."""
        self._to.begin_listing(pool)
        at: int | None = 0
        while at is not None and not self._stop.is_set():
            try:
                page = _page(client, at, self._page)
                at = self._to.add_listing_page(pool, at, self._page, page)
            except httpx.HTTPError as error:
                return failure(error)[1]
            except (KvatlasError, ValueError) as error:
                return str(error)
        return None

    def stop(self) -> None:
        """Stop reading."""
        self._stop.set()
        for thread in self._threads:
            # One that waits for a slow answer ends by itself, with the process at the latest.
            thread.join(timeout=1.0)


def _page(client: httpx.Client, offset: int, limit: int) -> bytes:
    """The coordinator's answer for up to `limit` keys.

    Raises:
        ValueError: It is no page of keys; the message says why.
    """
    body = bytearray()
    deadline = time.monotonic() + SLOWEST
    with client.stream("GET", "/directory/keys", params={"offset": offset, "limit": limit}) as answer:
        if answer.status_code != httpx.codes.OK:
            raise ValueError(f"GET /directory/keys was answered with status {answer.status_code}")
        for some in answer.iter_bytes():
            body += some
            if len(body) > LARGEST:
                raise ValueError(f"the answer to GET /directory/keys has more than {LARGEST:,} bytes")
            if time.monotonic() > deadline:
                raise ValueError(f"the answer to GET /directory/keys took more than {SLOWEST:g} s")
    return bytes(body)
