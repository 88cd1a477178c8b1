"""Test if an engine sleeps, in the way of the router: by `GET /is_sleeping`, or else by its metrics."""

from __future__ import annotations

import re

from kvatlas.errors import ClientError, DiscoveryError
from kvatlas.router.check.ask import Engine
from kvatlas.service.discovery.http import Asker

_ROUTE = "/is_sleeping"
_METRIC = "vllm:engine_sleep_state"
_STATE = re.compile(r'[{,]sleep_state="([^"]*)"[^}]*\}\s+(\S+)')


async def source_of_sleep(engine: Engine, asker: Asker, url: str) -> str | None:
    """Route or metric that shows that an engine sleeps; None if it is awake, or does not report it."""
    try:
        said = await engine.json("GET", _ROUTE)
    except ClientError:
        said = None
    by_route = said.get("is_sleeping") if isinstance(said, dict) else None
    if isinstance(by_route, bool):
        return f"GET {_ROUTE}" if by_route else None
    try:
        lines = await asker.lines(f"{url}/metrics", _METRIC)
    except DiscoveryError:
        return None
    states = [found.groups() for found in map(_STATE.search, lines) if found is not None]
    now = {state for state, value in states if _is_set(value)}
    return _METRIC if now and "awake" not in now else None


def _is_set(value: str) -> bool:
    try:
        return float(value) > 0
    except ValueError:
        return False
