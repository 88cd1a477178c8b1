"""Reader of the dependencies between requests of a trace, in two formats.

In Mooncake's format, a row with an `id` may have `after`, the ids of the requests that must end before the row's
request starts, and `delay`, the milliseconds between the last of these ends and the start. Version 2 of Dynamo's
`agentic_mooncake` begins with a line that names the format; its rows have a `request_id`, `not_before_ms` instead of a
timestamp, and `dependencies` with a delay each.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvatlas.errors import TraceError

AGENTIC = "dynamo.agentic_mooncake"
_VERSION = 2

Number = Callable[[dict[str, Any], str, int, int], int]


@dataclass(frozen=True, slots=True)
class Dependency:
    """Dependency on the request `id`: the dependent one starts at least `delay` ms after the end of that request."""

    id: str | int
    delay: int = 0  # milliseconds after it
    on_start: bool = False  # counts from its start, not from its end


@dataclass(slots=True)
class Header:
    """First line of an `agentic_mooncake` trace, which says how to read the block ids of the rows."""

    block: int  # tokens that an id stands for
    local: bool  # ids are private to a session
    _names: dict[tuple[object, int], int] = field(default_factory=dict)

    def global_ids(self, row: dict[str, Any], ids: Sequence[int]) -> tuple[int, ...]:
        """Convert the block ids of a row, which may be private to its session, to ids of the whole trace."""
        if not self.local:
            return tuple(ids)
        names, scope = self._names, row.get("play_id", row.get("session_id"))
        return tuple(names.setdefault((scope, value), len(names)) for value in ids)


def parse_header(row: dict[str, Any], number: Number) -> Header:
    """Parse the first line of an `agentic_mooncake` trace. Raises `TraceError` for another version."""
    if row["schema"] != AGENTIC or row.get("version") != _VERSION:
        raise TraceError(
            f"schema {row['schema']!r}, version {row.get('version')!r}: {AGENTIC!r}, version {_VERSION}, is read"
        )
    scope = row.get("hash_id_scope", "global")
    if scope not in ("global", "local"):
        raise TraceError(f"hash_id_scope must be 'global' or 'local', not {scope!r}")
    return Header(number(row, "block_size", 1, 1 << 20), scope == "local")


def parse_id(row: dict[str, Any], name: str) -> str | int | None:
    """Read the id of a row from the field `name`; None without the field. Raises `TraceError` for a wrong type."""
    value = row.get(name)
    if value is None or type(value) is int or type(value) is str:
        return value
    raise TraceError(f"{name} must be a string or a whole number, not {json.dumps(value):.40}")


def parse_after(row: dict[str, Any], number: Number) -> tuple[Dependency, ...]:
    """Parse the requests that must end, or start, before a row's request starts."""
    if "dependencies" in row:
        return tuple(_dependency(each, number) for each in _list(row, "dependencies"))
    after = _list(row, "after") if row.get("after") is not None else []
    if not after:
        return ()
    delay = number(row, "delay", 0, 1 << 53) if "delay" in row else 0
    for value in after:
        if type(value) not in (str, int):
            raise TraceError(f"after must name requests by their ids, not {value!r:.40}")
    return tuple(Dependency(value, delay) for value in after)


def check_dependencies(requests: Sequence[Any], where: str) -> None:
    """Check the dependencies of a trace. Raises `TraceError` for duplicate ids, missing requests and cycles."""
    known: dict[str | int, int] = {}
    for n, request in enumerate(requests):
        if request.id is not None:
            if request.id in known:
                raise TraceError(f"{where}: two requests are called {request.id!r}")
            known[request.id] = n
    followers: dict[int, list[int]] = {}
    missing = [0] * len(requests)
    for n, request in enumerate(requests):
        for each in request.after:
            if each.id not in known:
                raise TraceError(f"{where}: request {request.id!r} waits for {each.id!r}, which is not in the trace")
            followers.setdefault(known[each.id], []).append(n)
            missing[n] += 1
    ready = [n for n, count in enumerate(missing) if not count]
    seen = 0
    while ready:
        seen += 1
        for n in followers.get(ready.pop(), ()):
            missing[n] -= 1
            if not missing[n]:
                ready.append(n)
    if seen < len(requests):
        stuck = next(n for n, count in enumerate(missing) if count)
        raise TraceError(f"{where}: request {requests[stuck].id!r} waits for requests that wait for it")


def _list(row: dict[str, Any], name: str) -> list[Any]:
    value = row[name]
    if not isinstance(value, list):
        raise TraceError(f"{name} must be a list, not {value!r:.40}")
    return value


def _dependency(row: object, number: Number) -> Dependency:
    if not isinstance(row, dict):
        raise TraceError(f"a dependency must be an object, not {row!r:.40}")
    trigger = row.get("trigger", "completion")
    if trigger not in ("completion", "dispatch"):
        raise TraceError(f"trigger must be 'completion' or 'dispatch', not {trigger!r:.40}")
    name = parse_id(row, "request_id")
    if name is None:
        raise TraceError("a dependency without 'request_id'")
    delay = number(row, "delay_ms", 0, 1 << 53) if "delay_ms" in row else 0
    return Dependency(name, delay, trigger == "dispatch")
