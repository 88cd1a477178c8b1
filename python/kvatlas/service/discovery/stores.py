"""Looks at the stores that are pools: keys that a Mooncake master lists, and whether it publishes events."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

from kvatlas.errors import DiscoveryError
from kvatlas.service.config.pools import Pool
from kvatlas.service.discovery.http import Asker
from kvatlas.service.native import Native

logger = logging.getLogger("kvatlas.discovery")

_KEYS = 1 << 30  # bytes of a list of keys, at most: seven million objects
_SHARE = 4  # minimum ratio of the time between two looks to the duration of one
_POLL = 1.0  # seconds between questions whether events were missed


async def publishes_events(asker: Asker, url: str) -> bool:
    """Ask a Mooncake master whether it publishes events. A master that is too old to say so does not.

    Raises:
        DiscoveryError: There is no answer, or an unexpected one.
    """
    said: Any = await asker.get_json(f"{url}/kv_events/status", absent=(404,))
    return isinstance(said, dict) and said.get("enabled") is True


async def list_keys(asker: Asker, url: str) -> bytes:
    """Ask a Mooncake master for the keys of all its objects, one in a line. No object's lease is renewed by that.

    Raises:
        DiscoveryError: There is no answer, or an unexpected one.
    """
    return await asker.get_bytes(f"{url}/get_all_keys", most=_KEYS)


class StoreWatch:
    """Looks again and again at the store of a pool, for at most a fifth of the time.

    Args:
        asker: Sends the requests, without a key.
        native: Gets what was found.
        pool: The pool, with the URL of its store.
    """

    def __init__(self, asker: Asker, native: Native, pool: Pool) -> None:
        self._asker, self._native, self._pool, self._url = asker, native, pool, pool.mooncake or ""
        self._publishes: bool | None = None
        self._why: str | None = None
        self._unclear: list[str] = []
        self._is_host = False

    async def run(self) -> None:
        """Look at the store until cancelled. Ends at once where no index is kept."""
        clock = asyncio.get_running_loop().time
        while True:
            began = clock()
            if not await self._look():
                return
            spent = clock() - began
            earliest = clock() + _SHARE * spent
            due = max(clock() + self._pool.seconds_between_looks, earliest)
            while (now := clock()) < due:
                await asyncio.sleep(min(_POLL, due - now))
                if clock() >= earliest and await asyncio.to_thread(self._native.wants_pool_look, self._pool.name):
                    break

    async def _look(self) -> bool:
        name = self._pool.name
        keys = None
        publishes = False
        if not await asyncio.to_thread(self._native.begin_pool_look, name):
            return False
        try:
            publishes = await publishes_events(self._asker, self._url)
            self._note_publishing(publishes)
            keys = await list_keys(self._asker, self._url)
        except DiscoveryError as error:
            if self._why != str(error):
                self._why = str(error)
                logger.warning(
                    "pool %s: what %s holds is not known, and what it has lost counts: %s", name, self._url, error
                )
        else:
            if self._why is not None:
                logger.info("pool %s: %s answers again", name, self._url)
            self._why = None
        found = await asyncio.to_thread(self._native.end_pool_look, name, keys, publishes)
        if found is not None:
            self._note_found(json.loads(found))
        return True

    def _note_publishing(self, publishes: bool) -> None:
        if publishes is self._publishes:
            return
        self._publishes = publishes
        name, every = self._pool.name, self._pool.seconds_between_looks
        if publishes and self._pool.events is None:
            logger.info("pool %s: %s publishes events: set events of the pool to follow them", name, self._url)
        elif not publishes and self._pool.events is not None:
            logger.warning(
                "pool %s: %s publishes no events (/kv_events/status): released wheels are built without them, and "
                "accept --enable_kv_events all the same. Its keys are listed every %g s instead",
                *(name, self._url, every),
            )

    def _note_found(self, found: dict[str, Any]) -> None:
        name = self._pool.name
        if found["unclear"] != self._unclear:
            self._unclear = found["unclear"]
            if self._unclear:
                logger.warning(
                    "pool %s: which keys are those of model %s is not clear, so what was announced counts: set "
                    "key_prefix of the pool to one of %s",
                    *(name, ", ".join(self._unclear), ", ".join(found["prefixes"])),
                )
        if found["is_host"] and not self._is_host:
            logger.warning(
                "pool %s: the store has SGLang's keys, but the pool takes events of host memory: set tier to external",
                name,
            )
        self._is_host = found["is_host"]
