"""Detection of foreign formats of request logs by the fields of a JSON object."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_OPERATIONS = ("resourceSpans", "resource_spans")
_STARTS = ("startTimeUnixNano", "start_time_unix_nano", "start_time", "startTime")

DYNAMO = ("dynamo.request.trace.v1", "dynamo.agent.trace.v1")
"""Schema names in the records of Dynamo's request trace: the current name, then the older one."""


def form_of(row: object) -> str | None:
    """Guess the format of a row of a foreign request log, as a value of `kvatlas trace --from`; None if unknown."""
    if not isinstance(row, Mapping):
        return None
    event = row.get("event")
    if row.get("schema") in DYNAMO or (isinstance(event, Mapping) and event.get("schema") in DYNAMO):
        return "dynamo"
    if {"t", "hashes"} <= row.keys():
        return "record"
    if {"chat_id", "hash_ids"} <= row.keys():
        return "bailian"
    if next(sessions_of(row), None) is not None:
        return "claude-code"
    if "hash_ids" not in row and request_of(row) is not None:
        return "openai"
    if is_log_entry(row):
        return "claude-logs"
    if any(name in row for name in _OPERATIONS) or ("attributes" in row and any(name in row for name in _STARTS)):
        return "otel"
    return None


def request_of(row: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Request to OpenAI's API that a row of a log is or contains; None if there is none."""
    for place in (row, row.get("request"), row.get("body"), row.get("input")):
        if isinstance(place, dict):
            if isinstance(place.get("body"), dict):
                place = place["body"]  # noqa: PLW2901 - one level deeper
            if isinstance(place.get("messages"), list) or isinstance(place.get("prompt"), (str, list)):
                return place
            if isinstance(place.get("input"), (str, list)):
                return place
    return None


def sessions_of(row: object) -> Iterator[Mapping[str, Any]]:
    """Recorded sessions (objects with `requests` and `block_size`) in an object.

    A session is the object itself, or an item of its lists.
    """
    if not isinstance(row, Mapping):
        return
    if {"requests", "block_size"} <= row.keys():
        yield row
        return
    for value in row.values():
        if isinstance(value, list):
            yield from (
                each for each in value if isinstance(each, Mapping) and {"requests", "block_size"} <= each.keys()
            )


def is_log_entry(row: object) -> bool:
    """True if an object is an entry of the logs that Claude Code writes about its sessions."""
    return isinstance(row, Mapping) and "type" in row and ("sessionId" in row or "leafUuid" in row)
